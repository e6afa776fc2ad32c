/*
 * cudart_host.c: a stand-in for the CUDA runtime: one GPU like an H100, whose kernels are
 * translated PTX.
 *
 * As strict as the real one where that finds faults: shared memory beyond 48 KiB must be asked for,
 * launches must fit, pointers must be of the right side, and what may not be called while a stream
 * is captured ends the capture. Each failure is also told on stderr. A device that is lost is not
 * played.
 *
 * Source: CUDA Runtime API 13.0 (memory copies: "API synchronization behavior"; capture:
 * cudaStreamCaptureMode). Where that leaves open whether a call may come during a capture, it may
 * not here.
 */
#include <cuda_runtime_api.h>
#include <fatbinary_section.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/ptx/streams.h"

enum {
    MAX_KERNELS = 1024,
    HEAD_BYTES = 512, /* of a binary */
    MAX_PINNED = 4096,
    SHARED_UNASKED = 48 << 10,
    SHARED_MOST = 227 << 10,
    ASKED_UNTIL_DONE = 3, /* an event's query that finds its work done */
};

typedef struct {
    const void *host; /* by which host code knows it */
    const char *module, *name;
    const PtxEntry *entry; /* NULL: not looked up yet */
    int max_dynamic;
} Kernel;

typedef struct {
    Stream *stream; /* NULL: never recorded */
    uint64_t number;
    int asked;
} Event;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Kernel kernels[MAX_KERNELS];
static int n_kernels;
static struct {
    unsigned char *at;
    size_t bytes;
} pinned[MAX_PINNED];
static int n_pinned;
static _Thread_local cudaError_t last_error;
static _Thread_local Stream *capturing; /* by this thread */

static cudaError_t give(cudaError_t error)
{
    if (error) last_error = error;
    return error;
}

static cudaError_t fail(cudaError_t error, const char *what)
{
    fprintf(stderr, "cuda: %s\n", what);
    return give(error);
}

/* Of calls that a capture does not see: they end this thread's. */
static cudaError_t unsafe(const char *call)
{
    if (!capturing) return cudaSuccess;
    capturing->invalid = 1;
    fprintf(stderr, "cuda: %s during a capture\n", call);
    return give(cudaErrorStreamCaptureUnsupported);
}

#define LOCKED(call)                                                                               \
    do {                                                                                           \
        pthread_mutex_lock(&lock);                                                                 \
        cudaError_t result = call;                                                                 \
        pthread_mutex_unlock(&lock);                                                               \
        return result;                                                                             \
    } while (0)

/* ---- what nvcc's host code calls ---- */

void **__cudaRegisterFatBinary(void *binary);
void __cudaRegisterFatBinaryEnd(void **handle);
void __cudaUnregisterFatBinary(void **handle);
void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name,
                            int thread_limit, uint3 *tid, uint3 *bid, dim3 *block, dim3 *grid,
                            int *warp);
void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int is_extern,
                       size_t bytes, int is_constant, int is_global);
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host);
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **args,
                               size_t shared_bytes, cudaStream_t stream);
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream);

/*
 * The handle is the module's name: nvcc writes its source's in the head of each binary, which is
 * never compressed.
 */
void **__cudaRegisterFatBinary(void *binary)
{
    const char *head = (const char *)((const __fatBinC_Wrapper_t *)binary)->data;
    const char *end = memmem(head, HEAD_BYTES, ".cu", sizeof ".cu"), *begin = end;
    if (!end) abort();
    while (begin > head && begin[-1] && begin[-1] != '/')
        begin--;
    return (void **)(void *)strndup(begin, (size_t)(end - begin));
}

void __cudaRegisterFatBinaryEnd(void **handle)
{
    (void)handle;
}

void __cudaUnregisterFatBinary(void **handle)
{
    free(handle);
}

void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name,
                            int thread_limit, uint3 *tid, uint3 *bid, dim3 *block, dim3 *grid,
                            int *warp)
{
    (void)device, (void)thread_limit, (void)tid, (void)bid, (void)block, (void)grid;
    (void)warp;
    if (n_kernels == MAX_KERNELS) abort();
    kernels[n_kernels++] = (Kernel){.host = host, .name = name};
    kernels[n_kernels - 1].module = (const char *)(void *)handle;
}

/* The host has no use for a kernel's variables; translate.py makes them beside the kernels. */
void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int is_extern,
                       size_t bytes, int is_constant, int is_global)
{
    (void)handle, (void)host, (void)device, (void)name, (void)is_extern, (void)bytes;
    (void)is_constant, (void)is_global;
}

/* NULL: none of that address. Looked up late, for modules list their kernels in any order. */
static Kernel *find_kernel(const void *host)
{
    Kernel *k = kernels;
    while (k < kernels + n_kernels && k->host != host)
        k++;
    if (k == kernels + n_kernels) return NULL;
    if (!k->entry) {
        k->entry = ptx_find(k->module, k->name);
        if (!k->entry) {
            fprintf(stderr, "cuda: there is no PTX of '%s' in '%s'\n", k->name, k->module);
            abort();
        }
        k->max_dynamic = SHARED_UNASKED - (int)k->entry->shared_bytes;
    }
    return k;
}

cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host)
{
    *kernel = (cudaKernel_t)(uintptr_t)host;
    return cudaSuccess;
}

/* kernel<<<grid, block>>>: ours are launched by cudaLaunchKernelEx. */
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **args,
                               size_t shared_bytes, cudaStream_t stream)
{
    (void)kernel, (void)grid, (void)block, (void)args, (void)shared_bytes, (void)stream;
    abort();
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream)
{
    (void)grid, (void)block, (void)shared, (void)stream;
    abort();
}

/* ---- the device ---- */

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = 1;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    return give(device ? cudaErrorInvalidDevice : cudaSuccess);
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    (void)device;
    switch ((int)attribute) {
    case cudaDevAttrComputeCapabilityMajor:
        *value = 9;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
        *value = 0;
        return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
        *value = 132;
        return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = SHARED_MOST;
        return cudaSuccess;
    }
    return fail(cudaErrorInvalidValue, "an attribute of the device that is not played");
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device)
{
    size_t left;
    if (device) return give(cudaErrorInvalidDevice);
    *prop = (struct cudaDeviceProp){.major = 9, .multiProcessorCount = 132, .warpSize = 32};
    prop->sharedMemPerBlock = SHARED_UNASKED;
    prop->sharedMemPerBlockOptin = SHARED_MOST;
    device_memory_count(&left, &prop->totalGlobalMem);
    snprintf(prop->name, sizeof prop->name, "PTX on the host");
    return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t error)
{
    static _Thread_local char text[32];
    snprintf(text, sizeof text, "CUDA error %d", (int)error);
    return text;
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

/* ---- memory ---- */

static int is_pinned(const void *at, size_t bytes)
{
    for (int i = 0; i < n_pinned; i++) {
        size_t in = (size_t)((const unsigned char *)at - pinned[i].at);
        if (in < pinned[i].bytes && bytes <= pinned[i].bytes - in) return 1;
    }
    return 0;
}

static void run_all(void);

static cudaError_t take(void **mem, size_t bytes)
{
    cudaError_t error = unsafe("cudaMalloc");
    if (error) return error;
    *mem = bytes ? device_memory_take(bytes) : NULL;
    return give(bytes && !*mem ? cudaErrorMemoryAllocation : cudaSuccess);
}

cudaError_t cudaMalloc(void **mem, size_t bytes)
{
    LOCKED(take(mem, bytes));
}

static cudaError_t drop(void *mem)
{
    cudaError_t error = unsafe("cudaFree");
    if (error || !mem) return error;
    run_all();
    if (device_memory_give(mem)) return fail(cudaErrorInvalidValue, "cudaFree of no block");
    return cudaSuccess;
}

cudaError_t cudaFree(void *mem)
{
    LOCKED(drop(mem));
}

cudaError_t cudaMemGetInfo(size_t *left, size_t *all)
{
    pthread_mutex_lock(&lock);
    device_memory_count(left, all);
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

static cudaError_t take_pinned(void **mem, size_t bytes)
{
    cudaError_t error = unsafe("cudaHostAlloc");
    if (error) return error;
    if (n_pinned == MAX_PINNED || !bytes) return fail(cudaErrorInvalidValue, "cudaHostAlloc");
    *mem = malloc(bytes);
    if (!*mem) return give(cudaErrorMemoryAllocation);
    memset(*mem, 0xff, bytes);
    pinned[n_pinned].at = *mem;
    pinned[n_pinned++].bytes = bytes;
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **mem, size_t bytes, unsigned flags)
{
    (void)flags;
    LOCKED(take_pinned(mem, bytes));
}

static cudaError_t drop_pinned(void *mem)
{
    cudaError_t error = unsafe("cudaFreeHost");
    if (error || !mem) return error;
    run_all();
    for (int i = 0; i < n_pinned; i++)
        if (pinned[i].at == mem) {
            pinned[i] = pinned[--n_pinned];
            free(mem);
            return cudaSuccess;
        }
    return fail(cudaErrorInvalidValue, "cudaFreeHost of no block");
}

cudaError_t cudaFreeHost(void *mem)
{
    LOCKED(drop_pinned(mem));
}

/* ---- streams ---- */

enum { MAX_STREAMS = 256 };
static Stream *streams[MAX_STREAMS]; /* kept for ever: events know them */
static int n_streams;

static void run_all(void)
{
    for (int i = 0; i < n_streams; i++)
        stream_run(streams[i], streams[i]->queued);
}

/* The default stream is not used: nothing of ours may be ordered by it. */
static Stream *stream_of(cudaStream_t stream)
{
    if (stream) return (Stream *)(void *)stream;
    fprintf(stderr, "cuda: the default stream\n");
    abort();
}

static cudaError_t create(cudaStream_t *stream, unsigned flags)
{
    cudaError_t error = unsafe("cudaStreamCreate");
    if (error) return error;
    if (flags != cudaStreamNonBlocking) return fail(cudaErrorInvalidValue, "a blocking stream");
    if (n_streams == MAX_STREAMS) abort();
    Stream *s = calloc(1, sizeof *s);
    if (!s) abort();
    streams[n_streams++] = s;
    *stream = (cudaStream_t)(void *)s;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    LOCKED(create(stream, flags));
}

static cudaError_t synchronize(Stream *s, uint64_t number, const char *call)
{
    cudaError_t error = unsafe(call);
    if (error) return error;
    if (s->capture) return fail(cudaErrorStreamCaptureUnsupported, "a wait for a captured stream");
    stream_run(s, number);
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    Stream *s = stream_of(stream);
    LOCKED(synchronize(s, s->queued, "cudaStreamDestroy"));
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    Stream *s = stream_of(stream);
    LOCKED(synchronize(s, s->queued, "cudaStreamSynchronize"));
}

/* Whether the pointers are of the sides that a copy says. */
static int right_sides(const void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    int to_device = device_memory_reserved((uintptr_t)to);
    int from_device = device_memory_reserved((uintptr_t)from);
    if (to_device && !device_memory_has_range(to, bytes)) return 0;
    if (from_device && !device_memory_has_range(from, bytes)) return 0;
    switch (kind) {
    case cudaMemcpyHostToDevice:
        return to_device && !from_device;
    case cudaMemcpyDeviceToHost:
        return !to_device && from_device;
    case cudaMemcpyDeviceToDevice:
        return to_device && from_device;
    case cudaMemcpyDefault:
        return 1;
    default:
        return 0;
    }
}

static cudaError_t copy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                        Stream *s)
{
    Work w = {.kind = WORK_COPY, .to = to, .from = from, .bytes = bytes};
    uintptr_t t = (uintptr_t)to, f = (uintptr_t)from;
    int pageable_to = !device_memory_reserved(t) && !is_pinned(to, bytes);
    int pageable_from = !device_memory_reserved(f) && !is_pinned(from, bytes);
    if (!bytes) return cudaSuccess;
    if (!right_sides(to, from, bytes, kind))
        return fail(cudaErrorInvalidValue, "a copy between other sides than it says");
    if (t < f + bytes && f < t + bytes) return fail(cudaErrorInvalidValue, "a copy onto itself");
    if (s->capture && (pageable_to || pageable_from)) {
        s->invalid = 1;
        return fail(cudaErrorStreamCaptureUnsupported, "a copy of pageable memory in a capture");
    }
    if (pageable_from)
        return fail(cudaErrorInvalidValue, "a copy from pageable memory, read nobody knows when");
    stream_queue(s, w);
    if (pageable_to) stream_run(s, s->queued);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    LOCKED(copy(to, from, bytes, kind, stream_of(stream)));
}

static cudaError_t fill(void *to, int value, size_t bytes, Stream *s)
{
    if (!bytes) return cudaSuccess;
    if (!device_memory_has_range(to, bytes))
        return fail(cudaErrorInvalidValue, "a fill of no block");
    stream_queue(s, (Work){.kind = WORK_FILL, .to = to, .bytes = bytes, .value = value});
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
    LOCKED(fill(to, value, bytes, stream_of(stream)));
}

/* ---- events ---- */

void stream_call(Stream *s, void (*call)(void *arg), void *arg)
{
    pthread_mutex_lock(&lock);
    stream_queue(s, (Work){.kind = WORK_CALL, .call = call, .owned = arg});
    pthread_mutex_unlock(&lock);
}

static Event *event_of(cudaEvent_t event)
{
    return (Event *)(void *)event;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    Event *e = calloc(1, sizeof *e);
    if (!e) abort();
    (void)flags;
    *event = (cudaEvent_t)(void *)e;
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    free(event_of(event));
    return cudaSuccess;
}

static cudaError_t record(Event *e, Stream *s)
{
    if (s->capture) {
        s->invalid = 1;
        return fail(cudaErrorStreamCaptureUnsupported, "an event in a capture: not played");
    }
    *e = (Event){s, s->queued, 0};
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    LOCKED(record(event_of(event), stream_of(stream)));
}

static cudaError_t wait_event(Stream *s, Event *e)
{
    if (s->capture) {
        s->invalid = 1;
        return fail(cudaErrorStreamCaptureIsolation, "a capture waits for what is not captured");
    }
    if (!e->stream || e->stream == s) return cudaSuccess;
    stream_queue(s, (Work){.kind = WORK_WAIT, .other = e->stream, .until = e->number});
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    (void)flags;
    LOCKED(wait_event(stream_of(stream), event_of(event)));
}

static cudaError_t synchronize_event(Event *e)
{
    cudaError_t error = unsafe("cudaEventSynchronize");
    if (!error && e->stream) stream_run(e->stream, e->number);
    return error;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    LOCKED(synchronize_event(event_of(event)));
}

static cudaError_t query(Event *e)
{
    cudaError_t error = unsafe("cudaEventQuery");
    if (error || !e->stream || e->stream->done >= e->number) return error;
    if (++e->asked < ASKED_UNTIL_DONE) return give(cudaErrorNotReady);
    stream_run(e->stream, e->number);
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    LOCKED(query(event_of(event)));
}

/* ---- launches ---- */

static cudaError_t attributes_of(struct cudaFuncAttributes *a, const void *host)
{
    const Kernel *k = find_kernel(host);
    if (!k) return fail(cudaErrorInvalidDeviceFunction, "attributes of no kernel");
    *a = (struct cudaFuncAttributes){.sharedSizeBytes = k->entry->shared_bytes};
    a->maxThreadsPerBlock = (int)k->entry->max_threads;
    a->maxDynamicSharedSizeBytes = k->max_dynamic;
    a->ptxVersion = a->binaryVersion = 90;
    return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *host)
{
    LOCKED(attributes_of(a, host));
}

cudaError_t cudaFuncGetName(const char **name, const void *host)
{
    pthread_mutex_lock(&lock);
    const Kernel *k = find_kernel(host);
    if (k) *name = k->name;
    pthread_mutex_unlock(&lock);
    return k ? cudaSuccess : cudaErrorInvalidDeviceFunction;
}

static cudaError_t set_attribute(const void *host, enum cudaFuncAttribute what, int value)
{
    Kernel *k = find_kernel(host);
    if (!k || what != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
        value + (int)k->entry->shared_bytes > SHARED_MOST)
        return fail(cudaErrorInvalidValue, "cudaFuncSetAttribute");
    k->max_dynamic = value;
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *host, enum cudaFuncAttribute what, int value)
{
    LOCKED(set_attribute(host, what, value));
}

/* OFFSHOOT_PTX_REFUSE names what the GPU refuses from the start. */
static int is_refused(const char *what)
{
    const char *refused = getenv("OFFSHOOT_PTX_REFUSE");
    if (!refused || strcmp(refused, what) != 0) return 0;
    fprintf(stderr, "cuda: refuses a %s\n", what);
    return 1;
}

static cudaError_t check_launch(const Kernel *k, const cudaLaunchConfig_t *c)
{
    dim3 g = c->gridDim, b = c->blockDim;
    if (!k) return fail(cudaErrorInvalidDeviceFunction, "a launch of no kernel");
    if (is_refused("launch")) return fail(cudaErrorInvalidValue, "a launch");
    if (!g.x || !g.y || !g.z || g.x > INT32_MAX || g.y > 65535 || g.z > 65535)
        return fail(cudaErrorInvalidConfiguration, "a launch over an impossible grid");
    if (!b.x || b.y != 1 || b.z != 1 || b.x > k->entry->max_threads)
        return fail(cudaErrorInvalidConfiguration, "a launch of blocks beyond the kernel's bounds");
    if (c->dynamicSmemBytes > (size_t)k->max_dynamic)
        return fail(cudaErrorInvalidValue, "a launch with more shared memory than was asked for");
    return cudaSuccess;
}

static cudaError_t launch(const cudaLaunchConfig_t *c, const void *host, void **args)
{
    const Kernel *k = find_kernel(host);
    Stream *s = stream_of(c->stream);
    Work w = {.kind = WORK_LAUNCH};
    cudaError_t error = check_launch(k, c);
    if (error) return error;
    if (s->capture && is_refused("captured")) {
        s->invalid = 1;
        return fail(cudaErrorStreamCaptureUnsupported, "a launch in a capture");
    }
    for (unsigned i = 0; i < c->numAttrs; i++) {
        if (c->attrs[i].id != cudaLaunchAttributeProgrammaticStreamSerialization)
            return fail(cudaErrorInvalidValue, "an attribute of a launch that is not played");
        w.early = c->attrs[i].val.programmaticStreamSerializationAllowed;
    }
    w.entry = k->entry;
    w.grid = (SimtDim){c->gridDim.x, c->gridDim.y, c->gridDim.z};
    w.block = c->blockDim.x;
    w.dynamic_bytes = (uint32_t)c->dynamicSmemBytes;
    w.owned = calloc(1, ptx_param_offset(k->entry, k->entry->n_params) + 1);
    if (!w.owned) abort();
    for (int i = 0; i < k->entry->n_params; i++)
        memcpy(w.owned + ptx_param_offset(k->entry, i), args[i], k->entry->param[i].bytes);
    stream_queue(s, w);
    return cudaSuccess;
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *host, void **args)
{
    LOCKED(launch(c, host, args));
}

/* ---- graphs ---- */

static cudaError_t begin_capture(Stream *s, enum cudaStreamCaptureMode mode)
{
    if (mode != cudaStreamCaptureModeThreadLocal || s->capture || capturing)
        return fail(cudaErrorIllegalState, "a capture that is not played, or within another");
    s->capture = graph_new();
    s->invalid = 0;
    capturing = s;
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    LOCKED(begin_capture(stream_of(stream), mode));
}

static cudaError_t end_capture(Stream *s, cudaGraph_t *graph)
{
    *graph = NULL;
    if (!s->capture) return fail(cudaErrorIllegalState, "the end of no capture");
    if (capturing != s) return fail(cudaErrorStreamCaptureWrongThread, "a capture's end elsewhere");
    Graph *g = s->capture;
    s->capture = NULL;
    capturing = NULL;
    if (s->invalid || is_refused("capture")) {
        graph_release(g);
        return fail(cudaErrorStreamCaptureInvalidated, "the capture is invalid");
    }
    *graph = (cudaGraph_t)(void *)g;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    LOCKED(end_capture(stream_of(stream), graph));
}

/* A graph does not change after its capture, so who can run it holds the same one. */
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags)
{
    (void)flags;
    if (is_refused("graph")) return give(cudaErrorMemoryAllocation);
    pthread_mutex_lock(&lock);
    graph_hold((Graph *)(void *)graph);
    pthread_mutex_unlock(&lock);
    *exec = (cudaGraphExec_t)(void *)graph;
    return cudaSuccess;
}

static cudaError_t release(void *graph)
{
    if (graph) graph_release(graph);
    return graph ? cudaSuccess : fail(cudaErrorInvalidValue, "no graph is destroyed");
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    LOCKED(release(graph));
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    LOCKED(release(exec));
}

static cudaError_t launch_graph(Graph *g, Stream *s)
{
    if (s->capture)
        return fail(cudaErrorStreamCaptureUnsupported, "a graph in a graph: not played");
    graph_hold(g);
    stream_queue(s, (Work){.kind = WORK_GRAPH, .graph = g});
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    LOCKED(launch_graph((Graph *)(void *)exec, stream_of(stream)));
}
