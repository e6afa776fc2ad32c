/* backend_simt.c: see backend_simt.h. */
#include "tests/backend_simt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/cuda_backend.h"
#include "kernels/host_memory.h"

/* Small, so that operations over many rows must work in groups. */
enum { SCRATCH_BYTES = 1 << 20, GUARD_BYTES = 64 << 10 };

/* Each operation finds NaN in its scratch, and ends the program when it writes beyond it. */
static void check_guard(const CudaContext *c, const char *op)
{
    const unsigned char *guard = c->scratch + c->scratch_bytes;
    for (int i = 0; i < GUARD_BYTES; i++)
        if (guard[i] != 0xff) {
            fprintf(stderr, "%s writes byte %d beyond its scratch\n", op, i);
            abort();
        }
}

#define CHECKED(op, Args)                                                                          \
    static void op(const CudaContext *c, const Args *a)                                            \
    {                                                                                              \
        memset(c->scratch, 0xff, c->scratch_bytes + GUARD_BYTES);                                  \
        ops_simt.op(c, a);                                                                         \
        check_guard(c, #op);                                                                       \
    }
CUDA_OPERATIONS(CHECKED)

#define CHECKED_ENTRY(op, Args) op,
static const CudaOps checked_ops = {CUDA_OPERATIONS(CHECKED_ENTRY)};

static void simt_close(Backend *be)
{
    CudaBackend *b = (CudaBackend *)be;
    mem_unmap(b->context.scratch);
    mem_free(b);
}

Backend *backend_simt_open(void)
{
    CudaBackend *b = mem_alloc(1, sizeof *b);
    Backend *be = &b->be;
    host_memory_fill(be);
    cuda_backend_fill(b, &checked_ops);
    b->context.scratch = mem_map(SCRATCH_BYTES + GUARD_BYTES);
    b->context.scratch_bytes = SCRATCH_BYTES;
    be->name = "simt";
    snprintf(be->isa, sizeof be->isa, "simt");
    be->n_threads = 1;
    be->is_host = 0; /* loading goes the way of a device */
    be->close = simt_close;
    return be;
}

int is_simt(const Backend *be)
{
    return be->close == simt_close;
}

int gpu_only(void)
{
    return getenv("OFFSHOOT_TEST_GPU_ONLY") != NULL;
}

int open_gpu_backends(Backend *gpu[MAX_GPU_BACKENDS])
{
    Error err = {0};
    int n = 0;
    if (!gpu_only()) gpu[n++] = backend_simt_open();
    gpu[n] = backend_cuda_open(&err);
    if (!gpu[n] && gpu_only()) {
        fprintf(stderr, "%s\n", err.msg);
        abort();
    }
    return n + (gpu[n] != NULL);
}
