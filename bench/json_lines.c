/* json_lines.c: see json_lines.h. */
#include "bench/json_lines.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *json_lines_path(const char *given, const char *sample, Error *err)
{
    if (given || !access(sample, R_OK)) return given ? given : sample;
    error_set(err, ERR_FILE, "cannot open '%s': %s; give --prompts FILE", sample, strerror(errno));
    return NULL;
}

int json_lines_read(const char *path, int limit,
                    int (*take)(void *ctx, int number, const json_t *line, Error *err), void *ctx,
                    Error *err)
{
    FILE *f = fopen(path, "r");
    if (!f) return error_set(err, ERR_FILE, "cannot open '%s': %s", path, strerror(errno));
    char *text = NULL;
    size_t cap = 0;
    int failed = 0, n_taken = 0;
    for (int number = 1; !failed && (limit <= 0 || n_taken < limit); number++) {
        ssize_t n = getline(&text, &cap, f);
        if (n < 0) break;
        if (strspn(text, " \t\r\n") == (size_t)n) continue;
        n_taken++;
        json_error_t je;
        Error why = {0};
        json_t *line = json_loadb(text, (size_t)n, 0, &je);
        failed = line ? take(ctx, number, line, &why) : error_set(&why, ERR_INPUT, "%s", je.text);
        if (failed) error_set(err, why.code, "'%s' line %d: %s", path, number, why.msg);
        json_decref(line);
    }
    if (!failed && ferror(f))
        failed = error_set(err, ERR_FILE, "cannot read '%s': %s", path, strerror(errno));
    if (!failed && !n_taken) failed = error_set(err, ERR_FILE, "'%s' has no lines", path);
    free(text);
    fclose(f);
    return failed;
}
