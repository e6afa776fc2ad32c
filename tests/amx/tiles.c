/* tiles.c: see tiles.h. This file has the CPUID that there is, and no names of intrinsics. */
#include "tests/amx/tiles.h"

#include <assert.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>

#undef __get_cpuid_count

enum {
    TILES = 8,
    ROWS = 16,
    ROW_BYTES = 64,
    WORDS = ROW_BYTES / 4,
    ASK_FOR_STATE = 0x1023, /* ARCH_REQ_XCOMP_PERM */
    TILE_DATA = 18,
    LEAF_FEATURES = 7,
    CPUID_AMX = 1 << 22 | 1 << 24 | 1 << 25, /* bf16, tiles, int8 */
    /* MXCSR: denormals are zeros, as operands and as results; no exceptions; to the nearest. */
    CSR_OF_TILES = 0x9fc0,
};

/* Words beyond a register's shape are zeros. */
typedef struct {
    int rows, row_bytes; /* both 0: not in use */
    unsigned char row[ROWS][ROW_BYTES];
} Tile;

static _Thread_local struct {
    int is_configured;
    Tile tile[TILES];
} unit;

static atomic_int is_allowed; /* the process has asked for the state */

static _Noreturn __attribute__((format(printf, 2, 3))) void fault(const char *op, const char *fmt,
                                                                  ...)
{
    char why[160];
    va_list args;
    va_start(args, fmt);
    vsnprintf(why, sizeof why, fmt, args);
    va_end(args);
    fprintf(stderr, "tiles: %s: %s\n", op, why);
    abort();
}

/* ---- what the system says ---- */

int tiles_cpuid(unsigned leaf, unsigned subleaf, unsigned *a, unsigned *b, unsigned *c, unsigned *d)
{
    int is_known = __get_cpuid_count(leaf, subleaf, a, b, c, d);
    if (leaf == LEAF_FEATURES && !subleaf) *d |= CPUID_AMX;
    return is_known;
}

long tiles_syscall(long number, int what, int feature)
{
    if (number != SYS_arch_prctl || what != ASK_FOR_STATE || feature != TILE_DATA)
        fault("syscall", "%ld (%#x, %d) does not ask for the state of the tiles", number,
              (unsigned)what, feature);
    is_allowed = 1;
    return 0;
}

/* ---- configuration ---- */

typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[ROWS]; /* of TILES registers, zeros behind them, as in rows */
    uint8_t rows[ROWS];
} Config;

static_assert(sizeof(Config) == 64, "as LDTILECFG reads it");

static void check_shape(const Config *c, int t)
{
    static const char *const op = "loadconfig";
    int rows = c->rows[t], row_bytes = c->row_bytes[t];
    if (t >= TILES && (rows || row_bytes)) fault(op, "there is no register %d", t);
    if (rows > ROWS) fault(op, "register %d has %d rows, the most are %d", t, rows, ROWS);
    if (row_bytes > ROW_BYTES)
        fault(op, "register %d has rows of %d bytes, the most are %d", t, row_bytes, ROW_BYTES);
    if (!rows != !row_bytes) fault(op, "register %d has %d rows of %d bytes", t, rows, row_bytes);
}

void tiles_loadconfig(const void *config)
{
    static const char *const op = "loadconfig";
    Config c;
    memcpy(&c, config, sizeof c);
    if (!is_allowed) fault(op, "the system has not been asked for the state of the tiles");
    if (c.palette != 1) fault(op, "palette %d, only 1 has registers", c.palette);
    if (c.start_row) fault(op, "start row %d", c.start_row);
    for (size_t i = 0; i < sizeof c.reserved; i++)
        if (c.reserved[i]) fault(op, "reserved byte %zu is not zero", i + 2);
    memset(&unit, 0, sizeof unit);
    for (int t = 0; t < ROWS; t++) {
        check_shape(&c, t);
        if (t >= TILES) continue;
        unit.tile[t].rows = c.rows[t];
        unit.tile[t].row_bytes = c.row_bytes[t];
    }
    unit.is_configured = 1;
}

void tiles_release(void)
{
    memset(&unit, 0, sizeof unit);
}

/* ---- registers and memory ---- */

static Tile *tile(const char *op, int t)
{
    if (!unit.is_configured) fault(op, "without a configuration");
    if (t < 0 || t >= TILES) fault(op, "there is no register %d", t);
    if (!unit.tile[t].rows) fault(op, "register %d has no shape", t);
    return &unit.tile[t];
}

void tiles_zero(int t)
{
    Tile *to = tile("zero", t);
    memset(to->row, 0, sizeof to->row);
}

void tiles_loadd(int t, const void *base, long stride)
{
    Tile *to = tile("loadd", t);
    for (int r = 0; r < to->rows; r++)
        memcpy(to->row[r], (const char *)base + r * stride, (size_t)to->row_bytes);
}

void tiles_stored(int t, void *base, long stride)
{
    const Tile *from = tile("stored", t);
    for (int r = 0; r < from->rows; r++)
        memcpy((char *)base + r * stride, from->row[r], (size_t)from->row_bytes);
}

/* ---- products ---- */

typedef struct {
    Tile *c;
    const Tile *a, *b;
} Product;

/* c: m x n words, a: m x k, b: k x n; three registers. */
static Product product(const char *op, int c, int a, int b)
{
    Product p = {tile(op, c), tile(op, a), tile(op, b)};
    if (c == a || c == b || a == b) fault(op, "registers %d, %d and %d are not three", c, a, b);
    if (p.c->row_bytes % 4 || p.a->row_bytes % 4 || p.b->row_bytes % 4)
        fault(op, "rows of %d, %d and %d bytes are not whole words", p.c->row_bytes, p.a->row_bytes,
              p.b->row_bytes);
    if (p.c->rows != p.a->rows || p.c->row_bytes != p.b->row_bytes ||
        p.a->row_bytes / 4 != p.b->rows)
        fault(op, "%d x %d words += %d x %d by %d x %d", p.c->rows, p.c->row_bytes / 4, p.a->rows,
              p.a->row_bytes / 4, p.b->rows, p.b->row_bytes / 4);
    return p;
}

#define AVX512 __attribute__((target("avx512f,avx512bw")))

/* Elements 0, 2, .. or 1, 3, .. of a row, as floats. */
static inline AVX512 __m512 floats_of(__m512i row, int odd)
{
    if (!odd) row = _mm512_slli_epi32(row, 16);
    return _mm512_castsi512_ps(_mm512_and_si512(row, _mm512_set1_epi32(-0x10000)));
}

/* Word i of a row, everywhere. */
static inline AVX512 __m512i word_of(const unsigned char row[ROW_BYTES], int i)
{
    int32_t word;
    memcpy(&word, row + 4 * i, sizeof word);
    return _mm512_set1_epi32(word);
}

/*
 * The even elements' sum and the odd ones', each fused; both together to what is there. Apart, or
 * an operation might be moved past a change of MXCSR.
 */
static AVX512 __attribute__((noinline)) void multiply_bf16(Product p)
{
    for (int m = 0; m < p.c->rows; m++) {
        __m512 even = _mm512_setzero_ps(), odd = even, c = _mm512_loadu_ps(p.c->row[m]);
        for (int k = 0; k < p.b->rows; k++) {
            __m512i a = word_of(p.a->row[m], k), b = _mm512_loadu_si512(p.b->row[k]);
            even = _mm512_fmadd_ps(floats_of(a, 0), floats_of(b, 0), even);
            odd = _mm512_fmadd_ps(floats_of(a, 1), floats_of(b, 1), odd);
        }
        __mmask16 words = (__mmask16)((1u << p.c->row_bytes / 4) - 1);
        c = _mm512_add_ps(c, _mm512_add_ps(even, odd));
        _mm512_mask_storeu_ps(p.c->row[m], words, c);
    }
}

void tiles_dpbf16ps(int c, int a, int b)
{
    Product p = product("dpbf16ps", c, a, b);
    unsigned csr = _mm_getcsr();
    _mm_setcsr(CSR_OF_TILES);
    multiply_bf16(p);
    _mm_setcsr(csr);
}

/* Bytes 0, 2, .. or 1, 3, .. of a row, as 16 bits. */
static inline AVX512 __m512i bytes_of(__m512i row, int odd, int is_signed)
{
    if (!odd) row = _mm512_slli_epi16(row, 8);
    return is_signed ? _mm512_srai_epi16(row, 8) : _mm512_srli_epi16(row, 8);
}

/* Sums wrap; beyond c's shape they are zero as they were. */
static AVX512 void multiply_bytes(Product p, int a_signed, int b_signed)
{
    for (int m = 0; m < p.c->rows; m++) {
        __m512i c = _mm512_loadu_si512(p.c->row[m]);
        for (int k = 0; k < p.b->rows; k++) {
            __m512i a = word_of(p.a->row[m], k), b = _mm512_loadu_si512(p.b->row[k]);
            for (int odd = 0; odd < 2; odd++)
                c = _mm512_add_epi32(
                    c, _mm512_madd_epi16(bytes_of(a, odd, a_signed), bytes_of(b, odd, b_signed)));
        }
        _mm512_storeu_si512(p.c->row[m], c);
    }
}

void tiles_dpbssd(int c, int a, int b)
{
    multiply_bytes(product("dpbssd", c, a, b), 1, 1);
}

void tiles_dpbsud(int c, int a, int b)
{
    multiply_bytes(product("dpbsud", c, a, b), 1, 0);
}

void tiles_dpbusd(int c, int a, int b)
{
    multiply_bytes(product("dpbusd", c, a, b), 0, 1);
}

void tiles_dpbuud(int c, int a, int b)
{
    multiply_bytes(product("dpbuud", c, a, b), 0, 0);
}
