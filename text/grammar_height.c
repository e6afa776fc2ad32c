/*
 * grammar_height.c: how many lists and objects in each other a node needs to come to its end.
 *
 * Each answer must be able to end: a node that needs more levels than there are is not entered, and
 * a grammar whose first node does is none. From "it cannot end" downwards until nothing changes;
 * where that takes too long the heights are too large, which is safe.
 */
#include <string.h>

#include "base/mem.h"
#include "text/grammar_build.h"

enum { NO_END = UINT8_MAX, MAX_ROUNDS = 200 };

/* What the names of one object lead to. */
typedef struct {
    uint32_t *to;  /* [n]: behind each name */
    uint8_t *from; /* [n + 1]: the lowest of what may come from property k on */
} NameHeights;

static int is_inner(const Grammar *g, uint32_t node, int32_t index)
{
    return g->node[node].kind == NODE_NAME && g->node[node].index == index;
}

/* Leaves of a tree of names are in the order of its edges. */
static void find_leaves(const Grammar *g, NameHeights *names)
{
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        const GrammarNode *n = &g->node[i];
        int leaf = n->lo;
        for (uint32_t e = 0; n->kind == NODE_NAME && e < n->n_edges; e++) {
            uint32_t to = g->edge[n->first_edge + e].to;
            int inner = is_inner(g, to, n->index);
            if (!inner) names[n->index].to[g->names[n->index].leaf[leaf]] = to;
            leaf += inner ? g->node[to].hi - g->node[to].lo : 1;
        }
    }
}

static uint8_t lower(uint8_t a, uint8_t b)
{
    return a < b ? a : b;
}

static uint8_t higher(uint8_t a, uint8_t b)
{
    return a > b ? a : b;
}

static void measure_names(const Grammar *g, const GrammarNames *n, NameHeights *h)
{
    h->from[n->n] = n->other ? g->node[n->other].height : NO_END;
    for (int k = n->n - 1; k >= 0; k--) {
        uint8_t own = n->height[k] = g->node[h->to[k]].height;
        h->from[k] = n->next_required[k] == k ? own : lower(own, h->from[k + 1]);
    }
}

static uint8_t lowest_edge(const Grammar *g, const GrammarNode *n)
{
    uint8_t height = NO_END;
    for (uint32_t i = 0; i < n->n_edges; i++)
        height = lower(height, g->node[g->edge[n->first_edge + i].to].height);
    return height;
}

static uint8_t height_of(const Grammar *g, const GrammarNode *n, const NameHeights *names)
{
    uint8_t next = g->node[n->next].height, body = g->node[n->body].height;
    switch ((GrammarNodeKind)n->kind) {
    case NODE_BYTES:
    case NODE_ANY_OF:
        return lowest_edge(g, n);
    case NODE_NAMES:
        return names[g->node[n->body].index].from[n->lo];
    case NODE_CALL:
        if (body < NO_END - 1) body = (uint8_t)(body + n->nests);
        return higher(body, next);
    case NODE_REPEAT:
        return n->index < n->lo ? higher(body, next) : next;
    case NODE_STRING:
    case NODE_TEXT:
    case NODE_UNTIL:
    case NODE_TOKEN:
        return next;
    case NODE_FREE:
        return n->hi ? 0 : next;
    case NODE_RETURN:
    case NODE_NAME: /* entered by NODE_NAMES */
        break;
    }
    return 0;
}

void grammar_measure(Grammar *g)
{
    NameHeights *names = mem_alloc((size_t)g->n_names + 1, sizeof *names);
    int changed = 1;
    for (int i = 0; i < g->n_names; i++) {
        names[i].to = mem_alloc((size_t)g->names[i].n + 1, sizeof *names[i].to);
        names[i].from = mem_alloc((size_t)g->names[i].n + 1, 1);
    }
    find_leaves(g, names);
    for (uint32_t i = 0; i < g->n_nodes; i++)
        g->node[i].height =
            g->node[i].kind == NODE_RETURN || g->node[i].kind == NODE_NAME ? 0 : NO_END;
    for (int round = 0; changed && round < MAX_ROUNDS; round++) {
        changed = 0;
        for (int i = 0; i < g->n_names; i++)
            measure_names(g, &g->names[i], &names[i]);
        for (uint32_t i = 1; i < g->n_nodes; i++) {
            uint8_t height = height_of(g, &g->node[i], names);
            changed |= height != g->node[i].height;
            g->node[i].height = height;
        }
    }
    for (int i = 0; i < g->n_names; i++) {
        mem_free(names[i].to);
        mem_free(names[i].from);
    }
    mem_free(names);
}
