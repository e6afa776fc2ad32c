/*
 * cublaslt.c: see cublaslt.h. Built where nvcc is. Nothing is linked: the header gives the types,
 * the library is opened when the program runs.
 *
 * Everything is column-major there: our row-major w [rows][cols] is its cols x rows, taken
 * transposed; x [n][cols] is cols x n; y [n][rows] is rows x n. An algorithm may not split k, so
 * that an output is one sum whatever n is; whether that holds on a GPU, test_linear asks there.
 *
 * e4m3 with a scale for 128 x 128 weights and for 128 k's of a row of x is cuBLASLt's from 12.9 on,
 * on Hopper alone: elsewhere it finds no algorithm. Scales of W lie as in the checkpoint, those of
 * x with the row as the fastest index.
 */
#include "kernels/cublaslt.h"

#include <stdio.h>

#include "base/mem.h"

#if __has_include(<cublasLt.h>)
#include <cublasLt.h>
#include <dlfcn.h>
#include <string.h>

enum { OLDEST_VERSION = 120000, FP8_VERSION = 120900, CANDIDATES = 8, ALIGNMENT = 16 };

#define SYMBOLS(X)                                                                                 \
    X(cublasLtCreate)                                                                              \
    X(cublasLtDestroy)                                                                             \
    X(cublasLtGetVersion)                                                                          \
    X(cublasLtMatmul)                                                                              \
    X(cublasLtMatmulAlgoCheck)                                                                     \
    X(cublasLtMatmulAlgoConfigGetAttribute)                                                        \
    X(cublasLtMatmulAlgoGetHeuristic)                                                              \
    X(cublasLtMatmulDescCreate)                                                                    \
    X(cublasLtMatmulDescDestroy)                                                                   \
    X(cublasLtMatmulDescSetAttribute)                                                              \
    X(cublasLtMatmulPreferenceCreate)                                                              \
    X(cublasLtMatmulPreferenceDestroy)                                                             \
    X(cublasLtMatmulPreferenceSetAttribute)                                                        \
    X(cublasLtMatrixLayoutCreate)                                                                  \
    X(cublasLtMatrixLayoutDestroy)                                                                 \
    X(cublasLtMatrixLayoutSetAttribute)

/* Products of a type of weights; desc is NULL where there are none. */
typedef struct {
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t w, x;
} Kind;

typedef struct {
#define POINTER(name) __typeof__(name) *(name);
    SYMBOLS(POINTER)
#undef POINTER
    cublasLtHandle_t handle;
    Kind bf16, fp8;
    cublasLtMatrixLayout_t y;
    cublasLtMatmulPreference_t preference;
    cudaStream_t stream;
    void *workspace;
} Lt;

_Static_assert(sizeof(GemmAlgorithm) == sizeof(cublasLtMatmulAlgo_t), "an algorithm's words");

static void close_kind(Lt *lt, Kind *k)
{
    if (k->w) lt->cublasLtMatrixLayoutDestroy(k->w);
    if (k->x) lt->cublasLtMatrixLayoutDestroy(k->x);
    if (k->desc) lt->cublasLtMatmulDescDestroy(k->desc);
    *k = (Kind){0};
}

static void lt_close(void *self)
{
    Lt *lt = self;
    if (lt->preference) lt->cublasLtMatmulPreferenceDestroy(lt->preference);
    close_kind(lt, &lt->bf16);
    close_kind(lt, &lt->fp8);
    if (lt->y) lt->cublasLtMatrixLayoutDestroy(lt->y);
    if (lt->handle) lt->cublasLtDestroy(lt->handle);
    mem_free(lt);
}

/* Gives a layout its size; nothing is allocated. */
static int set_layout(const Lt *lt, cublasLtMatrixLayout_t layout, int rows, int cols, int stride)
{
    uint64_t r = (uint64_t)rows, c = (uint64_t)cols;
    int64_t ld = stride;
    return lt->cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_ROWS, &r,
                                                sizeof r) ||
           lt->cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_COLS, &c,
                                                sizeof c) ||
           lt->cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_LD, &ld, sizeof ld);
}

static const Kind *kind_of(const Lt *lt, WeightType type)
{
    return type == WEIGHT_FP8 ? &lt->fp8 : &lt->bf16;
}

/* -1 where there are no such products. */
static int set_shape(const Lt *lt, WeightType type, int rows, int cols, int n, int y_stride)
{
    const Kind *k = kind_of(lt, type);
    if (!k->desc || set_layout(lt, k->w, cols, rows, cols) || set_layout(lt, k->x, cols, n, cols) ||
        set_layout(lt, lt->y, rows, n, y_stride))
        return -1;
    return 0;
}

static int set_desc(const Lt *lt, cublasLtMatmulDesc_t desc, int what, const void *value,
                    size_t bytes)
{
    return (int)lt->cublasLtMatmulDescSetAttribute(desc, (cublasLtMatmulDescAttributes_t)what,
                                                   value, bytes);
}

static int set_scales(const Lt *lt, const float *w, const float *x)
{
    return set_desc(lt, lt->fp8.desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &w, sizeof(void *)) ||
           set_desc(lt, lt->fp8.desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &x, sizeof(void *));
}

/* 1 when each output is one sum. */
static int is_one_sum(const Lt *lt, const cublasLtMatmulAlgo_t *algorithm)
{
    int32_t split = 0;
    uint32_t reduction = 0;
    size_t written = 0;
    return !lt->cublasLtMatmulAlgoConfigGetAttribute(algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM,
                                                     &split, sizeof split, &written) &&
           !lt->cublasLtMatmulAlgoConfigGetAttribute(algorithm,
                                                     CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME,
                                                     &reduction, sizeof reduction, &written) &&
           (split == 0 || split == 1) && reduction == CUBLASLT_REDUCTION_SCHEME_NONE;
}

static int lt_choose(void *self, WeightType type, int rows, int cols, int n, GemmAlgorithm *out)
{
    const Lt *lt = self;
    const Kind *k = kind_of(lt, type);
    cublasLtMatmulHeuristicResult_t found[CANDIDATES];
    int n_found = 0;
    if (set_shape(lt, type, rows, cols, n, rows) ||
        lt->cublasLtMatmulAlgoGetHeuristic(lt->handle, k->desc, k->w, k->x, lt->y, lt->y,
                                           lt->preference, CANDIDATES, found, &n_found))
        return -1;
    for (int i = 0; i < n_found; i++) {
        if (found[i].state != CUBLAS_STATUS_SUCCESS || !is_one_sum(lt, &found[i].algo)) continue;
        memcpy(out, &found[i].algo, sizeof *out);
        return 0;
    }
    return -1;
}

static int lt_accepts(void *self, WeightType type, int rows, int cols, int n,
                      const GemmAlgorithm *algorithm)
{
    const Lt *lt = self;
    const Kind *k = kind_of(lt, type);
    cublasLtMatmulHeuristicResult_t result;
    cublasLtMatmulAlgo_t algo;
    memcpy(&algo, algorithm, sizeof algo);
    if (set_shape(lt, type, rows, cols, n, rows) ||
        lt->cublasLtMatmulAlgoCheck(lt->handle, k->desc, k->w, k->x, lt->y, lt->y, &algo,
                                    &result) ||
        result.workspaceSize > CUBLASLT_WORKSPACE)
        return -1;
    return 0;
}

static int lt_multiply(void *self, const GemmProduct *p, const GemmAlgorithm *algorithm)
{
    const Lt *lt = self;
    const Kind *k = kind_of(lt, p->type);
    const float one = 1, add = p->add ? 1 : 0;
    cublasLtMatmulAlgo_t algo;
    memcpy(&algo, algorithm, sizeof algo);
    if (set_shape(lt, p->type, p->rows, p->cols, p->n, p->y_stride) ||
        (p->type == WEIGHT_FP8 && set_scales(lt, p->w_scale, p->x_scale)) ||
        lt->cublasLtMatmul(lt->handle, k->desc, &one, p->w, k->w, p->x, k->x, &add, p->y, lt->y,
                           p->y, lt->y, &algo, lt->workspace, CUBLASLT_WORKSPACE, lt->stream))
        return -1;
    return 0;
}

static const char *find_symbols(Lt *lt)
{
    static const char *const name[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
    void *library = NULL;
    for (int i = 0; i < 2 && !library; i++)
        library = dlopen(name[i], RTLD_NOW | RTLD_LOCAL);
    if (!library) return "not installed";
#define FIND(name)                                                                                 \
    {                                                                                              \
        void *at = dlsym(library, #name);                                                          \
        if (!at) return "lacks " #name;                                                            \
        memcpy(&lt->name, &at, sizeof at);                                                         \
    }
    SYMBOLS(FIND)
#undef FIND
    return lt->cublasLtGetVersion() < OLDEST_VERSION ? "too old" : NULL;
}

static int set_preference(const Lt *lt, int what, const void *value, size_t bytes)
{
    return (int)lt->cublasLtMatmulPreferenceSetAttribute(
        lt->preference, (cublasLtMatmulPreferenceAttributes_t)what, value, bytes);
}

static int make_kind(const Lt *lt, Kind *k, cudaDataType_t type)
{
    const cublasOperation_t transposed = CUBLAS_OP_T;
    return lt->cublasLtMatmulDescCreate(&k->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F) ||
           set_desc(lt, k->desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed) ||
           lt->cublasLtMatrixLayoutCreate(&k->w, type, 16, 16, 16) ||
           lt->cublasLtMatrixLayoutCreate(&k->x, type, 16, 16, 16);
}

/* Who chooses an algorithm wants to see scales, which lie anywhere. */
static int make_fp8(const Lt *lt, Kind *k)
{
#if CUBLAS_VERSION >= 120900
    const cublasLtMatmulMatrixScale_t of_w = CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F,
                                      of_x = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    return lt->cublasLtGetVersion() < FP8_VERSION || make_kind(lt, k, CUDA_R_8F_E4M3) ||
           set_desc(lt, k->desc, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &of_w, sizeof of_w) ||
           set_desc(lt, k->desc, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &of_x, sizeof of_x) ||
           set_scales(lt, lt->workspace, lt->workspace);
#else
    (void)lt, (void)k;
    return -1;
#endif
}

/* The parts that all products share. */
static const char *make_parts(Lt *lt)
{
    static const int alignments[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    const uint64_t workspace = CUBLASLT_WORKSPACE;
    const uint32_t no_reduction = CUBLASLT_REDUCTION_SCHEME_NONE, alignment = ALIGNMENT;
    if (lt->cublasLtCreate(&lt->handle)) return "cannot be initialised";
    if (make_kind(lt, &lt->bf16, CUDA_R_16BF) ||
        lt->cublasLtMatrixLayoutCreate(&lt->y, CUDA_R_32F, 8, 8, 8) ||
        lt->cublasLtMatmulPreferenceCreate(&lt->preference) ||
        set_preference(lt, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                       sizeof workspace) ||
        set_preference(lt, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &no_reduction,
                       sizeof no_reduction))
        return "refuses descriptors";
    for (int i = 0; i < 4; i++)
        if (set_preference(lt, alignments[i], &alignment, sizeof alignment))
            return "refuses an alignment";
    if (make_fp8(lt, &lt->fp8)) close_kind(lt, &lt->fp8);
    return NULL;
}

void cublaslt_open(GemmLibrary *out, void *stream, void *workspace, char *about, size_t bytes)
{
    Lt *lt = mem_alloc(1, sizeof *lt);
    const char *why = find_symbols(lt);
    lt->stream = stream;
    lt->workspace = workspace;
    if (!why) why = make_parts(lt);
    *out = (GemmLibrary){0};
    if (why) {
        snprintf(about, bytes, "none (libcublasLt: %s)", why);
        lt_close(lt);
        return;
    }
    snprintf(about, bytes, "cuBLASLt %zu", lt->cublasLtGetVersion());
    *out = (GemmLibrary){lt, lt_choose, lt_accepts, lt_multiply, lt_close};
}

#else /* a toolkit without cuBLAS */

void cublaslt_open(GemmLibrary *out, void *stream, void *workspace, char *about, size_t bytes)
{
    (void)stream, (void)workspace;
    snprintf(about, bytes, "none (not in the toolkit that built this)");
    *out = (GemmLibrary){0};
}

#endif
