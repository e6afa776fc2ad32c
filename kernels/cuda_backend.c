/* cuda_backend.c: see cuda_backend.h. */
#include "kernels/cuda_backend.h"

#include <assert.h>
#include <string.h>

/* 1 for those that say which rows they write, or write none. */
static int keeps_terms(const char *op)
{
    static const char *const names[] = {"linear", "swiglu", "moe_ffn", "routed_ffn"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(op, names[i])) return 1;
    return 0;
}

#define CUDA_CALL(op, Args)                                                                        \
    static void op(Backend *be, const Args *a)                                                     \
    {                                                                                              \
        CudaBackend *b = (CudaBackend *)be;                                                        \
        if (!keeps_terms(#op)) cuda_forget_terms(b);                                               \
        if (a->n > 0 && !b->failed) b->ops->op(&b->context, a);                                    \
    }
CUDA_OPERATIONS(CUDA_CALL)

int cuda_note(CudaBackend *b, int failed)
{
    if (failed && !b->failed) b->failed = failed;
    return failed ? -1 : 0;
}

void cuda_forget_terms(CudaBackend *b)
{
    for (int i = 0; i < MEMO_ENTRIES; i++)
        b->memo.entry[i].x = NULL;
}

void cuda_keep_terms(CudaBackend *b, void *memory, size_t bytes)
{
    b->memo.memory = memory;
    b->memo.part_bytes = bytes / (TERM_KINDS * MEMO_ENTRIES) / 16 * 16;
    b->context.memo = &b->memo;
}

#define CUDA_SET(op, Args) be->op = op;

void cuda_backend_fill(CudaBackend *b, const CudaOps *ops)
{
    Backend *be = &b->be;
    b->ops = ops;
    b->context.failed = &b->failed;
    b->context.place = b->place;
    be->prefill_differs = 1;
    be->moe_shared_rows = MOE_FEW_ROWS;
    CUDA_OPERATIONS(CUDA_SET)
}

int cuda_same_key(const ReplayKey *a, const ReplayKey *b)
{
    return a->owner == b->owner && a->n == b->n && a->m == b->m && a->first == b->first &&
           a->n_keys == b->n_keys && a->prefill == b->prefill && a->uncut == b->uncut;
}
