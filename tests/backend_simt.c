/* backend_simt.c: see backend_simt.h. */
#include "tests/backend_simt.h"

#include <stdio.h>

#include "base/mem.h"
#include "kernels/cuda_backend.h"
#include "kernels/host_memory.h"

/* Small, so that operations over many rows must work in groups. */
enum { SCRATCH_BYTES = 1 << 20 };

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
    cuda_backend_fill(b, &ops_simt);
    b->context.scratch = mem_map(SCRATCH_BYTES);
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

int open_gpu_backends(Backend *gpu[MAX_GPU_BACKENDS])
{
    gpu[0] = backend_simt_open();
    gpu[1] = backend_cuda_open(NULL);
    return gpu[1] ? 2 : 1;
}
