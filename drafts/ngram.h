/*
 * ngram.h: the drafter that looks the last tokens up in the sequence itself.
 *
 * Prompt lookup: of the places where the sequence's last tokens stood before it takes the one with
 * the most of them in common, of such the latest, and proposes what followed there: a chain, that
 * goes on by its own tokens where it reaches the sequence's end. What the client predicts is looked
 * through, too. It needs no draft head and no memory.
 */
#ifndef OFFSHOOT_DRAFTS_NGRAM_H
#define OFFSHOOT_DRAFTS_NGRAM_H

#include "spec/drafter.h"

enum {
    NGRAM_MIN = 2,         /* tokens in common, at least */
    NGRAM_MAX = 16,        /* more are as good as these */
    NGRAM_WINDOW = 131072, /* of the sequence, tokens that are searched */
};

void ngram_drafter_open(Drafter *out);

/*
 * Where in text[0..n_text) the last tokens of token[0..n) stand, before its own end if it is the
 * same: the index behind them, and in *matched how many they are, NGRAM_MIN..NGRAM_MAX. -1:
 * nowhere.
 */
int ngram_find(const int32_t *text, int n_text, const int32_t *token, int n, int *matched);

#endif
