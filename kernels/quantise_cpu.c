/*
 * quantise_cpu.c: INT8 and INT4 weights, vectors along a row, panels over threads. The same bits as
 * the definition.
 */
#include "kernels/isa_ops.h"

#include <assert.h>
#include <math.h>

enum {
    VECS = INT8_BLOCK / VEC_N,
    RUN_VECS = INT4_RUN / VEC_N,
};

/* 1.5 * 2^23: a sum with it is rounded to an integer, which is in its low bits. */
static const float MAGIC = 12582912.0f;

/* 256 elements of a row from column c on, zeros past its end. */
INLINE void load_row(const QuantiseInt *a, int r, int c, Vec v[VECS])
{
    size_t i = (size_t)r * (size_t)a->cols + (size_t)c;
    int n = a->cols - c < INT8_BLOCK ? a->cols - c : INT8_BLOCK;
    const size_t size = (size_t)weight_element_bytes(a->from);
    const char *at = (const char *)a->data + size * i;
    char copy[4 * INT8_BLOCK];
    if (n < INT8_BLOCK) {
        memset(copy, 0, sizeof copy);
        at = memcpy(copy, at, size * (size_t)n);
    }
    UNROLL
    for (int k = 0; k < VECS; k++)
        v[k] = size == 4 ? v_load((const float *)(const void *)at + k * VEC_N)
                         : v_bf16((const uint16_t *)(const void *)at + k * VEC_N);
}

/* The scale of 256 elements and what they are multiplied by; -1 if one is not finite. */
INLINE int find_scale(const Vec v[VECS], float *scale, float *inverse)
{
    Vec most = v_set(0), none = v_set(0);
    UNROLL
    for (int k = 0; k < VECS; k++) {
        most = v_max(most, v_max(v[k], v_sub(v_set(0), v[k])));
        none = v_fma(v[k], v_set(0), none); /* NaN for what is not finite */
    }
    float largest = v_largest(most);
    *scale = 1, *inverse = 0;
    if (v_sum(none) != 0) return -1;
    if (largest < INT8_TINY) return 0;
    *scale = largest / INT8_LARGEST_CODE;
    *inverse = INT8_LARGEST_CODE / largest;
    return 0;
}

/* The low bytes of 32-bit lanes, 4 a word in the order of a panel's columns. */
INLINE void low_bytes(Vec sum, uint32_t word[VEC_N / 4])
{
#if VEC_ISA == 512
    __m512i bits = _mm512_shuffle_epi32(_mm512_castps_si512(sum), _MM_PERM_DBCA);
    _mm_storeu_si128((__m128i *)(void *)word, _mm512_cvtepi32_epi8(bits));
#elif VEC_ISA == 2
    const __m256i low = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 8, 4, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1));
    __m256i bytes = _mm256_shuffle_epi8(_mm256_castps_si256(sum), low);
    word[0] = (uint32_t)_mm256_extract_epi32(bytes, 0);
    word[1] = (uint32_t)_mm256_extract_epi32(bytes, 4);
#else
    uint32_t bits[VEC_N];
    memcpy(bits, &sum, sizeof bits);
    word[0] = (bits[0] & 255) | (bits[2] & 255) << 8 | (bits[1] & 255) << 16 | bits[3] << 24;
#endif
}

/* Codes of INT8, a word to a line of a panel. */
INLINE void store_codes(Vec sum, uint8_t *out)
{
    uint32_t word[VEC_N / 4];
    low_bytes(sum, word);
    UNROLL
    for (int g = 0; g < VEC_N / 4; g++)
        memcpy(out + g * INT8_LINE, &word[g], sizeof *word);
}

/* ---- INT4: a run ---- */

/* A step and a middle that are tried: bits = (t + minus) * inverse; both in units of t. */
typedef struct {
    float step, minus, inverse;
} Int4Try;

/* The bits of a run's integers t, to which MAGIC is added. */
INLINE Vec bits_with(Int4Try a, Vec t)
{
    Vec bits = v_mul(v_add(t, v_set(a.minus)), v_set(a.inverse));
    bits = v_add(bits, v_set(MAGIC));
    return v_max(v_set(MAGIC), v_min(bits, v_set(MAGIC + INT4_LARGEST)));
}

/* The sum of squares, spread over lanes: of integers, exact in any order, as these products are. */
INLINE Vec errors_with(Int4Try a, const Vec t[RUN_VECS])
{
    Vec error = v_set(0);
    UNROLL
    for (int k = 0; k < RUN_VECS; k++) {
        Vec bits = v_sub(bits_with(a, t[k]), v_set(MAGIC));
        Vec off = v_fma(bits, v_set(-a.step), v_add(t[k], v_set(a.minus)));
        error = v_fma(off, off, error);
    }
    return error;
}

/* The middle of a run whose ends' sum is given, moved by d quarters of a step. */
INLINE Int4Try try_with(float step, float inverse, float d, float sum_of_ends)
{
    const float top = INT4_FINER * INT4_LARGEST * step, largest = INT4_FINER * INT8_LARGEST_CODE;
    float m = (top - sum_of_ends + 4 * d * step) / (2 * INT4_FINER) + MAGIC - MAGIC;
    m *= INT4_FINER;
    m = m > top - largest ? m : top - largest;
    m = m < largest ? m : largest;
    return (Int4Try){INT4_FINER * step, m, inverse};
}

INLINE Int4Try best_run(const Vec t[RUN_VECS])
{
    Vec most = t[0], least = v_sub(v_set(0), t[0]);
    UNROLL
    for (int k = 1; k < RUN_VECS; k++)
        most = v_max(most, t[k]), least = v_max(least, v_sub(v_set(0), t[k]));
    const float hi = v_largest(most), lo = -v_largest(least);
    int widest = (int)ceilf((hi - lo) / (INT4_FINER * INT4_LARGEST));
    widest = widest < 1 ? 1 : widest > INT4_LARGEST_STEP ? INT4_LARGEST_STEP : widest;
    int32_t best = INT32_MAX; /* error and which one, so that no branch hangs on chance */
    for (int i = 0; i < INT4_TRIED && i < widest; i++) {
        float s = (float)(widest - i), inverse = 1 / (INT4_FINER * s), error[4];
        v_sum4(errors_with(try_with(s, inverse, -1, lo + hi), t),
               errors_with(try_with(s, inverse, 0, lo + hi), t),
               errors_with(try_with(s, inverse, 1, lo + hi), t), v_set(0), error);
        UNROLL
        for (int d = 0; d < 3; d++) {
            int32_t key = (int32_t)error[d] << 4 | (3 * i + d);
            best = key < best ? key : best;
        }
    }
    const int32_t narrower = (best & 15) / 3, d = (best & 15) % 3 - 1;
    const float s = (float)(widest - narrower);
    return try_with(s, 1 / (INT4_FINER * s), (float)d, lo + hi);
}

/* A run of a row: its step and offset at head, its bits 8 columns a line from `line` on. */
INLINE void quantise_run(const Vec v[RUN_VECS], float inverse, uint8_t *head, uint8_t *line)
{
    Vec t[RUN_VECS];
    uint32_t word[INT4_RUN / 4];
    UNROLL
    for (int k = 0; k < RUN_VECS; k++) {
        Vec finer = v_mul(v_mul(v[k], v_set(inverse)), v_set(INT4_FINER));
        t[k] = v_sub(v_add(finer, v_set(MAGIC)), v_set(MAGIC));
    }
    Int4Try best = best_run(t);
    head[0] = (uint8_t)(best.step / INT4_FINER);
    head[1] = (uint8_t)(128 - (int)(best.minus / INT4_FINER));
    UNROLL
    for (int k = 0; k < RUN_VECS; k++)
        low_bytes(bits_with(best, t[k]), word + k * (VEC_N / 4));
    for (int i = 0; i < INT4_RUN / 8; i++) {
        uint32_t both = word[2 * i] | word[2 * i + 1] << 4;
        memcpy(line + i * INT8_LINE, &both, sizeof both);
    }
}

/* ---- a matrix ---- */

/* Row i of 16 of a block of a panel, n_vecs of codes: v times inverse. */
INLINE void store_row(WeightType to, const Vec v[VECS], float inverse, int n_vecs, int i,
                      uint8_t *block)
{
    if (to == WEIGHT_INT8) {
        UNROLL
        for (int k = 0; k < VECS; k++)
            if (k < n_vecs)
                store_codes(v_add(v_mul(v[k], v_set(inverse)), v_set(MAGIC)),
                            block + 4 * i + k * (VEC_N / 4 * INT8_LINE));
        return;
    }
    for (int k = 0; k < n_vecs; k += RUN_VECS) {
        int c = k * VEC_N;
        uint8_t *step = block + c / INT8_STEP * INT4_STEP_BYTES;
        quantise_run(v + k, inverse, step + int4_run(i, c), step + int4_bits(i, c));
    }
}

/* One block of the panel that begins with row r; zeros where there is no row. */
static int quantise_block(const QuantiseInt *a, int r, int c)
{
    Weight w = {a->to, a->rows, a->cols, a->code, a->scale};
    const int n_vecs = int8_steps(&w, c) * INT8_STEP / VEC_N;
    int64_t at = a->to == WEIGHT_INT8 ? weight_int8_code(&w, r, c) : weight_int4_step(&w, r, c);
    float *scale = a->scale + weight_int8_scale(&w, r, c);
    for (int i = 0; i < INT8_ROWS; i++) {
        Vec v[VECS];
        float inverse = 0;
        if (r + i < a->rows) {
            load_row(a, r + i, c, v);
            if (find_scale(v, scale + i, &inverse)) return -1;
        } else {
            UNROLL
            for (int k = 0; k < VECS; k++)
                v[k] = v_set(0);
            scale[i] = 0;
        }
        store_row(a->to, v, inverse, n_vecs, i, (uint8_t *)a->code + at);
    }
    return 0;
}

typedef struct {
    const QuantiseInt *a;
    int failed; /* set by any thread */
} Job;

static void quantise_part(const void *arg, int part, int n_parts)
{
    Job *job = (Job *)(uintptr_t)arg;
    const QuantiseInt *a = job->a;
    int64_t begin, end, blocks = int8_blocks(a->cols);
    cpu_split((a->rows + INT8_ROWS - 1) / INT8_ROWS, part, n_parts, &begin, &end);
    for (int64_t i = begin * blocks; i < end * blocks; i++)
        if (quantise_block(a, (int)(i / blocks) * INT8_ROWS, (int)(i % blocks) * INT8_BLOCK)) {
            __atomic_store_n(&job->failed, -1, __ATOMIC_RELAXED);
            return;
        }
}

int ISA_NAME(quantise_int)(Threads *t, const QuantiseInt *a)
{
    assert(a->from == WEIGHT_F32 || a->from == WEIGHT_BF16);
    Job job = {a, 0};
    cpu_run(t, (int64_t)a->rows * a->cols, quantise_part, &job);
    return job.failed;
}
