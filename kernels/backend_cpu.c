/*
 * backend_cpu.c: the backend "cpu": picks an instruction set and hands operations to its table.
 *
 * This file is compiled once, unlike the other *_cpu.c.
 */
#include "kernels/backend.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#if defined __x86_64__
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined __aarch64__
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include "base/mem.h"
#include "kernels/host_memory.h"
#include "kernels/ops_cpu.h"
#include "kernels/ops_ref.h"

typedef struct {
    Backend be;
    const CpuOps *ops;
    Threads *threads;
    int max_vocab;
    void *memory;
    Scratch scratch; /* in it, on a cache line */
} CpuBackend;

/* Scratch of a thread at least: rows for the experts it computes, prepared (linear_cpu.h). */
enum { SCRATCH_BYTES = 1 << 20, CACHE_LINE = 64 };

#define CPU_OP(op, Args)                                                                           \
    static void op(Backend *be, const Args *a)                                                     \
    {                                                                                              \
        CpuBackend *cpu = (CpuBackend *)be;                                                        \
        if (a->n > 0) cpu->ops->op(cpu->threads, a);                                               \
    }

CPU_OP(embed, Embed)
CPU_OP(gather_rows, GatherRows)
CPU_OP(add_norm, AddNorm)
CPU_OP(gated_norm, GatedNorm)
CPU_OP(conv_gates, ConvGates)
CPU_OP(gated_delta, GatedDelta)
CPU_OP(delta_fold, DeltaFold)
CPU_OP(attention_prepare, AttentionPrepare)
CPU_OP(swiglu, SwiGlu)
CPU_OP(token_logprobs, TokenLogprobs)
CPU_OP(move_rows, MoveRows)

#define CPU_OP_WITH_SCRATCH(op, Args)                                                              \
    static void op(Backend *be, const Args *a)                                                     \
    {                                                                                              \
        CpuBackend *cpu = (CpuBackend *)be;                                                        \
        if (a->n > 0) cpu->ops->op(cpu->threads, a, cpu->scratch);                                 \
    }

CPU_OP_WITH_SCRATCH(linear, Linear)
CPU_OP_WITH_SCRATCH(tree_attention, TreeAttention)
CPU_OP_WITH_SCRATCH(moe_ffn, MoeFfn)

/* Some nodes of a few sequences: the definition is as fast as it gets. */
#define PLAIN_OP(op, Args)                                                                         \
    static void op(Backend *be, const Args *a)                                                     \
    {                                                                                              \
        (void)be;                                                                                  \
        op##_ref(a);                                                                               \
    }

PLAIN_OP(grow_drafts, GrowDrafts)
PLAIN_OP(plant_trees, PlantTrees)
PLAIN_OP(accept_trees, AcceptTrees)

static void sample(Backend *be, const Sample *a)
{
    CpuBackend *cpu = (CpuBackend *)be;
    assert(a->n_vocab <= cpu->max_vocab);
    assert(a->n_top >= 1 && a->n_top <= MAX_TOP);
    if (a->n > 0) cpu->ops->sample(cpu->threads, a, cpu->scratch);
}

static int quantise_int(Backend *be, const QuantiseInt *a)
{
    CpuBackend *cpu = (CpuBackend *)be;
    return cpu->ops->quantise_int(cpu->threads, a);
}

static void cpu_close(Backend *be)
{
    CpuBackend *cpu = (CpuBackend *)be;
    threads_close(cpu->threads);
    mem_free(cpu->memory);
    mem_free(cpu);
}

static int has_plain(void)
{
    return 1;
}

#if defined __x86_64__
/* And F16C, which every AVX2 machine has; clang 14 has no name to ask for it. */
static int has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static int has_avx512(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

static int has_vnni(void)
{
    return has_avx512() && __builtin_cpu_supports("avx512vnni");
}

/* The tile unit, and the bf16 of AVX-512 beside it: bits of CPUID's leaf 7. */
enum {
    CPUID_AMX = 1 << 22 | 1 << 24 | 1 << 25, /* bf16, tiles, int8 */
    CPUID_AVX512_BF16 = 1 << 5,
};

/*
 * Whether the CPU has the tile unit, and the system lets this process use it: the state of the
 * tiles is large, so that Linux (5.16) wants to be asked.
 */
static int has_amx(void)
{
    enum { ASK_FOR_STATE = 0x1023, TILE_DATA = 18 };
    unsigned a, b, c, d, more_a, more_b, more_c, more_d;
    if (!has_vnni()) return 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 0;
    if (!__get_cpuid_count(7, 1, &more_a, &more_b, &more_c, &more_d)) return 0;
    return (d & CPUID_AMX) == CPUID_AMX && (more_a & CPUID_AVX512_BF16) &&
           syscall(SYS_arch_prctl, ASK_FOR_STATE, TILE_DATA) == 0;
}
#elif defined __aarch64__
static int has_dotprod(void)
{
    return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
}
#endif

typedef struct {
    const char *name;
    const CpuOps *ops;
    int (*is_present)(void);
} Isa;

/*
 * The named instruction set, or the best there is; NULL and an Error when it is not there. Where it
 * is there no other is looked for: to look for AMX is to ask the system for it.
 */
static const CpuOps *find_isa(const char *name, const char **found, Error *err)
{
    static const Isa isa[] = {
#if defined __x86_64__
        {"amx", &cpu_ops_amx, has_amx},
        {"vnni", &cpu_ops_vnni, has_vnni},
        {"avx512", &cpu_ops_avx512, has_avx512},
        {"avx2", &cpu_ops_avx2, has_avx2},
#elif defined __aarch64__
        {"dotprod", &cpu_ops_dotprod, has_dotprod},
#endif
        {"plain", &cpu_ops_plain, has_plain},
    };
    char had[64] = "";
    for (size_t i = 0; i < sizeof isa / sizeof *isa; i++)
        if ((!name || !strcmp(name, isa[i].name)) && isa[i].is_present()) {
            *found = isa[i].name;
            return isa[i].ops;
        }
    for (size_t i = 0; i < sizeof isa / sizeof *isa; i++) {
        size_t n = strlen(had);
        if (!isa[i].is_present()) continue;
        snprintf(had + n, sizeof had - n, "%s%s", n ? ", " : "", isa[i].name);
    }
    error_set(err, ERR_INPUT, "isa is '%s', this machine has %s", name, had);
    return NULL;
}

static void take_scratch(CpuBackend *cpu)
{
    size_t n = (size_t)threads_count(cpu->threads);
    size_t bytes = (size_t)sample_scratch_floats(cpu->max_vocab) * sizeof(float);
    if (bytes < SCRATCH_BYTES) bytes = SCRATCH_BYTES;
    cpu->memory = mem_alloc(1, n * bytes + CACHE_LINE);
    size_t past = (uintptr_t)cpu->memory % CACHE_LINE;
    cpu->scratch = (Scratch){(char *)cpu->memory + (CACHE_LINE - past), n * bytes};
}

Backend *backend_cpu_open(int n_threads, const char *isa, int max_vocab, Error *err)
{
    const char *found;
    const CpuOps *ops = find_isa(isa, &found, err);
    if (!ops) return NULL;

    CpuBackend *cpu = mem_alloc(1, sizeof *cpu);
    cpu->ops = ops;
    cpu->threads = threads_open(n_threads);
    cpu->max_vocab = max_vocab;
    take_scratch(cpu);

    Backend *be = &cpu->be;
    host_memory_fill(be);
    be->name = "cpu";
    snprintf(be->isa, sizeof be->isa, "%s", found);
    be->n_threads = threads_count(cpu->threads);
    be->scratch_bytes = cpu->scratch.bytes;
    be->close = cpu_close;
    be->embed = embed;
    be->gather_rows = gather_rows;
    be->add_norm = add_norm;
    be->head_input = backend_head_input_in_turn;
    be->gated_norm = gated_norm;
    be->linear = linear;
    be->conv_gates = conv_gates;
    be->gated_delta = gated_delta;
    be->delta_mixer = backend_mix_in_turn;
    be->delta_fold = delta_fold;
    be->attention_prepare = attention_prepare;
    be->tree_attention = tree_attention;
    be->swiglu = swiglu;
    be->moe_ffn = moe_ffn;
    be->routed_ffn = backend_route_in_turn;
    be->sample = sample;
    be->token_logprobs = token_logprobs;
    be->move_rows = move_rows;
    be->quantise_int = quantise_int;
    be->grow_drafts = grow_drafts;
    be->plant_trees = plant_trees;
    be->accept_trees = accept_trees;
    return be;
}
