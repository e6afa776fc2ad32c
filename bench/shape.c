/* shape.c: see shape.h. */
#include "bench/shape.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "engine/config.h"
#include "engine/flops.h"
#include "text/utf8.h"

/*
 * L tokens cost 8 L D^2 + 4 L^2 D in an attention layer, 16 L D^2 in an MLP, 12 L D^2 + 16 L D N +
 * 10 L in an SSM layer; K and V take 4 L D bytes, a state 2 D N + 2 * 4 (2 D + 2 N).
 */
static Shape hybrid_7b(void)
{
    const double d = 4096, n = 128, n_attention = 4, n_ssm = 24, n_mlp = 28;
    Shape s = {.name = "7b-hybrid"};
    s.cost.per_token = n_attention * 8 * d * d + n_mlp * 16 * d * d;
    s.cost.per_token += n_ssm * (12 * d * d + 16 * d * n + 10);
    s.cost.per_pair = n_attention * 8 * d;
    s.state_bytes = n_ssm * (2 * d * n + 8 * (2 * d + 2 * n));
    s.kv_bytes = n_attention * 4 * d;
    return s;
}

/* As the engine has them: f32 states and rows of the convolution, the draft head's K and V too. */
static Shape of_config(const ModelConfig *c, KvType kv_type)
{
    Shape s = {.cost = model_flops(c)};
    double state = (double)c->n_v_heads * c->d_k * c->d_v;
    double conv = (double)(c->conv_width - 1) * c->n_channels;
    s.state_bytes = c->n_recurrent * (state + conv) * sizeof(float);
    double row = (double)c->n_kv_heads * c->head_dim * (double)kv_type_bytes(kv_type);
    s.kv_bytes = 2 * row * (c->n_full + (c->n_mtp > 0));
    return s;
}

int shape_open(Shape *s, const char *source, KvType kv_type, Error *err)
{
    static const char file[] = "config.json";
    if (!strcmp(source, "7b-hybrid")) {
        *s = hybrid_7b();
        return 0;
    }
    char *dir = mem_strdup(source);
    size_t n = strlen(dir), end = sizeof file - 1;
    if (n >= end && !strcmp(dir + n - end, file)) dir[n - end] = 0;
    ModelConfig c;
    GenerationDefaults g;
    int rc = config_load(&c, &g, *dir ? dir : ".", err);
    mem_free(dir);
    if (rc) return -1;
    *s = of_config(&c, kv_type);
    size_t most = sizeof s->name - 1, whole = utf8_check(source, strnlen(source, most));
    snprintf(s->name, sizeof s->name, "%.*s", (int)whole, source);
    return 0;
}
