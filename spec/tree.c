/* tree.c: see tree.h. Trees have at most 64 nodes: quadratic walks are cheaper than any index. */
#include "spec/tree.h"

#include <assert.h>

void tree_init(Tree *t, int32_t root_token)
{
    t->n = 1;
    t->token[0] = root_token;
    t->parent[0] = -1;
    t->depth[0] = 0;
    t->value[0] = 1;
    t->from[0] = 0;
}

int tree_child(const Tree *t, int node, int32_t token)
{
    for (int i = node + 1; i < t->n; i++)
        if (t->parent[i] == node && t->token[i] == token) return i;
    return -1;
}

int tree_add(Tree *t, int parent, int32_t token, float value)
{
    assert(parent >= 0 && parent < t->n);
    int i = tree_child(t, parent, token);
    if (i >= 0) return i;
    if (t->n == MAX_TREE_NODES) return -1;
    i = t->n++;
    t->token[i] = token;
    t->parent[i] = parent;
    t->depth[i] = t->depth[parent] + 1;
    t->value[i] = value < t->value[parent] ? value : t->value[parent];
    t->from[i] = GUESS_HEAD;
    return i;
}

/* A larger value for a node; those below keep their share of it. */
static void raise_value(Tree *t, int node, float value)
{
    Tree before = *t;
    t->value[node] = value < t->value[t->parent[node]] ? value : t->value[t->parent[node]];
    for (int i = node + 1; i < t->n; i++) {
        int p = t->parent[i];
        if (t->value[p] != before.value[p]) t->value[i] = t->value[p] * tree_share(&before, i);
    }
}

int tree_join(Tree *t, int parent, int32_t token, float value, uint8_t from)
{
    int n = t->n, i = tree_add(t, parent, token, value);
    if (i == n) {
        t->from[i] = from;
    } else if (i >= 0) {
        t->from[i] |= from;
        if (value > t->value[i]) raise_value(t, i, value);
    }
    return i;
}

void tree_merge(Tree *t, const Tree *from)
{
    int at[MAX_TREE_NODES] = {0};
    for (int i = 1; i < from->n; i++) {
        int p = at[from->parent[i]];
        if (p >= 0)
            at[i] =
                tree_join(t, p, from->token[i], t->value[p] * tree_share(from, i), from->from[i]);
        else
            at[i] = -1;
    }
}

int tree_append(Tree *t, const Tree *from, int i, int parent)
{
    int k = t->n++;
    t->token[k] = from->token[i];
    t->parent[k] = parent;
    t->depth[k] = from->depth[i];
    t->value[k] = from->value[i];
    t->from[k] = from->from[i];
    return k;
}

static int better(const Tree *t, int a, int b)
{
    if (t->value[a] != t->value[b]) return t->value[a] > t->value[b];
    return t->token[a] < t->token[b];
}

void tree_order(Tree *t, int max_nodes)
{
    unsigned char keep[MAX_TREE_NODES] = {1}, done[MAX_TREE_NODES] = {1};
    assert(max_nodes >= 1);
    for (int kept = 1; kept < max_nodes && kept < t->n; kept++) {
        int best = -1;
        for (int i = 1; i < t->n; i++)
            if (!keep[i] && keep[t->parent[i]] && (best < 0 || t->value[i] > t->value[best]))
                best = i;
        keep[best] = 1;
    }
    Tree out = {.n = 0};
    int at[MAX_TREE_NODES]; /* at[k]: node of t that out's node k was */
    at[tree_append(&out, t, 0, -1)] = 0;
    for (int k = 0; k >= 0;) { /* k: the node whose next child is wanted */
        int best = -1;
        for (int i = at[k] + 1; i < t->n; i++)
            if (t->parent[i] == at[k] && keep[i] && !done[i] && (best < 0 || better(t, i, best)))
                best = i;
        if (best < 0) {
            k = out.parent[k];
            continue;
        }
        done[best] = 1;
        k = tree_append(&out, t, best, k);
        at[k] = best;
    }
    *t = out;
}

int tree_depth(const Tree *t)
{
    int depth = 0;
    for (int i = 0; i < t->n; i++)
        if (t->depth[i] > depth) depth = t->depth[i];
    return depth;
}

int tree_valid(const Tree *t, int n_vocab)
{
    if (t->n < 1 || t->n > MAX_TREE_NODES || t->parent[0] != -1 || t->depth[0] != 0) return 0;
    for (int i = 0; i < t->n; i++) {
        if (t->token[i] < 0 || t->token[i] >= n_vocab) return 0;
        if (i == 0) continue;
        int p = t->parent[i];
        if (p < 0 || p >= i || t->depth[i] != t->depth[p] + 1) return 0;
        if (!(t->value[i] <= t->value[p])) return 0;
        if (tree_child(t, p, t->token[i]) != i) return 0;
    }
    return 1;
}
