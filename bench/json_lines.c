/* json_lines.c: see json_lines.h. */
#include "bench/json_lines.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/strbuf.h"

const char *json_lines_path(const char *given, const char *sample, Error *err)
{
    if (given || !access(sample, R_OK)) return given ? given : sample;
    error_set(err, ERR_FILE, "cannot open '%s': %s; give --prompts FILE", sample, strerror(errno));
    return NULL;
}

/* 1: a line without its end; 0: there is none; -1: it is too long. */
static int read_line(FILE *f, StrBuf *line, Error *err)
{
    int c;
    strbuf_clear(line);
    while ((c = getc_unlocked(f)) != EOF && c != '\n') {
        char byte = (char)c;
        if (line->len == LINE_MOST)
            return error_set(err, ERR_LIMIT, "it has more than %d bytes", LINE_MOST);
        strbuf_add(line, &byte, 1);
    }
    return c != EOF || line->len;
}

static int take_text(const StrBuf *text, int number, TakeLine take, void *ctx, Error *err)
{
    json_error_t why;
    json_t *line = json_loadb(text->data, text->len, 0, &why);
    int rc = line ? take(ctx, number, line, err) : error_set(err, ERR_INPUT, "%s", why.text);
    json_decref(line);
    return rc;
}

int json_lines_take(FILE *f, const char *path, int limit, TakeLine take, void *ctx, Error *err)
{
    StrBuf line = {0};
    int rc = 1, n_taken = 0;
    for (int number = 1; rc == 1 && (limit <= 0 || n_taken < limit); number++) {
        Error why = {0};
        rc = read_line(f, &line, &why);
        if (rc == 1 && strspn(strbuf_str(&line), " \t\r") < line.len) {
            n_taken++;
            if (take_text(&line, number, take, ctx, &why)) rc = -1;
        }
        if (rc < 0) error_set(err, why.code, "'%s' line %d: %s", path, number, why.msg);
    }
    if (rc >= 0 && ferror(f))
        rc = error_set(err, ERR_FILE, "cannot read '%s': %s", path, strerror(errno));
    strbuf_free(&line);
    return rc < 0 ? -1 : n_taken;
}

int json_lines_read(const char *path, int limit, TakeLine take, void *ctx, Error *err)
{
    FILE *f = fopen(path, "r");
    if (!f) return error_set(err, ERR_FILE, "cannot open '%s': %s", path, strerror(errno));
    int n_taken = json_lines_take(f, path, limit, take, ctx, err);
    if (!n_taken) error_set(err, ERR_FILE, "'%s' has no lines", path);
    fclose(f);
    return n_taken > 0 ? 0 : -1;
}

int json_lines_tools(const json_t *line, json_t **tools, Error *err)
{
    json_t *given = json_object_get(line, "tools");
    *tools = json_is_array(given) ? given : NULL;
    if (!given || *tools || json_is_null(given)) return 0;
    return error_set(err, ERR_INPUT, "'tools' is no array");
}

int json_lines_is_answer(const json_t *message)
{
    const char *role = json_string_value(json_object_get(message, "role"));
    return role && !strcmp(role, "assistant");
}
