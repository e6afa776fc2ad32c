/*
 * scored.h: the ids that a draft head scores, and the LM head's rows for them: where they are in
 * the model's matrix, or, where the model's draft_quant says so, copies in fewer bits. No token
 * depends on either: a guess is verified by the matrix itself.
 *
 * Each level of a draft reads these rows: of 32,768 ids of Qwen3.5-0.8B 67 MB in bf16, 34 in INT8,
 * 19 in INT4, beside 41, 21 and 14 of the head's layer. Where all ids are scored copies would be
 * half the matrix again: then there are none.
 */
#ifndef OFFSHOOT_ENGINE_SCORED_H
#define OFFSHOOT_ENGINE_SCORED_H

#include "engine/engine.h"
#include "engine/model.h"

/* More runs of ids than this are joined across the smallest gaps: each is a matrix product. */
enum { MAX_SCORED_RANGES = 8 };

typedef struct {
    int first, end; /* ids first .. end - 1 */
} IdRange;

typedef struct Scored {
    const Model *model;
    IdRange range[MAX_SCORED_RANGES + 1]; /* ids that are scored, ascending */
    Weight rows[MAX_SCORED_RANGES + 1];   /* of each range */
    int n_ranges, n_ids;                  /* n_ids: in all of them */
    void *copies;                         /* backend memory, or NULL */
} Scored;

/*
 * Finds the ids of v, and with them some of their neighbours where runs of ids are joined or rows
 * of the matrix share scales. rows are the matrix's.
 */
void scored_open(Scored *s, const Model *m, const DraftVocab *v);

/* Bytes of backend memory that scored_copy takes, 0 where it does nothing. */
size_t scored_copy_bytes(const Scored *s);

/* Makes rows the copies. -1 and an Error: no memory, or weights that are not finite. */
int scored_copy(Scored *s, Error *err);
void scored_close(Scored *s);

/* Bytes that one product with all rows reads. */
double scored_bytes(const Scored *s);

/*
 * logits [n][n_vocab] of n rows of the head's output. Columns of ids that are not scored stay as
 * they are: scored_init_logits makes them -inf once, in backend memory of n rows.
 */
void scored_logits(const Scored *s, int n, const float *out, float *logits);
void scored_init_logits(const Scored *s, int n, float *logits);

#endif
