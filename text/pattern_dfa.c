/*
 * pattern_dfa.c: from an automaton in many states at once to one in a single state, by following
 * sets of nodes; see pattern_parts.h.
 *
 * A state is the set of those nodes that wait for a byte, and whether the string may end here: what
 * can follow depends on nothing else. A set that has matched already needs no more nodes than those
 * for the rest of the string. Sets may double with each character of a pattern, so everything is
 * counted and ends at a limit.
 */
#include "text/pattern_parts.h"

#include <assert.h>
#include <string.h>

#include "base/mem.h"

enum {
    MAX_SETS = 2 * DFA_MAX_STATES, /* some of them turn out to be alike */
    MAX_CELLS = 1 << 20,           /* of the table of transitions */
    MAX_WORK = 1 << 24,            /* nodes looked at */
    HASH_SLOTS = 4 * MAX_SETS,
};

typedef struct {
    size_t at; /* in members */
    int n;
    int accepts;
    uint64_t hash;
} Set;

typedef struct {
    const Nfa *nfa;
    int n_classes;
    uint8_t lowest[256]; /* of each class its first byte */
    uint16_t *next;      /* [cap_sets][n_classes] */
    Set *set;
    int n_sets, cap_sets;
    int *members; /* nodes of all sets */
    size_t n_members, cap_members;
    int *slot; /* [HASH_SLOTS], sets by hash, -1: free */
    /* The set that is being made. */
    int *member, n, accepts; /* nodes that wait for a byte */
    int *at_end, n_at_end;   /* NFA_AT_END nodes met */
    int *stack, n_stack;     /* met, but not looked at */
    uint32_t *seen, round;   /* seen[node] == round: met in this round */
    long work;
} Builder;

static void meet(Builder *b, int node)
{
    if (node < 0 || b->seen[node] == b->round) return;
    b->seen[node] = b->round;
    b->stack[b->n_stack++] = node;
    b->work++;
}

/* Whether the pattern has matched if the string ends here. */
static int matches_at_end(Builder *b, int at_start)
{
    b->round++;
    for (int i = 0; i < b->n_at_end; i++)
        meet(b, b->nfa->node[b->at_end[i]].out);
    while (b->n_stack) {
        const NfaNode *n = &b->nfa->node[b->stack[--b->n_stack]];
        if (n->kind == NFA_ACCEPT) b->accepts = 1;
        if (n->kind == NFA_SPLIT) meet(b, n->alt);
        if (n->kind == NFA_SPLIT || n->kind == NFA_AT_END || (n->kind == NFA_AT_START && at_start))
            meet(b, n->out);
    }
    return b->accepts;
}

/* Goes on from the nodes met without reading a byte. */
static void follow(Builder *b, int at_start)
{
    while (b->n_stack) {
        int id = b->stack[--b->n_stack];
        const NfaNode *n = &b->nfa->node[id];
        switch (n->kind) {
        case NFA_BYTES:
            b->member[b->n++] = id;
            meet(b, n->alt);
            break;
        case NFA_SPLIT:
            meet(b, n->out);
            meet(b, n->alt);
            break;
        case NFA_AT_START:
            if (at_start) meet(b, n->out);
            break;
        case NFA_AT_END:
            b->at_end[b->n_at_end++] = id;
            break;
        default:
            b->accepts = 1;
        }
    }
}

/* Makes the set of what was met. */
static void finish_set(Builder *b, int at_start)
{
    b->n = b->n_at_end = b->accepts = 0;
    follow(b, at_start);
    if (b->accepts) {
        b->n = 0;
        b->round++;
        meet(b, b->nfa->node[b->nfa->accept].out);
        follow(b, 0);
    } else {
        matches_at_end(b, at_start);
    }
}

static uint64_t mix(uint64_t x)
{
    x *= 0x9E3779B97F4A7C15u;
    return x ^ x >> 29;
}

/* Leaves seen[] for the members alone. The hash does not depend on their order. */
static uint64_t mark_members(Builder *b)
{
    uint64_t hash = (uint64_t)b->accepts;
    b->round++;
    for (int i = 0; i < b->n; i++) {
        hash += mix(mix((uint64_t)b->member[i] + 1));
        b->seen[b->member[i]] = b->round;
    }
    b->work += b->n;
    return mix(hash);
}

static int is_set(const Builder *b, const Set *s, uint64_t hash)
{
    if (s->hash != hash || s->n != b->n || s->accepts != b->accepts) return 0;
    for (int i = 0; i < s->n; i++)
        if (b->seen[b->members[s->at + (size_t)i]] != b->round) return 0;
    return 1;
}

static void grow(Builder *b)
{
    if (b->n_sets == b->cap_sets) {
        b->cap_sets = b->cap_sets ? 2 * b->cap_sets : 64;
        b->set = mem_realloc(b->set, (size_t)b->cap_sets, sizeof *b->set);
        b->next = mem_realloc(b->next, (size_t)b->cap_sets * (size_t)b->n_classes, sizeof *b->next);
    }
    while (b->n_members + (size_t)b->n > b->cap_members) {
        b->cap_members = b->cap_members ? 2 * b->cap_members : 1024;
        b->members = mem_realloc(b->members, b->cap_members, sizeof *b->members);
    }
}

/* The state of the set just made: one that is known, or a new one; DFA_DEAD when it is empty. */
static uint16_t state_of_set(Builder *b)
{
    if (!b->n && !b->accepts) return DFA_DEAD;
    uint64_t hash = mark_members(b);
    size_t slot = hash % HASH_SLOTS;
    for (; b->slot[slot] >= 0; slot = (slot + 1) % HASH_SLOTS)
        if (is_set(b, &b->set[b->slot[slot]], hash)) return (uint16_t)b->slot[slot];
    grow(b);
    b->set[b->n_sets] = (Set){b->n_members, b->n, b->accepts, hash};
    memcpy(b->members + b->n_members, b->member, (size_t)b->n * sizeof *b->member);
    b->n_members += (size_t)b->n;
    b->slot[slot] = b->n_sets;
    return (uint16_t)b->n_sets++;
}

static int within_limits(const Builder *b, Error *err)
{
    if (b->n_sets <= MAX_SETS && b->n_sets * b->n_classes <= MAX_CELLS && b->work <= MAX_WORK)
        return 0;
    return error_set(err, ERR_LIMIT, "pattern is too complex: its automaton would be too large");
}

/* All transitions of a state. Sets may be as large as the NFA, so each is counted. */
static int step_all(Builder *b, int state, Error *err)
{
    for (int c = 0; c < b->n_classes; c++) {
        if (within_limits(b, err)) return -1;
        const Set *s = &b->set[state];
        b->round++;
        b->work += s->n;
        for (int i = 0; i < s->n; i++) {
            const NfaNode *n = &b->nfa->node[b->members[s->at + (size_t)i]];
            if (n->lo <= b->lowest[c] && b->lowest[c] <= n->hi) meet(b, n->out);
        }
        finish_set(b, 0);
        uint16_t next = state_of_set(b);
        b->next[(size_t)state * (size_t)b->n_classes + (size_t)c] = next;
    }
    return within_limits(b, err);
}

/* Two bytes are of one class when no node tells them apart. */
static void find_classes(Builder *b, Dfa *d)
{
    uint8_t begins[257] = {1};
    for (int i = 0; i < b->nfa->n; i++) {
        if (b->nfa->node[i].kind != NFA_BYTES) continue;
        begins[b->nfa->node[i].lo] = 1;
        begins[b->nfa->node[i].hi + 1] = 1;
    }
    for (int byte = 0; byte < 256; byte++) {
        if (begins[byte]) b->lowest[b->n_classes++] = (uint8_t)byte;
        d->class_of[byte] = (uint8_t)(b->n_classes - 1);
    }
}

static void open_builder(Builder *b, const Nfa *nfa, Dfa *d)
{
    size_t n = (size_t)nfa->n;
    *b = (Builder){.nfa = nfa};
    find_classes(b, d);
    b->member = mem_alloc(n, sizeof *b->member);
    b->at_end = mem_alloc(n, sizeof *b->at_end);
    b->stack = mem_alloc(n, sizeof *b->stack);
    b->seen = mem_alloc(n, sizeof *b->seen);
    b->slot = mem_alloc(HASH_SLOTS, sizeof *b->slot);
    memset(b->slot, -1, HASH_SLOTS * sizeof *b->slot);
}

static void close_builder(Builder *b)
{
    mem_free(b->next);
    mem_free(b->set);
    mem_free(b->members);
    mem_free(b->slot);
    mem_free(b->member);
    mem_free(b->at_end);
    mem_free(b->stack);
    mem_free(b->seen);
}

int dfa_from_nfa(Dfa *d, const Nfa *nfa, Error *err)
{
    Builder b;
    int rc = 0;
    open_builder(&b, nfa, d);
    b.round = 1;
    meet(&b, nfa->start);
    finish_set(&b, 1);
    state_of_set(&b);
    assert(b.n_sets == 1); /* any first character is waited for */
    for (int state = 0; state < b.n_sets && !rc; state++)
        rc = step_all(&b, state, err);
    if (!rc) {
        d->n_states = b.n_sets;
        d->n_classes = b.n_classes;
        d->next = b.next;
        b.next = NULL;
        d->accepts = mem_alloc((size_t)b.n_sets, 1);
        for (int i = 0; i < b.n_sets; i++)
            d->accepts[i] = (uint8_t)b.set[i].accepts;
    }
    close_builder(&b);
    return rc;
}
