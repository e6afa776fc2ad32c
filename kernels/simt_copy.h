/*
 * simt_copy.h: how kernels read global memory, 16 bytes at a time, into registers or beside their
 * work into shared memory; with simt.h.
 */
#ifndef OFFSHOOT_KERNELS_SIMT_COPY_H
#define OFFSHOOT_KERNELS_SIMT_COPY_H

#include "kernels/simt.h"

/* ---- 16 bytes at an address that is a multiple of 16 ---- */

#ifdef __CUDACC__
static __device__ __forceinline__ uint4 load_16(const void *p)
{
    return *(const uint4 *)p;
}
/* Of weights, read once: leaves the L1 cache to others. What kernels write must not be read so: a
 * line that came before grid_wait may be an old one. */
static __device__ __forceinline__ uint4 load_16_once(const void *p)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}
#else
static inline uint4 load_16(const void *p)
{
    uint4 v;
    assert((uintptr_t)p % sizeof v == 0); /* a GPU would fault */
    memcpy(&v, p, sizeof v);
    return v;
}
static inline uint4 load_16_once(const void *p)
{
    return load_16(p);
}
#endif

/*
 * Has n bytes at p, both multiples of 16, brought to the L2 cache while the thread goes on: a hint.
 * Before grid_wait, too, and of what others write: L2 is where all SMs meet. Hopper and later.
 * Source: PTX ISA, cp.async.bulk.prefetch.L2.
 */
#ifdef __CUDACC__
static __device__ __forceinline__ void prefetch_l2(const void *p, uint32_t n)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" : : "l"(p), "r"(n) : "memory");
#endif
}
#else
static inline void prefetch_l2(const void *p, uint32_t n)
{
    const volatile unsigned char *byte = (const volatile unsigned char *)p;
    assert((uintptr_t)p % 16 == 0 && n % 16 == 0);
    if (n) (void)byte[0], (void)byte[n - 1]; /* as far as a hint may reach */
}
#endif

/* ---- 16 or 4 bytes from global to shared memory, copied beside the thread's work ---- */

/*
 * Both addresses are multiples of the number of bytes. copies_commit closes a group of copies;
 * copies_wait<N> waits for all of the thread's groups but the last N. Who waited and passed a
 * barrier may read what the block's threads copied.
 */
#ifdef __CUDACC__
static __device__ __forceinline__ void copy_16(void *shared, const void *global)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                 :
                 : "r"((uint32_t)__cvta_generic_to_shared(shared)), "l"(global)
                 : "memory");
}
static __device__ __forceinline__ void copy_4(void *shared, const void *global)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;"
                 :
                 : "r"((uint32_t)__cvta_generic_to_shared(shared)), "l"(global)
                 : "memory");
}
/* The same where `is` is not 0, without a branch. */
static __device__ __forceinline__ void copy_16_if(int is, void *shared, const void *global)
{
    asm volatile("{.reg .pred %%is; setp.ne.s32 %%is, %2, 0;"
                 " @%%is cp.async.cg.shared.global [%0], [%1], 16;}"
                 :
                 : "r"((uint32_t)__cvta_generic_to_shared(shared)), "l"(global), "r"(is)
                 : "memory");
}
static __device__ __forceinline__ void copy_4_if(int is, void *shared, const void *global)
{
    asm volatile("{.reg .pred %%is; setp.ne.s32 %%is, %2, 0;"
                 " @%%is cp.async.ca.shared.global [%0], [%1], 4;}"
                 :
                 : "r"((uint32_t)__cvta_generic_to_shared(shared)), "l"(global), "r"(is)
                 : "memory");
}
/* Where `is` is 0, zeros; nothing is read. */
static __device__ __forceinline__ void copy_16_or_zeros(int is, void *shared, const void *global)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"((uint32_t)__cvta_generic_to_shared(shared)), "l"(global), "r"(is ? 16 : 0)
                 : "memory");
}
static __device__ __forceinline__ void copies_commit()
{
    asm volatile("cp.async.commit_group;" : : : "memory");
}
template <int N> static __device__ __forceinline__ void copies_wait()
{
    asm volatile("cp.async.wait_group %0;" : : "n"(N) : "memory");
}
#else
static inline void copy_16(void *shared, const void *global)
{
    simt_begin_copy(shared, global, 16);
}
static inline void copy_4(void *shared, const void *global)
{
    simt_begin_copy(shared, global, 4);
}
static inline void copy_16_if(int is, void *shared, const void *global)
{
    if (is) copy_16(shared, global);
}
static inline void copy_4_if(int is, void *shared, const void *global)
{
    if (is) copy_4(shared, global);
}
static inline void copy_16_or_zeros(int is, void *shared, const void *global)
{
    static const uint4 zeros = {};
    copy_16(shared, is ? global : &zeros);
}
static inline void copies_commit()
{
    simt_copies_commit();
}
template <int N> static inline void copies_wait()
{
    simt_copies_wait(N);
}
#endif

#endif
