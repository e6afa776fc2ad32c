/*
 * device_cuda.c: the backend "cuda": one NVIDIA GPU, its memory, a stream of operations and one of
 * copies aside.
 *
 * Operations are queued; errors of the device are noted once, after which nothing is queued any
 * more, and reported by sync. Built where nvcc is; device_none.c stands in elsewhere. The runtime
 * is linked statically and finds the driver when it is first called, so the program also starts
 * where there is none.
 */
#include <assert.h>
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "kernels/cublaslt.h"
#include "kernels/cuda_backend.h"
#include "kernels/cuda_graphs.h"
#include "kernels/upload_ring.h"
#include "kernels/wgmma_check.h"

enum {
    MIN_COMPUTE_MAJOR = 8,
    OVERLAP_PTX = 90, /* Hopper's; older code would not wait */
    MIN_SCRATCH = 64 << 20,
    MAX_SCRATCH = 768 << 20, /* 8,192 rows of a prompt with eight experts each */
    SCRATCH_SHARE = 160,     /* of the GPU's memory, between these */
    TERMS_BYTES = 36 << 20,  /* in six parts of 64 rows of 24,000 values */
};

/* Host memory that is pinned. */
typedef struct {
    const unsigned char *at;
    size_t bytes;
} Pinned;

typedef struct {
    CudaBackend cuda;
    cudaEvent_t event[BACKEND_MARKS];
    Pinned *pinned;
    size_t n_pinned;
    UploadRing ring;
    cudaStream_t aside;
    cudaEvent_t aside_end[BACKEND_ASIDES], crossing; /* from a stream to the other */
    CudaGraphs graphs;
    GemmChoice products; /* of prompts */
    void *workspace;     /* of the library */
    void *terms;
    void (*own_linear)(Backend *be, const Linear *a);
} Device;

static CudaBackend *of(Backend *be)
{
    return (CudaBackend *)be;
}

static cudaStream_t stream_of(Backend *be)
{
    return of(be)->context.stream;
}

static int note(Backend *be, cudaError_t failed)
{
    return cuda_note(of(be), (int)failed);
}

static int report(Backend *be, Error *err)
{
    const CudaBackend *b = of(be);
    if (!b->failed) return 0;
    return error_set(err, ERR_DEVICE, "the GPU failed: %s%s%s",
                     cudaGetErrorString((cudaError_t)b->failed), b->place[0] ? ", at " : "",
                     b->place);
}

/* ---- memory ---- */

/* Whether an allocation's error tells of an operation before it; want of memory changes nothing. */
static int is_earlier(Backend *be, cudaError_t failed, Error *err)
{
    if (failed == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        return 0;
    }
    note(be, failed);
    return report(be, err) != 0;
}

static void *device_alloc(Backend *be, size_t bytes, Error *err)
{
    void *mem = NULL;
    size_t left = 0, all = 0;
    cudaError_t failed = cudaMalloc(&mem, bytes ? bytes : 1); /* of 0 bytes it gives NULL */
    if (!failed) {
        note(be, cudaMemsetAsync(mem, 0, bytes, stream_of(be)));
        return mem;
    }
    if (is_earlier(be, failed, err)) return NULL;
    cudaMemGetInfo(&left, &all);
    error_set(err, ERR_DEVICE,
              "no GPU memory for %zu MiB, %zu of %zu MiB are free (%s); lower --memory",
              bytes >> 20, left >> 20, all >> 20, cudaGetErrorString(failed));
    return NULL;
}

static size_t device_free_bytes(Backend *be)
{
    size_t left = 0, all = 0;
    note(be, cudaMemGetInfo(&left, &all));
    return left;
}

static void device_free(Backend *be, void *mem)
{
    (void)be;
    cudaFree(mem);
}

static void *device_host_alloc(Backend *be, size_t bytes, Error *err)
{
    void *mem = NULL;
    Device *d = (Device *)be;
    cudaError_t failed = cudaHostAlloc(&mem, bytes, cudaHostAllocDefault);
    if (!failed) {
        d->pinned = mem_realloc(d->pinned, d->n_pinned + 1, sizeof *d->pinned);
        d->pinned[d->n_pinned++] = (Pinned){mem, bytes};
        return mem;
    }
    if (is_earlier(be, failed, err)) return NULL;
    error_set(err, ERR_DEVICE, "no pinned host memory for %zu MiB (%s)", bytes >> 20,
              cudaGetErrorString(failed));
    return NULL;
}

static void device_host_free(Backend *be, void *mem)
{
    Device *d = (Device *)be;
    for (size_t i = 0; mem && i < d->n_pinned; i++)
        if (d->pinned[i].at == mem) d->pinned[i] = d->pinned[--d->n_pinned];
    cudaFreeHost(mem);
}

static int is_pinned(const Device *d, const void *at)
{
    for (size_t i = 0; i < d->n_pinned; i++)
        if ((uintptr_t)at - (uintptr_t)d->pinned[i].at < d->pinned[i].bytes) return 1;
    return 0;
}

static void device_upload(Backend *be, void *dst, const void *host_src, size_t bytes)
{
    Device *d = (Device *)be;
    cudaStream_t stream = stream_of(be);
    assert(!d->graphs.is_recording);
    cuda_forget_terms(of(be));
    if (!bytes || of(be)->failed) return;
    if (is_pinned(d, host_src))
        note(be, cudaMemcpyAsync(dst, host_src, bytes, cudaMemcpyHostToDevice, stream));
    else
        note(be, upload_ring_send(&d->ring, stream, dst, host_src, bytes));
}

/* All ones where the device is lost, until the next sync says so: no id, NaN, no number of rows. */
static void device_download(Backend *be, void *host_dst, const void *src, size_t bytes)
{
    cudaStream_t stream = stream_of(be);
    if (!bytes) return;
    if (!of(be)->failed &&
        !note(be, cudaMemcpyAsync(host_dst, src, bytes, cudaMemcpyDeviceToHost, stream)))
        note(be, cudaStreamSynchronize(stream));
    if (of(be)->failed) memset(host_dst, 0xff, bytes);
}

static void device_download_later(Backend *be, void *host_dst, const void *src, size_t bytes)
{
    if (!bytes || of(be)->failed) return;
    note(be, cudaMemcpyAsync(host_dst, src, bytes, cudaMemcpyDeviceToHost, stream_of(be)));
}

static void device_mark(Backend *be, int mark)
{
    if (of(be)->failed) return;
    note(be, cudaEventRecord(((Device *)be)->event[mark], stream_of(be)));
}

static void device_copy(Backend *be, void *dst, const void *src, size_t bytes)
{
    cuda_forget_terms(of(be));
    if (!bytes || of(be)->failed) return;
    note(be, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, stream_of(be)));
}

static void device_zero(Backend *be, void *dst, size_t bytes)
{
    cuda_forget_terms(of(be));
    if (!bytes || of(be)->failed) return;
    note(be, cudaMemsetAsync(dst, 0, bytes, stream_of(be)));
}

static int device_sync(Backend *be, Error *err)
{
    if (!of(be)->failed) note(be, cudaStreamSynchronize(stream_of(be)));
    return report(be, err);
}

static int device_wait(Backend *be, int mark, Error *err)
{
    if (!of(be)->failed) note(be, cudaEventSynchronize(((Device *)be)->event[mark]));
    return report(be, err);
}

/* ---- copies aside ---- */

/* What is queued in `later` from now on waits for what is queued in `first`. */
static void order(Backend *be, cudaStream_t first, cudaStream_t later)
{
    cudaEvent_t crossing = ((Device *)be)->crossing;
    if (of(be)->failed || note(be, cudaEventRecord(crossing, first))) return;
    note(be, cudaStreamWaitEvent(later, crossing, 0));
}

static void device_aside_begin(Backend *be)
{
    order(be, stream_of(be), ((Device *)be)->aside);
}

static void device_aside_join(Backend *be)
{
    order(be, ((Device *)be)->aside, stream_of(be));
}

static void device_aside_copy(Backend *be, void *dst, const void *src, size_t bytes)
{
    if (!bytes || of(be)->failed) return;
    note(be, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, ((Device *)be)->aside));
}

static void device_aside_end(Backend *be, int number)
{
    Device *d = (Device *)be;
    if (!of(be)->failed) note(be, cudaEventRecord(d->aside_end[number], d->aside));
}

/* One that was never recorded is done. */
static int device_aside_done(Backend *be, int number, int wait)
{
    cudaEvent_t end = ((Device *)be)->aside_end[number];
    if (of(be)->failed) return -1;
    cudaError_t state = wait ? cudaEventSynchronize(end) : cudaEventQuery(end);
    if (state == cudaErrorNotReady) return 0;
    return note(be, state) ? -1 : 1;
}

static int open_aside(Device *d)
{
    cudaError_t failed = cudaStreamCreateWithFlags(&d->aside, cudaStreamNonBlocking);
    if (!failed) failed = cudaEventCreateWithFlags(&d->crossing, cudaEventDisableTiming);
    for (int i = 0; i < BACKEND_ASIDES && !failed; i++)
        failed = cudaEventCreateWithFlags(&d->aside_end[i], cudaEventDisableTiming);
    return failed ? -1 : 0;
}

static void close_aside(Device *d)
{
    for (int i = 0; i < BACKEND_ASIDES; i++)
        if (d->aside_end[i]) cudaEventDestroy(d->aside_end[i]);
    if (d->crossing) cudaEventDestroy(d->crossing);
    if (d->aside) cudaStreamDestroy(d->aside);
}

/* What is recorded counts on no terms from before it, and what comes later on none of it. */
static int device_replay(Backend *be, const ReplayKey *key, void (*record)(void *), void *ctx)
{
    if (of(be)->failed) return 0;
    cuda_forget_terms(of(be));
    int settled = cuda_graphs_replay(&((Device *)be)->graphs, of(be), key, record, ctx);
    cuda_forget_terms(of(be));
    return settled;
}

static void device_linear(Backend *be, const Linear *a)
{
    Device *d = (Device *)be;
    CudaBackend *b = of(be);
    Linear own = *a;
    own.n_products = 0;
    if (a->n <= 0 || b->failed) return;
    unsigned done = gemm_library_linear(&d->products, &b->context, a);
    if (done) cuda_forget_terms(b); /* it may have written where they came from */
    for (int i = 0; i < a->n_products; i++)
        if (!(done >> i & 1)) own.product[own.n_products++] = a->product[i];
    if (own.n_products) d->own_linear(be, &own);
}

/* Prompts' products through cuBLASLt, where it and memory for it are. */
static void open_library(Device *d)
{
    Backend *be = &d->cuda.be;
    d->own_linear = be->linear;
    d->products.split = split_bf16_cuda;
    d->products.round = round_fp8_cuda;
    be->linear = device_linear;
    if (cudaMalloc(&d->workspace, CUBLASLT_WORKSPACE)) {
        cudaGetLastError();
        snprintf(be->library, sizeof be->library, "none (no GPU memory for its workspace)");
    } else {
        be->scratch_bytes += CUBLASLT_WORKSPACE;
        cublaslt_open(&d->products.library, stream_of(be), d->workspace, be->library,
                      sizeof be->library);
    }
    log_debug("device=cuda library=\"%s\"", be->library);
}

/* Hopper's way to multiply many rows, where it gives the bits of every GPU's. */
static void open_wgmma(CudaBackend *b, const struct cudaDeviceProp *prop, int left_out)
{
    const char *why = "used";
    if (left_out)
        why = "none (left out)";
    else if (prop->major != 9 || prop->minor)
        why = "none (sm_90 has it)";
    else if (!wgmma_check(b))
        why = "none (other bits than mma)";
    snprintf(b->be.wgmma, sizeof b->be.wgmma, "%s", why);
    log_debug("device=cuda wgmma=\"%s\"", why);
}

static void device_close(Backend *be)
{
    Device *d = (Device *)be;
    CudaBackend *b = of(be);
    if (b->context.stream) cudaStreamSynchronize(b->context.stream);
    cuda_graphs_close(&d->graphs);
    if (d->products.library.self) d->products.library.close(d->products.library.self);
    if (d->workspace) cudaFree(d->workspace);
    for (int i = 0; i < BACKEND_MARKS; i++)
        if (d->event[i]) cudaEventDestroy(d->event[i]);
    close_aside(d);
    upload_ring_close(&d->ring);
    mem_free(d->pinned);
    if (b->context.scratch) cudaFree(b->context.scratch);
    if (d->terms) cudaFree(d->terms);
    if (b->context.stream) cudaStreamDestroy(b->context.stream);
    mem_free(d);
}

/* ---- opening ---- */

/* CUDA writes a version as 1000 * major + 10 * minor. */
static int too_old(int driver, int runtime, Error *err)
{
    return error_set(err, ERR_DEVICE,
                     "the NVIDIA driver serves CUDA %d.%d, this program needs %d.%d: update the "
                     "driver, or use --device cpu",
                     driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
}

/* *can_overlap: the code that runs knows how to wait for the launch before it (simt.h). */
static int find_device(int *can_overlap, Error *err)
{
    int n = 0, driver = 0, runtime = 0, major = 0, minor = 0, ptx = 0;
    cudaError_t failed = cudaGetDeviceCount(&n);
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    if (!driver) return error_set(err, ERR_INPUT, "no NVIDIA driver is there");
    if (failed == cudaErrorInsufficientDriver) return too_old(driver, runtime, err);
    if (!failed && n > 0) failed = cudaSetDevice(0);
    if (failed == cudaErrorNoDevice || (!failed && n == 0))
        return error_set(err, ERR_INPUT, "there is no NVIDIA GPU");
    if (failed)
        return error_set(err, ERR_DEVICE, "the NVIDIA GPU cannot be used: %s",
                         cudaGetErrorString(failed));
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0);
    if (major < MIN_COMPUTE_MAJOR)
        return error_set(err, ERR_DEVICE, "the GPU has compute capability %d.%d, 8.0 is needed",
                         major, minor);
    failed = (cudaError_t)cuda_find_code(&ptx);
    *can_overlap = ptx >= OVERLAP_PTX;
    if (failed)
        return error_set(err, ERR_DEVICE,
                         "this program has no code for the GPU (sm_%d%d): %s; build it with "
                         "CUDA_ARCHS=%d%d",
                         major, minor, cudaGetErrorString(failed), major, minor);
    return 0;
}

static size_t scratch_size(size_t memory)
{
    size_t share = memory / SCRATCH_SHARE / 256 * 256;
    return share < MIN_SCRATCH ? MIN_SCRATCH : share > MAX_SCRATCH ? MAX_SCRATCH : share;
}

Backend *backend_cuda_open(unsigned leave_out, Error *err)
{
    int can_overlap = 0;
    if (find_device(&can_overlap, err)) return NULL;
    Device *d = mem_alloc(1, sizeof *d);
    CudaBackend *b = &d->cuda;
    Backend *be = &b->be;
    struct cudaDeviceProp prop;
    cudaStream_t stream = NULL;
    cuda_backend_fill(b, &ops_cuda);
    be->name = "cuda";
    be->n_threads = 1;
    be->alloc = device_alloc;
    be->free_bytes = device_free_bytes;
    be->free = device_free;
    be->host_alloc = device_host_alloc;
    be->host_free = device_host_free;
    be->upload = device_upload;
    be->download = device_download;
    be->download_later = device_download_later;
    be->mark = device_mark;
    be->wait = device_wait;
    be->aside_begin = device_aside_begin;
    be->aside_copy = device_aside_copy;
    be->aside_end = device_aside_end;
    be->aside_done = device_aside_done;
    be->aside_join = device_aside_join;
    be->copy = device_copy;
    be->zero = device_zero;
    be->sync = device_sync;
    be->replay = device_replay;
    be->close = device_close;
    if (cudaGetDeviceProperties(&prop, 0) ||
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) ||
        cudaEventCreateWithFlags(&d->event[0], cudaEventDisableTiming) ||
        cudaEventCreateWithFlags(&d->event[1], cudaEventDisableTiming) || open_aside(d) ||
        upload_ring_open(&d->ring)) {
        b->context.stream = stream;
        error_set(err, ERR_DEVICE, "the GPU cannot be opened: %s",
                  cudaGetErrorString(cudaGetLastError()));
        goto fail;
    }
    b->context.stream = stream;
    snprintf(be->isa, sizeof be->isa, "sm_%d%d", prop.major, prop.minor);
    snprintf(be->chip, sizeof be->chip, "%.63s", prop.name);
    b->context.scratch_bytes = scratch_size(prop.totalGlobalMem);
    b->context.scratch = device_alloc(be, b->context.scratch_bytes, err);
    b->context.shared_bytes = prop.sharedMemPerBlockOptin;
    b->context.overlap = can_overlap && !(leave_out & CUDA_NO_OVERLAP);
    d->graphs.off = (leave_out & CUDA_NO_GRAPH) != 0;
    be->max_head_dim = max_head_dim_cuda(&b->context);
    d->terms = b->context.scratch ? device_alloc(be, TERMS_BYTES, err) : NULL;
    if (d->terms) {
        cuda_keep_terms(b, d->terms, TERMS_BYTES);
        be->scratch_bytes = b->context.scratch_bytes + TERMS_BYTES;
        open_wgmma(b, &prop, (leave_out & CUDA_NO_WGMMA) != 0);
        if (leave_out & CUDA_NO_LIBRARY)
            snprintf(be->library, sizeof be->library, "none (left out)");
        else
            open_library(d);
        return be;
    }
fail:
    device_close(be);
    return NULL;
}
