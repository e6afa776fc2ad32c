/* encoder.c: see encoder.h. */
#include "text/encoder.h"

#include "base/mem.h"
#include "text/nfc.h"
#include "text/tokenizer_parts.h"
#include "text/utf8.h"

/* Form C at most triples a text, and a token has at least one byte: counts stay below 2^31. */
enum { MAX_TEXT_BYTES = 1 << 28 };

/* A stretch is the text between two added tokens. */
typedef enum { FIND_ADDED, NORMALISE, MERGE } Doing;

struct Encoder {
    const Tokenizer *tok;
    const char *text;
    size_t len;
    const TextSpan *plain; /* [n_plain], in order */
    int n_plain, next_plain;
    TokenList *out;

    Doing doing;
    size_t since, at; /* the stretch, as far as it was searched */
    int32_t added;    /* what ends it; -1: the text's end */
    size_t n_added;   /* bytes of that token */
    size_t n_normal;  /* bytes of the stretch that are normalised */
    int is_normal;    /* 1: the stretch is read from here */
    StrBuf normal;
    SplitRun *split;
    BpeScratch bpe;
    NfcScratch nfc;

    size_t mark;
    int n_stable; /* tokens before the last piece so far, or before the blanks that it ends */
    int in_blanks;
    int is_marked; /* the mark is still to be reached */
};

void encoder_mark(Encoder *e, size_t at)
{
    e->mark = at;
    e->is_marked = at > 0;
    e->n_stable = e->out->n;
}

int encoder_stable(const Encoder *e)
{
    return e->n_stable;
}

static void spend(size_t *budget, size_t n_bytes)
{
    *budget -= n_bytes < *budget ? n_bytes : *budget;
}

static const char *stretch(const Encoder *e, size_t *len)
{
    *len = e->at - e->since;
    return e->text + e->since;
}

/* The added token behind the stretch; then the next one. 0 at the text's end. */
static int end_stretch(Encoder *e)
{
    if (e->added < 0) return 0;
    token_list_add(e->out, e->added);
    e->since = e->at += e->n_added;
    e->doing = FIND_ADDED;
    if (e->is_marked && e->at <= e->mark) e->n_stable = e->out->n;
    e->is_marked &= e->at < e->mark;
    return 1;
}

static int begin_stretch(Encoder *e)
{
    size_t len;
    const char *text = stretch(e, &len);
    if (!len) return end_stretch(e);
    e->is_normal = e->tok->nfc && !nfc_is_plain(text, len);
    if (e->is_normal) {
        e->doing = NORMALISE;
        e->n_normal = 0;
        strbuf_clear(&e->normal);
    } else {
        e->doing = MERGE;
        split_begin(e->split, text, len);
    }
    return 1;
}

/* Whether text[at..at + len) lies outside of all plain spans. */
static int is_outside(Encoder *e, size_t at, size_t len)
{
    int i = e->next_plain;
    while (i < e->n_plain && e->plain[i].from + e->plain[i].len <= at)
        i++;
    e->next_plain = i;
    return i == e->n_plain || e->plain[i].from >= at + len;
}

static int find_added(Encoder *e, size_t *budget)
{
    const Tokenizer *tok = e->tok;
    size_t from = e->at, end = e->len - from > *budget ? from + *budget : e->len;
    e->added = -1;
    for (; e->at < end; e->at++) {
        const char *text = e->text + e->at;
        if (!tok->starts_added[(unsigned char)*text]) continue;
        e->n_added = tokenizer_match_added(tok, text, e->len - e->at, &e->added);
        if (e->n_added && is_outside(e, e->at, e->n_added)) break;
        e->added = -1;
    }
    spend(budget, e->at - from + (e->added >= 0));
    return e->added >= 0 || e->at == e->len ? begin_stretch(e) : 1;
}

static int normalise(Encoder *e, size_t *budget)
{
    size_t len;
    const char *text = stretch(e, &len);
    size_t n = nfc_cut(text + e->n_normal, len - e->n_normal, *budget);
    nfc_append(&e->nfc, text + e->n_normal, n, &e->normal);
    spend(budget, n);
    e->n_normal += n;
    if (e->n_normal < len) return 1;
    e->doing = MERGE;
    split_begin(e->split, strbuf_str(&e->normal), e->normal.len);
    return 1;
}

static int is_blank(const char *piece, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (piece[i] != ' ' && (piece[i] < '\t' || piece[i] > '\r')) return 0;
    return 1;
}

/*
 * A piece is to be merged: where does it end? In a text that was normalised only the ends of the
 * stretch are known places: a mark within it counts as one at its beginning.
 */
static size_t piece_end(const Encoder *e, const char *piece, size_t len)
{
    if (!e->is_normal) return (size_t)(piece - e->text) + len;
    int is_last = piece + len == e->normal.data + e->normal.len;
    return e->mark < e->at || is_last ? e->at : e->since;
}

static void note_piece(Encoder *e, const char *piece, size_t len)
{
    size_t end = piece_end(e, piece, len), beyond = end > e->mark ? end - e->mark : 0;
    int blank = is_blank(piece, beyond < len ? len - beyond : 0);
    if (!blank || !e->in_blanks) e->n_stable = e->out->n;
    e->in_blanks = blank;
    e->is_marked = end < e->mark;
}

static int merge(Encoder *e, size_t *budget, Error *err)
{
    const char *piece;
    size_t len;
    const TokenList *out = e->out;
    while (*budget) {
        SplitResult rc = split_next(e->split, budget, &piece, &len, err);
        if (rc == SPLIT_MORE) break;
        if (rc == SPLIT_FAILED) return -1;
        if (rc == SPLIT_END) return end_stretch(e);
        if (e->is_marked) note_piece(e, piece, len);
        bpe_encode(&e->tok->bpe, &e->bpe, piece, len, e->out);
        if (out->limit && out->n > out->limit)
            return error_set(err, ERR_LIMIT, "text has more than %d tokens", out->limit);
    }
    return 1;
}

/* Texts that wait for their turn hold nothing that grew with a piece. */
static void free_scratch(Encoder *e)
{
    bpe_scratch_free(&e->bpe);
    nfc_scratch_free(&e->nfc);
}

int encoder_some(Encoder *e, size_t *budget, Error *err)
{
    int rc = 1;
    while (rc > 0 && *budget) {
        if (e->doing == FIND_ADDED)
            rc = find_added(e, budget);
        else if (e->doing == NORMALISE)
            rc = normalise(e, budget);
        else
            rc = merge(e, budget, err);
    }
    free_scratch(e);
    return rc;
}

Encoder *encoder_open(const Tokenizer *tok, const char *text, size_t len, const TextSpan *plain,
                      int n_plain, TokenList *out, Error *err)
{
    if (len > MAX_TEXT_BYTES) {
        error_set(err, ERR_LIMIT, "text has %zu bytes, the limit is %d", len, MAX_TEXT_BYTES);
        return NULL;
    }
    size_t n_valid = utf8_check(text, len);
    if (n_valid < len) {
        error_set(err, ERR_INPUT, "text is not valid UTF-8 at byte %zu", n_valid);
        return NULL;
    }
    Encoder *e = mem_alloc(1, sizeof *e);
    e->tok = tok;
    e->text = text;
    e->len = len;
    e->plain = plain;
    e->n_plain = n_plain;
    e->out = out;
    e->split = split_open(tok->splitter);
    return e;
}

void encoder_close(Encoder *e)
{
    if (!e) return;
    free_scratch(e);
    split_close(e->split);
    strbuf_free(&e->normal);
    mem_free(e);
}
