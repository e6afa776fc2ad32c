/* memory.c: see memory.h. */
#include "engine/memory.h"

#include <assert.h>
#include <string.h>

#include "base/mem.h"
#include "engine/engine.h"

static size_t state_bytes(const ModelConfig *c)
{
    return (size_t)c->n_v_heads * c->d_k * c->d_v * sizeof(float);
}

static size_t conv_bytes(const ModelConfig *c)
{
    return (size_t)(c->conv_width - 1) * c->n_channels * sizeof(float);
}

/*
 * One recurrent layer's part of a slot; a multiple of 64 so that every part starts on a cache line.
 */
static size_t slot_layer_bytes(const ModelConfig *c)
{
    return (state_bytes(c) + conv_bytes(c) + 63) / 64 * 64;
}

size_t memory_slot_bytes(const ModelConfig *c)
{
    size_t bytes = slot_layer_bytes(c) * (size_t)c->n_recurrent;
    return bytes ? bytes : 64;
}

static size_t kv_row_bytes(const ModelConfig *c, KvType type)
{
    return (size_t)c->n_kv_heads * c->head_dim * kv_type_bytes(type);
}

static int kv_layers(const Model *m)
{
    return m->config.n_full + (m->has_mtp ? 1 : 0);
}

size_t memory_page_bytes(const Model *m, KvType type)
{
    size_t bytes = kv_row_bytes(&m->config, type) * 2 * PAGE_TOKENS * (size_t)kv_layers(m);
    return bytes ? bytes : 64;
}

int memory_pages_for(int n_rows)
{
    return (n_rows + PAGE_TOKENS - 1) / PAGE_TOKENS;
}

int memory_open(Memory *mem, const Model *model, KvType kv_type, int n_slots, int n_pages,
                int max_seqs, int seq_rows, Error *err)
{
    Backend *be = model->backend;
    *mem = (Memory){.model = model,
                    .slot_bytes = memory_slot_bytes(&model->config),
                    .page_bytes = memory_page_bytes(model, kv_type),
                    .kv_row_bytes = kv_row_bytes(&model->config, kv_type),
                    .kv_type = kv_type,
                    .n_slots = n_slots,
                    .n_pages = n_pages,
                    .n_kv_layers = kv_layers(model),
                    .max_seqs = max_seqs,
                    .table_stride = memory_pages_for(seq_rows)};
    size_t table_bytes = (size_t)max_seqs * mem->table_stride * sizeof *mem->table;
    mem->slots = be->alloc(be, mem->slot_bytes * (size_t)n_slots, err);
    mem->pages = mem->slots ? be->alloc(be, mem->page_bytes * (size_t)n_pages, err) : NULL;
    mem->table = mem->pages ? be->alloc(be, table_bytes, err) : NULL;
    if (!mem->table) {
        memory_close(mem);
        return -1;
    }
    mem->slot_pool = slots_open(n_slots);
    mem->seq_pages = mem_alloc(1, table_bytes);
    mem->n_seq_pages = mem_alloc((size_t)max_seqs, sizeof(int));
    mem->free_pages = mem_alloc((size_t)n_pages, sizeof(int32_t));
    for (int i = n_pages - 1; i >= 0; i--)
        mem->free_pages[mem->n_free_pages++] = i;
    return 0;
}

void memory_close(Memory *mem)
{
    if (!mem->model) return;
    Backend *be = mem->model->backend;
    be->free(be, mem->slots);
    be->free(be, mem->pages);
    be->free(be, mem->table);
    slots_close(mem->slot_pool);
    mem_free(mem->seq_pages);
    mem_free(mem->n_seq_pages);
    mem_free(mem->free_pages);
    *mem = (Memory){0};
}

int memory_reserve(Memory *mem, int seq, int n_rows)
{
    Backend *be = mem->model->backend;
    int want = memory_pages_for(n_rows), have = mem->n_seq_pages[seq];
    assert(want <= mem->table_stride);
    if (want - have > mem->n_free_pages) return -1;
    int32_t *row = mem->seq_pages + (size_t)seq * mem->table_stride;
    for (int i = have; i < want; i++)
        row[i] = mem->free_pages[--mem->n_free_pages];
    if (want > have) {
        be->upload(be, mem->table + (size_t)seq * mem->table_stride + have, row + have,
                   (size_t)(want - have) * sizeof *row);
        mem->n_seq_pages[seq] = want;
    }
    return 0;
}

void memory_release(Memory *mem, int seq)
{
    const int32_t *row = mem->seq_pages + (size_t)seq * mem->table_stride;
    for (int i = mem->n_seq_pages[seq] - 1; i >= 0; i--)
        mem->free_pages[mem->n_free_pages++] = row[i];
    mem->n_seq_pages[seq] = 0;
    assert(mem->n_free_pages <= mem->n_pages);
}

void memory_clear_slot(Memory *mem, int32_t slot)
{
    Backend *be = mem->model->backend;
    be->zero(be, mem->slots + (size_t)slot * mem->slot_bytes, mem->slot_bytes);
}

SlotLayer memory_slot_layer(const Memory *mem, int i)
{
    const ModelConfig *c = &mem->model->config;
    size_t start = slot_layer_bytes(c) * (size_t)i;
    return (SlotLayer){.base = mem->slots,
                       .slot_bytes = mem->slot_bytes,
                       .state_offset = start,
                       .conv_offset = start + state_bytes(c)};
}

KvLayer memory_kv_layer(const Memory *mem, int i)
{
    size_t part = mem->kv_row_bytes * PAGE_TOKENS;
    return (KvLayer){.type = mem->kv_type,
                     .pages = mem->pages,
                     .page_bytes = mem->page_bytes,
                     .k_offset = part * 2 * (size_t)i,
                     .v_offset = part * (2 * (size_t)i + 1),
                     .page_tokens = PAGE_TOKENS,
                     .n_kv_heads = mem->model->config.n_kv_heads,
                     .head_dim = mem->model->config.head_dim,
                     .table = mem->table,
                     .table_stride = mem->table_stride};
}
