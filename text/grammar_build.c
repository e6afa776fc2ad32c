/*
 * grammar_build.c: see grammar_build.h.
 */
#include "text/grammar_build.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "text/grammar_near.h"
#include "text/grammar_walk.h"
#include "text/utf8.h"

enum { STRING_SLOTS = 1 << 15 };

void grammar_free(Grammar *g)
{
    if (!g) return;
    for (int i = 0; i < g->n_names; i++) {
        mem_free(g->names[i].next_required);
        mem_free(g->names[i].leaf);
        mem_free(g->names[i].height);
    }
    for (int i = 0; i < g->n_automata; i++) {
        dfa_free(&g->automaton[i].dfa);
        mem_free(g->automaton[i].left);
        mem_free(g->automaton[i].near);
    }
    for (int i = 0; i < g->n_literals; i++)
        mem_free(g->literal[i]);
    mem_free(g->names);
    mem_free(g->automaton);
    mem_free(g->literal);
    mem_free(g->node);
    mem_free(g->edge);
    mem_free(g);
}

void grammar_build_begin(GrammarBuilder *b)
{
    static atomic_ulong last_id;
    *b = (GrammarBuilder){.g = mem_alloc(1, sizeof *b->g)};
    b->g->id = atomic_fetch_add(&last_id, 1) + 1;
    grammar_node(b, (GrammarNode){.kind = NODE_RETURN});
}

void grammar_build_drop(GrammarBuilder *b)
{
    grammar_free(b->g);
    mem_free(b->string);
    b->g = NULL;
    b->string = NULL;
}

static size_t count_bytes(const Grammar *g)
{
    size_t n = sizeof *g + g->n_nodes * sizeof *g->node + g->n_edges * sizeof *g->edge;
    for (int i = 0; i < g->n_names; i++)
        n += sizeof *g->names + (size_t)(g->names[i].n + 1) * (2 * sizeof(uint16_t) + 1);
    for (int i = 0; i < g->n_automata; i++)
        n += dfa_bytes(&g->automaton[i].dfa) +
             (size_t)g->automaton[i].dfa.n_states * 2 * sizeof(uint16_t);
    for (int i = 0; i < g->n_literals; i++)
        n += strlen(g->literal[i]) + sizeof *g->literal;
    return n;
}

/* ---- a part that calls itself before it takes a byte would never end ---- */

typedef enum { UNSEEN, OPEN, CLOSED } Visit;

typedef struct {
    uint32_t node, way; /* the way that is looked at next */
} VisitedNode;

/* The way-th node that can follow n without a byte, or 0. */
static uint32_t without_byte(const Grammar *g, const GrammarNode *n, uint32_t way)
{
    if (n->kind == NODE_ANY_OF) return way < n->n_edges ? g->edge[n->first_edge + way].to : 0;
    if (n->kind != NODE_REPEAT && n->kind != NODE_CALL) return 0;
    return way == 0 ? n->body : way == 1 ? n->next : 0;
}

/*
 * 1 if no part comes back to itself without a byte. What follows a call counts as if the called
 * part could be empty: where that is not so, parts that begin with bytes are between.
 */
static int every_loop_takes_bytes(const Grammar *g)
{
    uint8_t *visit = mem_alloc(g->n_nodes, 1);
    VisitedNode *stack = mem_alloc(g->n_nodes, sizeof *stack);
    int ok = 1;
    for (uint32_t first = 1; first < g->n_nodes && ok; first++) {
        uint32_t n = 0;
        if (visit[first] != UNSEEN) continue;
        stack[n++] = (VisitedNode){first, 0};
        visit[first] = OPEN;
        while (n && ok) {
            VisitedNode *v = &stack[n - 1];
            const GrammarNode *node = &g->node[v->node];
            uint32_t to = without_byte(g, node, v->way++);
            if (!to && (v->way > 1 || node->kind != NODE_CALL)) {
                visit[v->node] = CLOSED;
                n--;
            } else if (to && visit[to] == OPEN) {
                ok = 0;
            } else if (to && visit[to] == UNSEEN) {
                visit[to] = OPEN;
                stack[n++] = (VisitedNode){to, 0};
            }
        }
    }
    mem_free(stack);
    mem_free(visit);
    return ok;
}

/* 1 if all ways that are open at the start can be followed. */
static int can_begin(const Grammar *g)
{
    GrammarState *s = mem_alloc(1, sizeof *s);
    GrammarWalk w = {.g = g,
                     .frame = mem_alloc(MAX_TOKEN_FRAMES, sizeof *w.frame),
                     .n_frames = 1,
                     .most = MAX_TOKEN_FRAMES,
                     .finder = grammar_finder_open(),
                     .most_steps = MAX_GRAMMAR_STEPS};
    grammar_begin(&w, g->start, s);
    int can = !s->is_cut;
    grammar_finder_close(w.finder);
    mem_free(w.frame);
    mem_free(s);
    return can;
}

Grammar *grammar_build_end(GrammarBuilder *b, uint32_t start, Error *err)
{
    Grammar *g = b->g;
    b->g = NULL;
    mem_free(b->string);
    b->string = NULL;
    g->start = start;
    if (b->is_full) {
        error_set(err, ERR_LIMIT, "it takes more than %d nodes", MAX_GRAMMAR_NODES);
    } else if (!every_loop_takes_bytes(g)) {
        error_set(err, ERR_INPUT, "it refers to itself without end");
    } else {
        grammar_measure(g);
        g->bytes = count_bytes(g);
        int ends = g->node[start].height <= MAX_GRAMMAR_LEVELS;
        if (ends && can_begin(g)) return g;
        if (ends)
            error_set(err, ERR_LIMIT, "it begins in more ways than can be followed at a time");
        else
            error_set(err, ERR_INPUT, "nothing that ends is of this form");
    }
    grammar_free(g);
    return NULL;
}

/* ---- nodes ---- */

uint32_t grammar_node(GrammarBuilder *b, GrammarNode node)
{
    Grammar *g = b->g;
    if (g->n_nodes == MAX_GRAMMAR_NODES) b->is_full = 1;
    if (b->is_full) return 0;
    if (g->n_nodes == b->cap_nodes) {
        b->cap_nodes = b->cap_nodes ? 2 * b->cap_nodes : 64;
        g->node = mem_realloc(g->node, b->cap_nodes, sizeof *g->node);
    }
    g->node[g->n_nodes] = node;
    return g->n_nodes++;
}

static uint32_t add_edges(GrammarBuilder *b, const GrammarEdge *edge, int n)
{
    Grammar *g = b->g;
    uint32_t first = g->n_edges;
    while (g->n_edges + (uint32_t)n > b->cap_edges) {
        b->cap_edges = b->cap_edges ? 2 * b->cap_edges : 64;
        g->edge = mem_realloc(g->edge, b->cap_edges, sizeof *g->edge);
    }
    if (n) memcpy(g->edge + first, edge, (size_t)n * sizeof *edge);
    g->n_edges += (uint32_t)n;
    return first;
}

uint32_t grammar_bytes(GrammarBuilder *b, const GrammarEdge *edge, int n)
{
    if (b->is_full) return 0;
    uint32_t first = add_edges(b, edge, n);
    return grammar_node(
        b, (GrammarNode){.kind = NODE_BYTES, .n_edges = (uint16_t)n, .first_edge = first});
}

uint32_t grammar_range(GrammarBuilder *b, uint8_t lo, uint8_t hi, uint32_t next)
{
    return grammar_bytes(b, &(GrammarEdge){lo, hi, next}, 1);
}

uint32_t grammar_literal(GrammarBuilder *b, const char *text, size_t len, uint32_t next)
{
    while (len--)
        next = grammar_range(b, (uint8_t)text[len], (uint8_t)text[len], next);
    return next;
}

uint32_t grammar_call(GrammarBuilder *b, uint32_t body, uint32_t next)
{
    return grammar_node(b, (GrammarNode){.kind = NODE_CALL, .body = body, .next = next});
}

uint32_t grammar_any_of(GrammarBuilder *b, const uint32_t *node, int n)
{
    assert(n <= MAX_GRAMMAR_WAYS);
    if (b->is_full) return 0;
    uint32_t first = b->g->n_edges;
    for (int i = 0; i < n; i++)
        add_edges(b, &(GrammarEdge){.to = node[i]}, 1);
    return grammar_node(
        b, (GrammarNode){.kind = NODE_ANY_OF, .n_edges = (uint16_t)n, .first_edge = first});
}

uint32_t grammar_repeat(GrammarBuilder *b, uint32_t body, int before, int lo, int hi, uint32_t next)
{
    return grammar_node(
        b,
        (GrammarNode){
            .kind = NODE_REPEAT, .body = body, .index = before, .lo = lo, .hi = hi, .next = next});
}

/* Where a node for such a string is, or has its place. */
static uint32_t *find_string(GrammarBuilder *b, int automaton, int lo, int hi)
{
    int32_t key[] = {automaton, lo, hi};
    if (!b->string) b->string = mem_alloc(STRING_SLOTS, sizeof *b->string);
    for (size_t at = hash_sum(key, sizeof key);; at++) {
        uint32_t *found = &b->string[at % STRING_SLOTS];
        const GrammarNode *n = &b->g->node[*found];
        if (!*found || (n->index == automaton && n->lo == lo && n->hi == hi)) return found;
    }
}

/* Ways that go through strings alike are one as long as they are in them. */
uint32_t grammar_string(GrammarBuilder *b, int automaton, int lo, int hi, uint32_t next)
{
    uint32_t *string = find_string(b, automaton, lo, hi);
    if (!*string && b->n_strings++ == STRING_SLOTS / 2) b->is_full = 1;
    if (!*string)
        *string = grammar_node(
            b, (GrammarNode){.kind = NODE_STRING, .index = automaton, .lo = lo, .hi = hi});
    return grammar_call(b, *string, next);
}

uint32_t grammar_text(GrammarBuilder *b, int automaton, int lo, int hi, int is_open, uint32_t next)
{
    return grammar_node(b, (GrammarNode){.kind = NODE_TEXT,
                                         .index = automaton,
                                         .lo = lo,
                                         .hi = hi,
                                         .body = (uint32_t)is_open,
                                         .next = next});
}

static int add_literal(Grammar *g, const char *literal)
{
    g->literal = mem_realloc(g->literal, (size_t)g->n_literals + 1, sizeof *g->literal);
    g->literal[g->n_literals] = mem_strdup(literal);
    return g->n_literals++;
}

uint32_t grammar_until(GrammarBuilder *b, const char *literal, const char *never, uint32_t next)
{
    int index = add_literal(b->g, literal), other = never ? add_literal(b->g, never) : -1;
    return grammar_node(
        b, (GrammarNode){.kind = NODE_UNTIL, .index = index, .hi = other, .next = next});
}

/* ---- automata ---- */

/* The ways into a state: of way[first[state]] to way[first[state + 1]), 1 bit: it takes a
 * character. */
typedef struct {
    uint32_t *first, *way;
} WaysBack;

static WaysBack ways_back(const Dfa *d)
{
    size_t n_classes = (size_t)d->n_classes, n = (size_t)d->n_states;
    WaysBack w = {mem_alloc(n + 2, sizeof *w.first), mem_alloc(n * n_classes + 1, sizeof *w.way)};
    uint8_t takes[256] = {0};
    for (int byte = 0; byte < 256; byte++)
        takes[d->class_of[byte]] = !utf8_is_tail((unsigned char)byte);
    for (size_t i = 0; i < n * n_classes; i++)
        if (d->next[i] != DFA_DEAD) w.first[d->next[i] + 2]++;
    for (size_t s = 2; s < n + 2; s++)
        w.first[s] += w.first[s - 1];
    for (size_t i = 0; i < n * n_classes; i++)
        if (d->next[i] != DFA_DEAD)
            w.way[w.first[d->next[i] + 1]++] =
                (uint32_t)(i / n_classes) << 1 | takes[i % n_classes];
    return w;
}

/*
 * Fewest characters from each state to one that accepts; of a character the first byte counts. From
 * the ends backwards, nearest first: in a ring of two distances, those as far as this one in front.
 */
static uint16_t *measure(const Dfa *d)
{
    int n = d->n_states, n_now = 0, n_next = 0;
    uint16_t *left = mem_alloc((size_t)n, sizeof *left);
    uint16_t *now = mem_alloc(2 * (size_t)n, sizeof *now), *next = now + n;
    WaysBack w = ways_back(d);
    for (int s = 0; s < n; s++) {
        left[s] = d->accepts[s] ? 0 : UINT16_MAX;
        if (d->accepts[s]) now[n_now++] = (uint16_t)s;
    }
    for (uint16_t distance = 0; n_now; distance++) {
        for (int i = 0; i < n_now; i++) /* grows as it goes */
            for (uint32_t k = w.first[now[i]]; k < w.first[now[i] + 1]; k++) {
                uint32_t from = w.way[k] >> 1, takes = w.way[k] & 1;
                if (left[from] <= distance || (takes && left[from] != UINT16_MAX)) continue;
                if (!takes) now[n_now++] = (uint16_t)from;
                if (takes) next[n_next++] = (uint16_t)from;
                left[from] = (uint16_t)(distance + takes);
            }
        n_now = 0;
        for (int i = 0; i < n_next; i++)
            if (left[next[i]] == distance + 1) now[n_now++] = next[i];
        n_next = 0;
    }
    mem_free(w.first);
    mem_free(w.way);
    mem_free(now);
    return left;
}

static int is_same_dfa(const Dfa *a, const Dfa *b)
{
    size_t n = (size_t)a->n_states;
    return a->n_states == b->n_states && a->n_classes == b->n_classes &&
           !memcmp(a->class_of, b->class_of, sizeof a->class_of) &&
           !memcmp(a->accepts, b->accepts, n) &&
           !memcmp(a->next, b->next, n * (size_t)a->n_classes * sizeof *a->next);
}

int grammar_automaton(GrammarBuilder *b, Dfa *dfa, Error *err)
{
    Grammar *g = b->g;
    for (int i = 0; i < g->n_automata; i++)
        if (is_same_dfa(&g->automaton[i].dfa, dfa)) {
            dfa_free(dfa);
            return i;
        }
    if (b->n_states + dfa->n_states > MAX_GRAMMAR_AUTOMATON_STATES) {
        dfa_free(dfa);
        return error_set(err, ERR_LIMIT, "all patterns together take more than %d states",
                         MAX_GRAMMAR_AUTOMATON_STATES);
    }
    b->n_states += dfa->n_states;
    g->automaton = mem_realloc(g->automaton, (size_t)g->n_automata + 1, sizeof *g->automaton);
    GrammarAutomaton a = {.dfa = *dfa, .left = measure(dfa)};
    a.near = grammar_near_states(&a.dfa, a.left);
    for (int i = 0; i < a.dfa.n_states; i++)
        if (a.left[i] != UINT16_MAX && a.left[i] > a.most_left) a.most_left = a.left[i];
    g->automaton[g->n_automata] = a;
    *dfa = (Dfa){0};
    return g->n_automata++;
}

uint32_t grammar_pattern(GrammarBuilder *b, const char *pattern, size_t len, Error *err)
{
    Dfa dfa;
    if (pattern_compile_whole(&dfa, pattern, len, err)) return 0;
    int automaton = grammar_automaton(b, &dfa, err);
    return automaton < 0 ? 0 : grammar_text(b, automaton, 0, -1, 0, 0);
}

/* ---- words ---- */

static int compare_words(const void *a, const void *b)
{
    const GrammarWord *x = a, *y = b;
    size_t n = x->len < y->len ? x->len : y->len;
    int order = memcmp(x->text, y->text, n);
    return order ? order : (x->len > y->len) - (x->len < y->len);
}

/* A tree of words as it is made: of sorted words [from, to), all alike in their first `at` bytes.
 */
typedef struct {
    GrammarBuilder *b;
    const GrammarWord *word;
    int names; /* -1: none */
    int depth;
} WordTree;

enum { MAX_WORD_DEPTH = 1024 };

static uint32_t word_node(WordTree *t, int from, int to, size_t at);

static uint32_t edges_node(WordTree *t, int from, int to, size_t at)
{
    GrammarEdge edge[256];
    int n = 0;
    if (++t->depth > MAX_WORD_DEPTH) t->b->is_full = 1;
    if (t->b->is_full) return 0;
    for (int i = from, end; i < to; i = end) {
        uint8_t byte = (uint8_t)t->word[i].text[at];
        for (end = i + 1; end < to && (uint8_t)t->word[end].text[at] == byte;)
            end++;
        edge[n++] = (GrammarEdge){byte, byte, word_node(t, i, end, at + 1)};
    }
    t->depth--;
    uint32_t node = grammar_bytes(t->b, edge, n);
    if (t->names >= 0 && node) {
        GrammarNode *name = &t->b->g->node[node];
        name->kind = NODE_NAME;
        name->lo = from;
        name->hi = to;
        name->index = t->names;
    }
    return node;
}

static uint32_t word_node(WordTree *t, int from, int to, size_t at)
{
    /* what all of them go on with needs no tree */
    size_t end = at;
    int ends_here = t->word[from].len == at;
    if (ends_here && to - from == 1) return t->word[from].next;
    if (ends_here) {
        uint32_t way[2] = {t->word[from].next, edges_node(t, from + 1, to, at)};
        return grammar_any_of(t->b, way, 2);
    }
    if (t->names >= 0) return edges_node(t, from, to, at);
    while (end < t->word[from].len && t->word[from].text[end] == t->word[to - 1].text[end] &&
           end < t->word[to - 1].len)
        end++;
    if (end == at) return edges_node(t, from, to, at);
    return grammar_literal(t->b, t->word[from].text + at, end - at, word_node(t, from, to, end));
}

uint32_t grammar_words(GrammarBuilder *b, GrammarWord *word, int n)
{
    WordTree t = {b, word, -1, 0};
    int n_differ = 0;
    qsort(word, (size_t)n, sizeof *word, compare_words);
    for (int i = 0; i < n; i++)
        if (!i || compare_words(&word[n_differ - 1], &word[i])) word[n_differ++] = word[i];
    return word_node(&t, 0, n_differ, 0);
}

uint32_t grammar_names(GrammarBuilder *b, GrammarWord *word, int n, const uint8_t *required,
                       uint32_t other)
{
    Grammar *g = b->g;
    WordTree t = {b, word, g->n_names, 0};
    assert(n < UINT16_MAX);
    g->names = mem_realloc(g->names, (size_t)g->n_names + 1, sizeof *g->names);
    GrammarNames *names = &g->names[g->n_names++];
    *names = (GrammarNames){.n = n,
                            .other = other,
                            .next_required = mem_alloc((size_t)n + 1, sizeof(uint16_t)),
                            .leaf = mem_alloc((size_t)n + 1, sizeof(uint16_t)),
                            .height = mem_alloc((size_t)n + 1, 1)};
    names->next_required[n] = (uint16_t)n;
    for (int k = n - 1; k >= 0; k--)
        names->next_required[k] = required[k] ? (uint16_t)k : names->next_required[k + 1];
    if (n) qsort(word, (size_t)n, sizeof *word, compare_words);
    for (int i = 0; i < n; i++)
        names->leaf[i] = (uint16_t)word[i].property;
    return edges_node(&t, 0, n, 0);
}

uint32_t grammar_name_from(GrammarBuilder *b, uint32_t names, int k)
{
    return grammar_node(b, (GrammarNode){.kind = NODE_NAMES, .body = names, .lo = k});
}
