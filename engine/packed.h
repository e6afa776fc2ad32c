/*
 * packed.h: matrices that other tools have quantised, as their checkpoints hold them; unpacked.
 *
 *     W[r][c] = (value of the code of (r, c) - zero) * scale
 *
 * in f32, then rounded to bf16, in which the engines that these are made for multiply them. Scale
 * and zero are of a group of columns, of each row or of all. loader_packed.c finds the tensors.
 */
#ifndef OFFSHOOT_ENGINE_PACKED_H
#define OFFSHOOT_ENGINE_PACKED_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/weight.h"

/*
 * Codes of a few bits, several to a word. The one of (r, c) is in word
 *
 *     row_at * (r / rows_per) + col_at * (c / cols_per)
 *
 * at bit place[r % rows_per + c % cols_per] * bits, and rows_per or cols_per is 1.
 */
typedef struct {
    const unsigned char *data; /* at any alignment */
    int word_bytes;            /* 1, or 4 of which the first is the lowest */
    int bits;
    int rows_per, cols_per;
    size_t row_at, col_at;
    const uint8_t *place; /* packed_in_order; of rows packed_awq, too */
    uint32_t plus;        /* added to a word before it is taken apart */
} PackedCodes;

/* One after the other from the lowest bits on; as AutoAWQ has eight of them. */
extern const uint8_t packed_in_order[32], packed_awq[8];

unsigned packed_code(const PackedCodes *p, int r, int c);

/* Those of n columns of row r, from c on, where a word begins. */
void packed_codes(const PackedCodes *p, int r, int c, int n, uint8_t *code);

/* What codes stand for. */
typedef enum {
    PACKED_UNSIGNED, /* 0 .. 2^bits - 1 */
    PACKED_OFFSET,   /* the same, less 2^(bits - 1) */
    PACKED_SIGNED,   /* bytes, in two's complement */
    PACKED_E4M3,     /* FP8 */
    PACKED_E2M1,     /* FP4: a sign above 0, 0.5, 1, 1.5, 2, 3, 4, 6 */
} PackedKind;

float packed_value(PackedKind kind, int bits, unsigned code);

typedef struct {
    int rows, cols;
    PackedCodes code;
    PackedKind kind;
    int n_groups, one_row; /* one_row: scales and zeros are of all rows */
    float *scale;          /* [one_row ? 1 : rows][n_groups] */
    float *zero;           /* the same; NULL: 0 */
    int *group;            /* [cols] */
} Packed;

/*
 * Rows map[0 .. n) of W as bf16, [n][cols]; map NULL: the first n. Works on several threads where
 * that pays; the result is the same.
 */
void packed_rows(const Packed *p, const int *map, int n, uint16_t *out);

/* Integers of at most four bits. */
int packed_has_few_bits(const Packed *p);

/*
 * Whether INT4 can keep the codes as they are: few bits, of which no run is of two groups, scales
 * above 0, and zeros that are codes.
 */
int packed_is_int4(const Packed *p);

/*
 * The same rows as INT4: w's type, rows and cols say so, code and scale are what its data and scale
 * will be. Bits are the codes; a group's step times the scale of its 256 columns is the group's
 * scale as nearly as whole steps have it, all groups of the 256 considered (least squares, by the
 * steps of the largest).
 */
void packed_int4(const Packed *p, const int *map, const Weight *w, uint8_t *code, float *scale);

/* Its arrays, which are mem_alloc's. */
void packed_free(Packed *p);

#endif
