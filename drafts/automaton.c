/* automaton.c: see automaton.h. */
#include "drafts/automaton.h"

#include <assert.h>
#include <string.h>

#include "base/mem.h"
#include "base/random.h"

/* Ends of the text whose places are counted: those of a text that repeats itself are as many as it
 * has tokens. */
enum { MOST_COUNTED = 64 };

/*
 * Where the chain begins that an edge is in. Multiply-shift (Dietzfelbinger et al., "A reliable
 * randomized algorithm for the closest-pair problem", 1997): two edges meet by chance alone,
 * whatever tokens a client chooses, as it does not know the factor.
 */
static int32_t *chain_of(const Automaton *a, int32_t from, int32_t token)
{
    uint64_t key = (uint64_t)(uint32_t)from << 32 | (uint32_t)token;
    return &a->head[key * a->hash_factor >> a->hash_shift];
}

void automaton_open(Automaton *a, int max_tokens)
{
    int bits = 6;
    assert(max_tokens >= 1);
    while ((size_t)1 << bits < 2 * (size_t)max_tokens)
        bits++;
    *a = (Automaton){.max_tokens = max_tokens, .n_heads = (size_t)1 << bits};
    a->hash_factor = (random_u64() ^ 0x9E3779B97F4A7C15u) | 1; /* of use without randomness, too */
    a->hash_shift = 64 - bits;
    a->state = mem_alloc(2 * (size_t)max_tokens, sizeof *a->state);
    a->edge = mem_alloc(3 * (size_t)max_tokens, sizeof *a->edge);
    a->head = mem_alloc(a->n_heads, sizeof *a->head);
}

void automaton_close(Automaton *a)
{
    mem_free(a->state);
    mem_free(a->edge);
    mem_free(a->head);
    *a = (Automaton){0};
}

static int32_t new_state(Automaton *a, int32_t len, int32_t count)
{
    assert(a->n_states < 2 * a->max_tokens);
    a->state[a->n_states] = (AutomatonState){.len = len, .link = -1, .count = count, .edge = -1};
    return a->n_states++;
}

void automaton_clear(Automaton *a)
{
    memset(a->head, -1, a->n_heads * sizeof *a->head);
    a->n_tokens = a->n_states = a->n_edges = 0;
    a->last = new_state(a, 0, 0);
}

/* NULL: there is none; from may be -1. */
static AutomatonEdge *find_edge(const Automaton *a, int32_t from, int32_t token)
{
    if (from < 0) return NULL;
    int32_t i = *chain_of(a, from, token);
    while (i >= 0 && (a->edge[i].from != from || a->edge[i].token != token))
        i = a->edge[i].chain;
    return i < 0 ? NULL : &a->edge[i];
}

/* An edge that no list has yet. */
static int32_t new_edge(Automaton *a, int32_t from, int32_t token, int32_t to)
{
    int32_t *head = chain_of(a, from, token), i = a->n_edges++;
    assert(i < 3 * a->max_tokens);
    a->edge[i] = (AutomatonEdge){from, token, to, -1, *head};
    return *head = i;
}

static void add_edge(Automaton *a, int32_t from, int32_t token, int32_t to)
{
    int32_t i = new_edge(a, from, token, to);
    a->edge[i].next = a->state[from].edge;
    a->state[from].edge = i;
}

static void copy_edges(Automaton *a, int32_t from, int32_t to)
{
    int32_t *end = &a->state[to].edge;
    for (int32_t i = a->state[from].edge; i >= 0; i = a->edge[i].next) {
        *end = new_edge(a, to, a->edge[i].token, a->edge[i].to);
        end = &a->edge[*end].next;
    }
}

/* The sequences of q up to len tokens, which occur at more places than the others from now on. */
static int32_t split(Automaton *a, int32_t q, int32_t len)
{
    int32_t shorter = new_state(a, len, a->state[q].count);
    copy_edges(a, q, shorter);
    a->state[shorter].link = a->state[q].link;
    a->state[q].link = shorter;
    return shorter;
}

void automaton_add(Automaton *a, int32_t token)
{
    assert(a->n_tokens < a->max_tokens);
    int32_t now = new_state(a, ++a->n_tokens, 1), p = a->last, link = 0;
    AutomatonEdge *e = find_edge(a, p, token);
    for (; !e && p >= 0; e = find_edge(a, p, token)) {
        add_edge(a, p, token, now);
        p = a->state[p].link;
    }
    if (e) link = e->to;
    if (e && a->state[link].len > a->state[p].len + 1) {
        int32_t longer = link;
        link = split(a, longer, a->state[p].len + 1);
        for (; e && e->to == longer; e = find_edge(a, p, token)) {
            e->to = link;
            p = a->state[p].link;
        }
    }
    a->state[now].link = link;
    for (int k = 0; link > 0 && k < MOST_COUNTED; link = a->state[link].link, k++)
        a->state[link].count++;
    a->last = now;
}

int32_t automaton_match(const Automaton *a)
{
    return a->last ? a->state[a->last].link : 0;
}
