/*
 * id_set.h: the ids that all tokens of an answer must be of, as a Constraint.
 *
 * Where an answer is says nothing here: every node of a draft tree has the same mask. Constant once
 * it is made, so the answers of a call share one.
 */
#ifndef OFFSHOOT_SERVER_ID_SET_H
#define OFFSHOOT_SERVER_ID_SET_H

#include <stddef.h>

#include "base/constraint.h"

typedef struct {
    uint64_t *word; /* [n_words] a bit for each id of the vocabulary; NULL: there is no set */
    size_t n_words;
} IdSet;

/* id[0..n), n >= 1, each in [0, n_vocab). */
void id_set_open(IdSet *s, const int32_t *id, int n, int n_vocab);
void id_set_close(IdSet *s);

/* s is lent for as long as the engine has an answer under it. */
Constraint id_set_constraint(IdSet *s);

#endif
