/*
 * memory.h: the serving memory: state slots and KV pages, taken once.
 *
 * A slot holds, for every recurrent layer, the recurrent state and the last inputs of its
 * convolution; a page holds PAGE_TOKENS rows of K and of V for every full-attention layer and,
 * last, for the draft head's layer. Both are runs of bytes that only kernels look into. Pages
 * belong to one sequence each and are reached through its row of the table.
 */
#ifndef OFFSHOOT_ENGINE_MEMORY_H
#define OFFSHOOT_ENGINE_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "engine/model.h"
#include "engine/slots.h"

typedef struct {
    const Model *model;
    size_t slot_bytes, page_bytes, kv_row_bytes; /* one K or V row of one layer */
    KvType kv_type;                              /* of all KV layers */
    int n_slots, n_pages, n_kv_layers;           /* the head's layer included */
    unsigned char *slots, *pages;                /* backend memory */
    SlotPool *slot_pool;

    int n_free_pages;
    int32_t *free_pages; /* [n_pages], a stack */
    int max_seqs, table_stride;
    int32_t *table;     /* backend memory, [max_seqs][table_stride] */
    int32_t *seq_pages; /* the same on the host */
    int *n_seq_pages;   /* [max_seqs] */
} Memory;

/* Bytes of a slot and of a page of this model, before anything is taken. */
size_t memory_slot_bytes(const ModelConfig *c);
size_t memory_page_bytes(const Model *m, KvType type);

/* Takes n_slots and n_pages; a sequence can have up to seq_rows KV rows. 0, or -1 and an Error. */
int memory_open(Memory *mem, const Model *model, KvType kv_type, int n_slots, int n_pages,
                int max_seqs, int seq_rows, Error *err);
void memory_close(Memory *mem);

/* Gives sequence seq pages for n_rows KV rows: all of them, or none and -1. */
int memory_reserve(Memory *mem, int seq, int n_rows);

/* Takes back all pages of seq. */
void memory_release(Memory *mem, int seq);

/* Pages that n_rows need. */
int memory_pages_for(int n_rows);

/* Makes a slot the state before any token. */
void memory_clear_slot(Memory *mem, int32_t slot);

/* What kernels need to reach recurrent layer i (of the recurrent ones), KV layer i (of the KV
 * ones). */
SlotLayer memory_slot_layer(const Memory *mem, int i);
KvLayer memory_kv_layer(const Memory *mem, int i);

#endif
