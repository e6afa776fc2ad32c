/*
 * memory.h: the serving memory: one array of frames, taken once.
 *
 * A frame holds the state of a sequence or a run of KV pages (frames.h). A state is, for every
 * recurrent layer, the recurrent state and the last inputs of its convolution, and the f32 hidden
 * row after the final norm of its last token, from which the next token's logits follow. A page
 * holds PAGE_TOKENS rows of K and of V for every full-attention layer and, last, for the draft
 * head's layer. All are runs of bytes that only kernels look into. A sequence reaches its pages
 * through its row of the table; it may write those that it claimed, and shares others with the
 * prefix cache.
 */
#ifndef OFFSHOOT_ENGINE_MEMORY_H
#define OFFSHOOT_ENGINE_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "engine/cache.h"
#include "engine/frames.h"
#include "engine/model.h"

typedef struct {
    KvType kv_type;
    int n_frames;
    int max_slots;          /* frames that may hold states at a time; 0: all */
    int max_seqs, seq_rows; /* sequences, and KV rows that one can have */
    int max_nodes;          /* of the cache */
    CacheOptions cache;
} MemoryOptions;

typedef struct {
    const Model *model;
    size_t slot_bytes, page_bytes, frame_bytes;
    size_t kv_row_bytes; /* one K or V row of one layer */
    KvType kv_type;      /* of all KV layers */
    int n_frames, pages_per_frame;
    int n_kv_layers;     /* the head's layer included */
    unsigned char *base; /* backend memory, [n_frames][frame_bytes] */
    Frames *frames;
    Cache *cache;

    int max_seqs, table_stride;
    int32_t *table;      /* backend memory, [max_seqs][table_stride] places of pages */
    int32_t *seq_pages;  /* [max_seqs][table_stride] ids of the same */
    int32_t *places;     /* [table_stride] to be uploaded */
    int *n_seq_pages;    /* [max_seqs] */
    int32_t *page_block; /* [pages] which of its sequence's pages one is */
} Memory;

/* Bytes of a slot, of a page and of a frame of this model, before anything is taken. */
size_t memory_slot_bytes(const ModelConfig *c);
size_t memory_page_bytes(const Model *m, KvType type);
size_t memory_frame_bytes(const Model *m, KvType type);

/* Frames that n_slots states and n_pages pages need. */
int64_t memory_frames_for(const Model *m, KvType type, int64_t n_slots, int64_t n_pages);

/* 0, or -1 and an Error. */
int memory_open(Memory *mem, const Model *model, const MemoryOptions *o, Error *err);

/*
 * The same for passes without an engine: no cache, slots 0 .. n_slots - 1 claimed, and n_pages
 * pages.
 */
int memory_open_plain(Memory *mem, const Model *model, KvType kv_type, int n_slots, int n_pages,
                      int max_seqs, int seq_rows, Error *err);
void memory_close(Memory *mem);

/* Gives sequence seq pages for n_rows KV rows, the cache lets go: all of them, or none and -1. */
int memory_reserve(Memory *mem, int seq, int n_rows);

/*
 * Gives sequence seq, which has none, the pages of the first n rows of a prefix in the cache: those
 * that are full are shared, a last one that is not is copied. 0, or -1: no page for the copy.
 */
int memory_share(Memory *mem, int seq, int32_t node, int n);

/* Takes back all pages of seq. */
void memory_release(Memory *mem, int seq);

/* The ids of seq's pages. */
const int32_t *memory_pages(const Memory *mem, int seq);

/* Makes a slot the state before any token; or what another is. */
void memory_clear_slot(Memory *mem, int32_t slot);
void memory_copy_slot(Memory *mem, int32_t to, int32_t from);

/* Where their bytes are: page_bytes of a page, as long as it keeps its place; slot_bytes. */
unsigned char *memory_page(const Memory *mem, int32_t page);
unsigned char *memory_slot(const Memory *mem, int32_t slot);

/* The hidden row in a slot. */
float *memory_hidden(const Memory *mem, int32_t slot);

/* What kernels need to reach recurrent layer i (of the recurrent ones), KV layer i (of the KV
 * ones). */
SlotLayer memory_slot_layer(const Memory *mem, int i);
KvLayer memory_kv_layer(const Memory *mem, int i);

#endif
