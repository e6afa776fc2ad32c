/*
 * unpack_int4.h: INT4's codes as INT8 has them, for linear_int8.h.
 *
 * A step of at most 16 times 4 bits stays in a byte, so that one product of 16 bits is two of
 * bytes: some 4 instructions for 64 codes. A file may hold larger steps: then codes are what comes
 * of it.
 */
#ifndef OFFSHOOT_KERNELS_UNPACK_INT4_H
#define OFFSHOOT_KERNELS_UNPACK_INT4_H

#include "kernels/vec.h"
#include "kernels/weight.h"

enum { INT4_RUN_LINES = INT4_RUN / 8 };

/* A run of 16 rows: step and offset of each, then lines. */
#if VEC_ISA == 512
/* Both for 16 rows, as 64 bytes are multiplied by and added to. */
typedef struct {
    __m512i step, offset;
} Int4Heads;

INLINE Int4Heads int4_heads(const uint8_t *head)
{
    const __m512i heads = _mm512_cvtepu16_epi32(
                      _mm256_loadu_si256((const __m256i *)(const void *)head)),
                  steps = _mm512_set4_epi32((int)0x800c800c, (int)0x80088008, (int)0x80048004,
                                            (int)0x80008000),
                  offsets = _mm512_set4_epi32(0x0d0d0d0d, 0x09090909, 0x05050505, 0x01010101);
    return (Int4Heads){_mm512_shuffle_epi8(heads, steps), _mm512_shuffle_epi8(heads, offsets)};
}

/* Codes + 128 of the lower or the upper 4 bits. */
INLINE __m512i int4_low(__m512i bits, Int4Heads of)
{
    bits = _mm512_and_si512(bits, _mm512_set1_epi8(15));
    return _mm512_add_epi8(_mm512_mullo_epi16(bits, of.step), of.offset);
}

INLINE __m512i int4_high(__m512i bits, Int4Heads of)
{
    return int4_low(_mm512_srli_epi16(bits, 4), of);
}

INLINE void int4_unpack_run(const uint8_t *head, const uint8_t *line, int8_t *code)
{
    Int4Heads of = int4_heads(head);
    of.offset = _mm512_xor_si512(of.offset, _mm512_set1_epi8(-128));
    for (int i = 0; i < INT4_RUN_LINES; i++, line += INT8_LINE, code += 2 * INT8_LINE) {
        __m512i bits = _mm512_loadu_si512(line);
        _mm512_storeu_si512(code, int4_low(bits, of));
        _mm512_storeu_si512(code + INT8_LINE, int4_high(bits, of));
    }
}
#elif VEC_ISA == 2
INLINE void int4_unpack_run(const uint8_t *head, const uint8_t *line, int8_t *code)
{
    const __m256i half = _mm256_set1_epi8(15);
    for (int r = 0; r < INT8_ROWS; r += 8) {
        __m256i heads = _mm256_cvtepu16_epi32(
                    _mm_loadu_si128((const __m128i *)(const void *)(head + 2 * r))),
                one = _mm256_and_si256(heads, _mm256_set1_epi32(255)),
                step = _mm256_or_si256(one, _mm256_slli_epi32(one, 16)),
                offset = _mm256_shuffle_epi8(
                    heads, _mm256_setr_epi32(0x01010101, 0x05050505, 0x09090909, 0x0d0d0d0d,
                                             0x01010101, 0x05050505, 0x09090909, 0x0d0d0d0d));
        offset = _mm256_xor_si256(offset, _mm256_set1_epi8(-128));
        for (int i = 0; i < INT4_RUN_LINES; i++) {
            __m256i bits = _mm256_loadu_si256(
                        (const __m256i *)(const void *)(line + i * INT8_LINE + 4 * r)),
                    low = _mm256_and_si256(bits, half),
                    high = _mm256_and_si256(_mm256_srli_epi16(bits, 4), half);
            int8_t *to = code + 2 * i * INT8_LINE + 4 * r;
            low = _mm256_add_epi8(_mm256_mullo_epi16(low, step), offset);
            high = _mm256_add_epi8(_mm256_mullo_epi16(high, step), offset);
            _mm256_storeu_si256((__m256i *)(void *)to, low);
            _mm256_storeu_si256((__m256i *)(void *)(to + INT8_LINE), high);
        }
    }
}
#elif defined __aarch64__
INLINE void int4_unpack_run(const uint8_t *head, const uint8_t *line, int8_t *code)
{
    const uint8x16_t half = vdupq_n_u8(15), top = vdupq_n_u8(128);
    const uint8x16_t steps = {0, 0, 0, 0, 2, 2, 2, 2, 4, 4, 4, 4, 6, 6, 6, 6};
    const uint8x16_t offsets = vaddq_u8(steps, vdupq_n_u8(1));
    for (int r = 0; r < INT8_ROWS; r += 4) {
        uint8x16_t heads = vcombine_u8(vld1_u8(head + 2 * r), vdup_n_u8(0));
        uint8x16_t step = vqtbl1q_u8(heads, steps);
        uint8x16_t offset = veorq_u8(vqtbl1q_u8(heads, offsets), top);
        for (int i = 0; i < INT4_RUN_LINES; i++) {
            uint8x16_t bits = vld1q_u8(line + i * INT8_LINE + 4 * r);
            uint8x16_t low = vmlaq_u8(offset, vandq_u8(bits, half), step);
            uint8x16_t high = vmlaq_u8(offset, vshrq_n_u8(bits, 4), step);
            int8_t *to = code + 2 * i * INT8_LINE + 4 * r;
            vst1q_s8(to, vreinterpretq_s8_u8(low));
            vst1q_s8(to + INT8_LINE, vreinterpretq_s8_u8(high));
        }
    }
}
#else
INLINE void int4_unpack_run(const uint8_t *head, const uint8_t *line, int8_t *code)
{
    for (int i = 0; i < INT4_RUN_LINES; i++, line += INT8_LINE, code += 2 * INT8_LINE)
        for (int k = 0; k < INT8_LINE; k++) {
            const uint8_t *of = head + k / 4 * 2;
            code[k] = (int8_t)(of[0] * (line[k] & 15) + of[1] - 128);
            code[k + INT8_LINE] = (int8_t)(of[0] * (line[k] >> 4) + of[1] - 128);
        }
}
#endif

/* n_steps of 64 columns of a panel. */
INLINE void int4_unpack(const uint8_t *w, int n_steps, int8_t *code)
{
    for (; n_steps > 0; n_steps--, w += INT4_STEP_BYTES)
        for (int run = 0; run < INT8_STEP / INT4_RUN; run++, code += INT4_RUN * INT8_ROWS)
            int4_unpack_run(w + run * 2 * INT8_ROWS, w + (1 + run * INT4_RUN_LINES) * INT8_LINE,
                            code);
}

#endif
