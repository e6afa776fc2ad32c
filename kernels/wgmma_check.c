/* wgmma_check.c: see wgmma_check.h. */
#include "kernels/wgmma_check.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/philox.h"
#include "kernels/weight.h"

/* No multiples of a block's rows, of a k-block; slices of one k-block and of two. */
enum {
    N = 150,
    ROWS = 200,
    COLS = 1168,
    BLOCKS = (COLS + FP8_BLOCK - 1) / FP8_BLOCK,
    SCALES = (ROWS + FP8_BLOCK - 1) / FP8_BLOCK * BLOCKS,
};

/* One image, so that it goes to the device by one copy. */
typedef struct {
    float x[N * COLS], scale[SCALES], y[N * ROWS];
    uint8_t code[ROWS * COLS];
} Image;

static uint32_t bits_of(uint32_t i)
{
    uint32_t ctr[4] = {i, 0, 0, 0};
    philox4x32(ctr, 1, 0);
    return ctr[0];
}

/* Between -1 and 1, times a power of two down to 2^-15: so that sums lose low bits. */
static float value_of(uint32_t i)
{
    uint32_t bits = bits_of(i);
    return ldexpf((float)(int32_t)bits * 0x1p-31f, -(int)(bits & 15));
}

static void fill(Image *m)
{
    uint32_t i = 0;
    for (int k = 0; k < N * COLS; k++)
        m->x[k] = value_of(i++);
    for (int k = 0; k < SCALES; k++)
        m->scale[k] = value_of(i++);
    for (int k = 0; k < ROWS * COLS; k++) {
        m->code[k] = (uint8_t)bits_of(i++);
        if ((m->code[k] & 0x7f) == 0x7f) m->code[k] ^= 1; /* no NaN */
    }
}

/* The bits of y, zeros where no kernel wrote it. 0 where the device failed. */
static int multiply(CudaBackend *b, Image *m, int prefill, int by_wgmma, uint32_t y[N * ROWS])
{
    Backend *be = &b->be;
    Weight w = {.type = WEIGHT_FP8, .rows = ROWS, .cols = COLS, .data = m->code, .scale = m->scale};
    be->zero(be, m->y, sizeof m->y);
    b->context.wgmma = by_wgmma;
    be->linear(be, &(Linear){N, m->x, COLS, 1, {{&w, m->y, ROWS}}, prefill});
    b->context.wgmma = 0;
    be->download(be, y, m->y, sizeof m->y);
    return !b->failed;
}

int wgmma_check(CudaBackend *b)
{
    Backend *be = &b->be;
    Error err = {0};
    Image *device = be->alloc(be, sizeof *device, &err), *host = mem_alloc(1, sizeof *host);
    uint32_t *by_mma = mem_alloc(N * ROWS, sizeof *by_mma), *y = mem_alloc(N * ROWS, sizeof *y);
    int same = device != NULL;
    fill(host);
    if (device) be->upload(be, device, host, sizeof *host);
    for (int prefill = PREFILL_EXACT; same && prefill <= PREFILL_FP8; prefill++)
        same = multiply(b, device, prefill, 0, by_mma) && multiply(b, device, prefill, 1, y) &&
               !memcmp(by_mma, y, N * ROWS * sizeof *y) && y[0] != 0;
    if (device) be->free(be, device);
    mem_free(host), mem_free(by_mma), mem_free(y);
    b->context.wgmma = same;
    return same;
}
