/*
 * upload_ring.h: bytes on their way from pageable memory to a device.
 *
 * cudaMemcpyAsync may read pageable memory after it has returned: CUDA leaves open when. So they go
 * through a ring of pinned memory, whose halves are filled in turn: one is used again when the
 * device has read what was sent from it.
 * Source: CUDA Runtime API 13.0, "API synchronization behavior", Memcpy, asynchronous.
 */
#ifndef OFFSHOOT_KERNELS_UPLOAD_RING_H
#define OFFSHOOT_KERNELS_UPLOAD_RING_H

#include <cuda_runtime_api.h>
#include <stddef.h>

enum { UPLOAD_HALF = 1 << 20 }; /* bytes */

typedef struct {
    unsigned char *memory; /* [2][UPLOAD_HALF] */
    cudaEvent_t read[2];   /* what was sent from a half when it was full */
    int half;
    size_t used; /* of it */
} UploadRing;

/* Of a ring of zeros. What failed is closed by upload_ring_close, too. */
cudaError_t upload_ring_open(UploadRing *r);
/* When nothing of it is under way any more. */
void upload_ring_close(UploadRing *r);

/* Queues copies of src, which may change when this returns. Waits only where both halves are full.
 */
cudaError_t upload_ring_send(UploadRing *r, cudaStream_t stream, void *dst, const void *src,
                             size_t bytes);

#endif
