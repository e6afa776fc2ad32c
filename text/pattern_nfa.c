/*
 * pattern_nfa.c: trees to automata over the bytes of UTF-8; see pattern_parts.h.
 *
 * Built from the end: each part is given the node that follows it and returns its own first node,
 * so that nothing has to be joined later. Around the pattern stands what may come before and after
 * a match, any characters.
 */
#include "text/pattern_parts.h"

#include "base/mem.h"
#include "text/utf8.h"

enum { SHARE_AMONG = 16 }; /* nodes that are looked through for one that does the same */

static int full(const Nfa *nfa)
{
    return nfa->steps > NFA_MAX_NODES;
}

static int add_node(Nfa *nfa, NfaNode node)
{
    nfa->steps++;
    if (nfa->n == nfa->cap) {
        nfa->cap = nfa->cap ? 2 * nfa->cap : 64;
        nfa->node = mem_realloc(nfa->node, (size_t)nfa->cap, sizeof *nfa->node);
    }
    nfa->node[nfa->n] = node;
    return nfa->n++;
}

static int split(Nfa *nfa, int out, int alt)
{
    return add_node(nfa, (NfaNode){.kind = NFA_SPLIT, .out = out, .alt = alt});
}

/* A byte inside a character: one of the last nodes often is the same. No character begins so. */
static int later_byte(Nfa *nfa, uint8_t lo, uint8_t hi, int out)
{
    for (int i = nfa->n - 1; i >= 0 && i >= nfa->n - SHARE_AMONG; i--) {
        const NfaNode *n = &nfa->node[i];
        if (n->kind == NFA_BYTES && n->lo == lo && n->hi == hi && n->out == out) return i;
    }
    return add_node(nfa, (NfaNode){.kind = NFA_BYTES, .lo = lo, .hi = hi, .out = out, .alt = -1});
}

/* The code points whose UTF-8 is made of any bytes between those of lo and of hi. */
static int byte_ranges(Nfa *nfa, uint32_t lo, uint32_t hi, int out, int alt)
{
    char first[4], last[4];
    int n = utf8_put(lo, first);
    utf8_put(hi, last);
    for (int i = n - 1; i > 0; i--)
        out = later_byte(nfa, (uint8_t)first[i], (uint8_t)last[i], out);
    return add_node(nfa, (NfaNode){.kind = NFA_BYTES,
                                   .lo = (uint8_t)first[0],
                                   .hi = (uint8_t)last[0],
                                   .out = out,
                                   .alt = alt});
}

/*
 * Where [lo, hi] is to be cut for byte_ranges: the last code point of the first part. All in a part
 * have UTF-8 of one length, are surrogates or are not, and if they differ in a byte, then those
 * after it take all values.
 */
static uint32_t first_part(uint32_t lo, uint32_t hi)
{
    static const uint32_t last_of_kind[] = {0x7F, 0x7FF, 0xD7FF, 0xDFFF, 0xFFFF};
    for (int i = 0; i < 5; i++)
        if (lo <= last_of_kind[i] && hi > last_of_kind[i]) hi = last_of_kind[i];
    if (hi <= 0x7F) return hi;
    for (uint32_t low = 0x3F; (lo & ~low) != (hi & ~low); low = low << 6 | 0x3F) {
        if (lo & low) return lo | low;
        if ((hi & low) != low) hi = (hi & ~low) - 1;
    }
    return hi;
}

/* Another way to out beside alt. Surrogates have no UTF-8. */
static int code_range(Nfa *nfa, uint32_t lo, uint32_t hi, int out, int alt)
{
    while (lo <= hi && !full(nfa)) {
        uint32_t last = first_part(lo, hi);
        if (lo < 0xD800 || lo > 0xDFFF) alt = byte_ranges(nfa, lo, last, out, alt);
        lo = last + 1;
    }
    return alt;
}

static int code_set(Nfa *nfa, const CodeSet *set, int out)
{
    int node = -1;
    for (int i = 0; i < set->n; i++)
        node = code_range(nfa, set->range[i].lo, set->range[i].hi, out, node);
    return node;
}

static int build(Nfa *nfa, const PatternTree *tree, int at, int out);

static int build_repeat(Nfa *nfa, const PatternTree *tree, const PatternNode *r, int out)
{
    int after = out, copies = r->min;
    if (r->max == REPEAT_FOREVER) {
        int loop = split(nfa, -1, after), body = build(nfa, tree, r->child, loop);
        nfa->node[loop].out = body;
        out = r->min ? body : loop;
        copies--;
    }
    for (int i = r->min; i < r->max && !full(nfa); i++)
        out = split(nfa, build(nfa, tree, r->child, out), after);
    for (int i = 0; i < copies && !full(nfa); i++)
        out = build(nfa, tree, r->child, out);
    return out;
}

/* Children one after the other, the last one first. */
static int build_sequence(Nfa *nfa, const PatternTree *tree, int first, int out)
{
    int n = 0, *child;
    for (int c = first; c >= 0; c = tree->node[c].next)
        n++;
    child = mem_alloc((size_t)n + 1, sizeof *child);
    for (int c = first, i = 0; c >= 0; c = tree->node[c].next)
        child[i++] = c;
    while (n > 0 && !full(nfa))
        out = build(nfa, tree, child[--n], out);
    mem_free(child);
    return out;
}

static int build_choice(Nfa *nfa, const PatternTree *tree, int first, int out)
{
    int node = build(nfa, tree, first, out);
    for (int c = tree->node[first].next; c >= 0 && !full(nfa); c = tree->node[c].next)
        node = split(nfa, build(nfa, tree, c, out), node);
    return node;
}

/* Steps are counted here too: repeats of nothing make no nodes. */
static int build(Nfa *nfa, const PatternTree *tree, int at, int out)
{
    const PatternNode *n = &tree->node[at];
    nfa->steps++;
    switch (n->kind) {
    case PATTERN_SET:
        return code_set(nfa, &n->set, out);
    case PATTERN_SEQUENCE:
        return build_sequence(nfa, tree, n->child, out);
    case PATTERN_CHOICE:
        return build_choice(nfa, tree, n->child, out);
    case PATTERN_REPEAT:
        return build_repeat(nfa, tree, n, out);
    case PATTERN_AT_START:
        return add_node(nfa, (NfaNode){.kind = NFA_AT_START, .out = out, .alt = -1});
    case PATTERN_AT_END:
        return add_node(nfa, (NfaNode){.kind = NFA_AT_END, .out = out, .alt = -1});
    }
    return -1;
}

int nfa_build(Nfa *nfa, const PatternTree *tree, Error *err)
{
    int any;
    nfa->accept = add_node(nfa, (NfaNode){.kind = NFA_ACCEPT, .alt = -1});
    any = code_range(nfa, 0, MAX_CODE, nfa->accept, -1);
    nfa->node[nfa->accept].out = any;

    nfa->start = split(nfa, build(nfa, tree, tree->root, nfa->accept), -1);
    any = code_range(nfa, 0, MAX_CODE, nfa->start, -1);
    nfa->node[nfa->start].alt = any;
    if (!full(nfa)) return 0;
    return error_set(err, ERR_LIMIT, "pattern is too large: its repeats make more than %d states",
                     NFA_MAX_NODES);
}

void nfa_free(Nfa *nfa)
{
    mem_free(nfa->node);
    *nfa = (Nfa){0};
}
