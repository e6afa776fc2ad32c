/* vocab.c: see vocab.h. */
#include "text/vocab.h"

#include <assert.h>
#include <string.h>

#include "base/mem.h"

void vocab_init(Vocab *v, int n, size_t n_tokens, size_t n_bytes)
{
    uint32_t n_slots = 16;
    while (n_slots < 2 * n_tokens)
        n_slots *= 2;
    *v = (Vocab){.n = n, .mask = n_slots - 1};
    v->token = mem_alloc((size_t)n, sizeof *v->token);
    v->bytes = mem_alloc(n_bytes, 1);
    v->slot = mem_alloc(n_slots, sizeof *v->slot);
}

void vocab_free(Vocab *v)
{
    mem_free(v->token);
    mem_free(v->bytes);
    mem_free(v->slot);
    *v = (Vocab){0};
}

/* FNV-1a, folded. */
static uint32_t hash_bytes(const char *bytes, size_t len)
{
    uint64_t h = 0xCBF29CE484222325u;
    for (size_t i = 0; i < len; i++)
        h = (h ^ (unsigned char)bytes[i]) * 0x100000001B3u;
    return (uint32_t)(h ^ h >> 32);
}

/* The slot that holds these bytes, or the free one where they would go. */
static VocabSlot *find_slot(const Vocab *v, uint32_t hash, const char *bytes, size_t len)
{
    for (uint32_t i = hash;; i++) {
        VocabSlot *slot = &v->slot[i & v->mask];
        if (!slot->id_plus_1) return slot;
        if (slot->hash != hash) continue;
        const VocabToken *t = &v->token[slot->id_plus_1 - 1];
        if (t->len == len && !memcmp(v->bytes + t->start, bytes, len)) return slot;
    }
}

int vocab_add_apart(Vocab *v, int32_t id, const char *bytes, size_t len)
{
    assert(id >= 0);
    assert(id < v->n);
    assert(len > 0);
    if (v->token[id].len) return -1;
    v->token[id] = (VocabToken){(uint32_t)v->n_bytes, (uint32_t)len, 0, 0};
    memcpy(v->bytes + v->n_bytes, bytes, len);
    v->n_bytes += len;
    v->n_tokens++;
    return 0;
}

int vocab_add(Vocab *v, int32_t id, const char *bytes, size_t len)
{
    uint32_t hash = hash_bytes(bytes, len);
    VocabSlot *slot = find_slot(v, hash, bytes, len);
    if (slot->id_plus_1 || vocab_add_apart(v, id, bytes, len)) return -1;
    *slot = (VocabSlot){hash, (uint32_t)id + 1};
    return 0;
}

int32_t vocab_find(const Vocab *v, const char *bytes, size_t len)
{
    const VocabSlot *slot = find_slot(v, hash_bytes(bytes, len), bytes, len);
    return (int32_t)slot->id_plus_1 - 1;
}

const char *vocab_bytes(const Vocab *v, int32_t id, size_t *len)
{
    *len = id >= 0 && id < v->n ? v->token[id].len : 0;
    return *len ? v->bytes + v->token[id].start : "";
}
