/* backends.c: see backends.h. */
#include "tests/backends.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tests/isas.h"
#include "tests/mirror.h"

Backend *ref, *backend[MAX_BACKENDS];
int n_backends;
static char label[80];

const char *about(const char *op, int b)
{
    snprintf(label, sizeof label, "%s on %s with %d threads", op, backend[b]->isa,
             backend[b]->n_threads);
    return label;
}

int open_backends(void **state)
{
    (void)state;
    ref = backend_ref_open(MAX_VOCAB);
    for (int i = 0; i < N_CPU_ISAS && !gpu_only(); i++)
        for (int threads = 1; threads <= 3; threads++) {
            Backend *be = backend_cpu_open(threads, cpu_isas[i], MAX_VOCAB, NULL);
            if (be) backend[n_backends++] = be;
        }
    if (n_backends)
        printf("%d backends of the CPU, best %s\n", n_backends, backend[n_backends - 1]->isa);
    int n_gpu = mirror_open_gpus(backend + n_backends);
    n_backends += n_gpu;
    if (n_gpu) printf("the GPU's kernels on %s\n", backend[n_backends - 1]->isa);
    return n_backends ? 0 : -1; /* nothing to test is no success */
}

int close_backends(void **state)
{
    (void)state;
    ref->close(ref);
    for (int b = 0; b < n_backends; b++)
        backend[b]->close(backend[b]);
    return 0;
}

/* The first backend of b's instruction set: what the bits of b are compared with. */
int leader(int b)
{
    return is_gpu(b) ? b : b / 3 * 3;
}

int is_gpu(int b)
{
    return !strcmp(backend[b]->name, "simt") || !strcmp(backend[b]->name, "cuda");
}

int has_type(int b, WeightType type)
{
    return (!weight_is_int(type) && type != WEIGHT_BF16_BOTH) || !is_gpu(b);
}

Sums sums_of(int b)
{
    return is_gpu(b) ? SUMS_GPU : strcmp(backend[b]->isa, "amx") ? SUMS_F32 : SUMS_AMX;
}

int next_alone(int i, int n, int gpu)
{
    return gpu && n > 16 ? i + 1 + i % 5 * 3 : i + 1;
}

/* Arrays of exactly their size, so that a sanitizer sees a step over the end. */
float *floats(size_t n)
{
    float *x = calloc(n ? n : 1, sizeof *x);
    assert_non_null(x);
    return x;
}

float *random_floats(Rng *r, size_t n, float scale)
{
    float *x = floats(n);
    rng_fill(r, x, n, scale);
    return x;
}

float *outputs(size_t n, size_t rows)
{
    return floats((n + PREFILL_FP8_ROWS - 1) / PREFILL_FP8_ROWS * PREFILL_FP8_ROWS * rows);
}

int32_t *ints(size_t n)
{
    int32_t *x = calloc(n ? n : 1, sizeof *x);
    assert_non_null(x);
    return x;
}

/* Steps and offsets as INT4 may have them. */
static void set_runs(Rng *r, const Weight *w, unsigned char *data)
{
    for (int row = 0; row < weight_stored_rows(w); row++)
        for (int c = 0; c < w->cols; c += INT4_RUN) {
            unsigned char *at = data + weight_int4_step(w, row, c) + int4_run(row, c);
            int step = 1 + rng_int(r, 16);
            at[0] = (unsigned char)step;
            at[1] = (unsigned char)(1 + rng_int(r, 255 - 15 * step));
        }
}

/* A matrix with random content. */
Weight random_weight(Rng *r, WeightType type, int rows, int cols)
{
    Weight w = {.type = type, .rows = rows, .cols = cols};
    size_t bytes = (size_t)weight_data_bytes(&w), n_scales = (size_t)weight_n_scales(&w);
    size_t size = (size_t)weight_element_bytes(type);
    unsigned char *data = malloc(bytes);
    assert_non_null(data);
    for (size_t i = 0; i < bytes / size; i++) {
        float x = rng_float(r);
        uint16_t half;
        memcpy(&half, (char *)&x + 2, sizeof half);
        if (type == WEIGHT_F32) memcpy(data + 4 * i, &x, 4);
        if (weight_is_bf16(type)) memcpy(data + 2 * i, &half, 2);
        if (type == WEIGHT_FP8) data[i] = (unsigned char)(rng_next(r) & 0xf7); /* no NaN */
        if (type == WEIGHT_INT8) data[i] = (unsigned char)(rng_int(r, 255) - 127);
        if (type == WEIGHT_INT4) data[i] = (unsigned char)rng_int(r, 256);
    }
    if (type == WEIGHT_INT4) set_runs(r, &w, data);
    w.data = data;
    if (n_scales) w.scale = random_floats(r, n_scales, 0.01f);
    return w;
}

void free_weight(const Weight *w)
{
    free((void *)(uintptr_t)w->data);
    free((void *)(uintptr_t)w->scale);
}
