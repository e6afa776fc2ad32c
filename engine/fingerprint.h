/*
 * fingerprint.h: a text that says what states and KV pages mean.
 *
 * Two engines with the same text may read each other's pages and states: same config, same weights
 * (by the sizes, types and some bytes of each tensor and the time of its file) made into the same
 * types, same type of K and V, same operations: the same build of the program, for a kernel may
 * have another order of sums since, on the same kind of GPU. Options that change no matrix count,
 * too.
 */
#ifndef OFFSHOOT_ENGINE_FINGERPRINT_H
#define OFFSHOOT_ENGINE_FINGERPRINT_H

#include "engine/model.h"

enum { FINGERPRINT_SIZE = 160 };

/* has_head: the draft head's rows are in the pages. */
void model_fingerprint(const Model *m, KvType kv_type, int has_head, char text[FINGERPRINT_SIZE]);

#endif
