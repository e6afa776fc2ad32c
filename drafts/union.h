/*
 * union.h: the drafter of two minds: what the sequence said before (suffix.h), and what the model's
 * MTP layer thinks comes next (mtp.h), in one tree.
 *
 * Copies come first, as they cost nothing. Where the engine chooses shapes, the head is asked only
 * for what it is worth beside them; nodes that both guess are known as such (Tree.from), and what
 * that is worth is learnt. In a fixed shape the best nodes of both trees stay, by their own word.
 */
#ifndef OFFSHOOT_DRAFTS_UNION_H
#define OFFSHOOT_DRAFTS_UNION_H

#include "engine/model.h"
#include "spec/drafter.h"

/* ERR_INPUT when the model has no MTP layer. */
int union_drafter_open(const Model *model, Drafter *out, Error *err);

#endif
