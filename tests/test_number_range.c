/*
 * test_number_range.c: numbers within a schema's bounds, against exact arithmetic.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/grammar_case.h"
#include "tests/near.h"

enum { SCALE = 6, ROUNDS = 400, TEXTS = 300 }; /* numbers are whole multiples of 10^-SCALE */

static Grammar *ranged(const char *schema)
{
    Error err = {0};
    Grammar *g = grammar_of(schema, 0, &err);
    if (!g) fail_msg("%s: %s", schema, err.msg);
    return g;
}

static int64_t power(int n)
{
    int64_t p = 1;
    while (n-- > 0)
        p *= 10;
    return p;
}

/* A number of some size with up to SCALE digits behind the point. */
static int64_t random_number(Rng *r)
{
    int64_t below = power(rng_int(r, SCALE + 6) + 1), unit = power(rng_int(r, SCALE + 1));
    int64_t x = (int64_t)(rng_next(r) % (uint64_t)below) / unit * unit;
    return rng_int(r, 2) ? x : -x;
}

/* As JSON has it, with `zeros` more digits than are needed behind the point. */
static void write_number(int64_t x, int zeros, char *out, size_t size)
{
    int64_t size_of = x < 0 ? -x : x;
    int n = snprintf(out, size, "%s%" PRId64, x < 0 ? "-" : "", size_of / power(SCALE));
    char part[SCALE + 1];
    snprintf(part, sizeof part, "%06" PRId64, size_of % power(SCALE));
    int digits = SCALE;
    while (digits > 0 && part[digits - 1] == '0' && zeros-- <= 0)
        digits--;
    if (digits) snprintf(out + n, size - (size_t)n, ".%.*s", digits, part);
}

typedef struct {
    int64_t lo, hi;
    int has_lo, has_hi, lo_open, hi_open;
    int64_t multiple; /* 0: any number */
} Bounds;

static Bounds random_bounds(Rng *r)
{
    Bounds b = {.has_lo = rng_int(r, 4) > 0, .lo_open = rng_int(r, 2), .hi_open = rng_int(r, 2)};
    b.has_hi = !b.has_lo || rng_int(r, 4);
    b.lo = random_number(r);
    b.hi = rng_int(r, 3) ? random_number(r) : b.lo + rng_int(r, 2000);
    if (b.has_lo && b.has_hi && b.lo > b.hi) {
        int64_t lo = b.hi;
        b.hi = b.lo, b.lo = lo;
    }
    return b;
}

static int is_within(const Bounds *b, int64_t x)
{
    if (b->multiple && x % b->multiple) return 0;
    if (b->has_lo && (x < b->lo || (x == b->lo && b->lo_open))) return 0;
    return !b->has_hi || (x < b->hi || (x == b->hi && !b->hi_open));
}

static void write_schema(const Bounds *b, char *out, size_t size)
{
    char lo[64], hi[64];
    int n = snprintf(out, size, "{'type':'number'");
    write_number(b->lo, 0, lo, sizeof lo);
    write_number(b->hi, 0, hi, sizeof hi);
    if (b->has_lo)
        n += snprintf(out + n, size - (size_t)n, ",'%s':%s",
                      b->lo_open ? "exclusiveMinimum" : "minimum", lo);
    if (b->multiple) {
        char multiple[64];
        write_number(b->multiple, 0, multiple, sizeof multiple);
        n += snprintf(out + n, size - (size_t)n, ",'multipleOf':%s", multiple);
    }
    if (b->has_hi)
        n += snprintf(out + n, size - (size_t)n, ",'%s':%s",
                      b->hi_open ? "exclusiveMaximum" : "maximum", hi);
    snprintf(out + n, size - (size_t)n, "}");
}

/* 1 if x, written with so many zeros too many, is taken, as it must be; 0 if it must not and is
 * not. */
static int check_number(const Grammar *g, const char *schema, const Bounds *b, int64_t x, int zeros)
{
    char text[64];
    write_number(x, zeros, text, sizeof text);
    int want = is_within(b, x);
    if ((grammar_takes(grammar_case, g, text) == 1) != want)
        fail_msg("%s %s %s", schema, want ? "does not take" : "takes", text);
    return want;
}

static void test_random_ranges(void **state)
{
    Rng r = rng_new(20);
    int n_in = 0;
    (void)state;
    for (int i = 0; i < ROUNDS; i++) {
        Bounds b = random_bounds(&r);
        char schema[256];
        if (b.has_lo && b.has_hi && b.lo == b.hi) b.lo_open = b.hi_open = 0;
        write_schema(&b, schema, sizeof schema);
        Grammar *g = ranged(schema);
        for (int t = 0; t < TEXTS; t++) {
            int64_t near = rng_int(&r, 2) ? b.lo : b.hi, x = random_number(&r);
            if (rng_int(&r, 3)) x = near + rng_int(&r, 5) - 2;
            if (!rng_int(&r, 4)) x = near + (rng_int(&r, 5) - 2) * power(rng_int(&r, SCALE + 1));
            n_in += check_number(g, schema, &b, x, rng_int(&r, 3));
        }
        grammar_free(g);
    }
    assert_true(n_in > ROUNDS * TEXTS / 10 && n_in < ROUNDS * TEXTS * 9 / 10);
}

/* Multiples within bounds that are multiples themselves, so that there is one. */
static void test_random_multiples(void **state)
{
    Rng r = rng_new(21);
    int n_in = 0;
    (void)state;
    for (int i = 0; i < ROUNDS; i++) {
        Bounds b = random_bounds(&r);
        char schema[256];
        b.multiple = (1 + rng_int(&r, 64)) * power(rng_int(&r, SCALE + 2));
        b.lo -= b.lo % b.multiple, b.hi -= b.hi % b.multiple;
        if (b.lo == b.hi) b.lo_open = b.hi_open = 0;
        if (b.hi - b.lo == b.multiple) b.hi_open = 0;
        write_schema(&b, schema, sizeof schema);
        Grammar *g = ranged(schema);
        for (int t = 0; t < TEXTS; t++) {
            int64_t near = rng_int(&r, 2) ? b.lo : b.hi, x = random_number(&r);
            if (rng_int(&r, 2)) x -= x % b.multiple;
            if (rng_int(&r, 3)) x = near + (rng_int(&r, 9) - 4) * b.multiple;
            if (!rng_int(&r, 3)) x += rng_int(&r, 3) - 1;
            n_in += check_number(g, schema, &b, x, 0);
        }
        grammar_free(g);
    }
    assert_true(n_in > ROUNDS * TEXTS / 10 && n_in < ROUNDS * TEXTS * 9 / 10);
}

static const struct {
    const char *schema;
    const char *yes[8], *no[10];
} rows[] = {
    {"{'type':'number','minimum':0,'maximum':1}",
     {"0", "1", "0.5", "0.000000000000001", "1.0", "0.999999999999999", "0.0"},
     {"-0.1", "1.1", "2", "-0", "1.000000001", "5e-1", "0.", "00", "0.9999999999999999"}},
    {"{'type':'number','exclusiveMinimum':0}",
     {"0.1", "7", "123456789012345678", "0.00000001", "12345.6789"},
     {"0", "0.0", "-1", "1234567890123456789", "1e3"}},
    {"{'type':'number','exclusiveMaximum':100}",
     {"99.9999999999999", "-123456789012345678", "0", "-0.5"},
     {"100", "99.99999999999999", "100.0", "-0", "-0.0"}},
    {"{'type':'number','minimum':1e-7,'maximum':2.5e-7}",
     {"0.0000001", "0.00000025", "0.000000125"},
     {"0", "0.00000009", "0.00000026", "0.000000250000001"}},
    {"{'type':'number','minimum':-1.5,'maximum':-0.25}",
     {"-1.5", "-1", "-0.25", "-0.250", "-1.50"},
     {"-1.51", "-0.24", "0", "1", "-2", "-0.2499"}},
    {"{'type':'number','minimum':2,'exclusiveMinimum':2,'maximum':9,'exclusiveMaximum':8.5}",
     {"2.1", "8.4", "8"},
     {"2", "2.0", "8.5", "9"}},
    /* as many digits as a bound has, however many */
    {"{'type':'number','minimum':1,'maximum':1.6000000000000003}",
     {"1.6000000000000003", "1.5"},
     {"1.6000000000000004"}},
    {"{'type':'number','minimum':1.2000000000000002,'maximum':2}",
     {"1.2000000000000002", "1.5"},
     {"1.2000000000000001", "1.2"}},
    {"{'type':'number','minimum':1e-40,'maximum':1}", {"1", "0.5"}, {"0", "0.0"}},
    {"{'type':'number','minimum':-1e300,'maximum':1e300}", {"1e9", "-3", "0.5"}, {"01", "+1"}},
    {"{'type':'number','minimum':9007199254740993}", {"9007199254740993"}, {"9007199254740992"}},
    {"{'type':['number','null'],'minimum':0}", {"0", "0.5", "null"}, {"-1", "nul"}},
    {"{'minimum':3,'maximum':4.5}", {"3", "3.25", "4.5"}, {"2", "4.51", "'a'", "true"}},
    {"{'allOf':[{'type':'number','minimum':0},{'maximum':0.5}]}", {"0.5", "0"}, {"0.6", "-1"}},
    {"{'type':'number','minimum':0,'exclusiveMinimum':true,'maximum':1,'exclusiveMaximum':false}",
     {"0.1", "1"},
     {"0", "0.0", "1.1"}},
    {"{'type':'integer','minimum':0,'exclusiveMinimum':true,'maximum':2,'exclusiveMaximum':true}",
     {"1"},
     {"0", "2"}},
    {"{'type':'integer','minimum':0.5,'exclusiveMaximum':3.0}", {"1", "2"}, {"0", "3", "1.0"}},
    {"{'type':'integer','multipleOf':7}",
     {"0", "7", "-14", "999999999999999999"},
     {"1", "8", "-13", "7.0", "70000000000000000000", "-0"}},
    {"{'type':'number','multipleOf':0.25}",
     {"0", "0.25", "-1.50", "12345678901.75", "3", "2.0"},
     {"0.2", "0.3", "1.125", "1.250", "1.", "1e1", "12345678901234.75"}},
    {"{'type':'integer','multipleOf':2.5}", {"5", "10", "0"}, {"2.5", "7", "5.0"}},
    {"{'type':'number','multipleOf':1e-9,'maximum':1}",
     {"0.000000001", "1", "-7.5"},
     {"0.0000000001", "1.000000001"}},
    {"{'multipleOf':20}", {"20", "100"}, {"10", "'a'", "2"}},
    {"{'allOf':[{'type':'integer','multipleOf':4},{'multipleOf':6}]}", {"12", "0"}, {"4", "6"}},
    {"{'allOf':[{'multipleOf':0.5},{'multipleOf':1.5}]}", {"4.5", "3"}, {"0.5", "1"}},
    /* too many remainders to tell apart, and none to follow */
    {"{'type':'integer','multipleOf':1021}", {"1021", "1"}, {"1.5"}},
    {"{'type':'number','multipleOf':1e-300}", {"3", "1.5"}, {"'a'"}},
    {"{'type':'number','multipleOf':1e300}", {"3", "1.5"}, {"'a'"}},
    {"{'type':'number','multipleOf':'3'}", {"3", "1"}, {"'a'"}},
};

static void test_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Grammar *g = ranged(rows[i].schema);
        for (int j = 0; j < 8 && rows[i].yes[j]; j++)
            if (grammar_takes(grammar_case, g, rows[i].yes[j]) != 1)
                fail_msg("%s does not take %s", rows[i].schema, rows[i].yes[j]);
        for (int j = 0; j < 10 && rows[i].no[j]; j++)
            if (grammar_takes(grammar_case, g, rows[i].no[j]) == 1)
                fail_msg("%s takes %s", rows[i].schema, rows[i].no[j]);
        grammar_free(g);
    }
}

static void test_refused(void **state)
{
    static const char *const none[] = {
        "{'type':'number','minimum':1,'maximum':0.5}",
        "{'type':'number','minimum':0.5,'exclusiveMaximum':0.5}",
        "{'type':'number','exclusiveMinimum':-0.5,'maximum':-0.5}",
        "{'type':'number','minimum':1e19}",
        "{'type':'number','maximum':-1e300}",
        "{'type':'number','minimum':0,'exclusiveMaximum':0}",
        "{'type':'integer','minimum':1e19}",
        "{'type':'integer','minimum':1,'maximum':4,'multipleOf':5}",
        "{'type':'number','minimum':0.01,'maximum':0.24,'multipleOf':0.25}",
    };
    (void)state;
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        Error err = {0};
        if (grammar_of(none[i], 0, &err)) fail_msg("%s is taken", none[i]);
        assert_non_null(strstr(err.msg, " is within its bounds"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_ranges),
        cmocka_unit_test(test_random_multiples),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests_name("number_range", tests, grammar_case_open,
                                       grammar_case_close);
}
