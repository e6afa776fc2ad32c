/* cuda_backend.c: see cuda_backend.h. */
#include "kernels/cuda_backend.h"

#include <assert.h>

#define CUDA_CALL(op, Args)                                                                        \
    static void op(Backend *be, const Args *a)                                                     \
    {                                                                                              \
        CudaBackend *b = (CudaBackend *)be;                                                        \
        if (a->n > 0 && !b->failed) b->ops->op(&b->context, a);                                    \
    }
CUDA_OPERATIONS(CUDA_CALL)

#define CUDA_SET(op, Args) be->op = op;

void cuda_backend_fill(CudaBackend *b, const CudaOps *ops)
{
    Backend *be = &b->be;
    b->ops = ops;
    b->context.failed = &b->failed;
    be->prefill_differs = 1;
    CUDA_OPERATIONS(CUDA_SET)
}

int cuda_same_key(const ReplayKey *a, const ReplayKey *b)
{
    return a->owner == b->owner && a->n == b->n && a->m == b->m && a->first == b->first &&
           a->n_keys == b->n_keys && a->prefill == b->prefill;
}
