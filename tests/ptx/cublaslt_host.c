/*
 * cublaslt_host.c: a stand-in for cuBLASLt, for what kernels/cublaslt.c asks of it on an H100.
 *
 * Strict where the documents are: sizes of attributes, layouts that fit each other, alignment, what
 * products of e4m3 ask for (cuBLAS 13.0, "cublasLtMatmul()": TN alone, dimensions of 16, one scale
 * for 128 x 128 of A and for 128 k's of a column of B), memory that is the device's, an algorithm
 * that was given for this kind of product. What is not so is told on stderr and refused.
 *
 * Products run in the stream's order and, as theirs, keep only so many bits: those of e4m3 are
 * added up with 14 bits of fraction beside the largest of 32, and at full width every 128. An
 * algorithm that splits k comes first among the candidates: whoever takes it gets other sums.
 *
 * The program opens the library by name, so dlopen and dlsym are played, too.
 */
#include <cublasLt.h>
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/bf16.h"
#include "kernels/fp8.h"
#include "tests/ptx/streams.h"

enum {
    MAGIC = 0x6c74,
    WORKSPACE = 1 << 20, /* that an algorithm asks for */
    SCALE_BLOCK = 128,
    E4M3_STEP = 32, /* k's that a tensor core adds up at a time */
    E4M3_BITS = 14,
};

/* What the opaque structs are here. */
typedef struct {
    int transposed_a, mode[2]; /* of A's and B's scales */
    const float *scale[2];
} Desc;

typedef struct {
    cudaDataType type;
    uint64_t rows, cols;
    int64_t ld;
} Layout;

typedef struct {
    uint64_t workspace;
    uint32_t reductions, alignment[4];
} Preference;

typedef struct {
    uint64_t magic, type, m, k, n_splits;
} Algo;

_Static_assert(sizeof(Algo) <= sizeof(cublasLtMatmulAlgo_t), "an algorithm's words");

static cublasStatus_t refuse(cublasStatus_t status, const char *what)
{
    fprintf(stderr, "cublasLt: %s\n", what);
    return status;
}

/* ---- the objects ---- */

static cublasStatus_t create(cublasLtHandle_t *handle)
{
    *handle = calloc(1, 8);
    return *handle ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

static cublasStatus_t destroy(cublasLtHandle_t handle)
{
    free(handle);
    return CUBLAS_STATUS_SUCCESS;
}

static size_t version(void)
{
    return CUBLAS_VERSION;
}

static cublasStatus_t desc_create(cublasLtMatmulDesc_t *out, cublasComputeType_t compute,
                                  cudaDataType_t scale)
{
    if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F)
        return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "sums that are not f32");
    *out = calloc(1, sizeof(Desc));
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t desc_destroy(cublasLtMatmulDesc_t desc)
{
    free(desc);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t set(void *field, const void *value, size_t size, size_t want)
{
    if (size != want) return refuse(CUBLAS_STATUS_INVALID_VALUE, "an attribute of another size");
    memcpy(field, value, size);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t desc_set(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t what,
                               const void *value, size_t size)
{
    Desc *d = (void *)desc;
    switch (what) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
        return set(&d->transposed_a, value, size, sizeof d->transposed_a);
    case CUBLASLT_MATMUL_DESC_A_SCALE_MODE:
        return set(&d->mode[0], value, size, sizeof *d->mode);
    case CUBLASLT_MATMUL_DESC_B_SCALE_MODE:
        return set(&d->mode[1], value, size, sizeof *d->mode);
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:
        return set((void *)&d->scale[0], value, size, sizeof *d->scale);
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER:
        return set((void *)&d->scale[1], value, size, sizeof *d->scale);
    default:
        return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "an attribute that is not played");
    }
}

static cublasStatus_t layout_create(cublasLtMatrixLayout_t *out, cudaDataType type, uint64_t rows,
                                    uint64_t cols, int64_t ld)
{
    Layout *l = calloc(1, sizeof *l);
    if (l) *l = (Layout){type, rows, cols, ld};
    *out = (void *)l;
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t layout_destroy(cublasLtMatrixLayout_t layout)
{
    free(layout);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t layout_set(cublasLtMatrixLayout_t layout,
                                 cublasLtMatrixLayoutAttribute_t what, const void *value,
                                 size_t size)
{
    Layout *l = (void *)layout;
    switch (what) {
    case CUBLASLT_MATRIX_LAYOUT_ROWS:
        return set(&l->rows, value, size, sizeof l->rows);
    case CUBLASLT_MATRIX_LAYOUT_COLS:
        return set(&l->cols, value, size, sizeof l->cols);
    case CUBLASLT_MATRIX_LAYOUT_LD:
        return set(&l->ld, value, size, sizeof l->ld);
    default:
        return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "an attribute that is not played");
    }
}

static cublasStatus_t preference_create(cublasLtMatmulPreference_t *out)
{
    *out = calloc(1, sizeof(Preference));
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t preference_destroy(cublasLtMatmulPreference_t preference)
{
    free(preference);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t preference_set(cublasLtMatmulPreference_t preference,
                                     cublasLtMatmulPreferenceAttributes_t what, const void *value,
                                     size_t size)
{
    Preference *p = (void *)preference;
    switch (what) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
        return set(&p->workspace, value, size, sizeof p->workspace);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
        return set(&p->reductions, value, size, sizeof p->reductions);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
        return set(&p->alignment[what - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value, size,
                   sizeof *p->alignment);
    default:
        return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "an attribute that is not played");
    }
}

/* ---- products: D [m x n] = alpha A' B + beta C, column by column ---- */

typedef struct {
    const Desc *desc;
    const Layout *a, *b, *c, *d;
} Product;

static int element_bytes(cudaDataType type)
{
    return type == CUDA_R_8F_E4M3 ? 1 : type == CUDA_R_16BF ? 2 : 4;
}

static int is_column_aligned(const Layout *l)
{
    return l->ld * element_bytes(l->type) % 16 == 0;
}

static const char *wrong_fp8(const Product *p)
{
    if (p->desc->mode[0] != CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F ||
        p->desc->mode[1] != CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F)
        return "e4m3 without a scale for 128 x 128 of A and for 128 of B";
    if (p->a->rows % 16 || p->a->cols % 16 || p->b->cols % 16)
        return "e4m3 whose dimensions are no multiples of 16";
    return NULL;
}

/* NULL, or why there is no such product. */
static const char *wrong(const Product *p)
{
    const Layout *a = p->a, *b = p->b, *c = p->c, *d = p->d;
    if (!p->desc->transposed_a) return "A as it is";
    if (a->type != b->type || (a->type != CUDA_R_16BF && a->type != CUDA_R_8F_E4M3))
        return "types that are not played";
    if (c->type != CUDA_R_32F || d->type != CUDA_R_32F) return "C or D that is not f32";
    if (a->rows != b->rows || d->rows != a->cols || d->cols != b->cols || c->rows != d->rows ||
        c->cols != d->cols)
        return "matrices that do not fit";
    if (a->ld < (int64_t)a->rows || b->ld < (int64_t)b->rows || d->ld < (int64_t)d->rows)
        return "columns that overlap";
    if (!is_column_aligned(a) || !is_column_aligned(b) || !is_column_aligned(d))
        return "columns that are not aligned";
    return a->type == CUDA_R_8F_E4M3 ? wrong_fp8(p) : NULL;
}

static Product product(cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d)
{
    return (Product){(void *)desc, (void *)a, (void *)b, (void *)c, (void *)d};
}

static Algo algo_for(const Product *p, uint64_t n_splits)
{
    return (Algo){MAGIC, p->a->type, p->a->cols, p->a->rows, n_splits};
}

/* One that splits k, though nobody asked for that, then one that does not. */
static cublasStatus_t heuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                cublasLtMatmulPreference_t preference, int most,
                                cublasLtMatmulHeuristicResult_t *out, int *n)
{
    Product p = product(desc, a, b, c, d);
    const Preference *want = (void *)preference;
    const char *why = wrong(&p);
    *n = 0;
    if (!handle || why) return refuse(CUBLAS_STATUS_NOT_SUPPORTED, why ? why : "no handle");
    for (int i = 0; i < 4; i++)
        if (want->alignment[i] != 16) return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "an alignment");
    for (; *n < 2 && *n < most; ++*n) {
        Algo algo = algo_for(&p, *n ? 1 : 2);
        memset(&out[*n], 0, sizeof out[*n]);
        memcpy(&out[*n].algo, &algo, sizeof algo);
        out[*n].workspaceSize = WORKSPACE;
        out[*n].state =
            want->workspace < WORKSPACE ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
    }
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t algo_get(const cublasLtMatmulAlgo_t *algo,
                               cublasLtMatmulAlgoConfigAttributes_t what, void *value, size_t size,
                               size_t *written)
{
    Algo a;
    memcpy(&a, algo, sizeof a);
    uint32_t out =
        what == CUBLASLT_ALGO_CONFIG_SPLITK_NUM ? (uint32_t)a.n_splits : (uint32_t)(a.n_splits > 1);
    if ((what != CUBLASLT_ALGO_CONFIG_SPLITK_NUM &&
         what != CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME) ||
        a.magic != MAGIC || size != sizeof out)
        return refuse(CUBLAS_STATUS_INVALID_VALUE, "what an algorithm is not asked");
    memcpy(value, &out, size);
    *written = size;
    return CUBLAS_STATUS_SUCCESS;
}

static int is_for(const cublasLtMatmulAlgo_t *algo, const Product *p)
{
    Algo a, want = algo_for(p, 1);
    memcpy(&a, algo, sizeof a);
    want.n_splits = a.n_splits;
    return !memcmp(&a, &want, sizeof a);
}

static cublasStatus_t algo_check(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                 cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                 cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                 const cublasLtMatmulAlgo_t *algo,
                                 cublasLtMatmulHeuristicResult_t *result)
{
    Product p = product(desc, a, b, c, d);
    const char *why = wrong(&p);
    if (!handle || why || !is_for(algo, &p))
        return refuse(CUBLAS_STATUS_NOT_SUPPORTED, why ? why : "an algorithm of another product");
    result->workspaceSize = WORKSPACE;
    return CUBLAS_STATUS_SUCCESS;
}

/* What is queued: layouts and all, for they change before it runs. */
typedef struct {
    Desc desc;
    Layout a, b, d;
    const unsigned char *at_a, *at_b;
    float *at_d, beta;
    int n_splits;
} Call;

static int32_t bits_of(float x)
{
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* acc + 32 products as a tensor core has them: cut off below the largest of them. */
static float add_cut(float acc, const float *x, const float *y)
{
    enum { INFINITE = 0x7f800000, TINY = (E4M3_BITS + 1) << 23 };
    float z[E4M3_STEP], per_unit;
    int32_t largest = bits_of(acc) & INT32_MAX, sum = 0;
    for (int i = 0; i < E4M3_STEP; i++) {
        z[i] = x[i] * y[i];
        int32_t size = bits_of(z[i]) & INT32_MAX; /* magnitudes are in the order of their bits */
        largest = size > largest ? size : largest;
    }
    if (largest >= INFINITE || largest < TINY) {
        for (int i = 0; i < E4M3_STEP; i++)
            acc += z[i];
        return acc;
    }
    /* 2^exponent is the power above the largest; units of 2^(exponent - bits) */
    int exponent = (largest >> 23) - 126;
    per_unit = ldexpf(1, E4M3_BITS - exponent);
    for (int i = 0; i < E4M3_STEP; i++)
        sum += (int32_t)(z[i] * per_unit);
    return (float)(sum + (int32_t)(acc * per_unit)) * ldexpf(1, exponent - E4M3_BITS);
}

static float fp8_sum(const Call *c, const float *a, const float *b, uint64_t row, uint64_t column)
{
    uint64_t k = c->a.rows, k_blocks = k / SCALE_BLOCK;
    float sum = 0;
    for (uint64_t at = 0; at < k; at += SCALE_BLOCK) {
        float part = 0;
        for (uint64_t i = at; i < at + SCALE_BLOCK; i += E4M3_STEP)
            part = add_cut(part, a + i, b + i);
        uint64_t block = at / SCALE_BLOCK;
        const float *of_a = device_memory_bytes((uintptr_t)c->desc.scale[0]),
                    *of_b = device_memory_bytes((uintptr_t)c->desc.scale[1]);
        sum += part * of_a[row / SCALE_BLOCK * k_blocks + block] * of_b[block * c->b.cols + column];
    }
    return sum;
}

/* In sixteen sums; with a split these in an order that depends on n. */
static float bf16_sum(const Call *c, const float *a, const float *b)
{
    enum { LANES = 16 };
    float part[LANES] = {0}, sum = 0;
    uint64_t k = c->a.rows, i = 0;
    for (; i + LANES <= k; i += LANES)
        for (int l = 0; l < LANES; l++)
            part[l] += a[i + l] * b[i + l];
    for (; i < k; i++)
        part[i % LANES] += a[i] * b[i];
    for (int l = 0; l < LANES; l++)
        sum += part[c->n_splits > 1 ? (l + (int)c->b.cols) % LANES : l];
    return sum;
}

static void widen(float *out, cudaDataType type, const unsigned char *at, uint64_t n)
{
    const unsigned char *from = device_memory_bytes((uintptr_t)at);
    for (uint64_t i = 0; i < n; i++)
        out[i] = type == CUDA_R_8F_E4M3 ? fp8_to_float(from[i])
                                        : bf16_to_float(((const uint16_t *)(const void *)from)[i]);
}

static void run_product(void *arg)
{
    const Call *c = arg;
    uint64_t k = c->a.rows, m = c->a.cols, n = c->b.cols;
    size_t bytes = (size_t)element_bytes(c->a.type);
    float *b = malloc((size_t)(n * k) * sizeof *b), *a = malloc((size_t)k * sizeof *a);
    float *d = device_memory_bytes((uintptr_t)c->at_d);
    if (!a || !b) abort();
    for (uint64_t j = 0; j < n; j++)
        widen(b + j * k, c->b.type, c->at_b + j * (uint64_t)c->b.ld * bytes, k);
    for (uint64_t i = 0; i < m; i++) {
        widen(a, c->a.type, c->at_a + i * (uint64_t)c->a.ld * bytes, k);
        for (uint64_t j = 0; j < n; j++) {
            float *out = d + j * (uint64_t)c->d.ld + i;
            float sum = c->a.type == CUDA_R_8F_E4M3 ? fp8_sum(c, a, b + j * k, i, j)
                                                    : bf16_sum(c, a, b + j * k);
            *out = c->beta != 0 ? sum + c->beta * *out : sum;
        }
    }
    free(a), free(b);
}

static int has_matrix(const void *at, const Layout *l)
{
    size_t columns = (size_t)(l->cols - 1) * (size_t)l->ld + (size_t)l->rows;
    return (uintptr_t)at % 16 == 0 &&
           device_memory_has_range(at, columns * (size_t)element_bytes(l->type));
}

static int has_scales(const Product *p)
{
    size_t k_blocks = (size_t)p->a->rows / SCALE_BLOCK;
    size_t of_a = ((size_t)p->a->cols + SCALE_BLOCK - 1) / SCALE_BLOCK * k_blocks,
           of_b = (size_t)p->b->cols * k_blocks;
    /* A's columns of blocks begin at multiples of 4, so that they lie as in the checkpoint. */
    return p->a->rows % (4 * SCALE_BLOCK) == 0 &&
           device_memory_has_range(p->desc->scale[0], of_a * sizeof(float)) &&
           device_memory_has_range(p->desc->scale[1], of_b * sizeof(float));
}

static cublasStatus_t matmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha,
                             const void *a, cublasLtMatrixLayout_t of_a, const void *b,
                             cublasLtMatrixLayout_t of_b, const void *beta, const void *c,
                             cublasLtMatrixLayout_t of_c, void *d, cublasLtMatrixLayout_t of_d,
                             const cublasLtMatmulAlgo_t *algo, void *workspace, size_t bytes,
                             cudaStream_t stream)
{
    Product p = product(desc, of_a, of_b, of_c, of_d);
    const char *why = wrong(&p);
    float one;
    memcpy(&one, alpha, sizeof one);
    if (!why && !is_for(algo, &p)) why = "an algorithm of another product";
    if (!why && (!handle || one != 1 || c != d)) why = "what is not played";
    if (!why && !(has_matrix(a, p.a) && has_matrix(b, p.b) && has_matrix(d, p.d)))
        why = "a matrix that is not the device's, or not aligned";
    if (!why && (bytes < WORKSPACE || !device_memory_has_range(workspace, bytes)))
        why = "no workspace";
    if (!why && p.a->type == CUDA_R_8F_E4M3 && !has_scales(&p)) why = "scales that are not there";
    if (why) return refuse(CUBLAS_STATUS_INVALID_VALUE, why);
    Call *call = malloc(sizeof *call);
    if (!call) abort();
    *call = (Call){*p.desc, *p.a, *p.b, *p.d, a, b, d, 0, 0};
    memcpy(&call->beta, beta, sizeof call->beta);
    Algo words;
    memcpy(&words, algo, sizeof words);
    call->n_splits = (int)words.n_splits;
    stream_call((Stream *)(void *)stream, run_product, call);
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- the library ---- */

static char library; /* its address is the handle */

void *dlopen(const char *name, int flags)
{
    (void)flags;
    return name && !strcmp(name, "libcublasLt.so.13") ? &library : NULL;
}

void *dlsym(void *restrict handle, const char *restrict name)
{
    static const struct {
        const char *name;
        void (*at)(void);
    } symbols[] = {
        {"cublasLtCreate", (void (*)(void))create},
        {"cublasLtDestroy", (void (*)(void))destroy},
        {"cublasLtGetVersion", (void (*)(void))version},
        {"cublasLtMatmul", (void (*)(void))matmul},
        {"cublasLtMatmulAlgoCheck", (void (*)(void))algo_check},
        {"cublasLtMatmulAlgoConfigGetAttribute", (void (*)(void))algo_get},
        {"cublasLtMatmulAlgoGetHeuristic", (void (*)(void))heuristic},
        {"cublasLtMatmulDescCreate", (void (*)(void))desc_create},
        {"cublasLtMatmulDescDestroy", (void (*)(void))desc_destroy},
        {"cublasLtMatmulDescSetAttribute", (void (*)(void))desc_set},
        {"cublasLtMatmulPreferenceCreate", (void (*)(void))preference_create},
        {"cublasLtMatmulPreferenceDestroy", (void (*)(void))preference_destroy},
        {"cublasLtMatmulPreferenceSetAttribute", (void (*)(void))preference_set},
        {"cublasLtMatrixLayoutCreate", (void (*)(void))layout_create},
        {"cublasLtMatrixLayoutDestroy", (void (*)(void))layout_destroy},
        {"cublasLtMatrixLayoutSetAttribute", (void (*)(void))layout_set},
    };
    void *at = NULL;
    for (size_t i = 0; handle == &library && i < sizeof symbols / sizeof *symbols; i++)
        if (!strcmp(symbols[i].name, name)) memcpy(&at, &symbols[i].at, sizeof at);
    return at;
}
