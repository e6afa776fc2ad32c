/*
 * launched.c: which kernels a test launches; the linker puts it before the CUDA runtime's launch.
 *
 * OFFSHOOT_TEST_LAUNCHES names a file for a line a launch: ms since the first one, and the kernel's
 * mangled name. With OFFSHOOT_TEST_LAST the program ends well after that many, whatever is still to
 * be tested: what a sanitizer was to see of it has run.
 */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* The linker's names. */
cudaError_t __wrap_cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *kernel,
                                       void **args);
cudaError_t __real_cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *kernel,
                                       void **args);

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static void note(const void *kernel)
{
    static FILE *file;
    static double begun;
    const char *path = getenv("OFFSHOOT_TEST_LAUNCHES"), *name = NULL;
    if (!path) return;
    if (!file) {
        file = fopen(path, "w");
        if (!file || setvbuf(file, NULL, _IOLBF, BUFSIZ)) {
            fprintf(stderr, "%s cannot be written\n", path);
            exit(1);
        }
        begun = now_ms();
    }
    cudaFuncGetName(&name, kernel);
    fprintf(file, "%.0f %s\n", now_ms() - begun, name ? name : "?");
}

static void end_after_last(void)
{
    static long n;
    const char *last = getenv("OFFSHOOT_TEST_LAST");
    if (!last || ++n < atol(last)) return;
    cudaError_t failed = cudaDeviceSynchronize();
    printf("ends after launch %ld: %s\n", n, cudaGetErrorName(failed));
    exit(failed != cudaSuccess);
}

cudaError_t __wrap_cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *kernel,
                                       void **args)
{
    cudaError_t failed = __real_cudaLaunchKernelExC(config, kernel, args);
    note(kernel);
    end_after_last();
    return failed;
}
