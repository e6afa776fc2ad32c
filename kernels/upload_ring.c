/* upload_ring.c: see upload_ring.h. */
#include "kernels/upload_ring.h"

#include <string.h>

enum { ALIGN = 256 }; /* of what is sent at a time */

cudaError_t upload_ring_open(UploadRing *r)
{
    void *memory = NULL;
    cudaError_t failed = cudaHostAlloc(&memory, 2 * UPLOAD_HALF, cudaHostAllocDefault);
    r->memory = memory;
    for (int i = 0; i < 2 && !failed; i++)
        failed = cudaEventCreateWithFlags(&r->read[i], cudaEventDisableTiming);
    return failed;
}

void upload_ring_close(UploadRing *r)
{
    for (int i = 0; i < 2; i++)
        if (r->read[i]) cudaEventDestroy(r->read[i]);
    if (r->memory) cudaFreeHost(r->memory);
    *r = (UploadRing){0};
}

/* To the other half. */
static cudaError_t turn(UploadRing *r, cudaStream_t stream)
{
    cudaError_t failed = cudaEventRecord(r->read[r->half], stream);
    r->half = !r->half;
    r->used = 0;
    return failed ? failed : cudaEventSynchronize(r->read[r->half]);
}

cudaError_t upload_ring_send(UploadRing *r, cudaStream_t stream, void *dst, const void *src,
                             size_t bytes)
{
    cudaError_t failed = cudaSuccess;
    for (size_t done = 0, n; done < bytes && !failed; done += n) {
        if (r->used == UPLOAD_HALF && (failed = turn(r, stream))) break;
        unsigned char *at = r->memory + (size_t)r->half * UPLOAD_HALF + r->used;
        n = bytes - done < UPLOAD_HALF - r->used ? bytes - done : UPLOAD_HALF - r->used;
        memcpy(at, (const char *)src + done, n);
        failed = cudaMemcpyAsync((char *)dst + done, at, n, cudaMemcpyHostToDevice, stream);
        r->used += (n + ALIGN - 1) / ALIGN * ALIGN;
    }
    return failed;
}
