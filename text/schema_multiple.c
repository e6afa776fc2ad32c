/*
 * schema_multiple.c: which digits make a multiple of a number (multipleOf).
 *
 * With p digits behind its point that number is m * 10^-p, and the remainder of what was read, in
 * the same units, goes from r to (10 r + d) mod m with each digit d. What matters of a remainder is
 * only how it can go on: those that go on alike are one state (Moore's partition), on either side
 * of the point. Multiples of 1000 have four states, not a thousand.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/schema_parts.h"

enum {
    MAX_UNITS = 1024,
    MAX_ALIKE = 128, /* states with as many digits behind the point */
    MAX_DIGITS = 40, /* of a double or an integer, at most */
    N_KEYS = 21,     /* what tells remainders apart: whether one may end, where digits lead */
};

typedef struct {
    int m, p;
    int n_parts; /* digits behind the point that are written: p, or 0 of an integer */
    int state[MULTIPLE_PARTS + 1][MAX_UNITS]; /* [digits behind the point][remainder] */
    int n_states[MULTIPLE_PARTS + 1];
    int (*key)[N_KEYS]; /* [MAX_UNITS] */
} Machine;

/* The number in units of its last digit, and how many of its digits are behind the point. */
static int read_units(const json_t *value, int *m, int *p)
{
    if (!json_is_number(value) || !(json_number_value(value) > 0)) return -1;
    char *text = schema_number_text(value), *at = text;
    long units = 0;
    int n_parts = 0, is_part = 0;
    for (; *at && *at != 'e' && units <= MAX_UNITS; at++) {
        if (*at == '.') is_part = 1;
        if (*at < '0' || *at > '9') continue;
        units = 10 * units + (*at - '0');
        n_parts += is_part;
    }
    if (*at == 'e') n_parts -= atoi(at + 1);
    free(text);
    for (; units && units % 10 == 0 && n_parts > 0; n_parts--)
        units /= 10;
    for (; n_parts < 0 && units <= MAX_UNITS; n_parts++)
        units *= 10;
    *m = (int)units, *p = n_parts;
    return !units || units > MAX_UNITS || n_parts > MULTIPLE_PARTS ? -1 : 0;
}

/* Whether a number may end with this remainder and k digits behind the point: zeros would follow.
 */
static int may_end(const Machine *a, int k, int r)
{
    for (; k < a->p && r; k++)
        r = 10 * r % a->m;
    return !r;
}

/* Remainders of equal keys get one state, numbered as they are met. -1: there are too many. */
static int divide(Machine *a, int k)
{
    int first[MAX_ALIKE], n = 0;
    for (int r = 0; r < a->m; r++) {
        int s = 0;
        while (s < n && memcmp(a->key[first[s]], a->key[r], sizeof *a->key) != 0)
            s++;
        if (s == MAX_ALIKE) return -1;
        if (s == n) first[n++] = r;
        a->state[k][r] = s;
    }
    a->n_states[k] = n;
    return 0;
}

/*
 * Keys of the remainders with k digits behind the point: where a digit on the same side leads, and
 * from before the point the first one behind it.
 */
static void set_keys(Machine *a, int k)
{
    for (int r = 0; r < a->m; r++) {
        int *key = a->key[r];
        memset(key, 0, sizeof *a->key);
        key[0] = may_end(a, k, r);
        for (int d = 0; d < 10; d++) {
            int next = (10 * r + d) % a->m;
            if (!k) key[1 + d] = a->state[0][next];
            if (k && k < a->n_parts) key[1 + d] = a->state[k + 1][next];
            if (!k && a->n_parts) key[11 + d] = a->state[1][next];
        }
    }
}

static int partition(Machine *a)
{
    for (int k = a->n_parts; k > 0; k--) {
        set_keys(a, k);
        if (divide(a, k)) return -1;
    }
    /* before the point, where digits lead back: finer until it is fine enough */
    int before;
    do {
        before = a->n_states[0];
        set_keys(a, 0);
        if (divide(a, 0)) return -1;
    } while (before != a->n_states[0]);
    return 0;
}

/* The states of all sides in one table: those before the point first, so that 0 is the start. */
static int lay_out(const Machine *a, SchemaMultiple *out)
{
    int base[MULTIPLE_PARTS + 2] = {0}, n_levels = a->n_parts + 1;
    for (int k = 0; k < n_levels; k++)
        base[k + 1] = base[k] + a->n_states[k];
    if (base[n_levels] > MULTIPLE_STATES) return -1;
    *out = (SchemaMultiple){.n_parts = a->n_parts, .n_states = base[n_levels]};
    for (int k = 0; k < n_levels; k++)
        for (int r = 0; r < a->m; r++) {
            MultipleState *s = &out->state[base[k] + a->state[k][r]];
            s->may_end = may_end(a, k, r);
            for (int d = 0; d < 10; d++) {
                int next = (10 * r + d) % a->m, same = k ? k + 1 : 0;
                if (same < n_levels) s->digit[d] = base[same] + a->state[same][next];
                if (!k && a->n_parts) s->part[d] = base[1] + a->state[1][next];
            }
        }
    return 0;
}

int schema_multiple(const json_t *value, int is_whole, SchemaMultiple *out)
{
    int m, p;
    if (read_units(value, &m, &p)) return -1;
    Machine *a = mem_alloc(1, sizeof *a);
    a->m = m, a->p = p, a->n_parts = is_whole ? 0 : p;
    a->key = mem_alloc((size_t)m, sizeof *a->key);
    int rc = partition(a) || lay_out(a, out) ? -1 : 0;
    mem_free(a->key);
    mem_free(a);
    return rc;
}

/* The digits of a number, and how many of them are behind the point, which may be less than 0. */
static int read_digits(const json_t *value, char *digits)
{
    char *text = schema_number_text(value), *at = text;
    int n = 0, n_parts = 0, is_part = 0;
    for (; *at && *at != 'e' && n < MAX_DIGITS; at++) {
        if (*at == '.') is_part = 1;
        if (*at < '0' || *at > '9') continue;
        digits[n++] = *at;
        n_parts += is_part;
    }
    if (*at == 'e') n_parts -= atoi(at + 1);
    free(text);
    digits[n] = 0;
    return n_parts;
}

int schema_is_multiple(const json_t *value, const json_t *of)
{
    char digits[MAX_DIGITS + 1] = {0};
    int m, p, r = 0;
    if (json_is_integer(value) && json_is_integer(of) && json_integer_value(of) > 0)
        return json_integer_value(value) % json_integer_value(of) == 0;
    if (read_units(of, &m, &p)) return -1;
    int n_more = p - read_digits(value, digits); /* zeros that make it as many units */
    size_t n = strlen(digits);
    for (; n_more < 0 && n && digits[n - 1] == '0'; n_more++)
        n--;
    if (n_more < 0 && n) return 0; /* a part of a unit is left */
    for (size_t i = 0; i < n; i++)
        r = (10 * r + (digits[i] - '0')) % m;
    for (; n_more > 0 && r; n_more--)
        r = 10 * r % m;
    return !r;
}

static json_int_t greatest_divisor(json_int_t a, json_int_t b)
{
    while (b) {
        json_int_t left = a % b;
        a = b, b = left;
    }
    return a;
}

/* Of integers over 0; 0: it is too large. */
static json_int_t least_multiple(json_int_t a, json_int_t b)
{
    json_int_t part = a / greatest_divisor(a, b);
    return part > INT64_MAX / b ? 0 : part * b;
}

json_t *schema_common_multiple(const json_t *a, const json_t *b)
{
    int m, p, n, q;
    if (json_is_integer(a) && json_is_integer(b)) {
        json_int_t x = json_integer_value(a), y = json_integer_value(b);
        json_int_t multiple = x > 0 && y > 0 ? least_multiple(x, y) : 0;
        return multiple ? json_integer(multiple) : NULL;
    }
    if (read_units(a, &m, &p) || read_units(b, &n, &q)) return NULL;
    /* both in units of the last digit of either: at most 10^9 times 1024 */
    json_int_t x = m, y = n, one = 1;
    for (; p < q; p++)
        x *= 10;
    for (; q < p; q++)
        y *= 10;
    for (; q > 0; q--)
        one *= 10;
    json_int_t multiple = least_multiple(x, y);
    if (!multiple) return NULL;
    return multiple % one ? json_real((double)multiple / (double)one)
                          : json_integer(multiple / one);
}
