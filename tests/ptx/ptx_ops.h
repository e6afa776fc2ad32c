/*
 * ptx_ops.h: what PTX instructions compute, as functions; translate.py writes calls of them.
 *
 * Named by instruction and type. A result that is NaN is PTX's one NaN: a GPU gives no other.
 * Source: PTX ISA 9.0, instruction set. Approximations (ex2.approx and the like) are as exact as
 * libm makes them, for the ISA gives bounds alone.
 */
#ifndef OFFSHOOT_TESTS_PTX_OPS_H
#define OFFSHOOT_TESTS_PTX_OPS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define PTX_OP static inline __attribute__((always_inline, unused))

/* ---- bits ---- */

PTX_OP uint32_t bits_f32(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

PTX_OP float f32_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

PTX_OP uint64_t bits_f64(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

PTX_OP double f64_of(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* ---- integers ---- */

/* Of 32 and 64 bits. Division by zero gives what the ISA leaves open, and never a trap. */
#define PTX_INTEGER_OPS(S, U, SIGNED, UNSIGNED, BITS)                                              \
    PTX_OP SIGNED div_##S(SIGNED a, SIGNED b)                                                      \
    {                                                                                              \
        if (!b) return -1;                                                                         \
        return b == -1 ? (SIGNED)(0 - (UNSIGNED)a) : a / b;                                        \
    }                                                                                              \
    PTX_OP UNSIGNED div_##U(UNSIGNED a, UNSIGNED b)                                                \
    {                                                                                              \
        return b ? a / b : (UNSIGNED)-1;                                                           \
    }                                                                                              \
    PTX_OP SIGNED rem_##S(SIGNED a, SIGNED b)                                                      \
    {                                                                                              \
        if (!b) return a;                                                                          \
        return b == -1 ? 0 : a % b;                                                                \
    }                                                                                              \
    PTX_OP UNSIGNED rem_##U(UNSIGNED a, UNSIGNED b)                                                \
    {                                                                                              \
        return b ? a % b : a;                                                                      \
    }                                                                                              \
    PTX_OP SIGNED min_##S(SIGNED a, SIGNED b)                                                      \
    {                                                                                              \
        return a < b ? a : b;                                                                      \
    }                                                                                              \
    PTX_OP SIGNED max_##S(SIGNED a, SIGNED b)                                                      \
    {                                                                                              \
        return a > b ? a : b;                                                                      \
    }                                                                                              \
    PTX_OP UNSIGNED min_##U(UNSIGNED a, UNSIGNED b)                                                \
    {                                                                                              \
        return a < b ? a : b;                                                                      \
    }                                                                                              \
    PTX_OP UNSIGNED max_##U(UNSIGNED a, UNSIGNED b)                                                \
    {                                                                                              \
        return a > b ? a : b;                                                                      \
    }                                                                                              \
    /* Shifts by more than the width leave nothing, or the sign. */                                \
    PTX_OP UNSIGNED shl_b##BITS(UNSIGNED a, uint32_t n)                                            \
    {                                                                                              \
        return n < BITS ? (UNSIGNED)(a << n) : 0;                                                  \
    }                                                                                              \
    PTX_OP UNSIGNED shr_##U(UNSIGNED a, uint32_t n)                                                \
    {                                                                                              \
        return n < BITS ? (UNSIGNED)(a >> n) : 0;                                                  \
    }                                                                                              \
    PTX_OP UNSIGNED shr_b##BITS(UNSIGNED a, uint32_t n)                                            \
    {                                                                                              \
        return shr_##U(a, n);                                                                      \
    }                                                                                              \
    PTX_OP SIGNED shr_##S(SIGNED a, uint32_t n)                                                    \
    {                                                                                              \
        return (SIGNED)(a >> (n < BITS ? n : BITS - 1));                                           \
    }

PTX_INTEGER_OPS(s16, u16, int16_t, uint16_t, 16)
PTX_INTEGER_OPS(s32, u32, int32_t, uint32_t, 32)
PTX_INTEGER_OPS(s64, u64, int64_t, uint64_t, 64)

PTX_OP uint32_t mul_hi_u32(uint32_t a, uint32_t b)
{
    return (uint32_t)((uint64_t)a * b >> 32);
}

PTX_OP int32_t mul_hi_s32(int32_t a, int32_t b)
{
    return (int32_t)((int64_t)a * b >> 32);
}

PTX_OP uint64_t mul_hi_u64(uint64_t a, uint64_t b)
{
    return (uint64_t)((unsigned __int128)a * b >> 64);
}

PTX_OP int64_t mul_hi_s64(int64_t a, int64_t b)
{
    return (int64_t)((__int128)a * b >> 64);
}

PTX_OP uint32_t popc_b32(uint32_t a)
{
    return (uint32_t)__builtin_popcount(a);
}

PTX_OP uint32_t popc_b64(uint64_t a)
{
    return (uint32_t)__builtin_popcountll(a);
}

PTX_OP uint32_t clz_b32(uint32_t a)
{
    return a ? (uint32_t)__builtin_clz(a) : 32;
}

PTX_OP uint32_t clz_b64(uint64_t a)
{
    return a ? (uint32_t)__builtin_clzll(a) : 64;
}

PTX_OP uint32_t brev_b32(uint32_t a)
{
    uint32_t r = 0;
    for (int i = 0; i < 32; i++)
        r |= (a >> i & 1) << (31 - i);
    return r;
}

PTX_OP uint64_t brev_b64(uint64_t a)
{
    return (uint64_t)brev_b32((uint32_t)a) << 32 | brev_b32((uint32_t)(a >> 32));
}

/* The highest bit: its place, or with shiftamt what moves it to the top; all ones where none is. */
PTX_OP uint32_t bfind_u32(uint32_t a)
{
    return a ? 31 - clz_b32(a) : 0xffffffffu;
}

PTX_OP uint32_t bfind_shiftamt_u32(uint32_t a)
{
    return a ? clz_b32(a) : 0xffffffffu;
}

PTX_OP uint32_t bfind_u64(uint64_t a)
{
    return a ? 63 - clz_b64(a) : 0xffffffffu;
}

/* Place and length are the low bytes of their operands, and may reach beyond the word. */
PTX_OP uint64_t bfi_b64(uint64_t from, uint64_t into, uint32_t at, uint32_t n)
{
    at &= 255, n &= 255;
    uint64_t ones = n < 64 ? ((uint64_t)1 << n) - 1 : ~(uint64_t)0;
    if (at > 63) return into;
    return (into & ~(ones << at)) | (from & ones) << at;
}

PTX_OP uint32_t bfi_b32(uint32_t from, uint32_t into, uint32_t at, uint32_t n)
{
    at &= 255, n &= 255;
    uint32_t ones = n < 32 ? ((uint32_t)1 << n) - 1 : ~(uint32_t)0;
    if (at > 31) return into;
    return (into & ~(ones << at)) | (from & ones) << at;
}

PTX_OP uint32_t bfe_u32(uint32_t a, uint32_t at, uint32_t n)
{
    at &= 255, n &= 255;
    uint32_t ones = n < 32 ? ((uint32_t)1 << n) - 1 : ~(uint32_t)0;
    return at < 32 ? a >> at & ones : 0;
}

PTX_OP uint64_t bfe_u64(uint64_t a, uint32_t at, uint32_t n)
{
    at &= 255, n &= 255;
    uint64_t ones = n < 64 ? ((uint64_t)1 << n) - 1 : ~(uint64_t)0;
    return at < 64 ? a >> at & ones : 0;
}

/* The highest bit of the field, or of a where the field reaches beyond it, fills the rest. */
PTX_OP int64_t bfe_s64(int64_t a, uint32_t at, uint32_t n)
{
    at &= 255, n &= 255;
    if (!n) return 0;
    if (at > 63) return a < 0 ? -1 : 0;
    if (at + n >= 64) return a >> at;
    return (int64_t)((uint64_t)a << (64 - at - n)) >> (64 - n);
}

PTX_OP int32_t bfe_s32(int32_t a, uint32_t at, uint32_t n)
{
    return (int32_t)bfe_s64(a, at, n);
}

/* Four bytes out of eight; the top bit of a selector spreads the byte's sign. */
PTX_OP uint32_t prmt_b32(uint32_t a, uint32_t b, uint32_t select)
{
    uint64_t both = (uint64_t)b << 32 | a;
    uint32_t r = 0;
    for (int i = 0; i < 4; i++) {
        uint32_t s = select >> 4 * i & 15;
        uint32_t byte = (uint32_t)(both >> 8 * (s & 7)) & 255;
        if (s & 8) byte = byte & 128 ? 255 : 0;
        r |= byte << 8 * i;
    }
    return r;
}

PTX_OP uint32_t shf_l_wrap_b32(uint32_t low, uint32_t high, uint32_t n)
{
    return (uint32_t)(((uint64_t)high << 32 | low) << (n & 31) >> 32);
}

PTX_OP uint32_t shf_r_wrap_b32(uint32_t low, uint32_t high, uint32_t n)
{
    return (uint32_t)(((uint64_t)high << 32 | low) >> (n & 31));
}

PTX_OP uint32_t shf_l_clamp_b32(uint32_t low, uint32_t high, uint32_t n)
{
    return n >= 32 ? low : shf_l_wrap_b32(low, high, n);
}

PTX_OP uint32_t shf_r_clamp_b32(uint32_t low, uint32_t high, uint32_t n)
{
    return n >= 32 ? high : shf_r_wrap_b32(low, high, n);
}

/* Any of the 16 functions of three bits, by its table. */
PTX_OP uint32_t lop3_b32(uint32_t a, uint32_t b, uint32_t c, uint32_t table)
{
    uint32_t r = 0;
    for (int i = 0; i < 8; i++)
        if (table >> i & 1) r |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
    return r;
}

/* ---- floating point ---- */

PTX_OP float one_nan_f32(float x)
{
    return x != x ? f32_of(0x7fffffffu) : x;
}

PTX_OP double one_nan_f64(double x)
{
    return x != x ? f64_of(0x7fffffffffffffffu) : x;
}

/* Below the smallest normal number: zero of the same sign. */
PTX_OP float ftz(float x)
{
    return (bits_f32(x) & 0x7f800000u) ? x : f32_of(bits_f32(x) & 0x80000000u);
}

#define PTX_FLOAT_OPS(F, FLOAT, SUFFIX)                                                            \
    PTX_OP FLOAT add_rn_##F(FLOAT a, FLOAT b)                                                      \
    {                                                                                              \
        return one_nan_##F(a + b);                                                                 \
    }                                                                                              \
    PTX_OP FLOAT sub_rn_##F(FLOAT a, FLOAT b)                                                      \
    {                                                                                              \
        return one_nan_##F(a - b);                                                                 \
    }                                                                                              \
    PTX_OP FLOAT mul_rn_##F(FLOAT a, FLOAT b)                                                      \
    {                                                                                              \
        return one_nan_##F(a * b);                                                                 \
    }                                                                                              \
    PTX_OP FLOAT div_rn_##F(FLOAT a, FLOAT b)                                                      \
    {                                                                                              \
        return one_nan_##F(a / b);                                                                 \
    }                                                                                              \
    PTX_OP FLOAT rcp_rn_##F(FLOAT a)                                                               \
    {                                                                                              \
        return one_nan_##F(1 / a);                                                                 \
    }                                                                                              \
    PTX_OP FLOAT sqrt_rn_##F(FLOAT a)                                                              \
    {                                                                                              \
        return one_nan_##F(sqrt##SUFFIX(a));                                                       \
    }                                                                                              \
    PTX_OP FLOAT fma_rn_##F(FLOAT a, FLOAT b, FLOAT c)                                             \
    {                                                                                              \
        return one_nan_##F(__builtin_fma##SUFFIX(a, b, c));                                        \
    }                                                                                              \
    PTX_OP FLOAT neg_##F(FLOAT a)                                                                  \
    {                                                                                              \
        return one_nan_##F(-a);                                                                    \
    }                                                                                              \
    PTX_OP FLOAT abs_##F(FLOAT a)                                                                  \
    {                                                                                              \
        return one_nan_##F(__builtin_fabs##SUFFIX(a));                                             \
    }                                                                                              \
    /* A NaN gives way to a number; -0 is below 0. */                                              \
    PTX_OP FLOAT min_##F(FLOAT a, FLOAT b)                                                         \
    {                                                                                              \
        if (a != a) return one_nan_##F(b);                                                         \
        if (b != b) return a;                                                                      \
        if (a == b) return __builtin_signbit(a) ? a : b;                                           \
        return a < b ? a : b;                                                                      \
    }                                                                                              \
    PTX_OP FLOAT max_##F(FLOAT a, FLOAT b)                                                         \
    {                                                                                              \
        if (a != a) return one_nan_##F(b);                                                         \
        if (b != b) return a;                                                                      \
        if (a == b) return __builtin_signbit(a) ? b : a;                                           \
        return a > b ? a : b;                                                                      \
    }                                                                                              \
    PTX_OP FLOAT sat_##F(FLOAT a)                                                                  \
    {                                                                                              \
        return a > 0 ? (a < 1 ? a : 1) : 0;                                                        \
    }                                                                                              \
    PTX_OP int setp_num_##F(FLOAT a, FLOAT b)                                                      \
    {                                                                                              \
        return a == a && b == b;                                                                   \
    }                                                                                              \
    PTX_OP int setp_nan_##F(FLOAT a, FLOAT b)                                                      \
    {                                                                                              \
        return a != a || b != b;                                                                   \
    }                                                                                              \
    /* ordered and not equal: unlike C's !=, false of a NaN */                                     \
    PTX_OP int setp_ne_##F(FLOAT a, FLOAT b)                                                       \
    {                                                                                              \
        return a < b || a > b;                                                                     \
    }                                                                                              \
    /* To an integer: what does not fit becomes the nearest that does. */                          \
    PTX_OP int32_t to_s32_##F(FLOAT a)                                                             \
    {                                                                                              \
        if (a != a) return sizeof a == 4 ? 0 : INT32_MIN;                                          \
        if (a >= 0x1p31) return INT32_MAX;                                                         \
        return a <= -0x1p31 ? INT32_MIN : (int32_t)a;                                              \
    }                                                                                              \
    PTX_OP uint32_t to_u32_##F(FLOAT a)                                                            \
    {                                                                                              \
        if (a != a) return sizeof a == 4 ? 0 : (uint32_t)1 << 31;                                  \
        if (a >= 0x1p32) return UINT32_MAX;                                                        \
        return a <= 0 ? 0 : (uint32_t)a;                                                           \
    }                                                                                              \
    PTX_OP int64_t to_s64_##F(FLOAT a)                                                             \
    {                                                                                              \
        if (a != a) return INT64_MIN;                                                              \
        if (a >= 0x1p63) return INT64_MAX;                                                         \
        return a <= -0x1p63 ? INT64_MIN : (int64_t)a;                                              \
    }                                                                                              \
    PTX_OP uint64_t to_u64_##F(FLOAT a)                                                            \
    {                                                                                              \
        if (a != a) return (uint64_t)1 << 63;                                                      \
        if (a >= 0x1p64) return UINT64_MAX;                                                        \
        return a <= 0 ? 0 : (uint64_t)a;                                                           \
    }                                                                                              \
    PTX_OP FLOAT round_rni_##F(FLOAT a)                                                            \
    {                                                                                              \
        return one_nan_##F(__builtin_nearbyint##SUFFIX(a));                                        \
    }                                                                                              \
    PTX_OP FLOAT round_rzi_##F(FLOAT a)                                                            \
    {                                                                                              \
        return one_nan_##F(__builtin_trunc##SUFFIX(a));                                            \
    }                                                                                              \
    PTX_OP FLOAT round_rmi_##F(FLOAT a)                                                            \
    {                                                                                              \
        return one_nan_##F(__builtin_floor##SUFFIX(a));                                            \
    }                                                                                              \
    PTX_OP FLOAT round_rpi_##F(FLOAT a)                                                            \
    {                                                                                              \
        return one_nan_##F(__builtin_ceil##SUFFIX(a));                                             \
    }

PTX_FLOAT_OPS(f32, float, f)
PTX_FLOAT_OPS(f64, double, )

/* Rounded down or to zero: in ptx_run.c, which may change how the processor rounds. */
float fma_rm_f32(float a, float b, float c);
float add_rz_f32(float a, float b);

PTX_OP float ex2_approx_f32(float a)
{
    return one_nan_f32((float)exp2((double)a));
}

PTX_OP float ex2_approx_ftz_f32(float a)
{
    return ftz(ex2_approx_f32(ftz(a)));
}

PTX_OP float lg2_approx_f32(float a)
{
    return one_nan_f32((float)log2((double)a));
}

PTX_OP float rcp_approx_f32(float a)
{
    return rcp_rn_f32(a);
}

PTX_OP float sqrt_approx_f32(float a)
{
    return sqrt_rn_f32(a);
}

PTX_OP float rsqrt_approx_f32(float a)
{
    return one_nan_f32((float)(1 / sqrt((double)a)));
}

PTX_OP float sin_approx_f32(float a)
{
    return one_nan_f32((float)sin((double)a));
}

PTX_OP float cos_approx_f32(float a)
{
    return one_nan_f32((float)cos((double)a));
}

/* Of the upper half of a double, to an upper half: the lower is zero. */
PTX_OP double rcp_approx_ftz_f64(double a)
{
    double upper = f64_of(bits_f64(a) & 0xffffffff00000000u);
    if (!(bits_f64(upper) & 0x7ff0000000000000u)) upper = copysign(0, upper);
    double r = one_nan_f64(1 / upper);
    return f64_of(bits_f64(r) & 0xffffffff00000000u);
}

/* ---- 16 and 8 bits ---- */

PTX_OP uint16_t cvt_rn_bf16_f32(float a)
{
    uint32_t bits = bits_f32(a);
    if (a != a) return 0x7fff;
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

PTX_OP float cvt_f32_bf16(uint16_t a)
{
    return one_nan_f32(f32_of((uint32_t)a << 16));
}

PTX_OP uint16_t cvt_rn_f16_f32(float a)
{
    _Float16 half = (_Float16)a;
    uint16_t bits;
    if (a != a) return 0x7fff;
    memcpy(&bits, &half, sizeof bits);
    return bits;
}

PTX_OP float cvt_f32_f16(uint16_t a)
{
    _Float16 half;
    memcpy(&half, &a, sizeof half);
    return one_nan_f32((float)half);
}

/* The first source is the high half. */
PTX_OP uint32_t cvt_rn_bf16x2_f32(float high, float low)
{
    return (uint32_t)cvt_rn_bf16_f32(high) << 16 | cvt_rn_bf16_f32(low);
}

PTX_OP uint32_t cvt_rn_f16x2_f32(float high, float low)
{
    return (uint32_t)cvt_rn_f16_f32(high) << 16 | cvt_rn_f16_f32(low);
}

/* Sign, 4 bits of exponent less 7, 3 of fraction; no infinity, one NaN of each sign. */
PTX_OP uint16_t f16_of_e4m3(uint32_t code)
{
    uint32_t exponent = code >> 3 & 15, fraction = code & 7;
    if ((code & 0x7f) == 0x7f) return 0x7fff;
    float x =
        exponent ? ldexpf((float)(8 + fraction), (int)exponent - 10) : ldexpf((float)fraction, -9);
    return cvt_rn_f16_f32(code & 0x80 ? -x : x);
}

/* To the nearest of the 127 magnitudes, ties to the even code; beyond the last: the last. */
PTX_OP uint32_t e4m3_of(float x)
{
    double size = fabs((double)x), best = INFINITY;
    uint32_t found = 0, sign = bits_f32(x) >> 31 << 7;
    if (x != x) return 0x7f;
    for (uint32_t code = 0; code < 0x7f; code++) {
        double off = fabs((double)cvt_f32_f16(f16_of_e4m3(code)) - size);
        if (off < best || (off == best && code % 2 == 0)) best = off, found = code;
    }
    return sign | (size > 448 ? 0x7e : found);
}

PTX_OP uint16_t cvt_rn_satfinite_e4m3x2_f32(float high, float low)
{
    return (uint16_t)(e4m3_of(high) << 8 | e4m3_of(low));
}

PTX_OP uint32_t cvt_rn_f16x2_e4m3x2(uint16_t codes)
{
    return (uint32_t)f16_of_e4m3(codes >> 8) << 16 | f16_of_e4m3(codes & 255u);
}

#endif
