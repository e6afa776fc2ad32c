/*
 * grammar_height.c: how many lists and objects in each other a node needs to come to its end.
 *
 * Each answer must be able to end: a node that needs more levels than there are is not entered, and
 * a grammar whose first node does is none. Level by level, lowest first (Knuth 1977, of grammars):
 * a vertex ends as soon as what it needs does, so each is looked at once and all takes linear time.
 */
#include "base/mem.h"
#include "text/grammar_build.h"

enum { NO_END = UINT8_MAX };

/* Vertices are the nodes, then the places in objects, each property's and one behind the last. */
typedef struct {
    const Grammar *g;
    uint32_t n;
    uint32_t *place;        /* [n_names]: the first of each object's */
    uint32_t *behind;       /* [n]: of a place, the node behind the name; 0: none may come */
    uint8_t *height;        /* [n] */
    uint32_t *first, *user; /* user[first[v]] to user[first[v + 1]) need vertex v to end */
    uint32_t *now, *next;   /* [n]: those of this level and of the one above */
    uint32_t n_now, n_next;
} Heights;

static int is_inner(const Grammar *g, uint32_t node, int32_t index)
{
    return g->node[node].kind == NODE_NAME && g->node[node].index == index;
}

/* Leaves of a tree of names are in the order of its edges. */
static void find_leaves(Heights *h, const GrammarNode *n)
{
    const Grammar *g = h->g;
    int leaf = n->lo;
    for (uint32_t e = 0; e < n->n_edges; e++) {
        uint32_t to = g->edge[n->first_edge + e].to;
        int inner = is_inner(g, to, n->index);
        if (!inner) h->behind[h->place[n->index] + g->names[n->index].leaf[leaf]] = to;
        leaf += inner ? g->node[to].hi - g->node[to].lo : 1;
    }
}

static void find_places(Heights *h)
{
    const Grammar *g = h->g;
    h->n = g->n_nodes;
    h->place = mem_alloc((size_t)g->n_names + 1, sizeof *h->place);
    for (int i = 0; i < g->n_names; i++) {
        h->place[i] = h->n;
        h->n += (uint32_t)g->names[i].n + 1;
    }
    h->behind = mem_alloc(h->n, sizeof *h->behind);
    for (int i = 0; i < g->n_names; i++)
        h->behind[h->place[i] + (uint32_t)g->names[i].n] = g->names[i].other;
    for (uint32_t i = 1; i < g->n_nodes; i++)
        if (g->node[i].kind == NODE_NAME) find_leaves(h, &g->node[i]);
}

/* ---- who needs whom ---- */

/* Counts, or, where there is room for them, writes. */
static void add_need(Heights *h, uint32_t user, uint32_t on)
{
    if (h->user)
        h->user[h->first[on + 1]++] = user;
    else
        h->first[on + 2]++;
}

/* 1 if a node needs its body and what is next, not one of several. */
static int needs_both(const GrammarNode *n)
{
    return n->kind == NODE_CALL || (n->kind == NODE_REPEAT && n->index < n->lo);
}

static void add_node_needs(Heights *h, uint32_t node)
{
    const GrammarNode *n = &h->g->node[node];
    switch ((GrammarNodeKind)n->kind) {
    case NODE_BYTES:
    case NODE_ANY_OF:
        for (uint32_t i = 0; i < n->n_edges; i++)
            add_need(h, node, h->g->edge[n->first_edge + i].to);
        break;
    case NODE_NAMES:
        add_need(h, node, h->place[h->g->node[n->body].index] + (uint32_t)n->lo);
        break;
    case NODE_CALL:
    case NODE_REPEAT:
        if (needs_both(n)) add_need(h, node, n->body);
        add_need(h, node, n->next);
        break;
    case NODE_STRING:
    case NODE_TEXT:
    case NODE_UNTIL:
    case NODE_TOKEN:
    case NODE_FREE:
        add_need(h, node, n->next);
        break;
    case NODE_RETURN:
    case NODE_NAME: /* entered by NODE_NAMES */
        break;
    }
}

/* The property of a place may come, or a later one where it is not required. */
static void add_place_needs(Heights *h, int object)
{
    const GrammarNames *names = &h->g->names[object];
    for (int k = 0; k <= names->n; k++) {
        uint32_t place = h->place[object] + (uint32_t)k;
        if (h->behind[place]) add_need(h, place, h->behind[place]);
        if (names->next_required[k] != k) add_need(h, place, place + 1);
    }
}

static void add_needs(Heights *h)
{
    for (uint32_t i = 1; i < h->g->n_nodes; i++)
        add_node_needs(h, i);
    for (int i = 0; i < h->g->n_names; i++)
        add_place_needs(h, i);
}

static void find_needs(Heights *h)
{
    h->first = mem_alloc((size_t)h->n + 2, sizeof *h->first);
    add_needs(h);
    for (uint32_t v = 2; v < h->n + 2; v++)
        h->first[v] += h->first[v - 1];
    h->user = mem_alloc((size_t)h->first[h->n + 1] + 1, sizeof *h->user);
    add_needs(h);
}

/* ---- levels ---- */

static void set_height(Heights *h, uint32_t vertex, uint8_t height, int is_now)
{
    h->height[vertex] = height;
    if (is_now)
        h->now[h->n_now++] = vertex;
    else
        h->next[h->n_next++] = vertex;
}

/* Something that this one needs ends within this level. */
static void look_at(Heights *h, uint32_t vertex, uint8_t level)
{
    const GrammarNode *n = vertex < h->g->n_nodes ? &h->g->node[vertex] : NULL;
    uint8_t height = level;
    if (h->height[vertex] != NO_END) return;
    if (n && needs_both(n)) {
        if (h->height[n->body] > level || h->height[n->next] > level) return;
        if (n->nests && h->height[n->body] == level) height++;
    }
    if (height <= MAX_GRAMMAR_LEVELS) set_height(h, vertex, height, height == level);
}

static int ends_itself(const GrammarNode *n)
{
    return n->kind == NODE_RETURN || n->kind == NODE_NAME || (n->kind == NODE_FREE && n->hi);
}

static void find_heights(Heights *h)
{
    h->height = mem_alloc(h->n, 1);
    h->now = mem_alloc(h->n, sizeof *h->now);
    h->next = mem_alloc(h->n, sizeof *h->next);
    for (uint32_t v = 0; v < h->n; v++) {
        h->height[v] = NO_END;
        if (v < h->g->n_nodes && ends_itself(&h->g->node[v])) set_height(h, v, 0, 1);
    }
    for (uint8_t level = 0; h->n_now; level++) {
        for (uint32_t i = 0; i < h->n_now; i++) /* grows as it goes */
            for (uint32_t k = h->first[h->now[i]]; k < h->first[h->now[i] + 1]; k++)
                look_at(h, h->user[k], level);
        uint32_t *done = h->now;
        h->now = h->next, h->n_now = h->n_next;
        h->next = done, h->n_next = 0;
    }
}

void grammar_measure(Grammar *g)
{
    Heights h = {.g = g};
    find_places(&h);
    find_needs(&h);
    find_heights(&h);
    for (uint32_t i = 0; i < g->n_nodes; i++)
        g->node[i].height = h.height[i];
    for (int i = 0; i < g->n_names; i++)
        for (int k = 0; k < g->names[i].n; k++)
            g->names[i].height[k] = h.height[h.behind[h.place[i] + (uint32_t)k]];
    mem_free(h.place);
    mem_free(h.behind);
    mem_free(h.first);
    mem_free(h.user);
    mem_free(h.height);
    mem_free(h.now);
    mem_free(h.next);
}
