/*
 * choose.c: what the target chooses after the rows of a pass, and how likely it was.
 *
 * A row of logits has a megabyte where the vocabulary is large. So there may be room for some of a
 * pass's rows alone (Forward.max_logits). Then they come in turns: of trees the shallow nodes
 * before the deep ones, and a node that the choices before have ruled out never. A row's logits are
 * the same in any turn.
 */
#include <assert.h>

#include "engine/state.h"

_Static_assert((int)MAX_TREE_NODES <= 64, "a bit each");

SampleRow work_sample_row(const Work *w, int node, int32_t *path)
{
    const Seq *s = w->seq;
    const Tree *t = &w->tree;
    int depth = t->depth[node], root_pos = s->n_tokens - 1;
    SampleRow r = {.params = s->req.params,
                   .pos = root_pos + depth + 1,
                   .counts = s->penalised ? s->counts : NULL,
                   .n_path = s->penalised ? depth : 0,
                   .n_bias = s->req.n_bias,
                   .bias_id = s->bias_id,
                   .bias = s->bias,
                   .n_ban = seq_n_generated(s) + depth < s->req.min_tokens ? s->n_ban : 0,
                   .ban = s->ban};
    for (int i = node; i > 0 && r.n_path; i = t->parent[i])
        path[t->depth[i] - 1] = t->token[i];
    return r;
}

/* ---- turns ---- */

/* The rows that have their logits: those of trees, work by work, and then some of a chunk's. */
typedef struct {
    uint64_t nodes[MAX_SEQS + 1]; /* of each work's tree */
    int n_tree;
    const Work *chunk; /* or NULL; rows first .. first + n - 1 of its logits, from row `at` on */
    int first, n, at;
    int n_left; /* room for more */
} Turn;

static uint64_t bit(int i)
{
    return UINT64_C(1) << i;
}

/* Nodes of w whose choice is not known and may be wanted. */
static uint64_t waiting_nodes(const Engine *e, const Work *w)
{
    const Tree *t = &w->tree;
    uint64_t waiting = 0, ruled_out = 0;
    for (int i = 0; i < t->n; i++) {
        int p = t->parent[i];
        int is_wrong =
            p >= 0 && (w->chosen & bit(p)) && e->host.next[w->sampled + p] != t->token[i];
        if (is_wrong || (p >= 0 && (ruled_out & bit(p))))
            ruled_out |= bit(i);
        else if (!(w->chosen & bit(i)))
            waiting |= bit(i);
    }
    return waiting;
}

/* As many nodes as there is room for, level by level. */
static void add_nodes(const Engine *e, Turn *t)
{
    uint64_t waiting[MAX_SEQS + 1], left = 0;
    for (int k = 0; k < e->n_trees; k++)
        left |= waiting[k] = waiting_nodes(e, &e->work[k]);
    for (int depth = 0; left && depth < MAX_TREE_NODES; depth++) {
        left = 0;
        for (int k = 0; k < e->n_trees; k++) {
            for (int i = 0; i < e->work[k].tree.n && t->n_left; i++) {
                if (!(waiting[k] & bit(i)) || e->work[k].tree.depth[i] != depth) continue;
                t->nodes[k] |= bit(i);
                waiting[k] &= ~bit(i);
                t->n_tree++;
                t->n_left--;
            }
            left |= waiting[k];
        }
        if (!t->n_left) return;
    }
}

/* The next rows, at least one, or 0. */
static int plan_turn(Engine *e, int has_all, Turn *t)
{
    Work *last = &e->work[e->n_work - 1];
    *t = (Turn){.n_left = has_all ? e->batch.n_logits : e->forward.max_logits};
    add_nodes(e, t);
    for (int k = 0; k < e->n_trees; k++)
        e->work[k].chosen |= t->nodes[k];
    if (last->is_tree) return t->n_tree;
    t->chunk = last;
    t->first = last->n_chosen;
    t->n = last->n_logits - t->first < t->n_left ? last->n_logits - t->first : t->n_left;
    t->at = has_all ? last->logit : t->n_tree;
    last->n_chosen += t->n;
    return t->n_tree + t->n;
}

/* The pass has left none of them. */
static void make_logits(Engine *e, const Turn *t)
{
    int32_t row[LOGIT_ROWS];
    const int32_t *all = e->batch.logit_row;
    int n = 0;
    assert(e->forward.max_logits <= LOGIT_ROWS);
    for (int k = 0; k < e->n_trees; k++)
        for (uint64_t left = t->nodes[k]; left; left &= left - 1)
            row[n++] = all[e->work[k].logit + __builtin_ctzll(left)];
    for (int i = 0; i < t->n; i++)
        row[n++] = all[t->chunk->logit + t->first + i];
    forward_logits(&e->forward, row, n);
}

/* ---- choices ---- */

static void add_sample_row(Engine *e, const Work *w, int node, int at)
{
    e->host.row[at] = work_sample_row(w, node, e->host.path[at]);
    e->host.row[at].path = e->dev.path + (size_t)at * MAX_TREE_NODES;
    constrain_row(e, w, node, at);
}

/* Samples n rows, those of logits from row `logit` on, to places from `at` on. */
static void queue_sample(Engine *e, int at, int n, int logit)
{
    int vocab = e->model->config.n_vocab;
    if (n)
        e->be->sample(e->be, &(Sample){.n = n,
                                       .n_vocab = vocab,
                                       .n_top = 1,
                                       .logits = e->forward.logits + (size_t)logit * (size_t)vocab,
                                       .allowed = e->allowed,
                                       .row = e->dev.row + at,
                                       .id = e->dev.next + at,
                                       .bad = e->dev.bad + at,
                                       .uncut = sample_rows_uncut(e->host.row + at, n)});
}

/* What was sampled at place `at` is what follows node of w's tree. */
static void take_choice(Engine *e, const Work *w, int node, int at, const int32_t *id)
{
    const Tree *t = &w->tree;
    int32_t next = e->host.bad[at] || w->seq->is_form_lost ? -1 : id[at];
    if (w->is_tree && e->options.synthetic > 0)
        next = synthetic_choice(t->parent, t->token, t->n, node, next, e->options.synthetic,
                                w->start + t->depth[node] + 1, e->model->config.n_vocab);
    e->host.next[w->sampled + node] = next;
}

/* Samples the rows of a turn that a walk may visit. */
static void sample_turn(Engine *e, const Turn *t)
{
    Backend *be = e->be;
    int32_t id[MAX_SAMPLED];
    int n = 0, ends = t->n && t->chunk->n_sampled && t->first + t->n == t->chunk->n_logits;
    for (int k = 0; k < e->n_trees; k++)
        for (uint64_t left = t->nodes[k]; left; left &= left - 1)
            add_sample_row(e, &e->work[k], __builtin_ctzll(left), n++);
    if (ends) add_sample_row(e, t->chunk, 0, n++);
    if (!n) return;
    be->upload(be, e->dev.row, e->host.row, (size_t)n * sizeof(SampleRow));
    be->upload(be, e->dev.path, e->host.path, (size_t)n * sizeof e->host.path[0]);
    queue_sample(e, 0, t->n_tree, 0);
    if (ends) queue_sample(e, t->n_tree, 1, t->at + t->n - 1);
    be->download(be, id, e->dev.next, (size_t)n * sizeof *id);
    be->download(be, e->host.bad, e->dev.bad, (size_t)n);
    n = 0;
    for (int k = 0; k < e->n_trees; k++)
        for (uint64_t left = t->nodes[k]; left; left &= left - 1)
            take_choice(e, &e->work[k], __builtin_ctzll(left), n++, id);
    if (ends) take_choice(e, t->chunk, 0, n, id);
}

/* ---- log-probabilities ---- */

/* What follows row i of w's logits: the prompt's own token, or the sampled one. */
static int32_t scored_token(const Engine *e, const Work *w, int i)
{
    const Seq *s = w->seq;
    int pos = w->start + i + 1, sampled = i - (w->n_logits - w->n_sampled);
    int32_t token = sampled >= 0 ? e->host.next[w->sampled + sampled] : -1;
    if (!w->is_tree && sampled < 0 && pos < s->req.n_prompt) token = s->token[pos];
    return token < 0 ? 0 : token;
}

/* Of rows first .. first + n - 1 of w, whose logits begin at row `logit`. */
static void score_rows(Engine *e, const Work *w, int first, int n, int logit)
{
    Backend *be = e->be;
    const StepHost *h = &e->host;
    const StepDevice *d = &e->dev;
    size_t vocab = (size_t)e->model->config.n_vocab, n_top = (size_t)w->seq->req.n_logprobs;
    size_t at = (size_t)(w->logit + first), rows = (size_t)n;
    size_t top = (size_t)w->logit * MAX_LOGPROBS + (size_t)first * n_top;
    for (int i = 0; i < n; i++)
        h->scored[at + (size_t)i] = scored_token(e, w, first + i);
    be->upload(be, d->scored + at, h->scored + at, rows * sizeof(int32_t));
    be->token_logprobs(be, &(TokenLogprobs){.n = n,
                                            .n_vocab = (int)vocab,
                                            .n_top = (int)n_top,
                                            .logits = e->forward.logits + (size_t)logit * vocab,
                                            .token = d->scored + at,
                                            .chosen = d->logprob + at,
                                            .rank = d->rank + at,
                                            .top_id = d->top_id + top,
                                            .top_logp = d->top_logprob + top});
    be->download(be, h->logprob + at, d->logprob + at, rows * sizeof(float));
    be->download(be, h->rank + at, d->rank + at, rows * sizeof(int32_t));
    be->download(be, h->top_id + top, d->top_id + top, rows * n_top * sizeof(int32_t));
    be->download(be, h->top_logprob + top, d->top_logprob + top, rows * n_top * sizeof(float));
}

/* Takes the lowest run of bits out of set; its length, and where it begins. */
static int take_run(uint64_t *set, int *first)
{
    int n = 0;
    for (*first = __builtin_ctzll(*set); *first + n < 64 && *set & bit(*first + n); n++)
        *set &= ~bit(*first + n);
    return n;
}

static void score_turn(Engine *e, const Turn *t)
{
    int logit = 0, first, n;
    for (int k = 0; k < e->n_trees; k++)
        for (uint64_t left = t->nodes[k]; left; logit += n) {
            n = take_run(&left, &first);
            if (e->work[k].seq->req.n_logprobs >= 0) score_rows(e, &e->work[k], first, n, logit);
        }
    if (t->n && t->chunk->seq->req.n_logprobs >= 0) score_rows(e, t->chunk, t->first, t->n, t->at);
}

void choose_next(Engine *e)
{
    int has_all = e->batch.n_logits <= e->forward.max_logits, n = 0;
    Turn turn;
    for (int i = 0; i < e->n_work; i++) {
        e->work[i].sampled = n;
        n += e->work[i].n_sampled;
    }
    while (plan_turn(e, has_all, &turn)) {
        if (!has_all) make_logits(e, &turn);
        sample_turn(e, &turn);
        score_turn(e, &turn);
    }
}
