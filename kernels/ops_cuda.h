/*
 * ops_cuda.h: the operations as launchers of GPU kernels.
 *
 * A *.cu source is compiled by nvcc for GPUs (op_cuda) and by a C++ compiler for the host (op_simt:
 * the same kernels, each block run as fibers, for tests). Both meet in a table of this kind.
 */
#ifndef OFFSHOOT_KERNELS_OPS_CUDA_H
#define OFFSHOOT_KERNELS_OPS_CUDA_H

#include "kernels/attention.h"
#include "kernels/delta_mixer.h"
#include "kernels/gated_delta.h"
#include "kernels/linear.h"
#include "kernels/moe.h"
#include "kernels/round.h"
#include "kernels/rows.h"
#include "kernels/sample.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rows of x, from which on products with FP8 weights go by wgmma where they can. */
enum { WG_MIN_ROWS = 9 };

/* The kinds of terms (terms.h) that products take. */
enum { KIND_BF16, KIND_FP8, KIND_FP8_BY_ROW, TERM_KINDS };

/*
 * Rows of x whose terms the operation that made them has left for those that multiply them. What is
 * queued forgets all of them, but for operations that say what they write (terms_overwritten). A
 * matter of launches: with it and without, the bits are the same.
 */
enum { MEMO_ROWS = 64, MEMO_ENTRIES = 2 };
typedef struct {
    struct {
        const float *x; /* NULL: of nobody */
        int n, cols;
        unsigned ready; /* bits by kind */
    } entry[MEMO_ENTRIES];
    int last;              /* the entry that was made last */
    unsigned wanted[2];    /* bits of kinds taken so far: of few rows, of as many as go by wgmma */
    unsigned char *memory; /* for each entry a part for each kind */
    size_t part_bytes;     /* a multiple of 16 */
} TermsMemo;

enum { CUDA_PLACE_BYTES = 256 };

/*
 * What every launcher gets: where to queue, and memory that is an operation's own while it runs.
 * Operations with many rows work in groups that fit the scratch.
 */
typedef struct {
    void *stream; /* a cudaStream_t */
    int *failed;  /* the first cudaError_t of a launch, 0 so far */
    char *place;  /* [CUDA_PLACE_BYTES] which launch that was */
    unsigned char *scratch;
    size_t scratch_bytes; /* a multiple of 256 */
    size_t shared_bytes;  /* shared memory that a block can have */
    int wgmma;            /* 1: many rows go by wgmma (gemm_wgmma.h, attention_wgmma.h) */
    int overlap;          /* 1: a launch may begin while the one before it runs (simt.h) */
    TermsMemo *memo;      /* NULL: none is kept */
} CudaContext;

/* One line for each operation: name, type of its arguments. First those of the model. */
#define MODEL_OPERATIONS(X)                                                                        \
    X(embed, Embed)                                                                                \
    X(gather_rows, GatherRows)                                                                     \
    X(add_norm, AddNorm)                                                                           \
    X(head_input, HeadInput)                                                                       \
    X(gated_norm, GatedNorm)                                                                       \
    X(linear, Linear)                                                                              \
    X(conv_gates, ConvGates)                                                                       \
    X(gated_delta, GatedDelta)                                                                     \
    X(delta_mixer, DeltaMixer)                                                                     \
    X(delta_fold, DeltaFold)                                                                       \
    X(attention_prepare, AttentionPrepare)                                                         \
    X(tree_attention, TreeAttention)                                                               \
    X(swiglu, SwiGlu)                                                                              \
    X(moe_ffn, MoeFfn)                                                                             \
    X(routed_ffn, RoutedFfn)                                                                       \
    X(sample, Sample)                                                                              \
    X(token_logprobs, TokenLogprobs)                                                               \
    X(move_rows, MoveRows)

/* And those of a round of speculation. */
#define ROUND_OPERATIONS(X)                                                                        \
    X(grow_drafts, GrowDrafts)                                                                     \
    X(plant_trees, PlantTrees)                                                                     \
    X(accept_trees, AcceptTrees)

#define CUDA_OPERATIONS(X)                                                                         \
    MODEL_OPERATIONS(X)                                                                            \
    ROUND_OPERATIONS(X)

typedef struct {
#define CUDA_POINTER(op, Args) void (*op)(const CudaContext *c, const Args *a);
    CUDA_OPERATIONS(CUDA_POINTER)
#undef CUDA_POINTER
} CudaOps;

#define CUDA_DECLARE(op, Args)                                                                     \
    void op##_cuda(const CudaContext *c, const Args *a);                                           \
    void op##_simt(const CudaContext *c, const Args *a);
CUDA_OPERATIONS(CUDA_DECLARE)
/* What two of them hand over to for a prompt's rows (backend.h: prefill). */
CUDA_DECLARE(gated_delta_prefill, GatedDelta)
#undef CUDA_DECLARE
/* 0, and nothing is queued, where a block cannot have the shared memory that it takes. */
int tree_attention_prefill_cuda(const CudaContext *c, const TreeAttention *a);
int tree_attention_prefill_simt(const CudaContext *c, const TreeAttention *a);
/* The longest head that tree_attention can take with the shared memory that there is. */
int max_head_dim_cuda(const CudaContext *c);
int max_head_dim_simt(const CudaContext *c);

extern const CudaOps ops_cuda, ops_simt;
/*
 * 0, or the cudaError_t for which no kernel of this program runs on the current device. *ptx: the
 * architecture that its code was compiled for, 10 * major + minor.
 */
int cuda_find_code(int *ptx);

#ifdef __cplusplus
}
#endif

#endif
