/*
 * inline.h: small functions that the host and a GPU compute alike, from one source.
 */
#ifndef OFFSHOOT_KERNELS_INLINE_H
#define OFFSHOOT_KERNELS_INLINE_H

#ifdef __CUDACC__
#define SHARED_INLINE static __host__ __device__ inline
#else
#define SHARED_INLINE static inline
#endif

#endif
