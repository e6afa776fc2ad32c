/*
 * ptx_run.h: what translated PTX runs on: a thread's view of memory, the warp's instructions, the
 * table of kernels.
 *
 * Threads are the fibers of kernels/simt_host.h. An access is checked as a GPU checks it, and
 * closer: a multiple of its size, within memory that the address space has. A fault prints kernel,
 * block, thread, the PTX line and the source line it came from, and ends the program.
 */
#ifndef OFFSHOOT_TESTS_PTX_RUN_H
#define OFFSHOOT_TESTS_PTX_RUN_H

#include "kernels/simt_host.h"
#include "tests/ptx/device_memory.h"
#include "tests/ptx/ptx_ops.h"
#include "tests/ptx/races.h"

typedef struct {
    uint32_t bytes, align;
} PtxParam;

/* A variable of a module, in global memory. */
typedef struct {
    void *at;
    size_t bytes;
} PtxVariable;

typedef struct {
    const char *module, *name, *file; /* file: its PTX */
    void (*body)(const PtxThread *t);
    const PtxParam *param;
    int n_params;
    uint32_t shared_bytes; /* of its own; dynamic memory begins behind, at a multiple of 16 */
    uint32_t max_threads;  /* .maxntid; 1024 where there is none */
    const PtxVariable *variable;
    int n_variables;
    int wgmma; /* it has such instructions */
} PtxEntry;

/* For a module's constructor. A module is what was compiled from one source: linear of linear.cu.
 */
void ptx_register(const PtxEntry *entry, int n);
const PtxEntry *ptx_find(const char *module, const char *name);

/* What a thread of a launch was given. */
struct PtxThread {
    const PtxEntry *entry;
    uint32_t shared_bytes, param_bytes;
    const unsigned char *param;
    unsigned char *shared;
    uint32_t launch; /* its number, from 1 */
    int early;       /* it may begin while the one before it runs */
};

/* Where parameter i lies among all of a kernel's; for i = n_params, how long they are. */
uint32_t ptx_param_offset(const PtxEntry *entry, int i);

/*
 * Runs (or with early, queues: simt_overlap) a launch. params: as ptx_param_offset lays them.
 * early: it may begin while the one before it runs.
 */
void ptx_launch(const PtxEntry *entry, SimtDim grid, unsigned block, uint32_t dynamic_bytes,
                const void *params, int early);

/* ---- memory ---- */

void *ptx_global_slow(const PtxThread *t, uint64_t at, uint32_t bytes, int line);
void *ptx_generic(const PtxThread *t, uint64_t at, uint32_t bytes, int line, PtxAccess access,
                  void *local, uint32_t local_bytes);
_Noreturn void ptx_fault(const PtxThread *t, const char *space, uint64_t at, uint32_t bytes,
                         int line);
/* A rule that is broken at a line. Ends the program, too. */
_Noreturn void ptx_wrong(const PtxThread *t, int line, const char *what);
/* For messages: where a thread is; what line of source a line of PTX came from. */
enum { PTX_SOURCE_BYTES = 272 };
void ptx_print_place(const PtxThread *t, int line);
const char *ptx_source(const PtxEntry *entry, int line, char place[PTX_SOURCE_BYTES]);

/* A launch as its stores note it; 0 is nobody. */
PTX_OP uint16_t ptx_serial(const PtxThread *t)
{
    return (uint16_t)(t->launch % 0xffff + 1);
}

/* A store is noted: what this launch has written ld.global.nc may not read. */
PTX_OP void *ptx_global(const PtxThread *t, uint64_t at, uint32_t bytes, int line, PtxAccess access)
{
    void *to = (void *)(uintptr_t)(at + (DEVICE_BYTES_AT - DEVICE_MEMORY_AT));
    if (__builtin_expect(!device_memory_has(at, bytes) || at % bytes, 0))
        to = ptx_global_slow(t, at, bytes, line);
    if (access >= PTX_STORE && device_memory_reserved(at))
        *device_memory_writer(at) = ptx_serial(t);
    if (access == PTX_CONSTANT && device_memory_reserved(at) &&
        *device_memory_writer(at) == ptx_serial(t))
        ptx_fault(t, "read-only global (written by this launch)", at, bytes, line);
    if (__builtin_expect(races_watched, 0)) races_global(t, at, bytes, line, access);
    return to;
}

/* For ptx_shared: a kernel that has wgmma stores. */
void ptx_wgmma_stored(const PtxThread *t, uint64_t at, uint32_t bytes);

PTX_OP void *ptx_shared(const PtxThread *t, uint64_t at, uint32_t bytes, int line, PtxAccess access)
{
    if (__builtin_expect(at + bytes > t->shared_bytes || at > t->shared_bytes || at % bytes, 0))
        ptx_fault(t, "shared", at, bytes, line);
    if (access >= PTX_STORE && t->entry->wgmma) ptx_wgmma_stored(t, at, bytes);
    if (__builtin_expect(races_watched, 0)) races_shared(t, at, bytes, line, access);
    return t->shared + at;
}

/* An address of a parameter is a pointer here, as it is an opaque number in PTX. */
PTX_OP void *ptx_param(const PtxThread *t, uint64_t at, uint32_t bytes, int line)
{
    uint64_t in = at - (uintptr_t)t->param;
    if (__builtin_expect(in + bytes > t->param_bytes || in > t->param_bytes || at % bytes, 0))
        ptx_fault(t, "param", in, bytes, line);
    return (void *)(uintptr_t)at;
}

PTX_OP void *ptx_local(const PtxThread *t, uint64_t at, uint32_t bytes, int line, void *local,
                       uint32_t local_bytes)
{
    uint64_t in = at - (uintptr_t)local;
    if (__builtin_expect(in + bytes > local_bytes || in > local_bytes || at % bytes, 0))
        ptx_fault(t, "local", in, bytes, line);
    return (void *)(uintptr_t)at;
}

/* A generic address of shared memory is where the block's lies on the host; others are themselves.
 */
PTX_OP uint64_t ptx_from_shared(const PtxThread *t, uint64_t at)
{
    return (uintptr_t)t->shared + at;
}

PTX_OP uint64_t ptx_to_shared(const PtxThread *t, uint64_t at)
{
    return at - (uintptr_t)t->shared;
}

/* ---- instructions of a warp, a block, a grid ---- */

typedef struct {
    float x[4];
} PtxFour;

/* Tensor cores cut what does not fit f32 instead of rounding it. */
float ptx_cut(double x);

/* A value of D, by either product: 16 products are added to what was there, then cut. */
PTX_OP float ptx_add_products(double sum, const float a[16], const float b[16])
{
    for (int k = 0; k < 16; k++)
        sum += (double)a[k] * (double)b[k];
    return ptx_cut(sum);
}

/* m16n8k16, row.col, f32 accumulators: d = a b + c. */
PtxFour ptx_mma_bf16(const PtxThread *t, int line, uint32_t a0, uint32_t a1, uint32_t a2,
                     uint32_t a3, uint32_t b0, uint32_t b1, float c0, float c1, float c2, float c3);
PtxFour ptx_mma_f16(const PtxThread *t, int line, uint32_t a0, uint32_t a1, uint32_t a2,
                    uint32_t a3, uint32_t b0, uint32_t b1, float c0, float c1, float c2, float c3);

/*
 * wgmma, m64nNk16: d = a b + (adds ? d : 0). a: four registers, or a descriptor; b: a descriptor.
 * Descriptors are of swizzled rows of 128 bytes: a row of A or a column of B along k or, where B is
 * transposed, the 64 columns of a k. The products are there at once, which no program may count on;
 * what is watched is memory: what is read of it must have been shown (fence.proxy.async) by the
 * thread that stored it, or waited for its copy, before that thread's last barrier, and be the same
 * at the wait that ends the group. A product whose group is not committed, or a kernel that ends
 * before it has waited, is a fault, as is a product that is not the same for all of a warpgroup.
 */
typedef enum { PTX_F16, PTX_BF16 } PtxHalf;
void ptx_wgmma_registers(const PtxThread *t, int line, PtxHalf kind, int n, float *d,
                         const uint32_t a[4], uint64_t b, int transposed, int adds);
void ptx_wgmma_shared(const PtxThread *t, int line, PtxHalf kind, int n, float *d, uint64_t a,
                      uint64_t b, int adds);
void ptx_wgmma_fence(const PtxThread *t, int line);
void ptx_wgmma_commit(const PtxThread *t, int line);
void ptx_wgmma_wait(const PtxThread *t, int line, uint32_t n);
void ptx_show_shared(void);
/* For ptx_run.c: the thread has passed a barrier of the block, ended. */
void ptx_wgmma_passed(void);
void ptx_wgmma_end(const PtxThread *t);

/* shfl.sync, mode i(dx), b(fly), u(p), d(own); *in_range is the predicate. */
uint32_t ptx_shfl(const PtxThread *t, int line, char mode, uint32_t a, uint32_t b, uint32_t c,
                  uint32_t mask, int *in_range);
uint32_t ptx_ballot(const PtxThread *t, int line, int predicate, uint32_t mask);
uint32_t ptx_redux_max(const PtxThread *t, int line, uint32_t x, uint32_t mask);
uint32_t ptx_redux_min(const PtxThread *t, int line, uint32_t x, uint32_t mask);
void ptx_warp_sync(const PtxThread *t, int line, uint32_t mask);
void ptx_block_sync(const PtxThread *t, int line, uint32_t barrier);

/*
 * cp.async of 4, 8 or 16 bytes, its groups. Of the bytes `read` are read, all or none, the others
 * are 0.
 */
void ptx_copy(const PtxThread *t, int line, uint64_t shared, uint64_t global, uint32_t bytes,
              uint32_t read);
void ptx_copies_commit(void);
/* cp.async.bulk.prefetch.L2: all of it must be there; of weights, which nobody writes. */
void ptx_prefetch(const PtxThread *t, int line, uint64_t global, uint32_t bytes);
void ptx_copies_wait(const PtxThread *t, int line, uint32_t n);

/* griddepcontrol. What may begin early begins anyway, whenever a launch lets it. */
void ptx_launch_dependents(void);
void ptx_grid_wait(const PtxThread *t);

#endif
