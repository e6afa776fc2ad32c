/*
 * linear_vec_bf16.h: x of BF16_BOTH for linear_cpu.c's products in vectors: rows of bf16 where the
 * CPU multiplies and adds pairs of them fast (AVX-512 BF16 of AMD's), else rounded, but as wide as
 * before. With AVX-512 but without such pairs linear_vec_halves.h rounds them.
 *
 * Pairs are two products an instruction, W needs no widening and x is half as large: 1.8 times the
 * rate of x in f32 (Zen 4: 104 of 118 G multiply-adds/s of one core, W from L2; 54 of 59). Intel's
 * Emerald Rapids begins one such instruction in two cycles, half of the products of f32: there x is
 * rounded, too (0.8 of the time of pairs for 16 rows, 0.7 for 64).
 *
 * Against the definition: x is what it says, but that pairs take subnormals as zero; sums as
 * linear_cpu.c's.
 */
#ifndef OFFSHOOT_KERNELS_LINEAR_VEC_BF16_H
#define OFFSHOOT_KERNELS_LINEAR_VEC_BF16_H

#include "kernels/linear_cpu.h"
#include "kernels/vec_int.h"

/* Where pairs may be: a CPU with VNNI is asked whether it has them, and fast. */
#if VEC_ISA == 512 && INT8_BYTES && !VEC_TILES
#define BF16_PAIRS 1
#else
#define BF16_PAIRS 0
#endif

INLINE int has_pairs(void)
{
#if BF16_PAIRS
    return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_is("amd");
#else
    return 0;
#endif
}

/* Floats from a row to the next: a line more than it needs, so that they share few sets of L1. */
INLINE int64_t both_stride(int cols)
{
    const int line = CACHE_LINE / 4;
    int floats = BF16_PAIRS ? (cols + 1) / 2 : cols;
    return (floats + line - 1) / line * line + line;
}

INLINE void both_pack_row(const float *x, int cols, float *out)
{
#if BF16_PAIRS
    uint16_t *pairs = (uint16_t *)(void *)out;
    for (int k = 0; k < cols; k += VEC_N) {
        int n = cols - k < VEC_N ? cols - k : VEC_N;
        _mm256_mask_storeu_epi16(pairs + k, v_mask(n), v_narrow(v_load_some(x + k, n)));
    }
#else
    for (int k = 0; k < cols; k++)
        out[k] = bf16_to_float(bf16_from_float(x[k]));
#endif
}

/* Part `part` of the packing of n rows. */
INLINE void both_pack(const float *const *x, int n, int cols, int part, int n_parts, float *terms)
{
    int64_t begin, end;
    cpu_split(n, part, n_parts, &begin, &end);
    for (int64_t i = begin; i < end; i++)
        both_pack_row(x[i], cols, terms + i * both_stride(cols));
}

#endif
