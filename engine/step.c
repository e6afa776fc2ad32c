/*
 * step.c: one step, six verbs.
 *
 *     draft_trees -> verify_trees -> accept_paths -> keep_rows -> promote_slots -> emit_tokens
 *
 * Plain decoding is a tree of one node. A prompt chunk is a chain known to be kept: one slot,
 * written in place; its last row is a root whose next token is sampled like any other. So there is
 * one path, with and without speculation. What the caller hears of it is made in emit.c.
 */
#include <assert.h>

#include "base/clock.h"
#include "engine/state.h"

static void release_slots(Engine *e, Work *w, int keep)
{
    while (w->n_slots > keep)
        slots_release(e->mem.frames, w->slot[--w->n_slots]);
}

/* Whether anything is drafted for w's tree. */
static int has_draft(const Work *w)
{
    return w->max_nodes > 1;
}

/* Drafts of a fixed shape, or as the engine's growth guides them. */
static void propose(Engine *e, const DraftRequest *request, DraftRates *const *rates, int n)
{
    const Drafter *d = e->options.drafter;
    Growth *g = e->options.draft_auto ? &e->growth : NULL;
    const DraftGuide *guide = g ? growth_begin(g, request, rates, n) : NULL;
    d->propose(d->self, request, n, guide);
    if (g) growth_cut(g);
}

/* One tree per decoding sequence; schedule bounds its nodes, by slots where they need some. */
static void draft_trees(Engine *e)
{
    DraftRequest request[MAX_SEQS];
    DraftRates *rates[MAX_SEQS];
    int n = 0, is_chain = e->options.draft_auto && e->growth.is_fixed;
    for (int i = 0; i < e->n_trees; i++) {
        Work *w = &e->work[i];
        if (!has_draft(w)) continue;
        e->host.row[n] = work_sample_row(w, 0, NULL);
        rates[n] = &w->seq->rates;
        request[n] = (DraftRequest){.seq = w->index,
                                    .root_pos = w->start,
                                    .max_nodes = w->max_nodes,
                                    .max_depth = w->max_depth,
                                    .topk = is_chain ? 1 : e->options.draft_topk,
                                    .token = w->seq->token,
                                    .predicted = w->seq->req.predicted,
                                    .n_predicted = w->seq->req.n_predicted,
                                    .row = &e->host.row[n],
                                    .tree = &w->tree};
        n++;
    }
    if (n) propose(e, request, rates, n);
    for (int i = 0; i < e->n_trees; i++) {
        Work *w = &e->work[i];
        constrain_drafts(e, w);
        assert(tree_valid(&w->tree, e->model->config.n_vocab));
        assert(w->tree.n <= w->max_nodes);
        assert(tree_depth(&w->tree) <= w->max_depth);
        release_slots(e, w, w->tree.n - 1);
    }
}

/*
 * The root writes the main slot in place: it is certain to be kept. Every other node has its own.
 * In state mode replay none of them writes a slot, unless the root is alone.
 */
static void add_tree_rows(Engine *e, Work *w)
{
    Seq *s = w->seq;
    const Tree *t = &w->tree;
    Batch *b = &e->batch;
    int has_records = e->forward.records && t->n > 1;
    assert(!has_records || b->n + t->n <= e->forward.records->n_rows);
    assert(slots_refs(e->mem.frames, s->slot) == 1);
    if (has_records) prefix_own_state(e, s); /* the fold takes its slot on in place */
    w->row = b->n;
    w->n_rows = t->n;
    w->logit = b->n_logits;
    w->n_logits = w->n_sampled = t->n;
    for (int i = 0; i < t->n; i++) {
        int p = t->parent[i];
        int32_t src = p > 0 ? w->slot[p - 1] : s->slot, dst = i ? w->slot[i - 1] : s->slot;
        if (p < 0 && s->src >= 0) src = s->src;
        if (has_records) src = s->slot, dst = -1;
        int row = batch_add(b, t->token[i], w->start + t->depth[i], w->index,
                            p < 0 ? -1 : w->row + p, src, dst, w->start + i, w->start);
        b->logit_row[b->n_logits++] = row;
    }
}

static void add_chunk_rows(Engine *e, Work *w)
{
    const Seq *s = w->seq;
    Batch *b = &e->batch;
    if (w->is_prompt) batch_begin_prompt(b);
    w->row = b->n;
    w->logit = b->n_logits;
    if (s->from_hidden) w->hidden_row = prefix_hidden_row(e, s);
    if (!w->n_rows && s->req.max_tokens > 0) b->logit_row[b->n_logits++] = w->hidden_row;
    for (int i = 0; i < w->n_rows; i++) {
        int pos = w->start + i, last = i == w->n_rows - 1;
        int32_t src = i || s->src < 0 ? s->slot : s->src;
        int row = batch_add(b, s->token[pos], pos, w->index, i ? w->row + i - 1 : -1, src, s->slot,
                            pos, pos + 1);
        if (s->req.prompt_logprobs || (last && w->ends_chunks)) b->logit_row[b->n_logits++] = row;
    }
    w->n_logits = b->n_logits - w->logit;
    w->n_sampled = w->ends_chunks && s->req.max_tokens > 0;
}

/* One target pass over all rows, each node in its own slot, then the target's choice at each. */
static int verify_trees(Engine *e, Error *err)
{
    batch_clear(&e->batch);
    for (int i = 0; i < e->n_work; i++) {
        if (e->work[i].is_tree)
            add_tree_rows(e, &e->work[i]);
        else
            add_chunk_rows(e, &e->work[i]);
    }
    forward_pass(&e->forward, &e->batch);
    choose_next(e);
    return e->be->sync(e->be, err);
}

typedef struct {
    Engine *e;
    Seq *seq;
    int n_generated;     /* with the token asked about */
    int n_asked, n_sent; /* of this step, as Work.n_sent */
} StopAsker;

static int is_in(const int32_t *id, int n, int32_t token)
{
    for (int i = 0; i < n; i++)
        if (id[i] == token) return 1;
    return 0;
}

static int is_end_token(const Engine *e, const EngineRequest *r, int32_t token)
{
    const ModelConfig *c = &e->model->config;
    if (!r->ignore_eos && is_in(c->eos, c->n_eos, token)) return 1;
    return is_in(r->stop_ids, r->n_stop_ids, token);
}

static int stopped(void *ctx, int32_t token)
{
    StopAsker *a = ctx;
    const EngineRequest *r = &a->seq->req;
    a->n_generated++;
    a->n_asked++;
    if (is_end_token(a->e, r, token)) {
        a->n_sent = a->n_asked - 1; /* it has no text */
        return STOP_END;
    }
    WatchVerdict verdict = r->watcher.self ? r->watcher.token(r->watcher.self, token) : WATCH_GO;
    if (verdict == WATCH_GO || verdict == WATCH_FORCE) a->n_sent = a->n_asked;
    if (verdict == WATCH_STOP) return STOP_WATCHER;
    if (a->n_generated >= r->max_tokens) return STOP_LENGTH;
    return verdict == WATCH_FORCE && r->n_forced ? STOP_FORCE : 0;
}

/* What the target agrees with, cut at the first stop. */
static void accept_paths(Engine *e)
{
    for (int i = 0; i < e->n_work; i++) {
        Work *w = &e->work[i];
        if (!w->n_sampled) continue;
        StopAsker ask = {.e = e, .seq = w->seq, .n_generated = seq_n_generated(w->seq)};
        accept_path(&w->tree, e->host.next + w->sampled, stopped, &ask, &w->kept);
        constrain_kept(w);
        w->n_sent = ask.n_sent;
    }
}

/* KV rows of kept nodes go to their positions; depth-first order makes moves rare. */
static void plan_moves(Engine *e, const Work *w)
{
    for (int d = 1; d <= w->kept.m; d++) {
        if (w->kept.path[d] == d) continue;
        int k = e->host.n_moves++;
        e->host.move_seq[k] = w->index;
        e->host.move_from[k] = w->start + w->kept.path[d];
        e->host.move_to[k] = w->start + d;
    }
}

void engine_move_rows(Engine *e, int n)
{
    Backend *be = e->be;
    const Memory *m = &e->mem;
    be->move_rows(be, &(MoveRows){.n = n,
                                  .n_layers = e->model->config.n_full,
                                  .page_tokens = PAGE_TOKENS,
                                  .row_bytes = m->kv_row_bytes,
                                  .page_bytes = m->page_bytes,
                                  .pages = m->base,
                                  .table = m->table,
                                  .table_stride = m->table_stride,
                                  .seq = e->dev.move_seq,
                                  .from = e->dev.move_from,
                                  .to = e->dev.move_to});
}

static void move_kv_rows(Engine *e)
{
    Backend *be = e->be;
    size_t bytes = (size_t)e->host.n_moves * sizeof(int32_t);
    if (!e->host.n_moves) return;
    be->upload(be, e->dev.move_seq, e->host.move_seq, bytes);
    be->upload(be, e->dev.move_from, e->host.move_from, bytes);
    be->upload(be, e->dev.move_to, e->host.move_to, bytes);
    engine_move_rows(e, e->host.n_moves);
}

static void seen(Engine *e, int seq, int pos, int32_t token, int hidden)
{
    int i = e->host.n_seen++;
    e->host.seen_seq[i] = seq;
    e->host.seen_pos[i] = pos;
    e->host.seen_token[i] = token;
    e->host.seen_hidden[i] = hidden;
}

static int goes_on(const AcceptedPath *kept)
{
    return !kept->stop || kept->stop == STOP_FORCE;
}

/*
 * 1 when what the drafter makes of w's rows is of use: in the cache, or to its sequence. One that
 * gets no drafts now gets none later.
 */
static int is_shown(const Engine *e, const Work *w)
{
    if (w->n_sampled && w->kept.stop < 0) return 0;
    if (prefix_keeps(e, &w->seq->req)) return 1;
    if (schedule_useful_depth(e, w->seq) < 1) return 0;
    return w->n_sampled ? goes_on(&w->kept) : !w->ends_chunks;
}

/* Rows of a chunk, the one before it first when that came from the cache. */
static void show_chunk(Engine *e, const Work *w)
{
    Seq *s = w->seq;
    for (int k = s->from_hidden ? -1 : 0; k < w->n_rows; k++) {
        int pos = w->start + k + 1;
        if (pos == s->n_tokens && !w->n_sampled) return; /* nothing follows it */
        if (pos < s->first_seen) continue;
        seen(e, w->index, pos, pos < s->n_tokens ? s->token[pos] : w->kept.emitted[0],
             k < 0 ? w->hidden_row : w->row + k);
    }
    s->from_hidden = 0;
}

/* Shows the drafter the rows that stay, each with the token that follows. */
static void show_drafter(Engine *e)
{
    const Drafter *d = e->options.drafter;
    e->host.n_seen = 0;
    for (int i = 0; i < e->n_work && d && d->observe; i++) {
        const Work *w = &e->work[i];
        if (!is_shown(e, w)) continue;
        if (!w->is_tree) show_chunk(e, w);
        for (int k = 0; w->is_tree && k <= w->kept.m; k++)
            seen(e, w->index, w->start + k + 1, w->kept.emitted[k], w->row + w->kept.path[k]);
    }
    if (!e->host.n_seen) return;
    d->observe(d->self, &(DraftObserved){.n = e->host.n_seen,
                                         .seq = e->host.seen_seq,
                                         .pos = e->host.seen_pos,
                                         .token = e->host.seen_token,
                                         .hidden = e->host.seen_hidden,
                                         .final = e->forward.final});
}

/* State mode replay: the main slots take the kept rows, by the records that these left. */
static void fold_paths(Engine *e)
{
    int n = 0, n_rows = 0;
    for (int i = 0; i < e->n_trees && e->forward.records; i++) {
        Work *w = &e->work[i];
        if (w->tree.n == 1) continue; /* its root has written the slot */
        int32_t *row = e->host.fold_row + n_rows;
        for (int d = 0; d <= w->kept.m; d++)
            e->host.fold_row[n_rows++] = w->row + w->kept.path[d];
        if (prefix_hold(e, w)) e->host.fold[n++] = (KeptPath){w->seq->held, w->n_sent + 1, row};
        e->host.fold[n++] = (KeptPath){w->seq->slot, w->kept.m + 1, row};
    }
    if (n) records_fold(e->forward.records, &e->mem, e->host.fold, n);
}

/*
 * What the step leaves in backend memory: KV rows in their places, states that are made of records,
 * the head's rows.
 */
static void keep_rows(Engine *e)
{
    e->host.n_moves = 0;
    for (int i = 0; i < e->n_trees; i++)
        plan_moves(e, &e->work[i]);
    move_kv_rows(e);
    fold_paths(e);
    show_drafter(e);
}

/* Which of w's slots has the state after its kept path; -1: the main one. */
static int last_slot(const Work *w)
{
    if (!w->n_slots) return -1;
    return w->is_folded ? 0 : w->kept.path[w->kept.m] - w->first_node;
}

/* The last kept node's slot becomes main; no state is copied. */
static void promote_slots(Engine *e)
{
    for (int i = 0; i < e->n_work; i++) {
        Work *w = &e->work[i];
        int is_held = e->forward.records && w->is_tree && w->tree.n > 1 && !w->seq->on_device;
        if (!is_held) prefix_hold(e, w); /* else by fold_paths */
        if (w->is_tree) {
            slots_promote(e->mem.frames, &w->seq->slot, w->slot, w->n_slots, last_slot(w));
            w->n_slots = 0;
            w->seq->n_past += w->kept.m + 1;
            e->totals.promoted += w->kept.m > 0;
        } else {
            w->seq->n_past += w->n_rows;
        }
        if (w->n_rows && w->seq->src >= 0) {
            slots_release(e->mem.frames, w->seq->src);
            w->seq->src = -1;
        }
        prefix_after_step(e, w);
    }
}

/* Milliseconds since the last call. */
static double lap_ms(Engine *e)
{
    double before = e->lap;
    e->lap = clock_ms();
    return e->lap - before;
}

/* What both kinds of step do when the target has chosen. */
static int end_step(Engine *e)
{
    promote_slots(e); /* last kept slot becomes main */
    count_pass(e);
    emit_tokens(e); /* to the caller; statistics */
    e->n_steps++;
    return e->n_work;
}

/* Of w's rows those that the drafter has seen. */
static int n_shown(const Engine *e, const Work *w)
{
    if (!is_shown(e, w)) return 0;
    if (w->is_tree) return w->kept.m + 1;
    int unseen = w->seq->first_seen - w->start - 1;
    return w->n_rows - (unseen < 0 ? 0 : unseen < w->n_rows ? unseen : w->n_rows);
}

/* What the step has shown of time and of drafts; before ended sequences forget it. A device's
 * rounds show their time themselves (round.c), and steps with the host in between are none. */
static void learn_costs(Engine *e, double draft_ms, double pass_ms, double upkeep_ms)
{
    CostStep s = {.draft_ms = draft_ms, .pass_ms = pass_ms, .upkeep_ms = upkeep_ms};
    Growth *g = &e->growth;
    int n_tokens = 0;
    growth_level_rows(g, s.level_rows);
    for (int i = 0, k = 0; i < e->n_work; i++) {
        Work *w = &e->work[i];
        if (!w->is_tree) {
            s.who.prompt_rows = w->n_rows;
            s.n_shown = n_shown(e, w);
            continue;
        }
        s.n_rows += w->tree.n;
        s.n_kept += n_shown(e, w);
        n_tokens += w->kept.m + 1;
        cost_join(&s.who, w->start, w->seq->first_seen);
        if (has_draft(w))
            growth_learn_kept(g, k++, w->kept.emitted, w->kept.m + (w->kept.stop >= 0));
    }
    if (e->be->is_host) cost_learn(&g->cost, &s);
    if (e->n_trees && !s.who.prompt_rows)
        growth_learn_step(g, draft_ms + pass_ms + upkeep_ms, n_tokens);
}

/* What a round has shown of drafts. */
static void learn_rates(Engine *e)
{
    for (int i = 0; i < e->n_work; i++) {
        const Work *w = &e->work[i];
        rates_learn(&w->seq->rates, &e->growth.all, &w->tree, w->kept.emitted,
                    w->kept.m + (w->kept.stop >= 0), e->growth.n_steps);
    }
}

/* A step of which the host decides all: drafts, the accepted path. */
static int hosted_step(Engine *e, Error *err)
{
    StepTotals *t = &e->totals;
    double draft_ms, pass_ms, upkeep_ms;
    for (int i = 0; i < e->n_work; i++)
        e->work[i].seq->on_device = 0;
    draft_trees(e); /* one per decoding sequence; root = its last token */
    draft_ms = lap_ms(e);
    if (verify_trees(e, err)) return -1; /* one target pass, a state or a record for each node */
    accept_paths(e);                     /* what the target agrees with, cut at the first stop */
    pass_ms = lap_ms(e);
    keep_rows(e); /* KV rows move up; the drafter sees what stays */
    upkeep_ms = lap_ms(e);
    t->draft_ms += draft_ms + upkeep_ms;
    *(e->n_trees ? &t->verify_ms : &t->prefill_ms) += pass_ms;
    if (e->options.draft_auto) learn_costs(e, draft_ms, pass_ms, upkeep_ms);
    return end_step(e);
}

/* A step that the device has done but for the stops; drafting is in verify_ms here. */
static int device_step(Engine *e, Error *err)
{
    round_run_ahead(e);
    if (round_read(e, err)) return -1;
    if (!e->n_work) return 0; /* all of its sequences have ended meanwhile */
    accept_paths(e);
    e->totals.verify_ms += lap_ms(e);
    if (e->options.draft_auto) learn_rates(e);
    return end_step(e);
}

/* 1 when a sequence waits for what is read from disk, or for memory that is being saved there. */
static int waits_for_tiers(const Engine *e)
{
    int n = e->n_waiting;
    for (int i = 0; i < e->options.max_seqs; i++) {
        const Seq *s = &e->seq[i];
        if (s->state == SEQ_LOADING) return 1;
        n += s->state == SEQ_PARKED && !s->paused;
    }
    return n && tiers_saving(e);
}

int engine_is_saving(const Engine *e)
{
    return tiers_saving(e) > 0;
}

int engine_step(Engine *e, Error *err)
{
    int n = 0;
    lap_ms(e);
    tiers_poll(e, 0);
    while (e->rounds.n_flying && !n)
        n = device_step(e, err);
    if (n) return n;
    schedule(e); /* who runs, how many prompt rows, how large a tree */
    while (!e->n_work && waits_for_tiers(e)) {
        tiers_poll(e, 1);
        schedule(e);
    }
    if (!e->n_work) return 0;
    return round_begin(e) ? device_step(e, err) : hosted_step(e, err);
}
