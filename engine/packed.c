/* packed.c: see packed.h. */
#include "engine/packed.h"

#include <assert.h>
#include <string.h>

#include "base/mem.h"
#include "base/thread.h"
#include "kernels/bf16.h"
#include "kernels/fp8.h"

enum {
    TILE_ROWS = 64, /* words that lie in columns come once to the L1 cache */
    TILE_COLS =
        480, /* a multiple of codes in a word, of which there can be 4, 5, 6, 8, 10, 16, 32 */
    N_CODES = 256,
};

const uint8_t packed_in_order[32] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10,
                                     11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
                                     22, 23, 24, 25, 26, 27, 28, 29, 30, 31};
const uint8_t packed_awq[8] = {0, 4, 1, 5, 2, 6, 3, 7};

static uint32_t word_at(const PackedCodes *p, size_t i)
{
    const unsigned char *at = p->data + i * (size_t)p->word_bytes;
    uint32_t word = at[0];
    if (p->word_bytes == 4) memcpy(&word, at, sizeof word);
    return word + p->plus;
}

unsigned packed_code(const PackedCodes *p, int r, int c)
{
    size_t i = p->row_at * (size_t)(r / p->rows_per) + p->col_at * (size_t)(c / p->cols_per);
    int shift = p->place[r % p->rows_per + c % p->cols_per] * p->bits;
    return word_at(p, i) >> shift & ((1u << p->bits) - 1);
}

void packed_codes(const PackedCodes *p, int r, int c, int n, uint8_t *code)
{
    int shift = p->place[r % p->rows_per] * p->bits;
    uint32_t mask = (1u << p->bits) - 1;
    size_t at = p->row_at * (size_t)(r / p->rows_per) + p->col_at * (size_t)(c / p->cols_per);
    for (int i = 0; i < n; at += p->col_at) {
        uint32_t word = word_at(p, at) >> shift;
        int end = n - i < p->cols_per ? n : i + p->cols_per;
        for (; i < end; i++, word >>= p->bits)
            code[i] = (uint8_t)(word & mask);
    }
}

float packed_value(PackedKind kind, int bits, unsigned code)
{
    static const float e2m1[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    switch (kind) {
    case PACKED_UNSIGNED:
        return (float)code;
    case PACKED_OFFSET:
        return (float)((int)code - (1 << (bits - 1)));
    case PACKED_SIGNED:
        return (int8_t)code;
    case PACKED_E4M3:
        return fp8_to_float((uint8_t)code);
    case PACKED_E2M1:
        return code & 8 ? -e2m1[code & 7] : e2m1[code & 7];
    }
    return 0;
}

/* A call of packed_rows. */
typedef struct {
    const Packed *p;
    const int *map;
    int n;
    uint16_t *out;
    int n_codes; /* that there can be, what each stands for */
    float value[N_CODES];
} Rows;

/* What code v is in a group. */
static uint16_t unpacked(const Rows *w, unsigned v, float scale, float zero)
{
    return bf16_from_float((w->value[v] - zero) * scale);
}

/* n columns of one group; where they are many, each code is unpacked once. */
static void unpack_run(const Rows *w, const uint8_t *code, int n, float scale, float zero,
                       uint16_t *out)
{
    uint16_t table[N_CODES];
    int is_long = n >= 2 * w->n_codes;
    for (int v = 0; is_long && v < w->n_codes; v++)
        table[v] = unpacked(w, (unsigned)v, scale, zero);
    for (int i = 0; i < n; i++)
        out[i] = is_long ? table[code[i]] : unpacked(w, code[i], scale, zero);
}

/* Columns [c, end) of row i of the call. */
static void unpack_part(const Rows *w, int i, int c, int end)
{
    const Packed *p = w->p;
    uint8_t code[TILE_COLS];
    int r = w->map ? w->map[i] : i, first = c;
    size_t of_row = p->one_row ? 0 : (size_t)r * (size_t)p->n_groups;
    uint16_t *out = w->out + (size_t)i * (size_t)p->cols;
    packed_codes(&p->code, r, c, end - c, code);
    while (c < end) {
        int begin = c, g = p->group[c];
        while (c < end && p->group[c] == g)
            c++;
        size_t at = of_row + (size_t)g;
        unpack_run(w, code + begin - first, c - begin, p->scale[at], p->zero ? p->zero[at] : 0,
                   out + begin);
    }
}

static void unpack_tiles(void *arg, int part, int n_parts)
{
    const Rows *w = arg;
    int n_tiles = (w->n + TILE_ROWS - 1) / TILE_ROWS, cols = w->p->cols;
    int first = n_tiles * part / n_parts * TILE_ROWS;
    int last = n_tiles * (part + 1) / n_parts * TILE_ROWS;
    if (last > w->n) last = w->n;
    for (int r = first; r < last; r += TILE_ROWS)
        for (int c = 0; c < cols; c += TILE_COLS)
            for (int i = r; i < last && i < r + TILE_ROWS; i++)
                unpack_part(w, i, c, c + TILE_COLS < cols ? c + TILE_COLS : cols);
}

void packed_rows(const Packed *p, const int *map, int n, uint16_t *out)
{
    const PackedCodes *code = &p->code;
    Rows w = {.p = p, .map = map, .n = n, .out = out, .n_codes = 1 << code->bits};
    assert(code->bits <= 8 && (code->rows_per == 1 || code->cols_per == 1));
    for (int v = 0; v < w.n_codes; v++)
        w.value[v] = packed_value(p->kind, code->bits, (unsigned)v);
    thread_each(thread_parts((int64_t)n * p->cols), unpack_tiles, &w, "unpack");
}

void packed_free(Packed *p)
{
    mem_free(p->scale);
    mem_free(p->zero);
    mem_free(p->group);
}
