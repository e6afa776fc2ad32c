/*
 * mtp.h: the drafter that is the model's own MTP layer.
 *
 * observe writes the head's K and V for every committed row, from the target's hidden rows (never
 * from the head's own guesses, which are overwritten). propose builds a tree level by level as
 * EAGLE-2 does: expand the top-k nodes of a level by cumulative value, keep the best max_nodes - 1
 * of all.
 */
#ifndef OFFSHOOT_DRAFTS_MTP_H
#define OFFSHOOT_DRAFTS_MTP_H

#include "engine/model.h"
#include "spec/drafter.h"

/* A drafter for one engine over model. ERR_INPUT when the model has no MTP layer. */
int mtp_drafter_open(const Model *model, Drafter *out, Error *err);

#endif
