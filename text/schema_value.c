/*
 * schema_value.c: values that are no lists and no objects, and values that are fixed.
 */
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/schema_parts.h"

enum { MAX_INTEGER_DIGITS = 18, MAX_DIGITS = 40, MAX_EXPONENT_DIGITS = 2, MAX_LENGTH_BOUND = 4096 };

/* ---- strings ---- */

int schema_bound(const json_t *schema, const char *key, int max, int dflt)
{
    const json_t *v = json_object_get(schema, key);
    if (!json_is_number(v)) return dflt;
    double x = json_number_value(v);
    return x >= 0 && x <= max ? (int)x : dflt;
}

/* Control characters without an escape of one letter may not come in a string with a pattern. */
static void forbid_controls(Dfa *d)
{
    uint8_t may_come[256] = {0};
    for (int byte = 0; byte < 256; byte++)
        may_come[d->class_of[byte]] |= byte >= 0x20 || (byte && strchr("\b\f\n\r\t", byte));
    for (size_t i = 0; i < (size_t)d->n_states * (size_t)d->n_classes; i++)
        if (!may_come[i % (size_t)d->n_classes]) d->next[i] = DFA_DEAD;
}

/* Characters of the shortest string; UINT16_MAX: there is none. */
static int shortest(const SchemaCompiler *c, int automaton)
{
    return c->b->g->automaton[automaton].left[0];
}

/* What is wrong with a keyword, where that is an error. */
static void not_followed(SchemaCompiler *c, const char *keyword, const Error *err)
{
    if (!c->strict) return;
    size_t before = schema_enter(c, keyword, NULL);
    schema_fail(c, err->code, "%s", err->msg);
    schema_leave(c, before);
}

/* Compiles a pattern and how many characters there must be at least; -1: it is not followed, or
 * that is an error. */
static int compile_pattern(SchemaCompiler *c, const char *pattern, size_t len, int least)
{
    Dfa dfa;
    Error err = {0};
    if (pattern_compile(&dfa, pattern, len, &err)) {
        not_followed(c, "pattern", &err);
        return -1;
    }
    forbid_controls(&dfa);
    if (least && dfa_at_least(&dfa, least, &err)) {
        if (err.code == ERR_INPUT)
            schema_fail(c, err.code, "no text of minLength characters matches its pattern");
        else
            not_followed(c, "minLength", &err);
        err = (Error){0};
    }
    int index = grammar_automaton(c->b, &dfa, &err);
    if (index < 0) schema_fail(c, err.code, "%s", err.msg);
    return index;
}

static int format_automaton(SchemaCompiler *c, const char *format, int least)
{
    const char *pattern = format ? format_pattern(format) : NULL;
    int index = -1;
    if (!pattern) return -1;
    for (int i = 0; i < c->n_formats; i++)
        if (c->format[i].pattern == pattern) index = c->format[i].automaton;
    if (index < 0) {
        index = compile_pattern(c, pattern, strlen(pattern), 0);
        if (index < 0) return -1;
        assert(c->n_formats < N_FORMATS);
        c->format[c->n_formats].pattern = pattern;
        c->format[c->n_formats++].automaton = index;
    }
    if (shortest(c, index) >= least) return index;
    return compile_pattern(c, pattern, strlen(pattern), least);
}

uint32_t schema_string(SchemaCompiler *c, const json_t *schema)
{
    const json_t *pattern = json_object_get(schema, "pattern");
    int lo = schema_bound(schema, "minLength", MAX_LENGTH_BOUND, 0);
    int hi = schema_bound(schema, "maxLength", MAX_LENGTH_BOUND, -1), automaton;
    if (hi >= 0 && lo > hi) return schema_fail(c, ERR_INPUT, "minLength is over maxLength");
    if (json_is_string(pattern))
        automaton = compile_pattern(c, json_string_value(pattern), json_string_length(pattern), lo);
    else
        automaton = format_automaton(c, json_string_value(json_object_get(schema, "format")), lo);
    if (automaton >= 0) lo = 0; /* its own automaton knows */
    if (automaton >= 0 && shortest(c, automaton) > (hi < 0 ? UINT16_MAX - 1 : hi))
        return schema_fail(c, ERR_INPUT, "no text within maxLength matches its pattern");
    int is_plain = automaton < 0 && !lo && hi < 0;
    if (is_plain && c->text) return c->text;
    uint32_t part = grammar_range(c->b, '"', '"', grammar_string(c->b, automaton, lo, hi, 0));
    if (is_plain) c->text = part;
    return part;
}

/* ---- numbers ---- */

/* Digits, from `first` ones on up to n, then next. */
static uint32_t digits(SchemaCompiler *c, int needs_one, int n, uint32_t next)
{
    uint32_t more = next;
    for (int i = needs_one; i < n; i++)
        more = grammar_any_of(c->b, (uint32_t[]){next, grammar_range(c->b, '0', '9', more)}, 2);
    return needs_one ? grammar_range(c->b, '0', '9', more) : more;
}

uint32_t schema_number(SchemaCompiler *c)
{
    if (c->number) return c->number;
    uint32_t exponent = digits(c, 1, MAX_EXPONENT_DIGITS, 0);
    GrammarEdge sign[] = {{'+', '+', exponent}, {'-', '-', exponent}, {'0', '9', 0}};
    sign[2].to = digits(c, 0, MAX_EXPONENT_DIGITS - 1, 0);
    uint32_t signed_exponent = grammar_bytes(c->b, sign, 3);
    GrammarEdge e[] = {{'E', 'E', signed_exponent}, {'e', 'e', signed_exponent}};
    uint32_t tail = grammar_any_of(c->b, (uint32_t[]){0, grammar_bytes(c->b, e, 2)}, 2);
    uint32_t point = grammar_range(c->b, '.', '.', digits(c, 1, MAX_DIGITS, tail));
    uint32_t fraction = grammar_any_of(c->b, (uint32_t[]){tail, point}, 2);
    uint32_t more = digits(c, 0, MAX_DIGITS - 1, fraction);
    GrammarEdge first[] = {{'0', '0', fraction}, {'1', '9', more}};
    uint32_t whole = grammar_bytes(c->b, first, 2);
    GrammarEdge start[] = {{'-', '-', whole}, {'0', '0', fraction}, {'1', '9', more}};
    c->number = grammar_bytes(c->b, start, 3);
    return c->number;
}

/*
 * Whole numbers lo to hi, of at least 0, digit by digit: where one is depends on how many digits
 * there are and how they compare with as many of lo's and of hi's.
 */
typedef struct {
    SchemaCompiler *c;
    char lo[24], hi[24];
    int n_lo, n_hi;
    int64_t node[MAX_INTEGER_DIGITS + 2][3][3]; /* 0: not made yet; or one of those below */
} Range;

enum { NOTHING_FITS = -1, NO_MORE_DIGITS = -2 };

static int64_t range_node(Range *r, int n, int to_lo, int to_hi)
{
    int64_t *known = &r->node[n][to_lo + 1][to_hi + 1];
    GrammarEdge edge[10];
    int n_edges = 0;
    if (*known) return *known;
    if (r->c->b->is_full) return NOTHING_FITS;
    int is_in = n > 0 && (n > r->n_lo || (n == r->n_lo && to_lo >= 0)) &&
                (n < r->n_hi || (n == r->n_hi && to_hi <= 0));
    for (int d = n ? 0 : 1; d <= 9 && n < r->n_hi; d++) {
        int lo = n >= r->n_lo ? 1 : to_lo ? to_lo : (d > r->lo[n] - '0') - (d < r->lo[n] - '0');
        int hi = to_hi ? to_hi : (d > r->hi[n] - '0') - (d < r->hi[n] - '0');
        int64_t to = range_node(r, n + 1, lo, hi);
        uint8_t digit = (uint8_t)('0' + d);
        if (to == NOTHING_FITS) continue;
        if (to == NO_MORE_DIGITS) to = 0;
        if (n_edges && edge[n_edges - 1].to == (uint32_t)to)
            edge[n_edges - 1].hi = digit;
        else
            edge[n_edges++] = (GrammarEdge){digit, digit, (uint32_t)to};
    }
    uint32_t more = n_edges ? grammar_bytes(r->c->b, edge, n_edges) : 0;
    if (is_in && n_edges)
        *known = grammar_any_of(r->c->b, (uint32_t[]){0, more}, 2);
    else if (is_in)
        *known = NO_MORE_DIGITS;
    else
        *known = n_edges ? (int64_t)more : NOTHING_FITS;
    return *known;
}

/* The ways to write lo to hi, at least 0; their number. */
static int whole_ways(SchemaCompiler *c, int64_t lo, int64_t hi, uint32_t *way)
{
    int n = 0;
    if (lo > hi) return 0;
    if (lo == 0) way[n++] = grammar_range(c->b, '0', '0', 0);
    if (lo == 0) lo = 1;
    if (lo > hi) return n;
    Range *r = mem_alloc(1, sizeof *r);
    r->c = c;
    r->n_lo = snprintf(r->lo, sizeof r->lo, "%lld", (long long)lo);
    r->n_hi = snprintf(r->hi, sizeof r->hi, "%lld", (long long)hi);
    way[n++] = (uint32_t)range_node(r, 0, 0, 0);
    mem_free(r);
    return n;
}

static const int64_t largest = 999999999999999999; /* MAX_INTEGER_DIGITS nines */

/* A bound of an integer; the larger ones are none. */
static int64_t integer_bound(const json_t *schema, const char *key, int is_upper, int64_t dflt)
{
    const json_t *v = json_object_get(schema, key);
    int is_open = key[0] == 'e'; /* exclusive */
    if (!json_is_number(v)) return dflt;
    double x = json_number_value(v), whole = is_upper ? floor(x) : ceil(x);
    if (!(fabs(x) < 1e18)) return (x > 0) == is_upper ? dflt : is_upper ? -largest : largest;
    int64_t bound = json_is_integer(v) ? (int64_t)json_integer_value(v) : (int64_t)whole;
    if (is_open && (json_is_integer(v) || !(whole < x || whole > x))) bound += is_upper ? -1 : 1;
    return bound;
}

static uint32_t make_range(SchemaCompiler *c, int64_t lo, int64_t hi)
{
    uint32_t way[4], negative[2];
    int n = whole_ways(c, lo < 0 ? 0 : lo, hi, way);
    int n_negative = lo < 0 ? whole_ways(c, hi < -1 ? -hi : 1, -lo, negative) : 0;
    for (int i = 0; i < n_negative; i++)
        way[n++] = grammar_range(c->b, '-', '-', negative[i]);
    return schema_ways(c, way, n);
}

uint32_t schema_integer(SchemaCompiler *c, const json_t *schema)
{
    int64_t lo = integer_bound(schema, "minimum", 0, -largest), hi, other;
    other = integer_bound(schema, "exclusiveMinimum", 0, -largest);
    if (other > lo) lo = other;
    hi = integer_bound(schema, "maximum", 1, largest);
    other = integer_bound(schema, "exclusiveMaximum", 1, largest);
    if (other < hi) hi = other;
    if (lo > hi) return schema_fail(c, ERR_INPUT, "no integer is within its bounds");
    for (int i = 0; i < c->n_ranges; i++)
        if (c->range[i].lo == lo && c->range[i].hi == hi) return c->range[i].part;
    uint32_t part = make_range(c, lo, hi);
    if (c->n_ranges < N_RANGES) c->range[c->n_ranges++] = (SchemaRange){lo, hi, part};
    return part;
}

/* ---- fixed values ---- */

uint32_t schema_word(SchemaCompiler *c, const char *word)
{
    return grammar_literal(c->b, word, strlen(word), 0);
}

void schema_escape(const char *text, size_t len, StrBuf *out)
{
    static const char from[] = "\b\f\n\r\t\"\\", to[] = "bfnrt\"\\";
    for (size_t i = 0; i < len; i++) {
        const char *at = text[i] ? strchr(from, text[i]) : NULL;
        if (at)
            strbuf_printf(out, "\\%c", to[at - from]);
        else if ((unsigned char)text[i] < 0x20)
            strbuf_printf(out, "\\u%04x", (unsigned)text[i]);
        else
            strbuf_add(out, text + i, 1);
    }
}

/* The shortest text that is this number again: 1.1, not 1.1000000000000001. */
static char *number_text(const json_t *value)
{
    char *text = NULL;
    for (size_t n_digits = 1; n_digits <= 17; n_digits++) {
        free(text);
        text = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(n_digits));
        json_t *back = json_loads(text, JSON_DECODE_ANY, NULL);
        int is_same = json_equal(back, value);
        json_decref(back);
        if (is_same) break;
    }
    return text;
}

static void write_scalar(const json_t *value, StrBuf *out)
{
    if (json_is_string(value)) {
        strbuf_puts(out, "\"");
        schema_escape(json_string_value(value), json_string_length(value), out);
        strbuf_puts(out, "\"");
        return;
    }
    char *text = number_text(value);
    strbuf_puts(out, text);
    free(text);
}

static uint32_t const_list(SchemaCompiler *c, const json_t *value)
{
    size_t n = json_array_size(value);
    uint32_t next = schema_blank(c, grammar_range(c->b, ']', ']', 0));
    for (size_t i = n; i-- > 0;) {
        uint32_t one = schema_const(c, json_array_get(value, i));
        next = schema_blank(c, grammar_call(c->b, one, next));
        if (i) next = grammar_range(c->b, ',', ',', next);
    }
    return grammar_range(c->b, '[', '[', next);
}

static uint32_t const_member(SchemaCompiler *c, const char *name, const json_t *value,
                             uint32_t next)
{
    StrBuf text = {0};
    strbuf_puts(&text, "\"");
    schema_escape(name, strlen(name), &text);
    strbuf_puts(&text, "\":");
    next = schema_blank(c, grammar_call(c->b, schema_const(c, value), next));
    next = grammar_literal(c->b, text.data, text.len, next);
    strbuf_free(&text);
    return next;
}

static uint32_t const_object(SchemaCompiler *c, const json_t *value)
{
    size_t n = json_object_size(value), i = 0;
    const char **name = mem_alloc(n + 1, sizeof *name);
    const char *key;
    json_t *member;
    json_object_foreach((json_t *)value, key, member)
    {
        name[i++] = key;
    }
    uint32_t next = schema_blank(c, grammar_range(c->b, '}', '}', 0));
    while (i-- > 0) {
        next = schema_blank(c, const_member(c, name[i], json_object_get(value, name[i]), next));
        if (i) next = grammar_range(c->b, ',', ',', next);
    }
    mem_free(name);
    return grammar_range(c->b, '{', '{', next);
}

uint32_t schema_const(SchemaCompiler *c, const json_t *value)
{
    StrBuf text = {0};
    uint32_t part = 0;
    if (++c->depth > MAX_SCHEMA_DEPTH)
        schema_fail(c, ERR_LIMIT, "the schema is nested deeper than %d", MAX_SCHEMA_DEPTH);
    else if (json_is_array(value))
        part = const_list(c, value);
    else if (json_is_object(value))
        part = const_object(c, value);
    else {
        write_scalar(value, &text);
        part = grammar_literal(c->b, text.data, text.len, 0);
        strbuf_free(&text);
    }
    c->depth--;
    return part;
}

static int is_scalar(const json_t *v)
{
    return !json_is_array(v) && !json_is_object(v);
}

/* Scalars are a tree of their texts, others ways of their own. */
uint32_t schema_enum(SchemaCompiler *c, const json_t *values)
{
    size_t n = json_array_size(values), i;
    StrBuf *text = mem_alloc(n, sizeof *text);
    GrammarWord *word = mem_alloc(n, sizeof *word);
    uint32_t *way = mem_alloc(n + 1, sizeof *way);
    int n_words = 0, n_ways = 0;
    json_t *value;
    json_array_foreach((json_t *)values, i, value)
    {
        if (!is_scalar(value)) {
            way[n_ways++] = schema_const(c, value);
            continue;
        }
        write_scalar(value, &text[i]);
        word[n_words++] = (GrammarWord){.text = text[i].data, .len = text[i].len};
    }
    if (n_words) way[n_ways++] = grammar_words(c->b, word, n_words);
    uint32_t part = schema_ways(c, way, n_ways);
    for (i = 0; i < n; i++)
        strbuf_free(&text[i]);
    mem_free(text);
    mem_free(word);
    mem_free(way);
    return part;
}
