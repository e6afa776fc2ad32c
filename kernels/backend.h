/*
 * backend.h: the boundary between the model and a machine.
 *
 * A backend is a table of operations over its own memory. engine/forward.c is written once over
 * this table; pointers in argument structs are backend memory and only the backend follows them.
 * Each operation has a plain reference (the backend "ref", one thread, the definition) and faster
 * versions ("cpu", for the best instruction set that there is when it opens; "cuda"); one test
 * drives them all.
 *
 * Operations are queued in order; sync waits for all of them and reports a lost device.
 *
 * prefill in an operation's arguments: 1 when its rows are consecutive tokens of one prompt, the
 * first at a position that is a multiple of PREFILL_BLOCK. A backend may then take another order of
 * operations, made for many rows; a row's result must stay a function of its position and of the
 * tokens up to it, wherever the prompt was cut into passes. Without it a row's result is the same
 * in any company. PREFILL_FP8, for a GPU alone: and what FP8 weights are multiplied with is rounded
 * to e4m3, 128 neighbours of a row by one f32 scale (fp8_scale); PREFILL_EXACT: it is not.
 */
#ifndef OFFSHOOT_KERNELS_BACKEND_H
#define OFFSHOOT_KERNELS_BACKEND_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "kernels/attention.h"
#include "kernels/delta_mixer.h"
#include "kernels/gated_delta.h"
#include "kernels/linear.h"
#include "kernels/moe.h"
#include "kernels/quantise.h"
#include "kernels/round.h"
#include "kernels/rows.h"
#include "kernels/sample.h"

typedef struct Backend Backend;

enum { PREFILL_BLOCK = 64, BACKEND_MARKS = 2, BACKEND_ASIDES = 66 };

/* What tells one recorded run of operations from another; all of it is compared. */
typedef struct {
    uint64_t owner; /* whose arrays: from backend_new_owner */
    int64_t n, m, first, n_keys, prefill, uncut;
} ReplayKey;

struct Backend {
    const char *name; /* "ref", "cpu", "cuda" */
    char isa[16];     /* as backend_cpu_open takes it; a GPU's "sm_90" */
    char chip[64];    /* the GPU's name, by which the library chooses its ways; "" of the CPU */
    char wgmma[32];   /* whether prompts go by it, or why not; "": not asked */
    char library[64]; /* by which a prompt's products are computed, or why not; "": none is asked */
    int n_threads;
    uint64_t n_owners;
    int prefill_differs; /* 1: prefill may give other bits, so a prompt's rows must be told apart */
    int max_head_dim;    /* of attention; 0: all that MAX_HEAD_DIM allows */
    int moe_shared_rows; /* for up to so many, but a prompt's, moe_ffn wants the shared expert's
                            weights, not its output; 0: it cannot have them */
    int is_host;         /* its memory is the host's: operations read what host pointers point to */
    size_t scratch_bytes; /* what operations need on the way, of all threads; taken when it opens */

    /* Zeroed backend memory, taken before serving starts. NULL and an Error when there is none. */
    void *(*alloc)(Backend *be, size_t bytes, Error *err);
    size_t (*free_bytes)(Backend *be); /* what alloc could take now, about */
    void (*free)(Backend *be, void *mem);
    /* host_src may change when this returns; where it is host_alloc's, only after a sync. */
    void (*upload)(Backend *be, void *dst, const void *host_src, size_t bytes);
    /* Host memory that is uploaded from at full speed. NULL and an Error when there is none. */
    void *(*host_alloc)(Backend *be, size_t bytes, Error *err);
    void (*host_free)(Backend *be, void *mem);
    void (*download)(Backend *be, void *host_dst, const void *src, size_t bytes);
    /*
     * Like download, but returns at once: host_dst, host_alloc's, holds the bytes when wait for a
     * mark that was set later has returned. Of each mark, 0 and 1, the last setting counts.
     */
    void (*download_later)(Backend *be, void *host_dst, const void *src, size_t bytes);
    void (*mark)(Backend *be, int mark);
    int (*wait)(Backend *be, int mark, Error *err);
    /*
     * Copies aside, between the device's memory and host_alloc's. They begin, in their order, when
     * what was queued before aside_begin has run, and run beside what is queued later; nobody may
     * change either side meanwhile. aside_end gives those since then a number below BACKEND_ASIDES.
     * aside_done: 1 when those that had it last, and all before them, have come to their end; wait:
     * waits for that; -1 where the device is lost, and nobody knows what was copied. aside_join:
     * what is queued later waits for all of them.
     */
    void (*aside_begin)(Backend *be);
    void (*aside_copy)(Backend *be, void *dst, const void *src, size_t bytes);
    void (*aside_end)(Backend *be, int number);
    int (*aside_done)(Backend *be, int number, int wait);
    void (*aside_join)(Backend *be);
    void (*copy)(Backend *be, void *dst, const void *src, size_t bytes);
    void (*zero)(Backend *be, void *dst, size_t bytes);
    int (*sync)(Backend *be, Error *err);
    /*
     * Queues what record(ctx) queues. A backend with graphs records it when the key comes again and
     * from then on launches the whole at once, without calling record: the same key must mean the
     * same operations with the same arguments, over arrays whose content may differ. record neither
     * uploads from the host nor downloads. 1: this was done as it will be from now on.
     */
    int (*replay)(Backend *be, const ReplayKey *key, void (*record)(void *ctx), void *ctx);
    void (*close)(Backend *be);

    void (*embed)(Backend *be, const Embed *a);
    void (*gather_rows)(Backend *be, const GatherRows *a);
    void (*add_norm)(Backend *be, const AddNorm *a);
    void (*head_input)(Backend *be, const HeadInput *a);
    void (*gated_norm)(Backend *be, const GatedNorm *a);
    void (*linear)(Backend *be, const Linear *a);
    void (*conv_gates)(Backend *be, const ConvGates *a);
    void (*gated_delta)(Backend *be, const GatedDelta *a);
    void (*delta_mixer)(Backend *be, const DeltaMixer *a);
    void (*delta_fold)(Backend *be, const DeltaFold *a);
    void (*attention_prepare)(Backend *be, const AttentionPrepare *a);
    void (*tree_attention)(Backend *be, const TreeAttention *a);
    void (*swiglu)(Backend *be, const SwiGlu *a);
    void (*moe_ffn)(Backend *be, const MoeFfn *a);
    void (*routed_ffn)(Backend *be, const RoutedFfn *a);
    void (*sample)(Backend *be, const Sample *a);
    void (*token_logprobs)(Backend *be, const TokenLogprobs *a);
    void (*move_rows)(Backend *be, const MoveRows *a);
    /* -1 if there is a NaN or an infinity. NULL: this backend has no INT8, INT4 or BF16_BOTH. */
    int (*quantise_int)(Backend *be, const QuantiseInt *a);

    void (*grow_drafts)(Backend *be, const GrowDrafts *a);
    void (*plant_trees)(Backend *be, const PlantTrees *a);
    void (*accept_trees)(Backend *be, const AcceptTrees *a);
};

/* delta_mixer by its definition: the three operations, one after the other. */
static inline void backend_mix_in_turn(Backend *be, const DeltaMixer *a)
{
    be->conv_gates(be, &a->conv);
    be->gated_delta(be, &a->delta);
    be->gated_norm(be, &a->norm);
}

/* head_input likewise. */
static inline void backend_head_input_in_turn(Backend *be, const HeadInput *a)
{
    int dim = a->table->cols;
    Embed embed = {a->n, a->table, a->token, a->embedding, dim};
    AddNorm norm = {a->n, dim, a->eps, a->embedding, NULL, a->embed_norm, a->out, 2 * dim};
    be->embed(be, &embed);
    be->add_norm(be, &norm);
    norm.x = a->hidden, norm.w = a->hidden_norm, norm.out = a->out + dim;
    be->add_norm(be, &norm);
}

/* routed_ffn likewise. */
static inline void backend_route_in_turn(Backend *be, const RoutedFfn *a)
{
    be->linear(be, &a->router);
    be->moe_ffn(be, &a->ffn);
}

/* Never given before, so that what a closed owner recorded is not taken for a new one's. */
static inline uint64_t backend_new_owner(Backend *be)
{
    return ++be->n_owners;
}

/* The definitions, in plain C on the calling thread. max_vocab bounds n_vocab of sample. */
Backend *backend_ref_open(int max_vocab);

/*
 * The CPU backend: n_threads (>= 1) including the caller; isa "amx", "vnni" (AVX-512 with sums of
 * integer products), "avx512", "avx2", on Arm "dotprod" (NEON with such sums), "plain", or NULL for
 * the best that this machine has. NULL and an Error for an isa that it lacks.
 */
Backend *backend_cpu_open(int n_threads, const char *isa, int max_vocab, Error *err);

/*
 * What backend_cuda_open leaves out: recording runs of operations; launches that overlap; prompts'
 * products by cuBLASLt; prompts' products and attention by wgmma.
 */
enum { CUDA_NO_GRAPH = 1, CUDA_NO_OVERLAP = 2, CUDA_NO_LIBRARY = 4, CUDA_NO_WGMMA = 8 };

/*
 * The first NVIDIA GPU. NULL and an Error that says why it cannot be used: ERR_INPUT when there is
 * none or no CUDA in this program, ERR_DEVICE when there is one.
 */
Backend *backend_cuda_open(unsigned leave_out, Error *err);

#endif
