/*
 * isa_ops.h: the functions of one instruction set, as ops_cpu.h's table holds them. Only for
 * sources compiled with -DISA=...
 */
#ifndef OFFSHOOT_KERNELS_ISA_OPS_H
#define OFFSHOOT_KERNELS_ISA_OPS_H

#include "kernels/ops_cpu.h"
#include "kernels/vec.h"

void ISA_NAME(embed)(Threads *t, const Embed *a);
void ISA_NAME(gather_rows)(Threads *t, const GatherRows *a);
void ISA_NAME(add_norm)(Threads *t, const AddNorm *a);
void ISA_NAME(gated_norm)(Threads *t, const GatedNorm *a);
void ISA_NAME(linear)(Threads *t, const Linear *a, Scratch scratch);
void ISA_NAME(conv_gates)(Threads *t, const ConvGates *a);
void ISA_NAME(gated_delta)(Threads *t, const GatedDelta *a);
void ISA_NAME(delta_fold)(Threads *t, const DeltaFold *a);
void ISA_NAME(attention_prepare)(Threads *t, const AttentionPrepare *a);
void ISA_NAME(tree_attention)(Threads *t, const TreeAttention *a, Scratch scratch);
void ISA_NAME(swiglu)(Threads *t, const SwiGlu *a);
void ISA_NAME(moe_ffn)(Threads *t, const MoeFfn *a, Scratch scratch);
void ISA_NAME(sample)(Threads *t, const Sample *a, Scratch scratch);
void ISA_NAME(token_logprobs)(Threads *t, const TokenLogprobs *a);
void ISA_NAME(move_rows)(Threads *t, const MoveRows *a);
int ISA_NAME(quantise_int)(Threads *t, const QuantiseInt *a);

#endif
