/*
 * trace.c: when each kernel ran, as the GPU has run it: in graphs, overlapping. For summary.py.
 *
 * A library that the CUDA driver loads where CUDA_INJECTION64_PATH names it. The last records are
 * kept and written when the program ends, to the file that GPU_TRACE names: a line for each,
 * begin and end in ns, grid, threads a block, registers, bytes of shared memory, name, by tabs.
 * Source: CUPTI's activity API.
 */
#include <cupti.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEPT = 1 << 16, NAME = 96, BUFFER = 8 << 20, ALIGN = 8 };

typedef struct {
    uint64_t begin, end;
    int32_t grid[3], threads, registers, shared;
    char name[NAME];
} Record;

static Record kept[KEPT];
static uint64_t n_seen;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static Record *next_record(uint64_t begin, uint64_t end, const char *name)
{
    Record *r = &kept[n_seen++ % KEPT];
    *r = (Record){.begin = begin, .end = end};
    snprintf(r->name, NAME, "%s", name ? name : "?");
    return r;
}

static void keep(const CUpti_Activity *a)
{
    if (a->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
        const CUpti_ActivityKernel10 *k = (const void *)a;
        Record *r = next_record(k->start, k->end, k->name);
        r->grid[0] = k->gridX, r->grid[1] = k->gridY, r->grid[2] = k->gridZ;
        r->threads = k->blockX;
        r->registers = k->registersPerThread;
        r->shared = k->staticSharedMemory + k->dynamicSharedMemory;
    } else if (a->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
        const CUpti_ActivityMemcpy6 *m = (const void *)a;
        next_record(m->start, m->end, "memcpy")->grid[0] = (int32_t)m->bytes;
    } else if (a->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
        const CUpti_ActivityMemset4 *m = (const void *)a;
        next_record(m->start, m->end, "memset")->grid[0] = (int32_t)m->bytes;
    }
}

static void CUPTIAPI give_buffer(uint8_t **buffer, size_t *size, size_t *max_records)
{
    *buffer = aligned_alloc(ALIGN, BUFFER);
    *size = *buffer ? BUFFER : 0;
    *max_records = 0;
}

static void CUPTIAPI take_buffer(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size,
                                 size_t valid)
{
    (void)context, (void)stream, (void)size;
    CUpti_Activity *a = NULL;
    pthread_mutex_lock(&lock);
    while (cuptiActivityGetNextRecord(buffer, valid, &a) == CUPTI_SUCCESS)
        keep(a);
    pthread_mutex_unlock(&lock);
    free(buffer);
}

static int by_begin(const void *pa, const void *pb)
{
    const Record *a = pa, *b = pb;
    return a->begin < b->begin ? -1 : a->begin > b->begin;
}

static void write_records(void)
{
    const char *path = getenv("GPU_TRACE");
    cuptiActivityFlushAll(1);
    size_t n = n_seen < KEPT ? (size_t)n_seen : KEPT;
    FILE *f = path ? fopen(path, "w") : NULL;
    if (!f) {
        fprintf(stderr, "gpu_trace: GPU_TRACE names no file that can be written\n");
        return;
    }
    qsort(kept, n, sizeof *kept, by_begin);
    for (const Record *r = kept; r < kept + n; r++)
        fprintf(f, "%llu\t%llu\t%d,%d,%d\t%d\t%d\t%d\t%s\n",
                (unsigned long long)(r->begin - kept->begin),
                (unsigned long long)(r->end - kept->begin), r->grid[0], r->grid[1], r->grid[2],
                r->threads, r->registers, r->shared, r->name);
    fclose(f);
}

/* What the driver calls. */
int InitializeInjection(void);
int InitializeInjection(void)
{
    static const CUpti_ActivityKind kind[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                              CUPTI_ACTIVITY_KIND_MEMCPY,
                                              CUPTI_ACTIVITY_KIND_MEMSET};
    CUptiResult failed = cuptiActivityRegisterCallbacks(give_buffer, take_buffer);
    for (size_t i = 0; i < sizeof kind / sizeof *kind && !failed; i++)
        failed = cuptiActivityEnable(kind[i]);
    if (failed) fprintf(stderr, "gpu_trace: CUPTI says %d, nothing is traced\n", (int)failed);
    atexit(write_records);
    return 1;
}
