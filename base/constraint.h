/*
 * constraint.h: what an answer must look like, as the engine asks for it.
 *
 * A grammar's state goes the way of a recurrent one: each node of a draft tree has its own, made of
 * its parent's and its token, and that of the last kept node becomes the sequence's. Nothing is
 * ever undone. The engine knows states by the numbers of their nodes, 0 for the root; all calls
 * come from its thread, and none may allocate.
 */
#ifndef OFFSHOOT_BASE_CONSTRAINT_H
#define OFFSHOOT_BASE_CONSTRAINT_H

#include <stdint.h>

enum { CONSTRAINT_FULL = -2 };

typedef struct {
    void *self; /* NULL: anything goes */
    /* The answer begins, as the engine's sequence seq, whose last answer has ended. */
    void (*begin)(void *self, int seq);
    /*
     * Makes state `to` of state `from` and the token after it; 0, or -1 where the token may not
     * come there, and `to` has no state. CONSTRAINT_FULL: it may come, but what follows it cannot
     * be told; so a draft, to > 0, is also refused for want of room.
     * With to == 0 it is the sequence's from now on; the others are gone. A tree's nodes are made
     * in their order: with its first, 1 from 0, those of the tree before are gone.
     */
    int (*step)(void *self, int from, int32_t token, int to);
    /*
     * Sets the bits of mask, over the vocabulary, to the ids that may follow state: at least one.
     * -1: that cannot be told, or takes too long, and mask has nothing. Where a draft's was told
     * once, it is again, up to the next step to 0.
     */
    int (*allowed)(void *self, int state, uint64_t *mask);
} Constraint;

#endif
