/*
 * load_answer.h: a reply brought into one form, so that two replies can be compared byte for byte.
 *
 * The form has what must repeat: text, tool calls, finish_reason, stop_reason, logprobs of each
 * choice, and the counts of tokens. It has neither ids, dates and timings nor the cuts between a
 * stream's chunks: a whole reply and a stream to the same request have the same form.
 */
#ifndef OFFSHOOT_BENCH_LOAD_ANSWER_H
#define OFFSHOOT_BENCH_LOAD_ANSWER_H

#include <stddef.h>

#include "base/error.h"

/*
 * What the server says of its work, in usage or in llama.cpp's timings; 0 where it does not. It may
 * differ between two answers of one form.
 */
typedef struct {
    int n_cached; /* tokens of the prompt that came from a cache */
    int n_drafted, n_accepted;
} LoadWork;

typedef struct {
    char *form; /* JSON, keys sorted; to be freed with mem_free */
    int n_prompt, n_tokens;
    LoadWork work;
} LoadAnswer;

/*
 * From the body of a completion's reply. An Error for what is no answer: broken JSON or framing, no
 * [DONE], an error event, a choice without finish_reason, no usage.
 */
int load_answer_read(LoadAnswer *a, const char *body, size_t len, int streamed, Error *err);
void load_answer_free(LoadAnswer *a);

/* 1 if got is not what the request got alone; *why then says where they part. */
int load_answer_differs(const LoadAnswer *alone, const LoadAnswer *got, Error *why);

#endif
