/*
 * table_cuda.cu: the table of one world, GPU or host.
 */
#include "kernels/simt.h"

#define CUDA_ENTRY(op, Args) CUDA_NAME(op),
extern "C" const CudaOps CUDA_NAME(ops) = {CUDA_OPERATIONS(CUDA_ENTRY)};
