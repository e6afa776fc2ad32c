/*
 * slots.h: who holds which recurrent state.
 *
 * A slot holds the state of all recurrent layers after one token of one sequence. Attention KV can
 * be cut back to a shorter length; a recurrent state cannot. So each node of a draft tree writes
 * its own slot, and accepting a path is choosing a slot: no state is copied back. Slots are
 * counted: a slot is free when nobody holds it. This file moves no bytes; the states themselves are
 * in engine/memory.h.
 */
#ifndef OFFSHOOT_ENGINE_SLOTS_H
#define OFFSHOOT_ENGINE_SLOTS_H

#include <stdint.h>

typedef struct SlotPool SlotPool;

SlotPool *slots_open(int n_slots);
void slots_close(SlotPool *pool);

/*
 * Claims up to n slots, indices into slot[], each with one holder; returns how many. A full pool
 * means a smaller tree, never an error. Claimed slots hold old data; the caller writes a slot
 * before anyone reads it.
 */
int slots_claim(SlotPool *pool, int n, int32_t *slot);

/* One more holder of a slot in use. */
void slots_hold(SlotPool *pool, int32_t slot);

/* One holder fewer; the last one frees the slot. */
void slots_release(SlotPool *pool, int32_t slot);

/*
 * Makes slot[winner] the main slot: drops the hold on *main_slot unless it is the winner, and on
 * the other n - 1 of slot[]. No device work; cannot fail. winner is -1 when the main slot itself,
 * written in place, stays.
 */
void slots_promote(SlotPool *pool, int32_t *main_slot, const int32_t *slot, int n, int winner);

int slots_refs(const SlotPool *pool, int32_t slot);
int slots_free_count(const SlotPool *pool);

#endif
