/* bandwidth.c: see bandwidth.h. */
#include "bench/bandwidth.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "kernels/threads.h"

enum { TRIES = 5, HOST_BYTES = 512 << 20, COPY_BYTES = 512 << 20, COPIES = 8 };

/* Every part adds up its share: eight sums, so that additions do not wait for each other. */
typedef struct {
    const uint64_t *word;
    size_t n;
    uint64_t *sum; /* of each part, so that the reads are not dropped */
} Reading;

static void read_part(const void *arg, int part, int n_parts)
{
    const Reading *r = arg;
    size_t begin = r->n / 8 * (size_t)part / (size_t)n_parts * 8;
    size_t end = r->n / 8 * (size_t)(part + 1) / (size_t)n_parts * 8;
    uint64_t sum[8] = {0};
    for (size_t i = begin; i < end; i += 8)
        for (int k = 0; k < 8; k++)
            sum[k] += r->word[i + (size_t)k];
    for (int k = 0; k < 8; k++)
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
        threads_run(t, read_part, &r);
        double rate = HOST_BYTES / (clock_ms() - begun) * 1e3;
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

static int by_value(const void *pa, const void *pb)
{
    double a = *(const double *)pa, b = *(const double *)pb;
    return a < b ? -1 : a > b;
}

double median(double *value, int n)
{
    qsort(value, (size_t)n, sizeof *value, by_value);
    return n ? (value[(n - 1) / 2] + value[n / 2]) / 2 : 0;
}
