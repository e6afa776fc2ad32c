/*
 * cublaslt.h: cuBLASLt as a GemmLibrary, where it is installed.
 */
#ifndef OFFSHOOT_KERNELS_CUBLASLT_H
#define OFFSHOOT_KERNELS_CUBLASLT_H

#include "kernels/gemm_library.h"

/*
 * Opens libcublasLt.so.13 or .12; products are queued on stream, a cudaStream_t. workspace:
 * CUBLASLT_WORKSPACE bytes of device memory. Where there is none that works out->self stays NULL.
 * about, of so many bytes: its version, or why it is not used. Once loaded it stays so: graphs hold
 * its kernels.
 */
enum { CUBLASLT_WORKSPACE = 32 << 20 };
void cublaslt_open(GemmLibrary *out, void *stream, void *workspace, char *about, size_t bytes);

#endif
