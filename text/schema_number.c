/*
 * schema_number.c: numbers, and ranges of them.
 *
 * A number within bounds is written without an exponent, digit by digit: where it is depends on how
 * many digits there are before the point, and on how they compare with as many of either bound's.
 * It has no more digits than a double tells apart, so that one below an exclusive bound is not read
 * as that bound. A multiple of a number is written likewise, its remainder known at each digit.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/schema_parts.h"

enum {
    MAX_WHOLE = 18,   /* digits of a number within bounds, before the point */
    MAX_PRECISE = 15, /* in all, unless a bound has more behind it */
    MAX_DIGITS = 40,  /* of a number without bounds, on either side */
    MAX_EXPONENT_DIGITS = 2,
};

/* ---- any number ---- */

/* Digits, up to n and at least one where that is needed, then next. */
static uint32_t digits(SchemaCompiler *c, int needs_one, int n, uint32_t next)
{
    uint32_t more = next;
    for (int i = needs_one; i < n; i++)
        more = grammar_any_of(c->b, (uint32_t[]){next, grammar_range(c->b, '0', '9', more)}, 2);
    return needs_one ? grammar_range(c->b, '0', '9', more) : more;
}

uint32_t schema_any_number(SchemaCompiler *c)
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

/* ---- bounds ---- */

char *schema_number_text(const json_t *value)
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

static char digit_at(const char *digit, int n, int i)
{
    if (i < 0 || i >= n) return '0';
    return digit[i];
}

/* The digits of a number below 1e18, "-12.5e-07", before and behind where the point belongs. */
static void set_digits(SchemaBound *b, const char *text)
{
    char digit[64];
    int n = 0, point = -1;
    for (; *text && *text != 'e'; text++) {
        if (*text == '.') point = n;
        if (*text >= '0' && *text <= '9' && n < (int)sizeof digit) digit[n++] = *text;
    }
    if (point < 0) point = n;
    if (*text) point += atoi(text + 1);
    for (int i = 0; i < point; i++) {
        char d = digit_at(digit, n, i);
        if (b->n_whole || d != '0') b->whole[b->n_whole++] = d;
    }
    for (int i = point; i < n; i++) {
        char d = digit_at(digit, n, i);
        if (b->n_part < MAX_BOUND_PART)
            b->part[b->n_part++] = d;
        else
            b->is_cut |= d != '0';
    }
    while (b->n_part && b->part[b->n_part - 1] == '0')
        b->part[--b->n_part] = 0;
}

static SchemaBound whole_bound(int64_t value)
{
    SchemaBound b = {.is_negative = value < 0};
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)value);
    set_digits(&b, text);
    return b;
}

static const int64_t largest = 999999999999999999; /* MAX_WHOLE nines */

/* A bound, whether it is out itself, or a boolean that says so of the other key's (draft 4). */
typedef struct {
    const char *key, *exclusive;
    int is_upper;
} BoundKeys;

static const BoundKeys lower = {"minimum", "exclusiveMinimum", 0},
                       upper = {"maximum", "exclusiveMaximum", 1};

/* The one of two bounds that leaves less, an exclusive one of equal ones; NULL: there is none. */
static const json_t *tighter(const json_t *schema, const BoundKeys *keys, int *is_open)
{
    const json_t *closed = json_object_get(schema, keys->key);
    const json_t *open = json_object_get(schema, keys->exclusive);
    *is_open = json_is_true(open);
    if (!json_is_number(closed)) closed = NULL;
    if (!json_is_number(open)) return closed;
    double x = json_number_value(closed), y = json_number_value(open);
    *is_open = !closed || (keys->is_upper ? y <= x : y >= x);
    return *is_open ? open : closed;
}

/* A bound of an integer; one that every number here meets is none. */
static int64_t integer_bound(const json_t *schema, const BoundKeys *keys)
{
    int is_open, is_upper = keys->is_upper;
    const json_t *v = tighter(schema, keys, &is_open);
    int64_t none = is_upper ? largest : -largest;
    if (!v) return none;
    double x = json_number_value(v), whole = is_upper ? floor(x) : ceil(x);
    if (!(fabs(x) < 1e18))
        return (x > 0) == is_upper ? none : is_upper ? -largest - 1 : largest + 1;
    int64_t bound = json_is_integer(v) ? (int64_t)json_integer_value(v) : (int64_t)whole;
    if (is_open && (json_is_integer(v) || !(whole < x || whole > x))) bound += is_upper ? -1 : 1;
    return bound;
}

static SchemaBound number_bound(const json_t *schema, const BoundKeys *keys)
{
    int is_open, is_upper = keys->is_upper;
    const json_t *v = tighter(schema, keys, &is_open);
    SchemaBound b = {.is_none = 1};
    if (!v) return b;
    double x = json_number_value(v);
    if (fabs(x) >= 1e18) {
        if ((x > 0) == is_upper) return b;
        b = whole_bound(is_upper ? -largest : largest); /* nothing here is beyond it */
        b.is_open = 1;
        return b;
    }
    char *text = schema_number_text(v);
    b = (SchemaBound){.is_negative = x < 0, .is_open = is_open};
    set_digits(&b, text);
    free(text);
    return b;
}

/* ---- ranges of numbers of at least 0 ---- */

typedef struct {
    SchemaCompiler *c;
    SchemaBound lo, hi;
    int is_whole;             /* without a point */
    const SchemaMultiple *of; /* or NULL: any number will do, and the only state is 0 */
    int64_t (*node)[3][3];    /* [digits][state]; 0: not made yet; or one of those below */
    int64_t *part;            /* [state]: of numbers between the bounds, whatever follows */
    int n_states;
} Range;

enum { NOTHING_FITS = -1, ENDS_HERE = -2 };

/* Digit d leads there, as those before it may; how many edges there are then. */
static int add_digit(GrammarEdge *edge, int n_edges, int d, int64_t to)
{
    uint8_t digit = (uint8_t)('0' + d);
    uint32_t node = to == ENDS_HERE ? 0 : (uint32_t)to;
    if (!n_edges || edge[n_edges - 1].to != node || edge[n_edges - 1].hi + 1 != digit)
        edge[n_edges++] = (GrammarEdge){digit, digit, node};
    edge[n_edges - 1].hi = digit;
    return n_edges;
}

/* Up to n digits more, any; made once. */
static uint32_t more_digits(SchemaCompiler *c, int n)
{
    if (!c->digits[n]) c->digits[n] = digits(c, 0, n, 0);
    return c->digits[n];
}

/* How digit d, the k-th behind the point, compares with a bound's. */
static int to_part(const SchemaBound *b, int k, int d)
{
    int other = k < b->n_part ? b->part[k] - '0' : 0;
    return (d > other) - (d < other);
}

static int state_ends(const Range *r, int state)
{
    return !r->of || r->of->state[state].may_end;
}

/* The state after digit d, the k-th behind the point. */
static int part_state(const Range *r, int state, int k, int d)
{
    if (!r->of) return 0;
    return k ? r->of->state[state].digit[d] : r->of->state[state].part[d];
}

/*
 * What follows k digits behind the point, up to n of them. at_lo, at_hi: they are the bound's, as
 * all before them.
 */
static int64_t part_node(const Range *r, int k, int n, int at_lo, int at_hi, int state)
{
    GrammarEdge edge[10];
    int n_edges = 0;
    if (k && k >= r->lo.n_part && !r->lo.is_open) at_lo = 0;
    if (k && k >= r->hi.n_part && r->hi.is_open && at_hi) return NOTHING_FITS;
    int may_end = k && !at_lo && state_ends(r, state), is_free = r->of && !at_lo && !at_hi;
    if (is_free && r->part[state]) return r->part[state];
    if (may_end && !at_hi && k < n && !r->of) return more_digits(r->c, n - k);
    if (may_end && !at_hi && k == n) return ENDS_HERE;
    for (int d = 0; d <= 9 && k < n; d++) {
        int lo = at_lo ? to_part(&r->lo, k, d) : 1, hi = at_hi ? to_part(&r->hi, k, d) : -1;
        if (lo < 0 || hi > 0) continue;
        int64_t to = part_node(r, k + 1, n, lo == 0, hi == 0, part_state(r, state, k, d));
        if (to != NOTHING_FITS) n_edges = add_digit(edge, n_edges, d, to);
    }
    int64_t node = may_end ? ENDS_HERE : NOTHING_FITS;
    if (n_edges) {
        uint32_t more = grammar_bytes(r->c->b, edge, n_edges);
        node = may_end ? grammar_any_of(r->c->b, (uint32_t[]){0, more}, 2) : more;
    }
    if (is_free) r->part[state] = node;
    return node;
}

/* Ways to go on without more digits before the point than these n; how they compare with bounds. */
static int ends_of_whole(const Range *r, int n, int to_lo, int to_hi, int state, uint32_t *way)
{
    int n_ways = 0, n_digits = MAX_PRECISE - n;
    if (n != r->lo.n_whole) to_lo = n > r->lo.n_whole ? 1 : -1;
    if (n != r->hi.n_whole) to_hi = n > r->hi.n_whole ? 1 : -1;
    if (to_lo < 0 || to_hi > 0) return 0;
    int is_below = !to_lo && (r->lo.n_part || r->lo.is_open);
    int is_above = !to_hi && !r->hi.n_part && r->hi.is_open;
    if (!is_below && !is_above && state_ends(r, state)) way[n_ways++] = 0;
    if (r->is_whole) return n_ways;
    if (n_digits < r->lo.n_part) n_digits = r->lo.n_part;
    if (n_digits < r->hi.n_part) n_digits = r->hi.n_part;
    if (r->of && n_digits < r->of->n_parts) return n_ways;
    if (r->of) n_digits = r->of->n_parts;
    int64_t part = part_node(r, 0, n_digits, !to_lo, !to_hi, state);
    if (part != NOTHING_FITS) way[n_ways++] = grammar_range(r->c->b, '.', '.', (uint32_t)part);
    return n_ways;
}

/* What follows n digits, the first of which is not 0, that compare so with as many of the bounds'.
 */
static int64_t whole_node(Range *r, int n, int to_lo, int to_hi, int state)
{
    int64_t *known = &r->node[n * r->n_states + state][to_lo + 1][to_hi + 1];
    GrammarEdge edge[10];
    uint32_t way[3];
    int n_edges = 0;
    if (*known) return *known;
    if (r->c->b->is_full) return NOTHING_FITS;
    for (int d = n ? 0 : 1; d <= 9 && n < r->hi.n_whole; d++) {
        int lo = n >= r->lo.n_whole ? 1
                 : to_lo            ? to_lo
                                    : (d > r->lo.whole[n] - '0') - (d < r->lo.whole[n] - '0');
        int hi = to_hi ? to_hi : (d > r->hi.whole[n] - '0') - (d < r->hi.whole[n] - '0');
        int64_t to = whole_node(r, n + 1, lo, hi, r->of ? r->of->state[state].digit[d] : 0);
        if (to != NOTHING_FITS) n_edges = add_digit(edge, n_edges, d, to);
    }
    int n_ways = n ? ends_of_whole(r, n, to_lo, to_hi, state, way) : 0;
    if (n_edges) way[n_ways++] = grammar_bytes(r->c->b, edge, n_edges);
    if (!n_ways)
        *known = NOTHING_FITS;
    else if (n_ways == 1 && !way[0])
        *known = ENDS_HERE;
    else
        *known = schema_ways(r->c, way, n_ways);
    return *known;
}

/* The ways to write a number of at least 0; how many there are. */
static int range_ways(SchemaCompiler *c, SchemaBound lo, SchemaBound hi, int is_whole,
                      const SchemaMultiple *of, uint32_t *way)
{
    uint32_t zero[2];
    int n = 0, n_states = of ? of->n_states : 1;
    Range r = {.c = c, .lo = lo, .hi = hi, .is_whole = is_whole, .of = of, .n_states = n_states};
    r.node = mem_alloc((size_t)((MAX_WHOLE + 2) * n_states), sizeof *r.node);
    r.part = mem_alloc((size_t)n_states, sizeof *r.part);
    r.lo.is_open |= lo.is_cut;
    r.hi.is_open &= !hi.is_cut;
    int n_zero = ends_of_whole(&r, 0, 0, 0, 0, zero); /* 0 leaves no remainder, as nothing does */
    if (n_zero) way[n++] = grammar_range(c->b, '0', '0', schema_ways(c, zero, n_zero));
    int64_t node = whole_node(&r, 0, 0, 0, 0);
    if (node != NOTHING_FITS) way[n++] = (uint32_t)node;
    mem_free(r.node);
    mem_free(r.part);
    return n;
}

/* ---- of all ---- */

static uint32_t make_range(SchemaCompiler *c, const SchemaRange *of, const SchemaMultiple *multiple)
{
    const SchemaBound zero = {.is_none = 0}, below_zero = {.is_open = 1};
    SchemaBound end = whole_bound(largest + 1);
    uint32_t way[4], negative[2];
    int n = 0, n_negative = 0;
    end.is_open = 1;
    if (of->hi.is_none || !of->hi.is_negative)
        n = range_ways(c, of->lo.is_none || of->lo.is_negative ? zero : of->lo,
                       of->hi.is_none ? end : of->hi, of->is_whole, multiple, way);
    if (of->lo.is_none || of->lo.is_negative)
        n_negative = range_ways(c, !of->hi.is_none && of->hi.is_negative ? of->hi : below_zero,
                                of->lo.is_none ? end : of->lo, of->is_whole, multiple, negative);
    for (int i = 0; i < n_negative; i++)
        way[n++] = grammar_range(c->b, '-', '-', negative[i]);
    if (n) return schema_ways(c, way, n);
    return schema_empty(c, "no %s is within its bounds", of->is_whole ? "integer" : "number");
}

static int same_bound(const SchemaBound *a, const SchemaBound *b)
{
    return a->is_none == b->is_none && a->is_negative == b->is_negative &&
           a->is_open == b->is_open && a->is_cut == b->is_cut && a->n_whole == b->n_whole &&
           a->n_part == b->n_part && !memcmp(a->whole, b->whole, sizeof a->whole) &&
           !memcmp(a->part, b->part, sizeof a->part);
}

static uint32_t range_part(SchemaCompiler *c, SchemaRange of, const SchemaMultiple *multiple)
{
    for (int i = 0; i < c->n_ranges; i++) {
        const SchemaRange *known = &c->range[i];
        int is_same = !(known->multiple < of.multiple) && !(known->multiple > of.multiple);
        if (known->is_whole == of.is_whole && is_same && same_bound(&known->lo, &of.lo) &&
            same_bound(&known->hi, &of.hi))
            return known->part;
    }
    of.part = make_range(c, &of, multiple);
    if (of.part && c->n_ranges < N_RANGES) c->range[c->n_ranges++] = of;
    return of.part;
}

/* What a multipleOf that is none for us means: 1 if it is passed over. */
static int is_passed_over(SchemaCompiler *c, const json_t *value)
{
    if (json_is_number(value) && !(json_number_value(value) > 0))
        schema_fail(c, ERR_INPUT, "multipleOf must be over 0");
    else if (value)
        schema_not_followed(c, "multipleOf", ERR_INPUT, "it takes too many remainders to tell");
    return !c->failed;
}

static uint32_t bounded(SchemaCompiler *c, const json_t *schema, SchemaRange of)
{
    SchemaMultiple multiple;
    const json_t *value = json_object_get(schema, "multipleOf");
    int is_any = of.lo.is_none && of.hi.is_none;
    if (schema_multiple(value, of.is_whole, &multiple)) {
        if (!is_passed_over(c, value)) return 0;
        return is_any ? schema_any_number(c) : range_part(c, of, NULL);
    }
    of.multiple = json_number_value(value);
    return range_part(c, of, &multiple);
}

uint32_t schema_integer(SchemaCompiler *c, const json_t *schema)
{
    SchemaBound lo = whole_bound(integer_bound(schema, &lower)),
                hi = whole_bound(integer_bound(schema, &upper));
    return bounded(c, schema, (SchemaRange){.lo = lo, .hi = hi, .is_whole = 1});
}

uint32_t schema_number(SchemaCompiler *c, const json_t *schema)
{
    SchemaBound lo = number_bound(schema, &lower), hi = number_bound(schema, &upper);
    return bounded(c, schema, (SchemaRange){.lo = lo, .hi = hi});
}
