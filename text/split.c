/* split.c: see split.h. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/split.h"

#include <assert.h>
#include <pcre2.h>
#include <string.h>

#include "base/mem.h"
#include "text/oniguruma.h"
#include "text/utf8.h"

/*
 * The longest real run seen costs a step or two a byte. A match begins with FEW_STEPS, which are
 * free; whatever more it takes comes out of what the text has, so that no expression can take its
 * time anew at every byte. Matches are anchored for the same reason: PCRE2 counts its steps anew
 * wherever it goes on searching.
 */
enum {
    FEW_STEPS = 1 << 10,
    MAX_STEPS = 1 << 28,
    FREE_STEPS = 1 << 20,
    STEPS_PER_BYTE = 100,
    HEAP_LIMIT_KIB = 64 * 1024,
    MAX_PATTERN = 4096,
};

/* The JIT of 10.39 counts no steps within a group that is repeated n times; 10.42's does. */
enum { JIT_COUNTS = PCRE2_MAJOR > 10 || PCRE2_MINOR >= 42 };

struct Splitter {
    pcre2_code *code[MAX_SPLITS];
    int n;
};

/* Where one expression is in its text. */
typedef struct {
    const char *text;
    size_t len;
    size_t given;     /* all before this was given */
    size_t match_end; /* > given: what was matched from given on, to be given next */
    size_t pos;       /* where the search goes on */
} Stage;

struct SplitRun {
    const Splitter *s;
    pcre2_match_data *match;
    pcre2_match_context *limits;
    uint64_t steps; /* that may still be given beyond FEW_STEPS a match */
    Stage stage[MAX_SPLITS];
    int depth; /* the stage that gives; those before it wait for it */
};

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
    if (oniguruma_translate(pattern, &regex, err)) {
        strbuf_free(&regex);
        return NULL;
    }
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    assert(context);
    pcre2_set_newline(context, PCRE2_NEWLINE_LF); /* whatever the library was built for */
    pcre2_code *re = pcre2_compile((PCRE2_SPTR)strbuf_str(&regex), regex.len,
                                   PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C |
                                       PCRE2_ANCHORED | PCRE2_MULTILINE,
                                   &code, &at, context);
    pcre2_compile_context_free(context);
    strbuf_free(&regex);
    if (!re) {
        unsigned char why[120] = "";
        pcre2_get_error_message(code, why, sizeof why);
        error_set(err, ERR_FILE, "split regex: %s at byte %zu", (char *)why, at);
        return NULL;
    }
    /* Without JIT (another CPU, a hardened kernel) the interpreter gives the same answers. */
    if (JIT_COUNTS) (void)pcre2_jit_compile(re, PCRE2_JIT_COMPLETE);
    return re;
}

Splitter *splitter_open(const char *const *patterns, int n, Error *err)
{
    assert(n >= 1);
    assert(n <= MAX_SPLITS);
    Splitter *s = mem_alloc(1, sizeof *s);
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
    mem_free(s);
}

/* pcre2_match, tried again with more steps while the text has them. */
static int match(SplitRun *run, const pcre2_code *code, const char *text, size_t len, size_t pos)
{
    PCRE2_SPTR subject = (PCRE2_SPTR)text;
    for (uint32_t steps = FEW_STEPS;; steps *= 4) {
        pcre2_set_match_limit(run->limits, steps);
        int rc = pcre2_match(code, subject, len, pos, PCRE2_NO_UTF_CHECK, run->match, run->limits);
        if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
            rc = pcre2_match(code, subject, len, pos, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, run->match,
                             run->limits);
        if (rc != PCRE2_ERROR_MATCHLIMIT || steps == MAX_STEPS || run->steps < 4 * steps) return rc;
        run->steps -= 4 * steps;
    }
}

/* Match at pos: 1 and [*start, *end), 0 when there is none, -1 and an Error. */
static int match_at(SplitRun *run, const Stage *st, const pcre2_code *code, size_t *start,
                    size_t *end, Error *err)
{
    int rc = match(run, code, st->text, st->len, st->pos);
    if (rc == PCRE2_ERROR_NOMATCH) return 0;
    if (rc < 0) {
        unsigned char why[120] = "";
        pcre2_get_error_message(rc, why, sizeof why);
        return error_set(err, ERR_LIMIT, "text cannot be split into words: %s", (char *)why);
    }
    const PCRE2_SIZE *range = pcre2_get_ovector_pointer(run->match);
    *start = range[0];
    *end = range[1];
    /* \K in a lookaround could say otherwise; PCRE2 allowed it before 10.38. */
    if (*start < st->pos || *end < *start)
        return error_set(err, ERR_FILE, "split regex matches text behind its start");
    return 1;
}

/* Gives the text up to `to`. */
static SplitResult give(Stage *st, size_t to, const char **piece, size_t *len)
{
    *piece = st->text + st->given;
    *len = to - st->given;
    st->given = to;
    return SPLIT_PIECE;
}

static SplitResult stage_next(SplitRun *run, int depth, size_t *budget, const char **piece,
                              size_t *len, Error *err)
{
    Stage *st = &run->stage[depth];
    if (st->match_end > st->given) return give(st, st->match_end, piece, len);
    while (st->pos < st->len) {
        size_t start = 0, end = 0, from = st->pos;
        if (!*budget) return SPLIT_MORE;
        int found = match_at(run, st, run->s->code[depth], &start, &end, err);
        if (found < 0) return SPLIT_FAILED;
        if (found) st->match_end = st->pos = end;
        /* After no match or an empty one the search goes on one character later. */
        if ((!found || start == end) && st->pos < st->len) {
            int n_char;
            utf8_decode(st->text + st->pos, &n_char);
            st->pos += (size_t)n_char;
        }
        budget_spend(budget, st->pos - from);
        if (!found) continue;
        if (start > st->given) return give(st, start, piece, len);
        if (end > start) return give(st, end, piece, len);
    }
    return st->given < st->len ? give(st, st->len, piece, len) : SPLIT_END;
}

SplitResult split_next(SplitRun *run, size_t *budget, const char **piece, size_t *len, Error *err)
{
    for (;;) {
        SplitResult rc = stage_next(run, run->depth, budget, piece, len, err);
        if (rc == SPLIT_END && run->depth) {
            run->depth--;
        } else if (rc == SPLIT_PIECE && run->depth + 1 < run->s->n) {
            run->stage[++run->depth] = (Stage){.text = *piece, .len = *len};
        } else {
            return rc;
        }
    }
}

void split_begin(SplitRun *run, const char *text, size_t len)
{
    run->steps = FREE_STEPS + STEPS_PER_BYTE * (uint64_t)len;
    run->stage[0] = (Stage){.text = text, .len = len};
    run->depth = 0;
}

SplitRun *split_open(const Splitter *s)
{
    SplitRun *run = mem_alloc(1, sizeof *run);
    run->s = s;
    run->match = pcre2_match_data_create(1, NULL);
    run->limits = pcre2_match_context_create(NULL);
    assert(run->match);
    assert(run->limits);
    pcre2_set_heap_limit(run->limits, HEAP_LIMIT_KIB);
    return run;
}

void split_close(SplitRun *run)
{
    if (!run) return;
    pcre2_match_context_free(run->limits);
    pcre2_match_data_free(run->match);
    mem_free(run);
}
