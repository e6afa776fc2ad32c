/*
 * json_lines.h: files with one JSON value a line, prompts and loops.
 */
#ifndef OFFSHOOT_BENCH_JSON_LINES_H
#define OFFSHOOT_BENCH_JSON_LINES_H

#include <jansson.h>

#include "base/error.h"

/* given, or else the sample, which lies in the repository: NULL and an error where it is not. */
const char *json_lines_path(const char *given, const char *sample, Error *err);

/*
 * Calls take for at most limit lines (0: all) that are not blank, with their numbers from 1, until
 * one fails. Errors name file and line; that there is none is one.
 */
int json_lines_read(const char *path, int limit,
                    int (*take)(void *ctx, int number, const json_t *line, Error *err), void *ctx,
                    Error *err);

#endif
