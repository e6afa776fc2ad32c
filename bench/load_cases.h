/*
 * load_cases.h: the requests that the load generator sends, each with the answer it got alone.
 */
#ifndef OFFSHOOT_BENCH_LOAD_CASES_H
#define OFFSHOOT_BENCH_LOAD_CASES_H

#include <stdint.h>

#include <jansson.h>

#include "bench/load_answer.h"

typedef struct {
    char *name;
    const char *path;
    char *body[2];    /* for a whole reply, for a stream */
    LoadAnswer alone; /* .form is NULL until it was collected */
    char *left_out;   /* NULL, or it does not fit the server's context, who says this of it */
} LoadCase;

typedef struct {
    LoadCase *list; /* [n] */
    int n, cap;
} LoadCases;

void load_cases_free(LoadCases *c);

/*
 * Adds the mix: chats from the prompts of a jsonl as bench accept takes them (limit > 0: at most so
 * many) and completions of our own, short to a few thousand tokens; greedy and seeded sampling,
 * with log-probabilities, stop strings, several choices, without drafts. All of them repeat.
 */
int load_cases_add_mix(LoadCases *c, const char *path, int limit, Error *err);

/* Adds one completion (a prompt) or chat (a user's message) with these further fields. */
void load_cases_add_prompt(LoadCases *c, const char *name, int chat, const char *text,
                           const char *fields);

/* Adds a chat; tools may be NULL. Both are read alone. */
void load_cases_add_chat(LoadCases *c, const char *name, json_t *messages, json_t *tools,
                         const char *fields);

/* Adds a completion of n tokens: id[0..n_ids) as often as it takes. */
void load_cases_add_ids(LoadCases *c, const char *name, const int32_t *id, int n_ids, int n,
                        const char *fields);

/* Makes it the completion of n tokens instead, asked for as a stream alone. */
void load_case_set_ids(LoadCase *one, const int32_t *id, int n, const char *fields);

/* Sets a field of all requests. */
void load_cases_set_text(LoadCases *c, const char *name, const char *value);

/* An error for cases that were all left out: what the server says of the shortest request. -1. */
int load_cases_none_fits(const LoadCases *c, Error *err);

/* About n_bytes of made up text, always the same; to be freed with mem_free. */
char *load_cases_text(size_t n_bytes);

#endif
