/*
 * quantise_cpu.c: INT8 weights, vectors along a row, panels over threads. The same bits as the
 * definition.
 */
#include "kernels/isa_ops.h"

#include <assert.h>

enum { VECS = INT8_BLOCK / VEC_N };

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

/* Stores the low bytes of 32-bit lanes, 4 to a line of a panel, in the order of its columns. */
INLINE void store_codes(Vec sum, int8_t *out)
{
    uint32_t word[VEC_N / 4];
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
    UNROLL
    for (int g = 0; g < VEC_N / 4; g++)
        memcpy(out + g * INT8_LINE, &word[g], sizeof *word);
}

/* One row of a block of a panel, n_vecs of codes. */
INLINE int quantise_row(const QuantiseInt *a, int r, int c, int n_vecs, int8_t *code, float *scale)
{
    const Vec magic =
        v_set(12582912.0f); /* 1.5 * 2^23: the integer is in the low bits of the sum */
    Vec v[VECS];
    float inverse;
    load_row(a, r, c, v);
    if (find_scale(v, scale, &inverse)) return -1;
    UNROLL
    for (int k = 0; k < VECS; k++)
        if (k < n_vecs)
            store_codes(v_add(v_mul(v[k], v_set(inverse)), magic),
                        code + k * (VEC_N / 4 * INT8_LINE));
    return 0;
}

/* One block of the panel that begins with row r; zeros where there is no row. */
static int quantise_block(const QuantiseInt *a, int r, int c)
{
    Weight w = {a->to, a->rows, a->cols, a->code, a->scale};
    int rows = a->rows - r < INT8_ROWS ? a->rows - r : INT8_ROWS,
        columns = int8_steps(&w, c) * INT8_STEP;
    int8_t *code = (int8_t *)a->code + weight_int8_code(&w, r, c);
    float *scale = a->scale + weight_int8_scale(&w, r, c);
    if (rows < INT8_ROWS) {
        memset(code, 0, (size_t)columns * INT8_ROWS);
        memset(scale, 0, INT8_ROWS * sizeof *scale);
    }
    for (int i = 0; i < rows; i++)
        if (quantise_row(a, r + i, c, columns / VEC_N, code + 4 * i, scale + i)) return -1;
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
