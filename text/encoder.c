/* encoder.c: see encoder.h. */
#include "text/encoder.h"

#include "base/mem.h"
#include "text/nfc.h"
#include "text/tokenizer_parts.h"
#include "text/utf8.h"

/* Form C at most triples a text, and a token has at least one byte: counts stay below 2^31. */
enum { MAX_TEXT_BYTES = 1 << 28 };

/*
 * A stretch is the text between two added tokens that are literal; a part of it, which is
 * normalised, is what lies between two that are not.
 */
typedef enum { FIND_ADDED, NORMALISE, FIND_NORMALISED, MERGE } Doing;

/* Parts of a text, in order, that are read from their first on. */
typedef struct {
    const TextSpan *span;
    int n, next;
} Spans;

struct Encoder {
    const Tokenizer *tok;
    const char *text;
    size_t len;
    Spans plain, inner_plain; /* the same twice: for literal tokens, and for those that are not */
    TokenList *out;

    Doing doing;
    size_t since, at; /* the stretch, as far as it was searched */
    int32_t added;    /* what ends it; -1: the text's end */
    size_t n_added;   /* bytes of that token */
    size_t n_normal;  /* bytes of the stretch that are normalised */
    int is_normal;    /* 1: the stretch is read from here */
    StrBuf normal;
    TextSpan *span; /* what is plain in it */
    int cap_spans;
    Spans normal_plain;

    size_t part,
        part_at;    /* the part, as far as it was searched; in what the stretch is read from */
    int32_t inner;  /* the token that ends it; -1: the stretch's end */
    size_t n_inner; /* bytes of that token */

    SplitRun *split;
    BpeScratch bpe;
    NfcScratch nfc;

    size_t mark;
    int n_stable; /* tokens before the last piece so far, or before the blanks that it ends */
    int in_blanks;
    int is_marked; /* the mark is still to be reached */

    size_t turn_at;
    int n_turn; /* tokens before it */
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

void encoder_mark_turn(Encoder *e, size_t at)
{
    e->turn_at = at;
}

int encoder_turn(const Encoder *e)
{
    return e->n_turn;
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
    if (e->at == e->turn_at) e->n_turn = e->out->n;
    if (e->is_marked && e->at <= e->mark) e->n_stable = e->out->n;
    e->is_marked &= e->at < e->mark;
    return 1;
}

/* What the stretch is read from. */
static const char *read_from(const Encoder *e, size_t *len)
{
    if (!e->is_normal) return stretch(e, len);
    *len = e->normal.len;
    return strbuf_str(&e->normal);
}

static void begin_part(Encoder *e)
{
    size_t len;
    const char *text = read_from(e, &len);
    e->part_at = e->part;
    e->inner = -1;
    e->doing = FIND_NORMALISED;
    if (e->tok->normalised.n) return;
    e->doing = MERGE;
    split_begin(e->split, text, len);
}

static void begin_parts(Encoder *e)
{
    e->part = 0;
    begin_part(e);
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
        e->normal_plain = (Spans){0};
        strbuf_clear(&e->normal);
    } else {
        begin_parts(e);
    }
    return 1;
}

/* Bytes from at on up to the next span, 0 within one; at never falls. */
static size_t before_span(Spans *s, size_t at)
{
    while (s->next < s->n && s->span[s->next].from + s->span[s->next].len <= at)
        s->next++;
    if (s->next == s->n) return SIZE_MAX;
    size_t from = s->span[s->next].from;
    return from > at ? from - at : 0;
}

/* As tokenizer_match_added: the longest that ends before what is plain. text is at `at`. */
static size_t match_outside(const AddedTokens *added, Spans *plain, size_t at, const char *text,
                            size_t len, int32_t *id)
{
    size_t most = before_span(plain, at);
    return tokenizer_match_added(added, text, len < most ? len : most, id);
}

static int find_added(Encoder *e, size_t *budget)
{
    const AddedTokens *added = &e->tok->literal;
    size_t from = e->at, end = e->len - from > *budget ? from + *budget : e->len;
    e->added = -1;
    for (; e->at < end; e->at++) {
        const char *text = e->text + e->at;
        if (!added->starts[(unsigned char)*text]) continue;
        e->n_added = match_outside(added, &e->plain, e->at, text, e->len - e->at, &e->added);
        if (e->n_added) break;
    }
    budget_spend(budget, e->at - from + (e->added >= 0));
    return e->added >= 0 || e->at == e->len ? begin_stretch(e) : 1;
}

/* Where the stretch is read from the text, what is plain in it is counted from the text's start. */
static int find_normalised(Encoder *e, size_t *budget)
{
    const AddedTokens *added = &e->tok->normalised;
    Spans *plain = e->is_normal ? &e->normal_plain : &e->inner_plain;
    size_t len, from = e->part_at, origin = e->is_normal ? 0 : e->since;
    const char *text = read_from(e, &len);
    size_t end = len - from > *budget ? from + *budget : len;
    for (; e->part_at < end; e->part_at++) {
        const char *at = text + e->part_at;
        if (!added->starts[(unsigned char)*at]) continue;
        e->n_inner =
            match_outside(added, plain, origin + e->part_at, at, len - e->part_at, &e->inner);
        if (e->n_inner) break;
    }
    budget_spend(budget, e->part_at - from + (e->inner >= 0));
    if (e->inner < 0 && e->part_at < len) return 1;
    e->doing = MERGE; /* of nothing, where two tokens touch */
    split_begin(e->split, text + e->part, e->part_at - e->part);
    return 1;
}

static void add_normal_plain(Encoder *e, size_t from)
{
    int n = e->normal_plain.n;
    if (n == e->cap_spans) {
        e->cap_spans = e->cap_spans ? 2 * e->cap_spans : 16;
        e->span = mem_realloc(e->span, (size_t)e->cap_spans, sizeof *e->span);
    }
    e->span[n] = (TextSpan){from, e->normal.len - from};
    e->normal_plain = (Spans){e->span, n + 1, 0};
}

/* The last place in text[0..to], to < len, before which it can be cut for form C; 0: there is none.
 */
static size_t last_cut(const char *text, size_t to)
{
    for (; to; to--) {
        int n;
        if (utf8_is_tail((unsigned char)text[to])) continue;
        utf8_decode(text + to, &n);
        if (nfc_cut(text, to + (size_t)n, to) == to) return to;
    }
    return 0;
}

/*
 * How many bytes to normalise next, up to the end of what is plain or is not: *is_plain. Where it
 * cannot be cut there, a bit more counts as plain.
 */
static size_t next_normal(Encoder *e, const char *text, size_t len, size_t budget, int *is_plain)
{
    size_t at = e->since + e->n_normal, until = 0;
    Spans *s = &e->inner_plain;
    *is_plain = 0;
    if (e->tok->normalised.n && before_span(s, at) < len) {
        const TextSpan *span = &s->span[s->next];
        if (span->from > at) until = last_cut(text, span->from - at);
        *is_plain = !until;
        if (!until) until = span->from + span->len - at;
    }
    return nfc_cut(text, len, until && until < budget ? until : budget);
}

static int normalise(Encoder *e, size_t *budget)
{
    size_t len, before = e->normal.len;
    int is_plain;
    const char *text = stretch(e, &len) + e->n_normal;
    size_t n = next_normal(e, text, len - e->n_normal, *budget, &is_plain);
    nfc_append(&e->nfc, text, n, &e->normal);
    if (is_plain) add_normal_plain(e, before);
    budget_spend(budget, n);
    e->n_normal += n;
    if (e->n_normal == len) begin_parts(e);
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

/* The token behind the part, then the next one. */
static int end_part(Encoder *e)
{
    if (e->inner < 0) return end_stretch(e);
    size_t len, end;
    const char *text = read_from(e, &len);
    token_list_add(e->out, e->inner);
    end = piece_end(e, text + e->part_at, e->n_inner);
    e->is_marked &= end < e->mark; /* else a mark may follow, which belongs to its last letter */
    if (e->is_marked) e->n_stable = e->out->n;
    e->part = e->part_at + e->n_inner;
    begin_part(e);
    return 1;
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
        if (rc == SPLIT_END) return end_part(e);
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
        else if (e->doing == FIND_NORMALISED)
            rc = find_normalised(e, budget);
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
    e->plain = e->inner_plain = (Spans){plain, n_plain, 0};
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
    mem_free(e->span);
    mem_free(e);
}
