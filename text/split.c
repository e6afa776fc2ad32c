/* split.c: see split.h. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/split.h"

#include <assert.h>
#include <pcre2.h>
#include <string.h>

#include "base/mem.h"
#include "base/strbuf.h"
#include "text/utf8.h"

/* The longest real run seen costs a step or two a byte; texts are a few megabytes at most. */
enum { MATCH_LIMIT = 50 * 1000 * 1000, HEAP_LIMIT_KIB = 64 * 1024, MAX_PATTERN = 4096 };

struct Splitter {
    pcre2_code *code[MAX_SPLITS];
    int n;
    pcre2_match_context *limits;
};

typedef struct {
    const Splitter *s;
    pcre2_match_data *match;
    PieceFn piece;
    void *arg;
    Error *err;
} Run;

/*
 * PCRE2's \s has U+180E, which left White_Space in Unicode 6.3; Oniguruma's, with which the
 * vocabularies were made, has not. Everything else these patterns use means the same in both.
 */
static void translate(const char *pattern, StrBuf *out)
{
    for (const char *p = pattern; *p; p++) {
        if (*p != '\\' || !p[1])
            strbuf_add(out, p, 1);
        else if (*++p == 's')
            strbuf_puts(out, "\\p{White_Space}");
        else if (*p == 'S')
            strbuf_puts(out, "\\P{White_Space}");
        else
            strbuf_add(out, p - 1, 2);
    }
}

static pcre2_code *compile(const char *pattern, Error *err)
{
    StrBuf regex = {0};
    int code;
    PCRE2_SIZE at = 0;
    if (strlen(pattern) > MAX_PATTERN) {
        error_set(err, ERR_LIMIT, "split regex has %zu bytes, the limit is %d", strlen(pattern),
                  MAX_PATTERN);
        return NULL;
    }
    translate(pattern, &regex);
    pcre2_code *re =
        pcre2_compile((PCRE2_SPTR)strbuf_str(&regex), regex.len,
                      PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &code, &at, NULL);
    strbuf_free(&regex);
    if (!re) {
        unsigned char why[120] = "";
        pcre2_get_error_message(code, why, sizeof why);
        error_set(err, ERR_FILE, "split regex: %s at byte %zu", (char *)why, at);
        return NULL;
    }
    /* Without JIT (another CPU, a hardened kernel) the interpreter gives the same answers. */
    (void)pcre2_jit_compile(re, PCRE2_JIT_COMPLETE);
    return re;
}

Splitter *splitter_open(const char *const *patterns, int n, Error *err)
{
    assert(n >= 1);
    assert(n <= MAX_SPLITS);
    Splitter *s = mem_alloc(1, sizeof *s);
    s->limits = pcre2_match_context_create(NULL);
    assert(s->limits);
    pcre2_set_match_limit(s->limits, MATCH_LIMIT);
    pcre2_set_heap_limit(s->limits, HEAP_LIMIT_KIB);
    for (; s->n < n; s->n++) {
        s->code[s->n] = compile(patterns[s->n], err);
        if (!s->code[s->n]) {
            splitter_close(s);
            return NULL;
        }
    }
    return s;
}

void splitter_close(Splitter *s)
{
    if (!s) return;
    for (int i = 0; i < s->n; i++)
        pcre2_code_free(s->code[i]);
    pcre2_match_context_free(s->limits);
    mem_free(s);
}

/* Next match at or after pos: 1 and [*start, *end), 0 when there is none, -1 and an Error. */
static int next_match(const Run *run, const pcre2_code *code, const char *text, size_t len,
                      size_t pos, size_t *start, size_t *end)
{
    PCRE2_SPTR subject = (PCRE2_SPTR)text;
    int rc = pcre2_match(code, subject, len, pos, PCRE2_NO_UTF_CHECK, run->match, run->s->limits);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(code, subject, len, pos, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, run->match,
                         run->s->limits);
    if (rc == PCRE2_ERROR_NOMATCH) return 0;
    if (rc < 0) {
        unsigned char why[120] = "";
        pcre2_get_error_message(rc, why, sizeof why);
        return error_set(run->err, ERR_LIMIT, "text cannot be split into words: %s", (char *)why);
    }
    const PCRE2_SIZE *range = pcre2_get_ovector_pointer(run->match);
    *start = range[0];
    *end = range[1];
    /* \K in a lookaround could say otherwise; PCRE2 allowed it before 10.38. */
    if (*start < pos || *end < *start)
        return error_set(run->err, ERR_FILE, "split regex matches text behind its start");
    return 1;
}

static int split(const Run *run, int stage, const char *text, size_t len);

static int give(const Run *run, int stage, const char *text, size_t len)
{
    if (!len) return 0;
    if (stage + 1 < run->s->n) return split(run, stage + 1, text, len);
    run->piece(run->arg, text, len);
    return 0;
}

static int split(const Run *run, int stage, const char *text, size_t len)
{
    size_t given = 0, pos = 0, start = 0, end = 0;
    while (pos < len) {
        int found = next_match(run, run->s->code[stage], text, len, pos, &start, &end);
        if (found < 0) return -1;
        if (!found) break;
        if (give(run, stage, text + given, start - given)) return -1;
        if (give(run, stage, text + start, end - start)) return -1;
        given = pos = end;
        /* After an empty match the search goes on one character later. */
        if (start == end && end < len) {
            int n_char;
            utf8_decode(text + end, &n_char);
            pos += (size_t)n_char;
        }
    }
    return give(run, stage, text + given, len - given);
}

int splitter_run(const Splitter *s, const char *text, size_t len, PieceFn piece, void *arg,
                 Error *err)
{
    Run run = {s, pcre2_match_data_create(1, NULL), piece, arg, err};
    assert(run.match);
    int rc = split(&run, 0, text, len);
    pcre2_match_data_free(run.match);
    return rc;
}
