/*
 * simt_cases.h: kernels that show what each function of kernels/simt.h does; for test_simt.c.
 *
 * Each launches one kernel on the host. Arrays have one element per thread unless it says
 * otherwise.
 */
#ifndef OFFSHOOT_TESTS_SIMT_CASES_H
#define OFFSHOOT_TESTS_SIMT_CASES_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { CASE_THREADS = 96 };

/* What the warp functions give in each thread for x of its own; shuffle from lane `from`. */
typedef struct {
    float x[CASE_THREADS], shuffled[CASE_THREADS], flipped[CASE_THREADS];
    float sum[6][CASE_THREADS], max[6][CASE_THREADS]; /* over 1, 2, 4 .. 32 lanes */
    uint32_t word[CASE_THREADS], words[CASE_THREADS], positive[CASE_THREADS];
    uint32_t largest[CASE_THREADS], smallest[CASE_THREADS];
    int32_t from[CASE_THREADS];
} WarpCase;
void case_warp(WarpCase *c);

/* Each thread of blocks of 32 appends lane + 100 x + 1000 y + 10000 z to seen[*n]. */
void case_blocks(unsigned x, unsigned y, unsigned z, int *seen, int *n);

/*
 * Threads hand numbers round through shared memory, a barrier between steps; x [CASE_THREADS]: in
 * each step a thread adds its right neighbour's. poison: what dynamic memory held at first.
 */
void case_neighbours(int n_steps, uint32_t *x, uint32_t *poison);

/*
 * Each thread copies 16 bytes in each of three groups: from[group][thread] holds 4 words. seen[k]:
 * the words of the thread's own pieces after all but k groups were waited for, k = 3 to 0.
 */
typedef struct {
    uint32_t from[3][CASE_THREADS][4];
    uint32_t seen[4][3][CASE_THREADS][4];
} CopyCase;
void case_copies(CopyCase *c);

/* D += A B; A [16][16], B [16][8], of bf16 or fp16 bits, D [16][8]. */
void case_mma(int is_bf16, const uint16_t *a, const uint16_t *b, float *d);

/* The conversions that kernels use. fp8: two codes, lower first. */
uint32_t case_fp8_pair(uint16_t codes);
uint32_t case_fp16_pair(float first, float second);
uint32_t case_bf16_pair(float first, float second);
float case_fp16_value(uint16_t bits);

/*
 * 16 bytes, on 16, of K or V in f32 or bf16: the values, and the sums of the terms that mma_bf16
 * would be given for them. Returns how many.
 */
int case_kv_values(int is_bf16, const void *bytes, float *x, float *summed);

/*
 * n launches of n blocks of a warp: thread t of block b adds 1 to *x[b] if t is 0; before that it
 * writes what was there, first before grid_wait and then after it, to seen[launch][0..1][b].
 */
enum { OVERLAP_LAUNCHES = 8 };
typedef struct {
    int x[OVERLAP_LAUNCHES];
    int seen[OVERLAP_LAUNCHES][2][OVERLAP_LAUNCHES];
} OverlapCase;
void case_overlap(OverlapCase *c);

/* Kernels that can never end, or end as they must not. */
typedef enum {
    STUCK_HALF_A_WARP, /* only lanes below 16 reach a warp barrier; the others end */
    STUCK_IN_BLOCK,    /* half a warp waits for the warp, the other half for the block */
    STUCK_KINDS,       /* half a warp shuffles while the other votes */
    NO_GRID_WAIT,      /* the last thread ends without it */
    TRUSTS_HASTY,      /* a launch trusts one that lets others begin before it has waited */
    TRUSTS_PATIENT,    /* and one that does not: as it should be */
} StuckCase;
void case_stuck(StuckCase which);

#ifdef __cplusplus
}
#endif

#endif
