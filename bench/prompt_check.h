/*
 * prompt_check.h: how much a text's logits depend on whether it ran as a prompt or was decoded.
 */
#ifndef OFFSHOOT_BENCH_PROMPT_CHECK_H
#define OFFSHOOT_BENCH_PROMPT_CHECK_H

#include "engine/model.h"

/* Over all rows and the whole vocabulary, decoding being what is compared with. */
typedef struct {
    int n_rows;
    double largest; /* difference of log-probabilities */
    double mean_kl; /* KL(decoded || prompt), nats a row */
} PromptDifference;

/*
 * Runs n tokens as a prompt, and one by one as decoding does. Takes memory for both and gives it
 * back; -1 and an Error when there is none or the device failed.
 */
int prompt_difference(const Model *model, KvType kv_type, const int32_t *token, int n,
                      PromptDifference *out, Error *err);

#endif
