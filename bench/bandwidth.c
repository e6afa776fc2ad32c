/* bandwidth.c: see bandwidth.h. */
#include "bench/bandwidth.h"

#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "kernels/threads.h"

enum { TRIES = 11, HOST_BYTES = 512 << 20, COPY_BYTES = 512 << 20, COPIES = 8 };

/*
 * Every part adds up its share, as STREAMS runs of lines side by side: one run alone does not keep
 * a core's loads in flight. Their distance is no power of two, or they would meet in one bank.
 */
enum { STREAMS = 4, LINE = 8 /* words in a cache line */, ODD_LINES = 1029 };

typedef struct {
    const uint64_t *word;
    size_t n;
    uint64_t *sum; /* of each part, so that the reads are not dropped */
} Reading;

static void read_part(const void *arg, int part, int n_parts)
{
    const Reading *r = arg;
    size_t run = r->n / (size_t)n_parts / STREAMS / LINE * LINE - ODD_LINES * LINE;
    const uint64_t *word = r->word + (size_t)part * STREAMS * run;
    uint64_t sum[STREAMS] = {0};
    for (size_t i = 0; i < run; i += LINE)
        for (size_t k = 0; k < STREAMS; k++)
            for (size_t w = 0; w < LINE; w++)
                sum[k] += word[k * run + i + w];
    for (int k = 0; k < STREAMS; k++)
        r->sum[part] += sum[k];
}

static double best_host(int n_threads)
{
    void *mem = mem_map(HOST_BYTES);
    double best = 0;
    if (!mem) return 0;
    memset(mem, 1, HOST_BYTES);
    Threads *t = threads_open(n_threads);
    Reading r = {mem, HOST_BYTES / sizeof(uint64_t), NULL};
    r.sum = mem_alloc((size_t)threads_count(t), sizeof *r.sum);
    for (int i = 0; i < TRIES; i++) {
        double begun = clock_ms();
        threads_run(t, threads_count(t), read_part, &r);
        double read = HOST_BYTES - (double)n_threads * STREAMS * ODD_LINES * LINE * 8;
        double rate = read / (clock_ms() - begun) * 1e3;
        if (rate > best) best = rate;
    }
    threads_close(t);
    mem_free(r.sum);
    mem_unmap(mem);
    return best;
}

static double best_copy(Backend *be)
{
    Error err = {0};
    double best = 0;
    void *from = be->alloc(be, COPY_BYTES, &err);
    void *to = from ? be->alloc(be, COPY_BYTES, &err) : NULL;
    for (int i = 0; to && i < TRIES; i++) {
        if (be->sync(be, &err)) break;
        double begun = clock_ms();
        for (int k = 0; k < COPIES; k++)
            be->copy(be, to, from, COPY_BYTES);
        if (be->sync(be, &err)) break;
        double rate = 2.0 * COPIES * COPY_BYTES / (clock_ms() - begun) * 1e3;
        if (rate > best) best = rate;
    }
    if (to) be->free(be, to);
    if (from) be->free(be, from);
    return best;
}

double bandwidth_measure(Backend *be)
{
    return be->is_host ? best_host(be->n_threads) : best_copy(be);
}

const char *bandwidth_way(const Backend *be)
{
    return be->is_host ? "plain loop" : "copy";
}
