/*
 * test_round.c: drafts, trees and acceptance in backend memory (kernels/round.h).
 *
 * The definition is compared with the rules of spec/ on plain arrays, for random children: what is
 * expanded, the tree, the walk. Then the GPU's kernels with the definition, array by array.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/backend.h"
#include "spec/accept.h"
#include "tests/backend_simt.h"
#include "tests/near.h"

enum { MAX_N = 5, MAX_SEQ = 8, VOCAB = 50, META_ROWS = MAX_N * MAX_ROUND_NODES * 4 };
enum { LEVEL_ROWS = MAX_N * MAX_ROUND_NODES, FOLD_STRIDE = MAX_ROUND_NODES + 3, MAX_ENDS = 12 };

typedef struct {
    int n, n_nodes, depth, n_top;
    int sparse; /* of ten rows, how many have no or few children */
    int folds;  /* nodes left records */
    uint64_t seed;
    int by_lot;
} Shape;

/* All arrays, in one block of backend memory, so that one download shows what an operation did. */
typedef struct {
    RoundSeq seqs[MAX_SEQ];
    uint32_t counts[MAX_SEQ][VOCAB];
    int32_t seq[MAX_N];
    int32_t id[LEVEL_ROWS * MAX_TOP];
    float logp[LEVEL_ROWS * MAX_TOP];
    uint8_t bad[LEVEL_ROWS];
    int32_t meta[9][META_ROWS]; /* the head's, then the target's, then the head's again */
    int32_t hidden[LEVEL_ROWS];
    SampleRow row[LEVEL_ROWS];
    int32_t path[LEVEL_ROWS * MAX_ROUND_NODES];
    int32_t slot[LEVEL_ROWS], next[LEVEL_ROWS];
    RoundTree tree[MAX_N];
    int32_t move_seq[LEVEL_ROWS], move_from[LEVEL_ROWS], move_to[LEVEL_ROWS], last[MAX_N];
    int32_t end[MAX_SEQ][MAX_ENDS];
    int32_t fold_path[MAX_N][FOLD_STRIDE], fold_length[MAX_N], fold_from[MAX_N], fold_slot[MAX_N];
    DraftPool pool[MAX_N];
} Arrays;

typedef struct {
    Backend *be;
    Arrays *there, *here;
} Rig;

static Rig rig_open(Backend *be)
{
    Error err = {0};
    Rig r = {.be = be, .there = be->alloc(be, sizeof(Arrays), &err)};
    r.here = mem_alloc(1, sizeof *r.here);
    if (!r.there) fail_msg("%s", err.msg);
    return r;
}

static void rig_close(Rig *r)
{
    r->be->free(r->be, r->there);
    mem_free(r->here);
}

static void push(Rig *r)
{
    r->be->upload(r->be, r->there, r->here, sizeof(Arrays));
}

/* What an operation left; pointers into the block become those of the copy. */
static void pull(Rig *r)
{
    Error err = {0};
    r->be->download(r->be, r->here, r->there, sizeof(Arrays));
    assert_int_equal(r->be->sync(r->be, &err), 0);
    for (int i = 0; i < LEVEL_ROWS; i++) {
        SampleRow *row = &r->here->row[i];
        if (row->path) assert_ptr_equal(row->path, r->there->path + i * MAX_ROUND_NODES);
        row->path = NULL;
        row->counts = row->counts ? r->here->counts[0] : NULL;
    }
}

static RowMeta meta_of(Arrays *a)
{
    return (RowMeta){a->meta[0], a->meta[1], a->meta[2], a->meta[3], a->meta[4],
                     a->meta[5], a->meta[6], a->meta[7], a->meta[8]};
}

/* Sequences at random places, the same in every rig. */
static void fill(Rig *r, const Shape *s)
{
    Rng rng = rng_new(s->seed);
    memset(r->here, 0xff, sizeof *r->here);
    for (int i = 0; i < MAX_SEQ; i++) {
        RoundSeq *q = &r->here->seqs[i];
        memset(q, 0, sizeof *q);
        q->pos = 10 + rng_int(&rng, 1000);
        q->row.pos = q->pos + 1;
        q->row.params.seed = (uint64_t)i;
        q->row.n_ban = 3;
        q->root = rng_int(&rng, VOCAB);
        q->slot = 1000 + i;
        q->n_generated = rng_int(&rng, 4);
        q->min_tokens = rng_int(&rng, 8);
        if (i % 2) q->row.counts = q->counts = r->there->counts[i];
        q->end = r->there->end[i];
        q->n_end = i % 3 * (MAX_ENDS / 2);
        q->max_tokens = q->n_generated + 1 + rng_int(&rng, 8);
        for (int k = 0; k < MAX_ENDS; k++)
            r->here->end[i][k] = rng_int(&rng, VOCAB);
        for (int t = 0; t < VOCAB; t++)
            r->here->counts[i][t] = (uint32_t)t;
    }
    for (int i = 0; i < LEVEL_ROWS; i++)
        r->here->slot[i] = 100 + i, r->here->row[i].path = NULL, r->here->row[i].counts = NULL;
    for (int i = 0; i < s->n; i++)
        r->here->seq[i] = (i * 3 + 1) % MAX_SEQ;
    push(r);
}

/* Random children of n rows: tokens that rise, best first, often alike; rounding gave a log > 0. */
static void fill_children(Rig *r, const Shape *s, int n, int level)
{
    Rng rng = rng_new(s->seed * 31 + (uint64_t)level);
    for (int i = 0; i < n; i++) {
        int many = rng_int(&rng, 10) < s->sparse ? rng_int(&rng, s->n_top) : s->n_top;
        int first = rng_int(&rng, VOCAB - s->n_top);
        float logp = 0.125f;
        for (int j = 0; j < s->n_top; j++) {
            logp -= (float)rng_int(&rng, 6) * 0.125f;
            r->here->id[i * s->n_top + j] = j < many ? first + j : -1;
            r->here->logp[i * s->n_top + j] = logp;
        }
        r->here->bad[i] = rng_int(&rng, 20) == 0 && s->sparse;
    }
    push(r);
}

static int width_of(const Shape *s, int level)
{
    int width = s->n_top < s->n_nodes - 1 ? s->n_top : s->n_nodes - 1;
    return level == 0 ? 1 : level < s->depth ? width : 0;
}

static void grow(Rig *r, const Shape *s, int level)
{
    Arrays *a = r->there;
    int kv0 = level > 1 ? (level - 1) * width_of(s, 1) : 0;
    r->be->grow_drafts(r->be, &(GrowDrafts){.n = s->n,
                                            .level = level,
                                            .n_parents = level ? width_of(s, level - 1) : 0,
                                            .width = width_of(s, level),
                                            .n_top = s->n_top,
                                            .most = s->n_nodes - 1,
                                            .kv0 = kv0,
                                            .by_lot = s->by_lot,
                                            .seq = a->seq,
                                            .seqs = a->seqs,
                                            .pool = a->pool,
                                            .id = a->id,
                                            .logp = a->logp,
                                            .bad = a->bad,
                                            .meta = meta_of(a),
                                            .row0 = s->n * kv0,
                                            .hidden = a->hidden,
                                            .sample = {a->row, a->path}});
    pull(r);
}

static void plant(Rig *r, const Shape *s, int with_drafts)
{
    Arrays *a = r->there;
    r->be->plant_trees(r->be, &(PlantTrees){.n = s->n,
                                            .n_nodes = s->n_nodes,
                                            .seq = a->seq,
                                            .seqs = a->seqs,
                                            .pool = with_drafts ? a->pool : NULL,
                                            .slot = a->slot,
                                            .tree = a->tree,
                                            .meta = meta_of(a),
                                            .sample = {a->row, a->path}});
    pull(r);
}

static void accept_all(Rig *r, const Shape *s)
{
    Arrays *a = r->there;
    r->be->accept_trees(r->be, &(AcceptTrees){.n = s->n,
                                              .n_nodes = s->n_nodes,
                                              .depth = s->depth,
                                              .seq = a->seq,
                                              .seqs = a->seqs,
                                              .slot = a->slot,
                                              .fold_path = s->folds ? a->fold_path[0] : NULL,
                                              .fold_length = a->fold_length,
                                              .fold_from = a->fold_from,
                                              .fold_slot = a->fold_slot,
                                              .fold_stride = FOLD_STRIDE,
                                              .tree = a->tree,
                                              .next = a->next,
                                              .bad = a->bad,
                                              .move_seq = a->move_seq,
                                              .move_from = a->move_from,
                                              .move_to = a->move_to,
                                              .meta = meta_of(a),
                                              .hidden = a->hidden,
                                              .last = a->last});
    pull(r);
}

/* ---- the rules on plain arrays ---- */

/* Every node that was ever proposed, in that order. */
typedef struct {
    int n, n_frontier;
    int frontier[MAX_ROUND_NODES];
    struct {
        int parent, depth, token, row;
        float logp;
    } node[MAX_POOL];
} Model;

static void model_children(Model *m, const Shape *s, const Arrays *a, int tree, int level)
{
    int parents = width_of(s, level - 1);
    for (int k = 0; k < parents; k++) {
        int row = tree * parents + k, parent = level == 1 ? -1 : m->frontier[k];
        if (level > 1 && k >= m->n_frontier) break;
        for (int j = 0; j < s->n_top && !a->bad[row] && a->id[row * s->n_top + j] >= 0; j++) {
            float logp = s->by_lot ? -(float)j : fminf(a->logp[row * s->n_top + j], 0);
            m->node[m->n].parent = parent;
            m->node[m->n].depth = level;
            m->node[m->n].token = a->id[row * s->n_top + j];
            m->node[m->n++].logp = (parent < 0 ? 0 : m->node[parent].logp) + logp;
        }
    }
}

/* How many nodes come before node i by value. */
static int rank_of(const Model *m, int i)
{
    int rank = 0;
    for (int j = 0; j < m->n; j++)
        rank += m->node[j].logp > m->node[i].logp || (m->node[j].logp == m->node[i].logp && j < i);
    return rank;
}

static void model_frontier(Model *m, const Shape *s, int level)
{
    m->n_frontier = 0;
    for (int rank = 0; rank < s->n_nodes - 1; rank++)
        for (int i = 0; i < m->n; i++)
            if (m->node[i].depth == level && rank_of(m, i) == rank &&
                m->n_frontier < width_of(s, level))
                m->frontier[m->n_frontier++] = i;
}

static void check_path(const Arrays *a, int row, const Model *m, int node)
{
    for (; node >= 0; node = m->node[node].parent)
        assert_int_equal(a->path[row * MAX_ROUND_NODES + m->node[node].depth - 1],
                         m->node[node].token);
}

static void check_sample_row(const Arrays *a, int row, const RoundSeq *q, int depth)
{
    const SampleRow *got = &a->row[row];
    assert_int_equal(got->pos, q->pos + 1 + depth);
    assert_int_equal(got->params.seed, q->row.params.seed);
    assert_int_equal(got->n_path, q->counts ? depth : 0);
    assert_int_equal(got->n_ban, q->n_generated + depth < q->min_tokens ? 3 : 0);
}

/* Rows of the head's pass at this level: nodes of the frontier, then pads. */
static void check_head_rows(const Arrays *a, const Shape *s, Model *m, int tree, int level)
{
    const RoundSeq *q = &a->seqs[a->seq[tree]];
    int width = width_of(s, level), kv0 = (level - 1) * width_of(s, 1);
    for (int k = 0; k < width; k++) {
        int r = tree * width + k, row = s->n * kv0 + r, is_node = k < m->n_frontier;
        int node = is_node ? m->frontier[k] : -1, parent = is_node ? m->node[node].parent : -1;
        assert_int_equal(a->meta[0][row], is_node ? m->node[node].token : q->root);
        assert_int_equal(a->meta[1][row], q->pos + level);
        assert_int_equal(a->meta[2][row], q->pos + level - 1);
        assert_int_equal(a->meta[3][row], a->seq[tree]);
        assert_int_equal(a->meta[4][row], parent < 0 ? -1 : m->node[parent].row);
        assert_int_equal(a->meta[7][row], q->pos + 1 + kv0 + k);
        assert_int_equal(a->meta[8][row], is_node ? q->pos + 1 : q->pos + level);
        if (level == 1)
            assert_int_equal(a->hidden[r], a->seq[tree]);
        else if (is_node) /* the row in the pass before */
            assert_int_equal(a->hidden[r],
                             m->node[parent].row - s->n * (level - 2) * width_of(s, 1));
        check_sample_row(a, r, q, is_node ? level : 0);
        if (a->row[r].n_path) check_path(a, r, m, node);
        if (is_node) m->node[node].row = row;
    }
}

static void check_tree(const Arrays *a, const Shape *s, const Model *m, int i)
{
    const RoundSeq *q = &a->seqs[a->seq[i]];
    const RoundTree *got = &a->tree[i];
    Tree want;
    int at[MAX_POOL];
    tree_init(&want, q->root);
    for (int rank = 0; rank < s->n_nodes - 1; rank++)
        for (int c = 0; c < m->n; c++) {
            if (rank_of(m, c) != rank) continue;
            int parent = m->node[c].parent;
            at[c] = tree_add(&want, parent < 0 ? 0 : at[parent], m->node[c].token,
                             expf(m->node[c].logp));
        }
    tree_order(&want, s->n_nodes);
    assert_int_equal(got->n, want.n);
    for (int j = 0; j < want.n; j++) {
        assert_int_equal(got->token[j], want.token[j]);
        assert_int_equal(got->parent[j], want.parent[j]);
        assert_int_equal(got->depth[j], want.depth[j]);
        assert_true(fabsf(got->value[j] - want.value[j]) <= 1e-6f * want.value[j]);
    }
    for (int j = 0; j < s->n_nodes; j++) {
        int row = i * s->n_nodes + j, parent = j < got->n ? got->parent[j] : 0;
        int depth = j < got->n ? got->depth[j] : 1;
        assert_int_equal(a->meta[0][row], j < got->n ? got->token[j] : q->root);
        assert_int_equal(a->meta[1][row], q->pos + depth);
        assert_int_equal(a->meta[2][row], q->pos + depth);
        assert_int_equal(a->meta[3][row], a->seq[i]);
        assert_int_equal(a->meta[4][row], parent < 0 ? -1 : i * s->n_nodes + parent);
        assert_int_equal(a->meta[5][row], parent < 0 ? q->slot : a->slot[i * s->n_nodes + parent]);
        assert_int_equal(a->meta[6][row], a->slot[row]);
        assert_int_equal(a->meta[7][row], q->pos + j);
        assert_int_equal(a->meta[8][row], q->pos);
        check_sample_row(a, row, q, j < got->n ? depth : 0);
        for (int k = j < got->n ? j : 0; k && a->row[row].n_path; k = got->parent[k])
            assert_int_equal(a->path[row * MAX_ROUND_NODES + got->depth[k] - 1], got->token[k]);
    }
}

/* What ends a sequence, and how often that was met. */
typedef struct {
    const int32_t *end;
    int n_end, n_left, n_met;
} Ends;

static int is_end(void *ctx, int32_t token)
{
    Ends *e = ctx;
    for (int i = 0; i < e->n_end; i++)
        if (e->end[i] == token) return ++e->n_met;
    return --e->n_left ? 0 : ++e->n_met;
}

/* Where the kept path's state is to be. */
static void check_slot(const Arrays *a, const Shape *s, int i, int32_t was,
                       const AcceptedPath *kept)
{
    const RoundSeq *q = &a->seqs[a->seq[i]];
    int row0 = i * s->n_nodes;
    assert_int_equal(q->slot, a->slot[row0 + (s->folds ? 0 : kept->path[kept->m])]);
    if (!s->folds) return;
    assert_int_equal(a->fold_from[i], was);
    assert_int_equal(a->fold_slot[i], q->slot);
    assert_int_equal(a->fold_length[i], kept->m + 1);
    for (int d = 0; d <= kept->m; d++)
        assert_int_equal(a->fold_path[i][d], row0 + kept->path[d]);
}

/* Returns 1 when the sequence met its end on the way. */
static int check_accepted(const Arrays *before, const Arrays *a, const Shape *s, int i)
{
    const RoundTree *t = &a->tree[i];
    const RoundSeq *was = &before->seqs[a->seq[i]], *q = &a->seqs[a->seq[i]];
    AcceptedPath want;
    Tree tree = {.n = t->n};
    int32_t next[MAX_ROUND_NODES];
    memcpy(tree.token, t->token, sizeof tree.token);
    memcpy(tree.parent, t->parent, sizeof tree.parent);
    memcpy(tree.depth, t->depth, sizeof tree.depth);
    for (int j = 0; j < t->n; j++) {
        int row = i * s->n_nodes + j;
        next[j] = before->bad[row] ? -1 : before->next[row];
        assert_int_equal(t->next[j], next[j]);
    }
    Ends ends = {a->end[a->seq[i]], q->n_end, q->max_tokens - was->n_generated, 0};
    accept_path(&tree, next, is_end, &ends, &want);
    assert_int_equal(t->m, want.m);
    for (int d = 0; d <= want.m; d++)
        assert_int_equal(t->path[d], want.path[d]);
    int root = want.stop < 0 ? 0 : want.emitted[want.m];
    assert_int_equal(q->root, root);
    assert_int_equal(q->pos, was->pos + want.m + 1);
    assert_int_equal(q->row.pos, q->pos + 1);
    assert_int_equal(q->n_generated, was->n_generated + want.m + 1);
    check_slot(a, s, i, was->slot, &want);
    uint32_t counts[VOCAB];
    memcpy(counts, before->counts[a->seq[i]], sizeof counts);
    for (int d = 0; d <= want.m && q->counts; d++)
        counts[d < want.m ? want.emitted[d] : root]++;
    assert_memory_equal(counts, a->counts[a->seq[i]], sizeof counts);
    for (int d = 1; d <= s->depth; d++) {
        int r = i * s->depth + d - 1;
        assert_int_equal(a->move_seq[r], a->seq[i]);
        assert_int_equal(a->move_to[r], was->pos + d);
        assert_int_equal(a->move_from[r], was->pos + (d <= want.m ? want.path[d] : d));
    }
    for (int k = 0; k <= s->depth; k++) {
        int r = i * (s->depth + 1) + k;
        if (k <= want.m) assert_int_equal(a->meta[0][r], k < want.m ? want.emitted[k] : root);
        assert_in_range(a->meta[0][r], 0, VOCAB - 1);
        assert_int_equal(a->meta[1][r], was->pos + k + 1);
        assert_int_equal(a->meta[2][r], was->pos + k);
        assert_int_equal(a->meta[3][r], a->seq[i]);
        assert_int_equal(a->meta[4][r], -1);
        assert_int_equal(a->meta[7][r], was->pos + k + 1);
        assert_int_equal(a->meta[8][r], was->pos + k + 2);
        if (k <= want.m) assert_int_equal(a->hidden[r], i * s->n_nodes + want.path[k]);
        assert_in_range(a->hidden[r], i * s->n_nodes, i * s->n_nodes + s->n_nodes - 1);
    }
    assert_int_equal(a->last[i], i * (s->depth + 1) + want.m);
    return ends.n_met;
}

/* What the target chose: often a child. */
static void fill_choices(Rig *r, const Shape *s)
{
    Rng rng = rng_new(s->seed * 77);
    Arrays *a = r->here;
    for (int i = 0; i < s->n; i++)
        for (int j = 0; j < s->n_nodes; j++) {
            int row = i * s->n_nodes + j, child = 0;
            for (int c = j + 1; c < a->tree[i].n; c++)
                if (a->tree[i].parent[c] == j && (!child || rng_int(&rng, 3) == 0)) child = c;
            int agree = child && rng_int(&rng, 5);
            a->next[row] = agree ? a->tree[i].token[child] : rng_int(&rng, VOCAB);
            a->bad[row] = rng_int(&rng, 12) == 0;
        }
    push(r);
}

/* ---- the tests ---- */

static void zero_between(SampleRow *row, size_t from, size_t to)
{
    assert_true(from <= to);
    memset((unsigned char *)row + from, 0, to - from);
}

/* Who copies a row may copy its members alone. */
static void zero_padding(SampleRow *row)
{
#define AFTER(member) offsetof(SampleRow, member) + sizeof row->member
    zero_between(row, AFTER(params.repetition), offsetof(SampleRow, params.seed));
    zero_between(row, AFTER(params.choice), offsetof(SampleRow, pos));
    zero_between(row, AFTER(pos), offsetof(SampleRow, counts));
    zero_between(row, AFTER(n_ban), offsetof(SampleRow, ban));
#undef AFTER
}

/* The bytes of both but for pointers into the blocks and values, which are an exp's. */
static void check_same(const Rig *ref_rig, const Rig *r, const char *what)
{
    Arrays *want = mem_alloc(1, sizeof *want), *got = mem_alloc(1, sizeof *got);
    *want = *ref_rig->here;
    *got = *r->here;
    for (int i = 0; i < MAX_SEQ; i++)
        for (Arrays *a = want; a; a = a == want ? got : NULL) {
            assert_true(!a->seqs[i].counts == !a->seqs[i].row.counts);
            a->seqs[i].row.counts = a->seqs[i].counts = NULL;
            a->seqs[i].end = NULL;
        }
    for (int i = 0; i < LEVEL_ROWS; i++)
        got->row[i].counts = got->row[i].counts ? want->counts[0] : NULL,
        want->row[i].counts = want->row[i].counts ? want->counts[0] : NULL;
    for (int i = 0; i < LEVEL_ROWS; i++) {
        zero_padding(&want->row[i]);
        zero_padding(&got->row[i]);
    }
    for (int i = 0; i < MAX_N; i++)
        for (int j = 0; j < MAX_ROUND_NODES; j++) {
            float v = want->tree[i].value[j];
            if (v == v) assert_true(fabsf(got->tree[i].value[j] - v) <= 1e-6f * v);
            got->tree[i].value[j] = want->tree[i].value[j] = 0;
        }
    if (memcmp(want, got, offsetof(Arrays, pool))) {
        size_t at = 0;
        while (((unsigned char *)want)[at] == ((unsigned char *)got)[at])
            at++;
        fail_msg("%s: byte %zu differs on %s", what, at, r->be->isa);
    }
    for (int i = 0; i < MAX_N; i++) {
        assert_int_equal(want->pool[i].n, got->pool[i].n);
        for (int j = 0; j < want->pool[i].n; j++)
            assert_memory_equal(&want->pool[i].node[j], &got->pool[i].node[j], sizeof(DraftNode));
    }
    mem_free(want);
    mem_free(got);
}

/* Returns how many sequences met their ends. */
static int run_shape(Rig *rig, int n_rigs, const Shape *s)
{
    Model *m = mem_alloc((size_t)s->n, sizeof *m);
    Arrays *before = mem_alloc(1, sizeof *before);
    Rig *def = &rig[0];
    for (int b = 0; b < n_rigs; b++)
        fill(&rig[b], s);
    for (int level = 0; level <= s->depth; level++) {
        for (int b = 0; b < n_rigs; b++) {
            if (level) fill_children(&rig[b], s, s->n * width_of(s, level - 1), level);
            grow(&rig[b], s, level);
            if (b) check_same(def, &rig[b], "grow_drafts");
        }
        for (int i = 0; i < s->n; i++) {
            if (level == 0) {
                check_sample_row(def->here, i, &def->here->seqs[def->here->seq[i]], 0);
                continue;
            }
            model_children(&m[i], s, def->here, i, level);
            model_frontier(&m[i], s, level);
            if (width_of(s, level)) check_head_rows(def->here, s, &m[i], i, level);
        }
    }
    for (int b = 0; b < n_rigs; b++) {
        plant(&rig[b], s, s->depth > 0);
        if (b) check_same(def, &rig[b], "plant_trees");
    }
    for (int i = 0; i < s->n; i++)
        check_tree(def->here, s, &m[i], i);
    for (int b = 0; b < n_rigs; b++) {
        fill_choices(&rig[b], s);
        *before = *rig[b].here;
        accept_all(&rig[b], s);
        if (b) check_same(def, &rig[b], "accept_trees");
    }
    int n_ended = 0;
    for (int i = 0; i < s->n; i++)
        n_ended += check_accepted(before, def->here, s, i);
    mem_free(before);
    mem_free(m);
    return n_ended;
}

static void test_rounds(void **state)
{
    (void)state;
    Backend *gpu[MAX_GPU_BACKENDS];
    Rig rig[1 + MAX_GPU_BACKENDS];
    int n = open_gpu_backends(gpu);
    Backend *ref = backend_ref_open(VOCAB);
    rig[0] = rig_open(ref);
    for (int b = 0; b < n; b++)
        rig[1 + b] = rig_open(gpu[b]);
    const Shape shapes[] = {{1, 1, 0, 1, 0, 0, 0, 0},  {3, 1, 0, 1, 0, 0, 1, 0},
                            {1, 4, 3, 1, 0, 0, 2, 0},  {5, 4, 3, 1, 5, 0, 3, 0},
                            {1, 8, 4, 4, 0, 0, 4, 0},  {2, 8, 4, 4, 4, 0, 5, 0},
                            {3, 2, 1, 4, 3, 0, 6, 0},  {1, 64, 3, 8, 2, 0, 7, 0},
                            {1, 64, 8, 3, 3, 0, 8, 0}, {4, 16, 5, 6, 6, 0, 9, 0}};
    int n_ended = 0;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int again = 0; again < 4; again++) {
            Shape s = shapes[i];
            s.seed += (uint64_t)again * 100;
            s.folds = again % 2;
            s.by_lot = again == 3;
            n_ended += run_shape(rig, 1 + n, &s);
        }
    assert_true(n_ended > 5);
    for (int b = 0; b < 1 + n; b++) {
        Backend *be = rig[b].be;
        rig_close(&rig[b]);
        be->close(be);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
