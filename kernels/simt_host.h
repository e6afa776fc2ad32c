/*
 * simt_host.h: runs a block of GPU threads as fibers on the calling thread; behind simt.h.
 *
 * Blocks run one after another, the warps of a block in an order that changes from block to block,
 * the lanes of a warp one by one up to their next barrier. What a GPU would let pass is found here:
 * a barrier that some threads never reach, lanes of one warp at different barriers, a thread that
 * ends without grid_wait. Dynamic shared memory is filled with 0xff before each block.
 */
#ifndef OFFSHOOT_KERNELS_SIMT_HOST_H
#define OFFSHOOT_KERNELS_SIMT_HOST_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { SIMT_WARP = 32, SIMT_MAX_THREADS = 1024, SIMT_WORDS = 12, SIMT_ARG_BYTES = 4 << 10 };

typedef struct {
    unsigned x, y, z;
} SimtDim;

/* Where the running thread is. */
extern SimtDim simt_thread_idx, simt_block_idx, simt_block_dim, simt_grid_dim;
extern unsigned char *simt_shared; /* of the running block */

/*
 * Calls body(arg) for each thread of each block. Blocks are one-dimensional, whole warps, up to
 * SIMT_MAX_THREADS threads. Aborts with what it found when the block can never end.
 */
void simt_launch(SimtDim grid, unsigned block, size_t shared_bytes, void (*body)(void *), void *arg,
                 size_t arg_bytes);

/*
 * With overlap (off at first) a launch runs when the next one comes, or at simt_flush: one block of
 * the next one has then come as far as grid_wait, as on a GPU, and has seen what was there before.
 * simt_after: calls what(arg) when all launches so far have run; up to SIMT_MAX_AFTER at a time.
 */
enum { SIMT_MAX_AFTER = 16 };
void simt_overlap(int on);
void simt_flush(void);
void simt_after(void (*what)(const void *), const void *arg);

/*
 * A graph of launches: between begin and end launches are kept, with the arguments they had, beside
 * being run; simt_record_run runs them again. One at a time is recorded.
 */
typedef struct SimtRecord SimtRecord;
SimtRecord *simt_record_begin(void);
void simt_record_end(void);
int simt_is_recording(void);
void simt_record_run(SimtRecord *r);
void simt_record_free(SimtRecord *r);

/*
 * With 1, launches run their blocks last to first, and warps their lanes from barrier to barrier:
 * what a kernel gives must not change.
 */
void simt_reverse(int on);

/*
 * Shared memory that a block can have, at first as on Hopper; a launch with more ends the program.
 */
enum { SIMT_SHARED_HOPPER = 227 << 10, SIMT_SHARED_ADA = 99 << 10 };
void simt_limit_shared(size_t bytes);
size_t simt_shared_limit(void);

/*
 * The halves of grid_wait in simt.h: waits for the launch before this one; lets the next one begin.
 * simt_grid_trusts: this thread reads, before it waits, what the launch before the last one wrote;
 * the program ends where a thread of the last one lets the next begin before it has waited.
 */
void simt_grid_wait(void);
void simt_grid_next(void);
void simt_grid_trusts(void);

/* Waits for all threads of the block that have not ended. */
void simt_sync_block(const char *file, int line);

/*
 * Waits for all 32 lanes of the warp, all here with the same kind. What each brought (n words, up
 * to SIMT_WORDS), by lane; there until the calling lane's next call.
 */
typedef struct {
    uint32_t word[SIMT_WORDS];
} SimtWords;
const SimtWords *simt_exchange(const uint32_t *word, int n, int kind, const char *file, int line);
int simt_lane(void);

/*
 * Copies of up to 16 bytes that a thread begins and waits for: until then there is 0xff in their
 * place. Groups are what lies between commits; wait returns when all but the thread's last n groups
 * are there. A thread may have SIMT_COPIES at a time.
 */
enum { SIMT_COPIES = 64 };
void simt_begin_copy(void *to, const void *from, size_t bytes);
void simt_copies_commit(void);
void simt_copies_wait(int n);

/* Called for each that has come; NULL, as it is at first: nobody asks. */
extern void (*simt_copied)(const void *to, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
