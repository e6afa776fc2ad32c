/* cuda_graphs.c: see cuda_graphs.h. Built where nvcc is. */
#include "kernels/cuda_graphs.h"

#include "base/log.h"

static cudaStream_t stream_of(const CudaBackend *b)
{
    return b->context.stream;
}

/* The graph of this key, or the one used longest ago, emptied for it. */
static CudaGraph *find_graph(CudaGraphs *s, const ReplayKey *key)
{
    CudaGraph *oldest = s->graph;
    for (CudaGraph *g = s->graph; g < s->graph + MAX_GRAPHS; g++) {
        if (g->used && cuda_same_key(&g->key, key)) return g;
        if (g->used < oldest->used) oldest = g;
    }
    if (oldest->exec) cudaGraphExecDestroy(oldest->exec);
    *oldest = (CudaGraph){.key = *key};
    return oldest;
}

/* Of these the device knows nothing: what was to be captured has not run. */
static int is_of_capture(int failed)
{
    return failed >= cudaErrorStreamCaptureUnsupported &&
           failed <= cudaErrorStreamCaptureWrongThread;
}

/* The error of the capture or of a launch in it. */
static cudaError_t capture(CudaGraphs *s, CudaBackend *b, void (*record)(void *), void *ctx,
                           cudaGraph_t *graph)
{
    cudaError_t failed = cudaStreamBeginCapture(stream_of(b), cudaStreamCaptureModeThreadLocal);
    if (failed) return failed;
    s->is_recording = 1;
    record(ctx);
    s->is_recording = 0;
    failed = cudaStreamEndCapture(stream_of(b), graph);
    if (!is_of_capture(b->failed)) return failed;
    failed = (cudaError_t)b->failed;
    b->failed = 0;
    b->place[0] = '\0';
    return failed;
}

/* NULL: the device failed, has no memory for the graph, or cannot capture. */
static cudaGraphExec_t record_graph(CudaGraphs *s, CudaBackend *b, void (*record)(void *),
                                    void *ctx)
{
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    cudaError_t failed = capture(s, b, record, ctx, &graph);
    if (!failed && !b->failed) failed = cudaGraphInstantiate(&exec, graph, 0);
    if (graph) cudaGraphDestroy(graph);
    if (failed == cudaErrorMemoryAllocation || is_of_capture(failed))
        cudaGetLastError();
    else
        cuda_note(b, (int)failed);
    if (is_of_capture(failed)) {
        s->off = 1;
        log_warn("cuda_graphs_off reason=\"%s\"", cudaGetErrorString(failed));
    }
    return exec;
}

/* Whether it was launched; a graph may take memory when it first is. */
static int launch_graph(CudaBackend *b, CudaGraph *g)
{
    if (!g->exec) return 0;
    cudaError_t failed = cudaGraphLaunch(g->exec, stream_of(b));
    if (failed != cudaErrorMemoryAllocation) return !cuda_note(b, (int)failed);
    cudaGetLastError();
    cudaGraphExecDestroy(g->exec);
    g->exec = NULL;
    return 0;
}

int cuda_graphs_replay(CudaGraphs *s, CudaBackend *b, const ReplayKey *key, void (*record)(void *),
                       void *ctx)
{
    int is_recorded = s->off;
    if (!s->off) {
        CudaGraph *g = find_graph(s, key);
        int again = g->used != 0;
        is_recorded = g->exec != NULL;
        g->used = ++s->n_replays;
        if (again && !g->exec) g->exec = record_graph(s, b, record, ctx);
        if (launch_graph(b, g) || b->failed) return is_recorded;
        cuda_forget_terms(b); /* those of what was captured, and has not run */
    }
    record(ctx);
    return is_recorded;
}

void cuda_graphs_close(CudaGraphs *s)
{
    for (CudaGraph *g = s->graph; g < s->graph + MAX_GRAPHS; g++)
        if (g->exec) cudaGraphExecDestroy(g->exec);
    *s = (CudaGraphs){0};
}
