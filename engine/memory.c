/* memory.c: see memory.h. */
#include "engine/memory.h"

#include <assert.h>

#include "base/mem.h"
#include "engine/flops.h"

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

/* Where the hidden row begins. */
static size_t hidden_offset(const ModelConfig *c)
{
    return slot_layer_bytes(c) * (size_t)c->n_recurrent;
}

size_t memory_slot_bytes(const ModelConfig *c)
{
    return hidden_offset(c) + (size_t)c->dim * sizeof(float);
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

static size_t pages_per_frame(const Model *m, KvType type)
{
    size_t page = memory_page_bytes(m, type);
    return (memory_slot_bytes(&m->config) + page - 1) / page;
}

size_t memory_frame_bytes(const Model *m, KvType type)
{
    return pages_per_frame(m, type) * memory_page_bytes(m, type);
}

int64_t memory_frames_for(const Model *m, KvType type, int64_t n_slots, int64_t n_pages)
{
    int64_t per_frame = (int64_t)pages_per_frame(m, type);
    return n_slots + (n_pages + per_frame - 1) / per_frame;
}

static unsigned char *place_at(const Memory *mem, int32_t place)
{
    return mem->base + (size_t)place * mem->page_bytes;
}

unsigned char *memory_page(const Memory *mem, int32_t page)
{
    return place_at(mem, pages_place(mem->frames, page));
}

unsigned char *memory_slot(const Memory *mem, int32_t slot)
{
    return mem->base + (size_t)slot * mem->frame_bytes;
}

static void set_places(Memory *mem, int seq, int first, int n)
{
    Backend *be = mem->model->backend;
    const int32_t *page = memory_pages(mem, seq) + first;
    for (int i = 0; i < n; i++)
        mem->places[i] = pages_place(mem->frames, page[i]);
    if (n)
        be->upload(be, mem->table + (size_t)seq * mem->table_stride + first, mem->places,
                   (size_t)n * sizeof *mem->places);
}

/*
 * Operations run in order: those that are queued already read the page where it was. A page is the
 * same one of every sequence that has it.
 */
static void page_moved(void *ctx, const PageMove *move)
{
    Memory *mem = ctx;
    Backend *be = mem->model->backend;
    int block = mem->page_block[move->page];
    be->copy(be, place_at(mem, move->to), place_at(mem, move->from), mem->page_bytes);
    for (int seq = 0; seq < mem->max_seqs; seq++)
        if (block < mem->n_seq_pages[seq] && memory_pages(mem, seq)[block] == move->page)
            set_places(mem, seq, block, 1);
}

static void open_lists(Memory *mem, const MemoryOptions *o)
{
    const Model *m = mem->model;
    size_t stride = (size_t)mem->table_stride, seqs = (size_t)mem->max_seqs;
    FlopCost cost = model_flops(&m->config);
    mem->frames =
        frames_open(o->n_frames, mem->pages_per_frame, o->max_slots ? o->max_slots : o->n_frames);
    mem->cache = cache_open(&o->cache, mem->frames, o->max_nodes, &cost);
    cache_on_move(mem->cache, page_moved, mem);
    mem->seq_pages = mem_alloc(seqs * stride, sizeof *mem->seq_pages);
    mem->n_seq_pages = mem_alloc(seqs, sizeof *mem->n_seq_pages);
    mem->places = mem_alloc(stride, sizeof *mem->places);
    mem->page_block =
        mem_alloc((size_t)o->n_frames * (size_t)mem->pages_per_frame, sizeof *mem->page_block);
}

int memory_open(Memory *mem, const Model *model, const MemoryOptions *o, Error *err)
{
    Backend *be = model->backend;
    *mem = (Memory){.model = model,
                    .slot_bytes = memory_slot_bytes(&model->config),
                    .page_bytes = memory_page_bytes(model, o->kv_type),
                    .frame_bytes = memory_frame_bytes(model, o->kv_type),
                    .kv_row_bytes = kv_row_bytes(&model->config, o->kv_type),
                    .kv_type = o->kv_type,
                    .n_frames = o->n_frames,
                    .pages_per_frame = (int)pages_per_frame(model, o->kv_type),
                    .n_kv_layers = kv_layers(model),
                    .max_seqs = o->max_seqs,
                    .table_stride = pages_for(o->seq_rows)};
    size_t table_bytes = (size_t)mem->max_seqs * mem->table_stride * sizeof *mem->table;
    mem->base = be->alloc(be, mem->frame_bytes * (size_t)o->n_frames, err);
    mem->table = mem->base ? be->alloc(be, table_bytes, err) : NULL;
    if (!mem->table) {
        memory_close(mem);
        return -1;
    }
    open_lists(mem, o);
    return 0;
}

int memory_open_plain(Memory *mem, const Model *model, KvType kv_type, int n_slots, int n_pages,
                      int max_seqs, int seq_rows, Error *err)
{
    int64_t n_frames = memory_frames_for(model, kv_type, n_slots, n_pages);
    MemoryOptions o = {
        .kv_type = kv_type, .n_frames = (int)n_frames, .max_seqs = max_seqs, .seq_rows = seq_rows};
    if (memory_open(mem, model, &o, err)) return -1;
    for (int32_t i = 0, slot; i < n_slots; i++) {
        slots_claim(mem->frames, 1, &slot);
        assert(slot == i);
    }
    return 0;
}

void memory_close(Memory *mem)
{
    if (!mem->model) return;
    Backend *be = mem->model->backend;
    be->free(be, mem->base);
    be->free(be, mem->table);
    cache_close(mem->cache);
    frames_close(mem->frames);
    mem_free(mem->seq_pages);
    mem_free(mem->n_seq_pages);
    mem_free(mem->places);
    mem_free(mem->page_block);
    *mem = (Memory){0};
}

/* Row of seq in seq_pages. */
static int32_t *pages_of(Memory *mem, int seq)
{
    return mem->seq_pages + (size_t)seq * mem->table_stride;
}

const int32_t *memory_pages(const Memory *mem, int seq)
{
    return mem->seq_pages + (size_t)seq * mem->table_stride;
}

int memory_reserve(Memory *mem, int seq, int n_rows)
{
    int want = pages_for(n_rows), have = mem->n_seq_pages[seq];
    int32_t *page = pages_of(mem, seq);
    assert(want <= mem->table_stride);
    if (want <= have) return 0;
    if (cache_claim_pages(mem->cache, want - have, page + have)) return -1;
    for (int i = have; i < want; i++)
        mem->page_block[page[i]] = i;
    mem->n_seq_pages[seq] = want;
    set_places(mem, seq, have, want - have);
    return 0;
}

int memory_share(Memory *mem, int seq, int32_t node, int n)
{
    Backend *be = mem->model->backend;
    int32_t *page = pages_of(mem, seq);
    int full = n / PAGE_TOKENS, part = n % PAGE_TOKENS > 0;
    assert(!mem->n_seq_pages[seq]);
    cache_pages(mem->cache, node, n, page);
    for (int i = 0; i < full + part; i++)
        pages_hold(mem->frames, page[i]);
    if (part) {
        int32_t shared = page[full], own;
        int failed = cache_claim_pages(mem->cache, 1, &own);
        if (!failed) {
            be->copy(be, memory_page(mem, own), memory_page(mem, shared), mem->page_bytes);
            mem->page_block[own] = full;
            page[full] = own;
        }
        pages_release(mem->frames, shared);
        if (failed) {
            for (int i = 0; i < full; i++)
                pages_release(mem->frames, page[i]);
            return -1;
        }
    }
    mem->n_seq_pages[seq] = full + part;
    set_places(mem, seq, 0, full + part);
    return 0;
}

void memory_release(Memory *mem, int seq)
{
    for (int i = mem->n_seq_pages[seq] - 1; i >= 0; i--)
        pages_release(mem->frames, memory_pages(mem, seq)[i]);
    mem->n_seq_pages[seq] = 0;
}

void memory_clear_slot(Memory *mem, int32_t slot)
{
    Backend *be = mem->model->backend;
    be->zero(be, memory_slot(mem, slot), mem->slot_bytes);
}

void memory_copy_slot(Memory *mem, int32_t to, int32_t from)
{
    Backend *be = mem->model->backend;
    be->copy(be, memory_slot(mem, to), memory_slot(mem, from), mem->slot_bytes);
}

float *memory_hidden(const Memory *mem, int32_t slot)
{
    return (float *)(void *)(memory_slot(mem, slot) + hidden_offset(&mem->model->config));
}

SlotLayer memory_slot_layer(const Memory *mem, int i)
{
    const ModelConfig *c = &mem->model->config;
    size_t start = slot_layer_bytes(c) * (size_t)i;
    return (SlotLayer){.base = mem->base,
                       .slot_bytes = mem->frame_bytes,
                       .state_offset = start,
                       .conv_offset = start + state_bytes(c)};
}

KvLayer memory_kv_layer(const Memory *mem, int i)
{
    size_t part = mem->kv_row_bytes * PAGE_TOKENS;
    return (KvLayer){.type = mem->kv_type,
                     .pages = mem->base,
                     .page_bytes = mem->page_bytes,
                     .k_offset = part * 2 * (size_t)i,
                     .v_offset = part * (2 * (size_t)i + 1),
                     .page_tokens = PAGE_TOKENS,
                     .n_kv_heads = mem->model->config.n_kv_heads,
                     .head_dim = mem->model->config.head_dim,
                     .table = mem->table,
                     .table_stride = mem->table_stride};
}
