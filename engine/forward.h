/*
 * forward.h: one pass of the model over a batch of rows.
 *
 * Rows are the unit of work: prompt rows, tree nodes, single tokens, of any sequences, in any mix.
 * The pass is written once over the backend's operations. Head passes (engine/head.h) share the
 * scratch.
 */
#ifndef OFFSHOOT_ENGINE_FORWARD_H
#define OFFSHOOT_ENGINE_FORWARD_H

#include "engine/memory.h"
#include "engine/model.h"
#include "engine/records.h"

enum { ROW_FIELDS = 9 };

/* Points the fields of row into block, ROW_FIELDS * max_rows ints. */
void row_meta_init(RowMeta *row, int32_t *block, int max_rows);

typedef struct {
    int n, max_rows;
    RowMeta row; /* host, [max_rows] each */
    int n_logits;
    int32_t *logit_row; /* rows whose logits are wanted, [n_logits] */
    int32_t *block;     /* owns all of row; ROW_FIELDS * max_rows */
    int has_prompt;     /* 1: rows from PROMPT_ROW on are a prompt's, their logits likewise; */
    int n_before, n_logits_before; /* rows and logits before; between them and these is nothing */
} Batch;

/*
 * Where the rows of a prompt and their logits begin, when they run apart (Backend.prefill_differs):
 * in one place whatever runs beside them, so that a backend can replay their pass.
 */
enum { PROMPT_ROW = 64 };

void batch_open(Batch *b, int max_rows);
void batch_close(Batch *b);
void batch_clear(Batch *b);

/* Appends a row that wants no logits yet; returns its index. parent is a row of b or -1. */
int batch_add(Batch *b, int32_t token, int pos, int seq, int parent, int32_t src, int32_t dst,
              int kv_row, int base);

/* The largest position of rows row0 to end. */
int batch_last_pos(const Batch *b, int row0, int end);

/*
 * From here on the rows of b are consecutive tokens of one prompt, from a multiple of PREFILL_BLOCK
 * on: they run with prefill set. At most PROMPT_ROW rows and logits came before.
 */
void batch_begin_prompt(Batch *b);

/*
 * More than position last; one of few values, so that passes are alike and a backend can replay
 * them.
 */
int forward_n_keys(const Memory *mem, int last);

typedef struct Forward {
    const Model *model;
    Memory *mem;
    Records *records; /* borrowed; NULL: every row has a dst */
    int max_rows, max_logits;
    uint64_t owner; /* of its recorded passes */
    int prefill;    /* of the operations that are queued now */
    RowMeta meta;   /* backend memory, [max_rows] each */
    int32_t *meta_block;
    int32_t *logit_row; /* backend memory */

    float *final; /* [max_rows][dim]: after the final norm; valid until the next pass */
    float *h;     /* scratch, as what follows work: [max_rows] rows of the widest layer each */

    /*
     * One block. Where no pass runs between a row's logits and their last use, these lie over the
     * layers' scratch, which is not needed any more: so they are valid until the next pass or the
     * head's next.
     */
    unsigned char *work;
    float *logits; /* [max_logits][n_vocab]: for logit_row[i] */
    float *x, *y;
    float *wide[6]; /* see wide_width in forward.c */
    float *gates;   /* [max_rows][4 n_v_heads]: a, b, decay, beta */
    float *moe_scratch, *moe_weight;
    int32_t *moe_id;

    /* Called with the residual stream entering layer i (i == n_layers: leaving the last one). */
    void (*tap)(void *ctx, int layer, const float *x, int n_rows);
    void *tap_ctx;
} Forward;

/*
 * Takes scratch for passes of up to max_rows rows, of which max_logits have their logits at a time.
 */
int forward_open(Forward *f, const Model *model, Memory *mem, int max_rows, int max_logits,
                 Error *err);
void forward_close(Forward *f);

/* Bytes of scratch that forward_open takes. */
size_t forward_bytes(const Model *model, int max_rows, int max_logits);

/*
 * Queues one pass, or two when b has a prompt: states go to their dst slots, K and V to their rows;
 * final and logits are left, for each row at its place. logit_row may name a row of final that the
 * pass does not write, and be all that it has. Where more rows want logits than have room, none
 * get any: forward_logits makes them in turns. Of a prompt that runs apart all must have room.
 */
void forward_pass(Forward *f, const Batch *b);

/* Queues the logits of n rows of final, max_logits at most, row[i]'s to the i-th. */
void forward_logits(Forward *f, const int32_t *row, int n);

/* A pass over n rows that lie in f->meta already, with the logits of all; not replayed. */
void forward_queue(Forward *f, int n, int n_keys);

/* Parts shared with the head's pass. All act on the first n rows of f's scratch: h in, y out. */
void forward_attention(Forward *f, const AttentionWeights *w, int kv_layer, int n, int first,
                       const int32_t *from, int row0, int n_keys, const RowMeta *meta);
void forward_ffn(Forward *f, const FfnWeights *w, int n);
void forward_linear(Forward *f, const Weight *w, int n, const float *x, float *y);
/* The same for matrices of the same x, MAX_PRODUCTS at most; all rows lie close. */
void forward_products(Forward *f, int n, const float *x, int n_products,
                      const LinearProduct *product);
void forward_norm(Forward *f, int n, float *x, const float *delta, const float *w, float *out);

#endif
