/*
 * emit.c: what a step gives: events for the caller, counts for statistics.
 *
 * The states are promoted by then; here tokens join their sequences, and those that stopped end.
 */
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "engine/state.h"

static void count_token(Engine *e, Seq *s, int32_t token)
{
    if (!s->penalised) return;
    s->counts_host[token]++;
    if (s->on_device) return; /* a round counts what it accepts */
    e->be->upload(e->be, s->counts + token, s->counts_host + token, sizeof *s->counts);
}

static void count_step(Engine *e, const Work *w, Seq *s)
{
    const Tree *t = &w->tree;
    RequestStats *st = &s->stats;
    int m = w->kept.m;
    for (int d = 1; d <= m; d++)
        e->totals.kv_moves += w->kept.path[d] != d;
    if (t->n > 1) s->n_fruitless = m ? 0 : s->n_fruitless + 1;
    st->n_steps++;
    st->n_steps_drafted += t->n > 1;
    st->n_drafted += t->n - 1;
    st->n_accepted += m;
    st->accepted_hist[m]++;
    for (int d = 1; d <= m; d++) {
        st->depth_tried[d]++;
        st->depth_accepted[d]++;
    }
    int last = w->kept.path[m], has_child = 0;
    for (int i = last + 1; i < t->n; i++)
        has_child |= t->parent[i] == last;
    if (has_child && !w->kept.stop) st->depth_tried[m + 1]++;
}

static StepKind step_kind(const Engine *e)
{
    if (!e->n_trees) return STEP_PREFILL;
    if (e->n_work > e->n_trees) return STEP_MIXED;
    for (int i = 0; i < e->n_trees; i++)
        if (e->work[i].tree.n > 1) return STEP_VERIFY;
    return STEP_DECODE;
}

void count_pass(Engine *e)
{
    StepTotals *t = &e->totals;
    int tokens = 0, size = 0;
    for (int i = 0; i < e->n_work; i++) {
        const Work *w = &e->work[i];
        if (!w->is_tree) tokens += w->n_rows;
        if (w->n_sampled) tokens += w->kept.m + (w->kept.stop >= 0);
    }
    while (size < STEP_SIZES - 1 && tokens > 1 << size)
        size++;
    t->by_tokens[size]++;
    t->tokens += tokens;
    t->steps[step_kind(e)]++;
}

/* Fills an event's log-probabilities from the i-th of w's rows of logits. */
static void add_logprobs(const Engine *e, const Work *w, int i, Event *ev)
{
    int n_top = w->seq->req.n_logprobs;
    if (n_top < 0) return;
    size_t at = (size_t)w->logit * MAX_LOGPROBS + (size_t)(i * n_top);
    ev->logprob = e->host.logprob[w->logit + i];
    ev->rank = e->host.rank[w->logit + i];
    ev->n_top = n_top;
    memcpy(ev->top_id, e->host.top_id + at, (size_t)n_top * sizeof *ev->top_id);
    memcpy(ev->top_logprob, e->host.top_logprob + at, (size_t)n_top * sizeof *ev->top_logprob);
}

/* Row i of a scored prompt says how likely the prompt's token after it was. */
static void emit_prompt(Engine *e, const Work *w)
{
    Seq *s = w->seq;
    if (!s->req.prompt_logprobs) return;
    for (int i = -1; i < w->n_rows && w->start + i + 1 < s->req.n_prompt; i++) {
        int pos = w->start + i + 1;
        if (pos < s->n_scored) continue; /* given before a preemption, or by the last chunk */
        Event *ev = engine_add_event(e, EVENT_PROMPT, s->req.id);
        ev->pos = pos;
        ev->token = s->token[pos];
        s->n_scored = pos + 1;
        if (i < 0)
            ev->logprob = NAN; /* nothing predicts the first token */
        else
            add_logprobs(e, w, i, ev);
    }
}

/* Up to the first token: what is computed again later is no news. */
static void emit_progress(Engine *e, const Work *w)
{
    Seq *s = w->seq;
    int n = w->start + w->n_rows;
    if (!s->req.progress || s->first_token > 0) return;
    Event *ev = engine_add_event(e, EVENT_PROGRESS, s->req.id);
    ev->pos = n < s->req.n_prompt ? n : s->req.n_prompt;
    ev->stats = *seq_stats(s);
}

static Event *emit_token(Engine *e, Seq *s, int32_t token)
{
    Event *ev = engine_add_event(e, EVENT_TOKEN, s->req.id);
    ev->token = token;
    ev->pos = s->n_tokens;
    s->token[s->n_tokens++] = token;
    count_token(e, s, token);
    return ev;
}

/* The sequence goes on by the host's word: what rounds counted beyond it is not so. */
static void leave_rounds(Engine *e, Seq *s)
{
    size_t bytes = (size_t)e->model->config.n_vocab * sizeof *s->counts;
    if (!s->on_device) return;
    round_forget(e, seq_index(e, s));
    if (s->penalised) e->be->upload(e->be, s->counts, s->counts_host, bytes);
}

/*
 * Tokens that nobody chose. They were not processed, no more than the one before them, so that the
 * sequence goes on as a prompt does. Returns the reason why it ends all the same, or 0.
 */
static int emit_forced(Engine *e, Seq *s)
{
    const EngineRequest *r = &s->req;
    leave_rounds(e, s);
    for (int i = 0; i < r->n_forced; i++) {
        Event *ev = emit_token(e, s, r->forced[i]);
        if (r->n_logprobs >= 0) ev->logprob = NAN;
        if (r->constraint.self) r->constraint.step(r->constraint.self, 0, ev->token, 0);
        if (r->watcher.token(r->watcher.self, ev->token) == WATCH_STOP) return STOP_WATCHER;
        if (seq_n_left(s) <= 0) return STOP_LENGTH;
    }
    s->state = SEQ_PREFILL;
    return 0;
}

/* Says on the last event of w's step what the step was, and what all of them came to. */
static void end_of_step(const Work *w, Event *ev)
{
    ev->stats = *seq_stats(w->seq);
    ev->n_sampled = w->kept.m + 1;
    ev->tree_nodes = w->is_tree ? w->tree.n : 0;
    ev->tree_depth = w->is_tree ? tree_depth(&w->tree) : 0;
}

static void emit_tree(Engine *e, const Work *w)
{
    const AcceptedPath *kept = &w->kept;
    StepTree *t = &engine_add_event(e, EVENT_TREE, w->seq->req.id)->tree;
    t->n = w->tree.n;
    memcpy(t->token, w->tree.token, sizeof t->token);
    memcpy(t->parent, w->tree.parent, sizeof t->parent);
    for (int d = 0; d <= kept->m; d++)
        t->kept[kept->path[d]] = 1;
    t->next = kept->stop < 0 ? -1 : kept->emitted[kept->m];
}

static void emit_kept(Engine *e, const Work *w)
{
    Seq *s = w->seq;
    const AcceptedPath *kept = &w->kept;
    int first_logit = w->n_logits - w->n_sampled, stop = kept->stop;
    int n = stop < 0 ? kept->m : kept->m + 1;
    if (w->is_tree && s->req.trees) emit_tree(e, w);
    for (int d = 0; d < n; d++) {
        Event *ev = emit_token(e, s, kept->emitted[d]);
        ev->drafted = d < kept->m;
        if (d == kept->m) end_of_step(w, ev);
        add_logprobs(e, w, first_logit + kept->path[d], ev);
    }
    if (stop == STOP_FORCE) stop = emit_forced(e, s);
    if (!stop) return;
    s->finish = stop == STOP_LENGTH ? FINISH_LENGTH : FINISH_STOP;
    if (stop < 0) s->finish = s->is_form_lost ? FINISH_FORM : FINISH_ERROR;
    if (stop == STOP_END) s->stop_token = s->token[s->n_tokens - 1];
    engine_finish(e, s);
}

void emit_tokens(Engine *e)
{
    for (int i = 0; i < e->n_work; i++) {
        Work *w = &e->work[i];
        Seq *s = w->seq;
        if (w->is_tree) {
            count_step(e, w, s);
        } else {
            emit_prompt(e, w);
            emit_progress(e, w);
        }
        if (w->ends_chunks) {
            s->state = SEQ_DECODE;
            if (s->first_token <= 0) s->first_token = clock_ms();
        }
        if (w->n_sampled) {
            emit_kept(e, w);
        } else if (w->ends_chunks) { /* max_tokens 0: the prompt was only to be scored */
            s->finish = FINISH_LENGTH;
            engine_finish(e, s);
        }
    }
}
