/*
 * table_cuda.cu: the table of one world, GPU or host.
 */
#include "kernels/simt.h"

#define CUDA_ENTRY(op, Args) CUDA_NAME(op),
extern "C" const CudaOps CUDA_NAME(ops) = {CUDA_OPERATIONS(CUDA_ENTRY)};

#ifdef __CUDACC__
static __global__ void probe_kernel()
{
}

extern "C" int cuda_find_code(void)
{
    cudaFuncAttributes attributes;
    return (int)cudaFuncGetAttributes(&attributes, probe_kernel);
}
#endif
