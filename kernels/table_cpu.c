/*
 * table_cpu.c: the table of one instruction set.
 */
#include "kernels/isa_ops.h"

const CpuOps ISA_NAME(cpu_ops) = {
    .embed = ISA_NAME(embed),
    .gather_rows = ISA_NAME(gather_rows),
    .add_norm = ISA_NAME(add_norm),
    .gated_norm = ISA_NAME(gated_norm),
    .linear = ISA_NAME(linear),
    .conv_gates = ISA_NAME(conv_gates),
    .gated_delta = ISA_NAME(gated_delta),
    .delta_fold = ISA_NAME(delta_fold),
    .attention_prepare = ISA_NAME(attention_prepare),
    .tree_attention = ISA_NAME(tree_attention),
    .swiglu = ISA_NAME(swiglu),
    .moe_ffn = ISA_NAME(moe_ffn),
    .sample = ISA_NAME(sample),
    .token_logprobs = ISA_NAME(token_logprobs),
    .move_rows = ISA_NAME(move_rows),
    .quantise_int = ISA_NAME(quantise_int),
};
