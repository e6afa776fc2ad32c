/*
 * races.h: finds what only the order of a GPU's threads decides: two accesses of a byte by threads
 * that nothing orders, one of them a store.
 *
 * A run on the host takes one order; noted here is what order the program asks for. Threads of a
 * block are ordered by its barriers, lanes of a warp by bar.warp.sync too (shuffles and products
 * order no memory), blocks of a launch by tickets alone, launches by griddepcontrol.wait: before it
 * a thread loads nothing that a launch still running may have written, and stores nothing; fresh
 * loads may trust the launch before (simt_grid_trusts) and find what those before it left. Atomic
 * accesses may meet each other. A ticket is an atomic access with .acq_rel: what a thread did
 * before it, and others of its block before a barrier before it, comes before what follows a later
 * one of the same place, in that thread and behind the next barrier of its block.
 *
 * Of global memory stores alone are noted, in 32 bytes for each byte. So a store that must come
 * behind another thread's load is found where it happens to run first: between blocks and lanes in
 * one of both orders, between warps by chance. And of loads before griddepcontrol.wait those by the
 * block that begins early are not found, for what they should not see has not been stored yet.
 */
#ifndef OFFSHOOT_TESTS_PTX_RACES_H
#define OFFSHOOT_TESTS_PTX_RACES_H

#include <stdint.h>

typedef struct PtxThread PtxThread;

typedef enum {
    PTX_LOAD,
    PTX_FRESH, /* past the L1 cache */
    PTX_CONSTANT,
    PTX_STORE,
    PTX_ATOMIC,
    PTX_TICKET
} PtxAccess;

/*
 * Whether anything is watched, by OFFSHOOT_PTX_RACES: "forward" or "reverse", the order in which
 * blocks and lanes run.
 */
extern int races_watched;

/* All launches so far have ended. */
void races_settle(void);

/* The running thread begins; has waited for the launch before; has passed a barrier. */
void races_begin(const PtxThread *t);
void races_grid_wait(const PtxThread *t);
void races_block_sync(const PtxThread *t, int line);
void races_warp_sync(const PtxThread *t, int line);

/* It touches bytes. A race names both places and ends the program. */
void races_shared(const PtxThread *t, uint64_t at, uint32_t bytes, int line, PtxAccess access);
void races_global(const PtxThread *t, uint64_t at, uint32_t bytes, int line, PtxAccess access);

#endif
