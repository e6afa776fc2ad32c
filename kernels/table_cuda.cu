/*
 * table_cuda.cu: the table of one world, GPU or host.
 */
#include "kernels/simt.h"

#define CUDA_ENTRY(op, Args) CUDA_NAME(op),
extern "C" const CudaOps CUDA_NAME(ops) = {CUDA_OPERATIONS(CUDA_ENTRY)};

#ifdef __CUDACC__
static __global__ void probe_kernel()
{
    grid_wait();
}

extern "C" int cuda_find_code(int *ptx)
{
    cudaFuncAttributes attributes = {};
    cudaError_t failed = cudaFuncGetAttributes(&attributes, probe_kernel);
    *ptx = attributes.ptxVersion;
    return (int)failed;
}
#endif
