/*
 * wgmma_check.h: whether a GPU's wgmma gives the bits of its mma.
 *
 * Rows go by one or the other by their number (linear.cu, moe.cu), so only where both add up alike
 * may wgmma be used. That no document says; so the GPU is asked, when it is opened.
 */
#ifndef OFFSHOOT_KERNELS_WGMMA_CHECK_H
#define OFFSHOOT_KERNELS_WGMMA_CHECK_H

#include "kernels/cuda_backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Multiplies random FP8 weights by random x both ways, x as two terms and as one; b has its
 * scratch. 1, and b->context.wgmma is set, where all bits are the same; else 0 and it is not.
 */
int wgmma_check(CudaBackend *b);

#ifdef __cplusplus
}
#endif

#endif
