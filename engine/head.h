/*
 * head.h: the model's MTP layer: one pass over (hidden row, next token) pairs.
 *
 *     y = fc(norm_e(embed(token)), norm_h(hidden));  y += attention(norm(y));  y += ffn(norm(y))
 *     out = norm(y);  logits = lm_head(out)
 *
 * hidden is the target's row after its final norm, or the head's own out when chained. The row of
 * (hidden at p, token at p + 1) has index p + 1: its K and V sit at row p + 1, so that row q of the
 * head's layer depends on tokens 0..q alone; its RoPE position stays p. Row 0 is never used. Where
 * a sequence's first rows were left out (from), the others do not look at them.
 */
#ifndef OFFSHOOT_ENGINE_HEAD_H
#define OFFSHOOT_ENGINE_HEAD_H

#include "engine/engine.h"
#include "engine/forward.h"
#include "engine/scored.h"

typedef struct Head {
    Forward *f;     /* its scratch is used */
    uint64_t owner; /* of its recorded passes */
    int max_meta;   /* entries that a batch may have over several passes */
    RowMeta meta;   /* backend memory, [max_meta] each */
    int32_t *meta_block;
    const int32_t *from; /* [max_seqs]: index of each sequence's first row; NULL: 1. Borrowed */
    float *hidden;       /* [f->max_rows][dim]: the caller puts a pass's hidden rows here */
    float *out;          /* [f->max_rows][dim]: a pass's normed output, valid until the next */
    Scored scored;
} Head;

/* Scores the ids of v. */
int head_open(Head *h, Forward *f, int max_meta, const DraftVocab *v, Error *err);
void head_close(Head *h);

/* Bytes that head_open takes. */
size_t head_bytes(const Model *model, int max_rows, int max_meta, const DraftVocab *v);

/*
 * Appends a row to b: token at position pos >= 1, parent an earlier row of b (maybe of an earlier
 * pass) or -1, keys of positions below base in their own rows.
 */
int head_add(Batch *b, int32_t token, int pos, int seq, int parent, int kv_row, int base);

/*
 * Runs rows row0.. of b; hidden[i] belongs to row row0 + i. Rows before row0 ran in earlier passes.
 */
void head_pass(Head *h, const Batch *b, int row0);

/* The same for n rows that lie in h->meta already, from row0 on; not replayed. */
void head_queue(Head *h, int n, int row0, int n_keys);

/* The engine's head, or NULL where its drafter uses none; for drafters. */
Head *engine_head(Engine *e);
const EngineOptions *engine_options(const Engine *e);
const uint64_t *engine_allowed(const Engine *e); /* backend memory or NULL */

/*
 * While a drafter proposes: what may follow path[n] behind the root of sequence seq, backend memory
 * until `at` is asked for again, at < MAX_TREE_NODES; NULL: anything.
 */
const uint64_t *engine_draft_mask(Engine *e, int seq, const int32_t *path, int n, int at);

#endif
