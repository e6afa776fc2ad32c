/*
 * cublaslt.c: see cublaslt.h. Built where nvcc is. Nothing is linked: the header gives the types,
 * the library is opened when the program runs.
 *
 * Everything is column-major there: our row-major w [rows][cols] is its cols x rows, taken
 * transposed; x [n][cols] is cols x n; y [n][rows] is rows x n. An algorithm may not split k, so
 * that an output is one sum whatever n is; whether that holds on a GPU, test_kernels asks there.
 */
#include "kernels/cublaslt.h"

#include <stdio.h>

#include "base/mem.h"

#if __has_include(<cublasLt.h>)
#include <cublasLt.h>
#include <dlfcn.h>
#include <string.h>

enum { OLDEST_VERSION = 120000, CANDIDATES = 8, ALIGNMENT = 16 };

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

typedef struct {
#define POINTER(name) __typeof__(name) *(name);
    SYMBOLS(POINTER)
#undef POINTER
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t w, x, y;
    cublasLtMatmulPreference_t preference;
    cudaStream_t stream;
    void *workspace;
} Lt;

_Static_assert(sizeof(GemmAlgorithm) == sizeof(cublasLtMatmulAlgo_t), "an algorithm's words");

static void lt_close(void *self)
{
    Lt *lt = self;
    if (lt->preference) lt->cublasLtMatmulPreferenceDestroy(lt->preference);
    if (lt->w) lt->cublasLtMatrixLayoutDestroy(lt->w);
    if (lt->x) lt->cublasLtMatrixLayoutDestroy(lt->x);
    if (lt->y) lt->cublasLtMatrixLayoutDestroy(lt->y);
    if (lt->desc) lt->cublasLtMatmulDescDestroy(lt->desc);
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

static int set_shape(const Lt *lt, int rows, int cols, int n, int y_stride)
{
    return set_layout(lt, lt->w, cols, rows, cols) || set_layout(lt, lt->x, cols, n, cols) ||
           set_layout(lt, lt->y, rows, n, y_stride);
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
           split <= 1 && reduction == CUBLASLT_REDUCTION_SCHEME_NONE;
}

static int lt_choose(void *self, int rows, int cols, int n, GemmAlgorithm *out)
{
    const Lt *lt = self;
    cublasLtMatmulHeuristicResult_t found[CANDIDATES];
    int n_found = 0;
    if (set_shape(lt, rows, cols, n, rows) ||
        lt->cublasLtMatmulAlgoGetHeuristic(lt->handle, lt->desc, lt->w, lt->x, lt->y, lt->y,
                                           lt->preference, CANDIDATES, found, &n_found))
        return -1;
    for (int i = 0; i < n_found; i++) {
        if (found[i].state != CUBLAS_STATUS_SUCCESS || !is_one_sum(lt, &found[i].algo)) continue;
        memcpy(out, &found[i].algo, sizeof *out);
        return 0;
    }
    return -1;
}

static int lt_accepts(void *self, int rows, int cols, int n, const GemmAlgorithm *algorithm)
{
    const Lt *lt = self;
    cublasLtMatmulHeuristicResult_t result;
    cublasLtMatmulAlgo_t algo;
    memcpy(&algo, algorithm, sizeof algo);
    if (set_shape(lt, rows, cols, n, rows) ||
        lt->cublasLtMatmulAlgoCheck(lt->handle, lt->desc, lt->w, lt->x, lt->y, lt->y, &algo,
                                    &result) ||
        result.workspaceSize > CUBLASLT_WORKSPACE)
        return -1;
    return 0;
}

static int lt_multiply(void *self, const GemmProduct *p, const GemmAlgorithm *algorithm)
{
    const Lt *lt = self;
    const float one = 1, add = p->add ? 1 : 0;
    cublasLtMatmulAlgo_t algo;
    memcpy(&algo, algorithm, sizeof algo);
    if (set_shape(lt, p->rows, p->cols, p->n, p->y_stride) ||
        lt->cublasLtMatmul(lt->handle, lt->desc, &one, p->w, lt->w, p->x, lt->x, &add, p->y, lt->y,
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

/* The parts that all products share. */
static const char *make_parts(Lt *lt)
{
    static const int alignments[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    const cublasOperation_t transposed = CUBLAS_OP_T;
    const uint64_t workspace = CUBLASLT_WORKSPACE;
    const uint32_t no_reduction = CUBLASLT_REDUCTION_SCHEME_NONE, alignment = ALIGNMENT;
    if (lt->cublasLtCreate(&lt->handle)) return "cannot be initialised";
    if (lt->cublasLtMatmulDescCreate(&lt->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F) ||
        lt->cublasLtMatmulDescSetAttribute(lt->desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                           sizeof transposed) ||
        lt->cublasLtMatrixLayoutCreate(&lt->w, CUDA_R_16BF, 8, 8, 8) ||
        lt->cublasLtMatrixLayoutCreate(&lt->x, CUDA_R_16BF, 8, 8, 8) ||
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
