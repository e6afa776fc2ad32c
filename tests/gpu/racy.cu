/* racy.cu: a kernel with a race, which racecheck must find: else it would find none of ours. */
#include <cuda_runtime.h>
#include <stdio.h>

enum { THREADS = 64 };

/* What one warp reads the other one writes, and no barrier is between. */
static __global__ void racy_kernel(int *out)
{
    __shared__ int x[THREADS];
    x[threadIdx.x] = (int)threadIdx.x;
    out[threadIdx.x] = x[THREADS - 1 - threadIdx.x];
}

int main()
{
    int *out = NULL;
    cudaError_t failed = cudaMalloc(&out, THREADS * sizeof *out);
    if (!failed) {
        racy_kernel<<<1, THREADS>>>(out);
        failed = cudaDeviceSynchronize();
    }
    printf("%s\n", cudaGetErrorName(failed));
    return failed != cudaSuccess;
}
