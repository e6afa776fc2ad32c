/*
 * json_lines.h: files with one JSON value a line, prompts, loops and traces.
 */
#ifndef OFFSHOOT_BENCH_JSON_LINES_H
#define OFFSHOOT_BENCH_JSON_LINES_H

#include <stdio.h>

#include <jansson.h>

#include "base/error.h"

enum { LINE_MOST = 64 << 20 }; /* bytes of a line */

/* given, or else the sample, which lies in the repository: NULL and an error where it is not. */
const char *json_lines_path(const char *given, const char *sample, Error *err);

typedef int (*TakeLine)(void *ctx, int number, const json_t *line, Error *err);

/*
 * Calls take for at most limit lines of f (0: all) that are not blank, with their numbers from 1,
 * until one fails. How many it took, or -1 and an Error that names path and line: what take says,
 * no JSON, or more than LINE_MOST bytes.
 */
int json_lines_take(FILE *f, const char *path, int limit, TakeLine take, void *ctx, Error *err);

/* The same of a file. 0 or -1; that it has no lines is an error, too. */
int json_lines_read(const char *path, int limit, TakeLine take, void *ctx, Error *err);

/* A line's tools, borrowed; NULL where it has none or they are null. -1: they are no array. */
int json_lines_tools(const json_t *line, json_t **tools, Error *err);

/* 1: a conversation's message is an answer of the model. */
int json_lines_is_answer(const json_t *message);

#endif
