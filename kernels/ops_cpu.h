/*
 * ops_cpu.h: the operations of the backend "cpu", one table per instruction set.
 *
 * A *_cpu.c source is compiled once per instruction set; its functions carry the set's name
 * (ISA_NAME in vec.h) and meet in the table of table_cpu.c. How work is split over threads never
 * shows in the bits: each row, head or column is computed by one thread in one order.
 */
#ifndef OFFSHOOT_KERNELS_OPS_CPU_H
#define OFFSHOOT_KERNELS_OPS_CPU_H

#include <stddef.h>

#include "kernels/attention.h"
#include "kernels/gated_delta.h"
#include "kernels/linear.h"
#include "kernels/moe.h"
#include "kernels/quantise.h"
#include "kernels/rows.h"
#include "kernels/sample.h"
#include "kernels/threads.h"

/* Memory for what an operation makes on the way, all threads' together, on a cache line. */
typedef struct {
    void *data;
    size_t bytes;
} Scratch;

typedef struct {
    void (*embed)(Threads *t, const Embed *a);
    void (*gather_rows)(Threads *t, const GatherRows *a);
    void (*add_norm)(Threads *t, const AddNorm *a);
    void (*gated_norm)(Threads *t, const GatedNorm *a);
    void (*linear)(Threads *t, const Linear *a, Scratch scratch);
    void (*conv_gates)(Threads *t, const ConvGates *a);
    void (*gated_delta)(Threads *t, const GatedDelta *a);
    void (*delta_fold)(Threads *t, const DeltaFold *a);
    void (*attention_prepare)(Threads *t, const AttentionPrepare *a);
    void (*tree_attention)(Threads *t, const TreeAttention *a, Scratch scratch);
    void (*swiglu)(Threads *t, const SwiGlu *a);
    void (*moe_ffn)(Threads *t, const MoeFfn *a, Scratch scratch);
    void (*sample)(Threads *t, const Sample *a, Scratch scratch);
    void (*token_logprobs)(Threads *t, const TokenLogprobs *a);
    void (*move_rows)(Threads *t, const MoveRows *a);
    int (*quantise_int)(Threads *t, const QuantiseInt *a);
} CpuOps;

/* SAMPLE_BLOCK: ids are taken in blocks of so many; the last may be padded. */
enum { SAMPLE_BLOCK = 64, SAMPLE_ARRAYS = 3 };

static inline int64_t sample_padded_vocab(int n_vocab)
{
    return ((int64_t)n_vocab + SAMPLE_BLOCK - 1) / SAMPLE_BLOCK * SAMPLE_BLOCK;
}

static inline int64_t sample_scratch_floats(int n_vocab)
{
    return SAMPLE_ARRAYS * sample_padded_vocab(n_vocab);
}

extern const CpuOps cpu_ops_plain;
#if defined __x86_64__
extern const CpuOps cpu_ops_avx2, cpu_ops_avx512, cpu_ops_vnni, cpu_ops_amx;
#elif defined __aarch64__
extern const CpuOps cpu_ops_dotprod;
#endif

enum {
    SMALL_WORK = 1 << 15, /* multiply-adds or elements moved below which a fork costs more than it
                             saves (some 2 us) */
    PART_WORK = 1 << 14,  /* of a part at least, where they may be finer than threads are */
    PARTS_PER_THREAD = 4, /* at most */
};

/* Runs fn over all threads, or here when the work is small; both give the same bits. */
static inline void cpu_run(Threads *t, int64_t work, void (*fn)(const void *, int, int),
                           const void *arg)
{
    threads_run(t, work < SMALL_WORK ? 1 : threads_count(t), fn, arg);
}

/*
 * The same in more parts than there are threads, so that a core that is slower than the others
 * takes fewer of them. For a function that has no scratch of its own and does nothing twice.
 */
static inline void cpu_share(Threads *t, int64_t work, void (*fn)(const void *, int, int),
                             const void *arg)
{
    int n = threads_count(t);
    int64_t each = work / n / PART_WORK;
    each = each < 1 ? 1 : each < PARTS_PER_THREAD ? each : PARTS_PER_THREAD;
    threads_run(t, work < SMALL_WORK ? 1 : n * (int)each, fn, arg);
}

/* Part `part` of n items: begin .. end. */
static inline void cpu_split(int64_t n, int part, int n_parts, int64_t *begin, int64_t *end)
{
    *begin = n * part / n_parts;
    *end = n * (part + 1) / n_parts;
}

#endif
