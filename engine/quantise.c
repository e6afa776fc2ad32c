/* quantise.c: see quantise.h. */
#include "engine/quantise.h"

#include <string.h>

int quantise_keeps_wide(const char *leaf)
{
    static const char *const wide[] = {
        "embed_tokens",
        "lm_head",
        "fc",
        "mlp.gate",
        "mlp.shared_expert_gate",
        "linear_attn.in_proj_a",
        "linear_attn.in_proj_b",
        "linear_attn.in_proj_ba",
        "linear_attn.conv1d",
    };
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++)
        if (!strcmp(leaf, wide[i])) return 1;
    return 0;
}
