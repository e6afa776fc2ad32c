/* code_set.c: see code_set.h. */
#include "text/code_set.h"

#include <assert.h>
#include <stdlib.h>

#include "base/mem.h"

static const CodeRange DIGITS[] = {{'0', '9'}};
static const CodeRange WORD[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
static const CodeRange SPACE[] = {
    {'\t', '\r'},     {' ', ' '},       {0xa0, 0xa0},     {0x1680, 0x1680}, {0x2000, 0x200a},
    {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}, {0xfeff, 0xfeff}};
static const CodeRange LINE_ENDS[] = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

void code_set_add(CodeSet *set, uint32_t lo, uint32_t hi)
{
    assert(lo <= hi);
    assert(hi <= MAX_CODE);
    if (set->n == set->cap) {
        set->cap = set->cap ? 2 * set->cap : 4;
        set->range = mem_realloc(set->range, (size_t)set->cap, sizeof *set->range);
    }
    set->range[set->n++] = (CodeRange){lo, hi};
}

/* Adds the ranges, which are sorted and do not touch; others: adds what lies between them. */
static void add_ranges(CodeSet *set, const CodeRange *range, int n, int others)
{
    uint32_t free_from = 0;
    for (int i = 0; i < n; i++) {
        if (!others)
            code_set_add(set, range[i].lo, range[i].hi);
        else if (range[i].lo > free_from)
            code_set_add(set, free_from, range[i].lo - 1);
        free_from = range[i].hi + 1;
    }
    if (others && free_from <= MAX_CODE) code_set_add(set, free_from, MAX_CODE);
}

void code_set_add_kind(CodeSet *set, char kind)
{
    switch (kind) {
    case 'd':
    case 'D':
        add_ranges(set, DIGITS, 1, kind == 'D');
        break;
    case 'w':
    case 'W':
        add_ranges(set, WORD, 4, kind == 'W');
        break;
    case 's':
    case 'S':
        add_ranges(set, SPACE, sizeof SPACE / sizeof *SPACE, kind == 'S');
        break;
    default:
        assert(kind == '.');
        add_ranges(set, LINE_ENDS, 3, 1);
    }
}

static int by_start(const void *a, const void *b)
{
    const CodeRange *x = a, *y = b;
    return (x->lo > y->lo) - (x->lo < y->lo);
}

void code_set_normalise(CodeSet *set)
{
    int n = 0;
    if (!set->n) return;
    qsort(set->range, (size_t)set->n, sizeof *set->range, by_start);
    for (int i = 1; i < set->n; i++) {
        CodeRange *last = &set->range[n], r = set->range[i];
        if (r.lo > last->hi + 1)
            set->range[++n] = r;
        else if (r.hi > last->hi)
            last->hi = r.hi;
    }
    set->n = n + 1;
}

void code_set_negate(CodeSet *set)
{
    CodeSet others = {0};
    code_set_normalise(set);
    add_ranges(&others, set->range, set->n, 1);
    code_set_free(set);
    *set = others;
}

void code_set_free(CodeSet *set)
{
    mem_free(set->range);
    *set = (CodeSet){0};
}
