/* fingerprint.c: see fingerprint.h. */
#include "engine/fingerprint.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/build_id.h"
#include "base/hash.h"
#include "engine/loader.h"

enum { SAMPLE_BYTES = 256 };

static Hash add(Hash h, const void *data, size_t bytes)
{
    Hash part = hash_key(data, bytes, h.low);
    Hash both[2] = {h, part};
    return hash_key(both, sizeof both, 0);
}

/*
 * Both ends and the middle, for who changes a matrix mostly changes all of it; and when its file
 * was written, for who changes a few rows.
 */
static Hash add_tensor(Hash h, const Tensor *t)
{
    size_t n = t->bytes < SAMPLE_BYTES ? t->bytes : SAMPLE_BYTES;
    h = add(h, t->name, strlen(t->name));
    h = add(h, &t->type, sizeof t->type);
    h = add(h, &t->bytes, sizeof t->bytes);
    h = add(h, &t->written_ns, sizeof t->written_ns);
    h = add(h, t->data, n);
    h = add(h, t->data + (t->bytes - n) / 2, n);
    return add(h, t->data + (t->bytes - n), n);
}

void model_fingerprint(const Model *m, KvType kv_type, int has_head, char text[FINGERPRINT_SIZE])
{
    const Owned *own = m->owned;
    const Backend *be = m->backend;
    const int32_t options[] = {m->options.quant, m->options.act, m->options.dummy,
                               m->options.draft_quant};
    char build[BUILD_ID_SIZE];
    build_id(build);
    Hash h = hash_key(&m->config, sizeof m->config, 0);
    h = add(h, options, sizeof options);
    h = add(h, build, strlen(build));
    h = add(h, be->chip, strlen(be->chip));
    h = add(h, be->library, strlen(be->library));
    h = add(h, be->wgmma, strlen(be->wgmma));
    for (int i = 0; own->st && i < safetensors_count(own->st); i++)
        h = add_tensor(h, safetensors_at(own->st, i));
    snprintf(text, FINGERPRINT_SIZE, "%s %016" PRIx64 "%016" PRIx64 " kv=%s head=%d %s-%s",
             m->config.model_type, h.high, h.low, kv_type == KV_BF16 ? "bf16" : "f32", has_head,
             be->name, be->isa);
}
