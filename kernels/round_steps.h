/*
 * round_steps.h: the operations of round.h for one sequence, from one source for host and GPU, by
 * the lanes of draft_pool.h.
 */
#ifndef OFFSHOOT_KERNELS_ROUND_STEPS_H
#define OFFSHOOT_KERNELS_ROUND_STEPS_H

#include <math.h>

#include "kernels/draft_pool.h"

/* ---- growing ---- */

/* How the token after a node of this depth is chosen; its path is written by the caller. */
ROUND_INLINE int32_t *start_sample_row(const SampleRows *out, int r, const RoundSeq *s, int depth)
{
    int32_t *path = out->path + (int64_t)r * MAX_ROUND_NODES;
    SampleRow row = s->row;
    row.pos += depth;
    row.path = path;
    row.n_path = s->counts ? depth : 0;
    if (s->n_generated + depth >= s->min_tokens) row.n_ban = 0;
    out->row[r] = row;
    return path;
}

ROUND_INLINE void ask_children(const GrowDrafts *a, const DraftPool *p, const RoundSeq *s, int r,
                               int node)
{
    int depth = node < 0 ? 0 : p->node[node].depth;
    int32_t *path = start_sample_row(&a->sample, r, s, depth);
    pool_path(p, node, path);
}

/* The sampled children of what was expanded join the pool, parent by parent. */
ROUND_INLINE void take_children(const GrowDrafts *a, int i, DraftPool *p)
{
    int n = p->n;
    for (int k = 0; k < a->n_parents; k++) {
        int row = i * a->n_parents + k, parent = a->level == 1 ? -1 : p->frontier[k];
        if ((a->level > 1 && k >= p->n_frontier) || a->bad[row]) continue;
        float above = parent < 0 ? 0 : p->node[parent].logp;
        for (int j = 0; j < a->n_top && n < MAX_POOL; j++) {
            int64_t at = (int64_t)row * a->n_top + j;
            if (a->id[at] < 0) break;
            float logp = pool_guess_logp(a->by_lot, j, a->logp[at]);
            pool_child(&p->node[n++], parent, above, a->level, a->id[at], logp);
        }
    }
    p->n = n;
}

/* The k-th row of draft i in the head's next pass: a node of the frontier, or a pad. */
ROUND_INLINE void add_head_row(const GrowDrafts *a, int i, DraftPool *p, int k)
{
    const RoundSeq *s = &a->seqs[a->seq[i]];
    int r = i * a->width + k, row = a->row0 + r, node = k < p->n_frontier ? p->frontier[k] : -1;
    int parent = node < 0 ? -1 : p->node[node].parent, pos = s->pos + a->level;
    a->meta.token[row] = node < 0 ? s->root : p->node[node].token;
    a->meta.pos[row] = pos;
    a->meta.rope_pos[row] = pos - 1;
    a->meta.seq[row] = a->seq[i];
    a->meta.parent[row] = parent < 0 ? -1 : p->node[parent].meta;
    a->meta.src[row] = a->meta.dst[row] = -1;
    a->meta.kv_row[row] = s->pos + 1 + a->kv0 + k;
    a->meta.base[row] = node < 0 ? pos : s->pos + 1;
    a->hidden[r] = a->level == 1 ? a->seq[i] : parent < 0 ? 0 : p->node[parent].out;
    ask_children(a, p, s, r, node);
    if (node < 0) return;
    p->node[node].meta = row;
    p->node[node].out = r;
}

ROUND_INLINE void grow_draft(const GrowDrafts *a, int i)
{
    DraftPool *p = &a->pool[i];
    if (a->level == 0) {
        if (LANE == 0) {
            p->n = p->n_frontier = 0;
            ask_children(a, p, &a->seqs[a->seq[i]], i, -1);
        }
        return;
    }
    if (LANE == 0) take_children(a, i, p);
    LANES_SYNC();
    pool_keep_best(p, a->most);
    if (!a->width) return;
    pool_choose_frontier(p, a->level, a->width);
    for (int k = LANE; k < a->width; k += LANES)
        add_head_row(a, i, p, k);
}

/* ---- planting ---- */

/* The best child of node (-1: the root) that is not in the tree yet, or -1. */
ROUND_INLINE int next_child(const DraftPool *p, int node)
{
    int best = -1;
    for (int c = LANE; c < p->n; c += LANES)
        if (p->at[c] < 0 && p->node[c].parent == node &&
            (best < 0 || p->node[c].logp > p->node[best].logp))
            best = c;
    return LANES_BEST(best < 0 ? 0 : p->node[best].logp, best);
}

/* From the pool to depth-first order: down to the best child, back up where there is none. */
ROUND_INLINE void order_nodes(RoundTree *t, DraftPool *p, int n_nodes)
{
    int n = 1, node = -1;
    pool_clear_marks(p);
    while (n < n_nodes) {
        int child = next_child(p, node);
        if (child < 0 && node < 0) break;
        if (child < 0) {
            node = p->node[node].parent;
            continue;
        }
        if (LANE == 0) {
            int parent = node < 0 ? 0 : p->at[node];
            float value = expf(p->node[child].logp), most = t->value[parent];
            t->token[n] = p->node[child].token;
            t->parent[n] = parent;
            t->depth[n] = p->node[child].depth;
            t->value[n] = value < most ? value : most; /* a GPU's expf need not be monotonic */
            p->at[child] = n;
        }
        LANES_SYNC();
        node = child;
        n++;
    }
    if (LANE == 0) t->n = n;
    LANES_SYNC();
}

/* Row j of tree i in the target's pass: a node or a pad. */
ROUND_INLINE void add_target_row(const PlantTrees *a, int i, const RoundTree *t, int j)
{
    const RoundSeq *s = &a->seqs[a->seq[i]];
    int row0 = i * a->n_nodes, row = row0 + j, is_node = j < t->n;
    int parent = is_node ? t->parent[j] : 0, depth = is_node ? t->depth[j] : 1;
    a->meta.token[row] = is_node ? t->token[j] : s->root;
    a->meta.pos[row] = a->meta.rope_pos[row] = s->pos + depth;
    a->meta.seq[row] = a->seq[i];
    a->meta.parent[row] = parent < 0 ? -1 : row0 + parent;
    a->meta.src[row] = parent < 0 || !a->slot ? s->slot : a->slot[row0 + parent];
    a->meta.dst[row] = a->slot ? a->slot[row] : -1;
    a->meta.kv_row[row] = s->pos + j;
    a->meta.base[row] = s->pos;
    int32_t *path = start_sample_row(&a->sample, row, s, is_node ? depth : 0);
    for (int k = is_node ? j : 0; k > 0; k = t->parent[k])
        path[t->depth[k] - 1] = t->token[k];
}

ROUND_INLINE void plant_tree(const PlantTrees *a, int i)
{
    RoundTree *t = &a->tree[i];
    if (LANE == 0) {
        t->n = 1;
        t->token[0] = a->seqs[a->seq[i]].root;
        t->parent[0] = -1;
        t->depth[0] = 0;
        t->value[0] = 1;
    }
    LANES_SYNC();
    if (a->pool) order_nodes(t, &a->pool[i], a->n_nodes);
    for (int j = LANE; j < a->n_nodes; j += LANES)
        add_target_row(a, i, t, j);
}

/* ---- accepting ---- */

ROUND_INLINE int child_with(const RoundTree *t, int node, int32_t token)
{
    for (int j = node + 1; j < t->n; j++)
        if (t->parent[j] == node && t->token[j] == token) return j;
    return -1;
}

/* Whether s ends with this token as its n-th. */
ROUND_INLINE int ends(const RoundSeq *s, int32_t token, int n)
{
    int i = 0;
    if (n >= s->max_tokens) return 1;
    while (i < s->n_end && s->end[i] != token)
        i++;
    return i < s->n_end;
}

/* What the target agrees with; returns what it chose after that, -1 when the row held NaN. */
ROUND_INLINE int32_t walk_tree(RoundTree *t, const RoundSeq *s)
{
    int m = 0, node = 0;
    t->path[0] = 0;
    while (t->next[node] >= 0 && !ends(s, t->next[node], s->n_generated + m + 1)) {
        int child = child_with(t, node, t->next[node]);
        if (child < 0) break;
        t->path[++m] = child;
        node = child;
    }
    t->m = m;
    return t->next[node];
}

ROUND_INLINE void move_on(RoundSeq *s, const RoundTree *t, int32_t chosen, int32_t slot)
{
    int m = t->m;
    s->root = chosen < 0 ? 0 : chosen; /* the host ends a sequence whose row held NaN */
    s->pos += m + 1;
    s->row.pos += m + 1;
    s->n_generated += m + 1;
    s->slot = slot;
    if (!s->counts) return;
    for (int d = 1; d <= m; d++)
        s->counts[t->token[t->path[d]]]++;
    s->counts[s->root]++;
}

ROUND_INLINE void plan_move(const AcceptTrees *a, int i, const RoundTree *t, int start, int d)
{
    int r = i * a->depth + d - 1;
    a->move_seq[r] = a->seq[i];
    a->move_to[r] = start + d;
    a->move_from[r] = d <= t->m ? start + t->path[d] : start + d;
}

ROUND_INLINE void plan_fold(const AcceptTrees *a, int i, const RoundTree *t, int32_t from)
{
    for (int d = LANE; d <= t->m; d += LANES)
        a->fold_path[i * a->fold_stride + d] = i * a->n_nodes + t->path[d];
    if (LANE == 0) {
        a->fold_length[i] = t->m + 1;
        a->fold_from[i] = from;
        a->fold_slot[i] = a->slot[i * a->n_nodes];
    }
}

ROUND_INLINE void show_row(const AcceptTrees *a, int i, const RoundTree *t, int start, int k)
{
    const RoundSeq *s = &a->seqs[a->seq[i]];
    int row = i * (a->depth + 1) + k, pos = start + k + 1, m = t->m;
    a->meta.token[row] = k < m ? t->token[t->path[k + 1]] : k == m ? s->root : 0;
    a->meta.pos[row] = a->meta.kv_row[row] = pos;
    a->meta.rope_pos[row] = pos - 1;
    a->meta.seq[row] = a->seq[i];
    a->meta.parent[row] = a->meta.src[row] = a->meta.dst[row] = -1;
    a->meta.base[row] = pos + 1;
    a->hidden[row] = i * a->n_nodes + (k <= m ? t->path[k] : 0);
    if (k == m) a->last[i] = row;
}

ROUND_INLINE void accept_tree(const AcceptTrees *a, int i)
{
    RoundTree *t = &a->tree[i];
    RoundSeq *s = &a->seqs[a->seq[i]];
    int row0 = i * a->n_nodes, start = s->pos;
    int32_t from = s->slot;
    for (int j = LANE; j < t->n; j += LANES)
        t->next[j] = synthetic_choice(t->parent, t->token, t->n, j,
                                      a->bad[row0 + j] ? -1 : a->next[row0 + j], a->synthetic,
                                      start + t->depth[j] + 1, a->n_vocab);
    LANES_SYNC(); /* start and from are read, too */
    if (LANE == 0) {
        int32_t chosen = walk_tree(t, s);
        move_on(s, t, chosen, a->slot[row0 + (a->fold_path ? 0 : t->path[t->m])]);
    }
    LANES_SYNC();
    if (a->fold_path) plan_fold(a, i, t, from);
    for (int d = 1 + LANE; d <= a->depth; d += LANES)
        plan_move(a, i, t, start, d);
    for (int k = LANE; a->meta.token && k <= a->depth; k += LANES)
        show_row(a, i, t, start, k);
}

#endif
