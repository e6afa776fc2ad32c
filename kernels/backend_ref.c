/*
 * backend_ref.c: the backend "ref": the definitions of ops_ref.h on the calling thread.
 */
#include "kernels/backend.h"

#include <assert.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/host_memory.h"
#include "kernels/ops_ref.h"

typedef struct {
    Backend be;
    int max_vocab;
    Candidate *candidates; /* [max_vocab] */
} RefBackend;

/* The definitions need no state, so the table's functions only drop the backend. */
#define REF_OP(op, Args)                                                                           \
    static void op(Backend *be, const Args *a)                                                     \
    {                                                                                              \
        (void)be;                                                                                  \
        op##_ref(a);                                                                               \
    }

REF_OP(embed, Embed)
REF_OP(gather_rows, GatherRows)
REF_OP(add_norm, AddNorm)
REF_OP(gated_norm, GatedNorm)
REF_OP(linear, Linear)
REF_OP(conv_gates, ConvGates)
REF_OP(gated_delta, GatedDelta)
REF_OP(delta_fold, DeltaFold)
REF_OP(attention_prepare, AttentionPrepare)
REF_OP(tree_attention, TreeAttention)
REF_OP(swiglu, SwiGlu)
REF_OP(moe_ffn, MoeFfn)
REF_OP(token_logprobs, TokenLogprobs)
REF_OP(move_rows, MoveRows)
REF_OP(grow_drafts, GrowDrafts)
REF_OP(plant_trees, PlantTrees)
REF_OP(accept_trees, AcceptTrees)

static void sample(Backend *be, const Sample *a)
{
    RefBackend *ref = (RefBackend *)be;
    assert(a->n_vocab <= ref->max_vocab);
    sample_ref(a, ref->candidates);
}

static int quantise_int(Backend *be, const QuantiseInt *a)
{
    (void)be;
    return quantise_int_ref(a);
}

static void ref_close(Backend *be)
{
    RefBackend *ref = (RefBackend *)be;
    mem_free(ref->candidates);
    mem_free(ref);
}

Backend *backend_ref_open(int max_vocab)
{
    RefBackend *ref = mem_alloc(1, sizeof *ref);
    ref->max_vocab = max_vocab;
    ref->candidates = mem_alloc((size_t)max_vocab, sizeof *ref->candidates);

    Backend *be = &ref->be;
    host_memory_fill(be);
    be->name = "ref";
    strcpy(be->isa, "plain");
    be->n_threads = 1;
    be->close = ref_close;
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
