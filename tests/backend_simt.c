/* backend_simt.c: see backend_simt.h. */
#include "tests/backend_simt.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/cuda_backend.h"
#include "kernels/host_memory.h"
#include "kernels/simt_host.h"

/* Small, so that operations over many rows must work in groups. */
enum {
    SCRATCH_BYTES = 1 << 20,
    GUARD_BYTES = 64 << 10,
    TERMS_BYTES = 2 << 20,
};

/* Each operation finds NaN in its scratch, and ends the program when it writes beyond it. */
static void poison(const void *context)
{
    const CudaContext *c = context;
    memset(c->scratch, 0xff, c->scratch_bytes + GUARD_BYTES);
}

static void check_guard(const CudaContext *c, const char *op)
{
    const unsigned char *guard = c->scratch + c->scratch_bytes;
    for (int i = 0; i < GUARD_BYTES; i++)
        if (guard[i] != 0xff) {
            fprintf(stderr, "%s writes byte %d beyond its scratch\n", op, i);
            abort();
        }
}

#define CHECKED(op, Args)                                                                          \
    static void check_##op(const void *context)                                                    \
    {                                                                                              \
        check_guard(context, #op);                                                                 \
    }                                                                                              \
    static void op(const CudaContext *c, const Args *a)                                            \
    {                                                                                              \
        CudaContext now = *c;                                                                      \
        now.shared_bytes = simt_shared_limit();                                                    \
        simt_after(poison, c);                                                                     \
        ops_simt.op(&now, a);                                                                      \
        simt_after(check_##op, c);                                                                 \
    }
CUDA_OPERATIONS(CHECKED)

#define CHECKED_ENTRY(op, Args) op,
static const CudaOps checked_ops = {CUDA_OPERATIONS(CHECKED_ENTRY)};

static void marked_attention(const CudaContext *c, const TreeAttention *a)
{
    TreeAttention marked = *a;
    if (a->prefill) marked.scale *= 3;
    tree_attention(c, &marked);
}

/* ---- replay, as a GPU does it: recorded when a key comes again, then run with those arguments
 * ---- */

typedef struct {
    ReplayKey key;
    SimtRecord *record; /* NULL while the key came only once */
} Run;

/* A download that its owner has not waited for yet. */
typedef struct {
    void *to;
    unsigned char *bytes;
    size_t n;
    int mark; /* -1: none was set after it */
} Later;

/* A copy aside that is not done yet. */
typedef struct {
    void *to;
    const void *from;
    unsigned char *bytes; /* that it had when it was queued */
    size_t n;
    int number; /* -1: not ended */
    int asked;  /* whether it is done */
} Aside;

typedef struct {
    CudaBackend cuda;
    Backend host; /* the memory functions of the host */
    Later *later;
    size_t n_later;
    Aside *aside;
    size_t n_aside;
    CudaOps marked;
    Run *run;
    size_t n_runs;
} Simt;

static int replay_or_record(Backend *be, const ReplayKey *key, void (*record)(void *), void *ctx)
{
    Simt *s = (Simt *)be;
    Run *run = s->run;
    while (run < s->run + s->n_runs && !cuda_same_key(&run->key, key))
        run++;
    if (run == s->run + s->n_runs) {
        s->run = mem_realloc(s->run, s->n_runs + 1, sizeof *run);
        s->run[s->n_runs++] = (Run){.key = *key};
        record(ctx);
        return 0;
    } else if (!run->record) {
        run->record = simt_record_begin();
        record(ctx);
        simt_record_end();
        return 0;
    } else {
        simt_record_run(run->record);
        return 1;
    }
}

static int simt_replay(Backend *be, const ReplayKey *key, void (*record)(void *), void *ctx)
{
    cuda_forget_terms((CudaBackend *)be);
    int settled = replay_or_record(be, key, record, ctx);
    cuda_forget_terms((CudaBackend *)be);
    return settled;
}

static const Backend *host_of(Backend *be)
{
    if (simt_is_recording()) {
        fprintf(stderr,
                "memory is moved while launches are recorded: a graph would not repeat it\n");
        abort();
    }
    simt_flush();
    return &((Simt *)be)->host;
}

static void simt_free(Backend *be, void *mem)
{
    simt_flush();
    ((Simt *)be)->host.free(be, mem);
}

static void simt_upload(Backend *be, void *dst, const void *src, size_t bytes)
{
    cuda_forget_terms((CudaBackend *)be);
    host_of(be)->upload(be, dst, src, bytes);
}

static void simt_download(Backend *be, void *dst, const void *src, size_t bytes)
{
    host_of(be)->download(be, dst, src, bytes);
}

static void simt_copy(Backend *be, void *dst, const void *src, size_t bytes)
{
    cuda_forget_terms((CudaBackend *)be);
    host_of(be)->copy(be, dst, src, bytes);
}

static void simt_zero(Backend *be, void *dst, size_t bytes)
{
    cuda_forget_terms((CudaBackend *)be);
    host_of(be)->zero(be, dst, bytes);
}

/* The bytes of now, which the host sees when it has waited for them: until then it sees others. */
static void simt_download_later(Backend *be, void *dst, const void *src, size_t bytes)
{
    Simt *s = (Simt *)be;
    unsigned char *copy = mem_alloc(bytes, 1);
    host_of(be)->download(be, copy, src, bytes);
    memset(dst, 0xff, bytes);
    s->later = mem_realloc(s->later, s->n_later + 1, sizeof *s->later);
    s->later[s->n_later++] = (Later){dst, copy, bytes, -1};
}

static void simt_mark(Backend *be, int mark)
{
    Simt *s = (Simt *)be;
    for (size_t i = 0; i < s->n_later; i++)
        if (s->later[i].mark < 0) s->later[i].mark = mark;
}

/* Of a mark's downloads, or of all. */
static void bring(Simt *s, int all, int mark)
{
    size_t kept = 0;
    for (size_t i = 0; i < s->n_later; i++) {
        Later *l = &s->later[i];
        if (!all && l->mark != mark) {
            s->later[kept++] = *l;
            continue;
        }
        memcpy(l->to, l->bytes, l->n);
        mem_free(l->bytes);
    }
    s->n_later = kept;
}

static int simt_wait(Backend *be, int mark, Error *err)
{
    (void)err;
    bring((Simt *)be, 0, mark);
    return 0;
}

static int simt_sync(Backend *be, Error *err)
{
    (void)err;
    simt_flush();
    bring((Simt *)be, 1, 0);
    return 0;
}

/* ---- copies aside: late, from what nobody may have changed, to what holds nothing until then
 * ---- */

static void simt_aside_begin(Backend *be)
{
    (void)host_of(be);
}

static void simt_aside_copy(Backend *be, void *dst, const void *src, size_t bytes)
{
    Simt *s = (Simt *)be;
    unsigned char *copy = mem_alloc(bytes, 1);
    host_of(be)->copy(be, copy, src, bytes);
    memset(dst, 0xff, bytes);
    s->aside = mem_realloc(s->aside, s->n_aside + 1, sizeof *s->aside);
    s->aside[s->n_aside++] = (Aside){dst, src, copy, bytes, -1, 0};
}

static void simt_aside_end(Backend *be, int number)
{
    Simt *s = (Simt *)be;
    assert(number >= 0 && number < BACKEND_ASIDES);
    for (size_t i = 0; i < s->n_aside; i++) {
        if (s->aside[i].number == number) s->aside[i].number = BACKEND_ASIDES; /* nobody asks */
        if (s->aside[i].number < 0) s->aside[i].number = number;
    }
}

/* The first n copies come to their end. */
static void run_aside(Simt *s, size_t n)
{
    simt_flush();
    for (size_t i = 0; i < n; i++) {
        Aside *a = &s->aside[i];
        if (memcmp(a->from, a->bytes, a->n)) {
            fprintf(stderr, "a copy aside reads what was changed meanwhile\n");
            abort();
        }
        for (size_t k = 0; k < a->n; k++)
            if (((unsigned char *)a->to)[k] != 0xff) {
                fprintf(stderr, "a copy aside writes where others did\n");
                abort();
            }
        memcpy(a->to, a->bytes, a->n);
        mem_free(a->bytes);
    }
    s->n_aside -= n;
    memmove(s->aside, s->aside + n, s->n_aside * sizeof *s->aside);
}

/* Done when it is asked for the third time. */
static int simt_aside_done(Backend *be, int number, int wait)
{
    Simt *s = (Simt *)be;
    size_t n = s->n_aside;
    while (n > 0 && s->aside[n - 1].number != number)
        n--;
    if (!n) return 1;
    if (!wait && ++s->aside[n - 1].asked < 3) return 0;
    run_aside(s, n);
    return 1;
}

static void simt_aside_join(Backend *be)
{
    Simt *s = (Simt *)be;
    run_aside(s, s->n_aside);
}

static void simt_close(Backend *be)
{
    Simt *s = (Simt *)be;
    simt_flush();
    for (size_t i = 0; i < s->n_runs; i++)
        simt_record_free(s->run[i].record);
    mem_free(s->run);
    for (size_t i = 0; i < s->n_later; i++)
        mem_free(s->later[i].bytes);
    mem_free(s->later);
    if (s->n_aside) {
        fprintf(stderr, "%zu copies aside were never waited for\n", s->n_aside);
        abort();
    }
    mem_free(s->aside);
    mem_unmap(s->cuda.context.scratch);
    mem_unmap(s->cuda.memo.memory);
    mem_free(s);
}

Backend *backend_simt_open(void)
{
    Simt *s = mem_alloc(1, sizeof *s);
    CudaBackend *b = &s->cuda;
    Backend *be = &b->be;
    host_memory_fill(be);
    s->host = *be;
    simt_overlap(1);
    be->free = simt_free;
    be->upload = simt_upload;
    be->download = simt_download;
    be->download_later = simt_download_later;
    be->mark = simt_mark;
    be->wait = simt_wait;
    be->sync = simt_sync;
    be->aside_begin = simt_aside_begin;
    be->aside_copy = simt_aside_copy;
    be->aside_end = simt_aside_end;
    be->aside_done = simt_aside_done;
    be->aside_join = simt_aside_join;
    be->copy = simt_copy;
    be->zero = simt_zero;
    be->replay = simt_replay;
    cuda_backend_fill(b, &checked_ops);
    b->context.scratch = mem_map(SCRATCH_BYTES + GUARD_BYTES);
    b->context.scratch_bytes = SCRATCH_BYTES;
    b->context.wgmma = 1; /* as on Hopper, whose shared memory it takes (simt_limit_shared) */
    cuda_keep_terms(b, mem_map(TERMS_BYTES), TERMS_BYTES);
    be->name = "simt";
    snprintf(be->isa, sizeof be->isa, "simt");
    be->n_threads = 1;
    be->is_host = 0; /* loading goes the way of a device */
    be->close = simt_close;
    return be;
}

void simt_mark_prompts(Backend *be)
{
    Simt *s = (Simt *)be;
    s->marked = checked_ops;
    s->marked.tree_attention = marked_attention;
    s->cuda.ops = &s->marked;
}

int is_simt(const Backend *be)
{
    return be->close == simt_close;
}

int gpu_only(void)
{
    return getenv("OFFSHOOT_TEST_GPU_ONLY") != NULL;
}

int open_gpu_backends(Backend *gpu[MAX_GPU_BACKENDS])
{
    Error err = {0};
    int n = 0;
    if (getenv("OFFSHOOT_TEST_CPU_ONLY")) return 0;
    if (!gpu_only()) gpu[n++] = backend_simt_open();
    unsigned leave_out = getenv("OFFSHOOT_TEST_NO_LIBRARY") ? CUDA_NO_LIBRARY : 0;
    if (getenv("OFFSHOOT_TEST_NO_WGMMA")) leave_out |= CUDA_NO_WGMMA;
    gpu[n] = backend_cuda_open(leave_out, &err);
    if (!gpu[n] && gpu_only()) {
        fprintf(stderr, "%s\n", err.msg);
        abort();
    }
    return n + (gpu[n] != NULL);
}
