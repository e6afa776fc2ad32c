/*
 * prefix.c: what a sequence takes from the prefix cache, and what it leaves there.
 *
 * A sequence that begins behind a hit shares the hit's pages and reads the hit's state once: its
 * first rows take it from there and write the sequence's own slot. On its way it leaves states: at
 * the branch point that its prompt makes in the tree, at the end of a system turn that is new, at
 * the prompt's stable end, at the end of its answer; at most four. To leave a state is to let the
 * cache hold the slot and go on in another: nothing is copied but the hidden row.
 */
#include <assert.h>

#include "base/clock.h"
#include "engine/state.h"

static double now_s(void)
{
    return clock_ms() / 1000;
}

/* ---- taking ---- */

static CacheHit find(const Engine *e, const EngineRequest *r, const int32_t *token, int n)
{
    if (!prefix_reads(r)) return (CacheHit){.slot = -1};
    return cache_find(e->mem.cache, r->salt, token, n);
}

/* A slot to write; if need be the one to read, which the cache then has no more. */
static int take_slot(Engine *e, Seq *s, const CacheHit *hit)
{
    s->src = hit->slot;
    if (cache_claim_slots(e->mem.cache, 1, &s->slot)) return 0;
    if (hit->slot < 0 || slots_refs(e->mem.frames, hit->slot) > 2) return -1;
    cache_drop_state(e->mem.cache, hit->node);
    if (slots_refs(e->mem.frames, hit->slot) > 1) return -1; /* the claim had it dropped before */
    s->slot = hit->slot;
    s->src = -1;
    return 0;
}

/* A slot behind the hit, and pages for n rows: 0, or -1 and nothing. */
static int take(Engine *e, int index, const CacheHit *hit, int n)
{
    Seq *s = &e->seq[index];
    Memory *mem = &e->mem;
    cache_pin(mem->cache, hit->node);
    s->found_at = now_s();
    cache_touch(mem->cache, hit->node, s->found_at); /* the claims are not to take just this */
    if (hit->slot >= 0) slots_hold(mem->frames, hit->slot);
    if (!memory_share(mem, index, hit->node, hit->n) && !memory_reserve(mem, index, n) &&
        !take_slot(e, s, hit)) {
        s->node = hit->node;
        s->held = -1;
        return 0;
    }
    memory_release(mem, index);
    if (hit->slot >= 0) slots_release(mem->frames, hit->slot);
    cache_unpin(mem->cache, hit->node);
    return -1;
}

int prefix_take(Engine *e, int index, const EngineRequest *r, const int32_t *token, int n,
                int n_more, CacheHit *hit)
{
    *hit = find(e, r, token, n);
    return take(e, index, hit, n + n_more);
}

int prefix_take_none(Engine *e, int index, int n_rows, CacheHit *hit)
{
    *hit = (CacheHit){.slot = -1};
    return take(e, index, hit, n_rows);
}

static void plan_keeping(Engine *e, Seq *s, const CacheHit *hit)
{
    const EngineRequest *r = &s->req;
    KeepRules rules = engine_keep_rules(e);
    KeepPlan plan = {0};
    if (prefix_keeps(e, r))
        plan = keep_plan(&rules, hit, r->n_prompt, r->n_system, r->n_stable, r->answer_changes);
    s->keep_branch = plan.branch;
    s->keep_system = plan.system;
    s->keep_stable = plan.prompt;
    s->keep_answer = plan.answer;
}

void prefix_begin(Engine *e, Seq *s, const CacheHit *hit)
{
    s->n_past = hit->n;
    s->from_hidden = hit->n > 0;
    s->n_hidden = s->from_hidden && s->src < 0 ? hit->n : 0;
    if (!s->stats.n_preemptions) { /* it begins */
        s->stats.n_cached = hit->n;
        s->holds_text = 0;
    }
    plan_keeping(e, s, hit);
    if (prefix_reads(&s->req)) cache_use(e->mem.cache, hit, s->n_tokens, now_s());
    if (!hit->n) memory_clear_slot(&e->mem, s->slot);
}

static void drop_held(Engine *e, Seq *s)
{
    if (s->held >= 0) slots_release(e->mem.frames, s->held);
    s->held = -1;
}

void prefix_release(Engine *e, Seq *s)
{
    Memory *mem = &e->mem;
    slots_release(mem->frames, s->slot);
    if (s->src >= 0) slots_release(mem->frames, s->src);
    drop_held(e, s);
    memory_release(mem, seq_index(e, s));
    cache_unpin(mem->cache, s->node);
}

/* ---- waiting for another ---- */

static int common_tokens(const int32_t *a, int n_a, const int32_t *b, int n_b)
{
    int n = 0;
    while (n < n_a && n < n_b && a[n] == b[n])
        n++;
    return n;
}

/* The deepest position up to n where s will leave a state. It is made to leave one there, if it
 * has none to leave at a branch yet. */
static int will_keep(const Engine *e, Seq *s, int n)
{
    const int at[] = {s->keep_system, s->keep_branch, s->keep_stable};
    int deepest = 0;
    for (int i = 0; i < 3; i++)
        if (at[i] > s->n_past && at[i] <= n && at[i] > deepest) deepest = at[i];
    KeepRules rules = engine_keep_rules(e);
    int branch = keep_whole_blocks(&rules, n);
    if (branch - deepest < MIN_BRANCH || branch <= s->n_past || s->keep_branch) return deepest;
    s->keep_branch = branch;
    return branch;
}

int prefix_is_coming(Engine *e, const EngineRequest *r, const int32_t *token, int n)
{
    int have = -1;
    if (!e->options.cache.on || !prefix_reads(r)) return 0;
    for (int i = 0; i < e->options.max_seqs; i++) {
        Seq *s = &e->seq[i];
        if (s->state == SEQ_LOADING && s->n_loading <= n && s->req.salt == r->salt &&
            common_tokens(token, n, s->token, s->n_loading) == s->n_loading)
            return 1;
        if (s->state != SEQ_PREFILL || s->paused || s->req.no_cache || s->req.salt != r->salt)
            continue;
        int common = common_tokens(token, n, s->token, s->req.n_prompt);
        if (common < MIN_BRANCH || common <= s->n_past) continue;
        if (have < 0) have = find(e, r, token, n).n;
        if (common - have >= MIN_BRANCH && will_keep(e, s, common) - have >= MIN_BRANCH) return 1;
    }
    return 0;
}

/* ---- going on ---- */

int prefix_rows(const Seq *s, int n_rows)
{
    const int at[] = {s->keep_branch, s->keep_system, s->keep_stable};
    for (int i = 0; i < 3; i++)
        if (at[i] > s->n_past && at[i] - s->n_past < n_rows) n_rows = at[i] - s->n_past;
    return n_rows;
}

int prefix_hidden_row(Engine *e, const Seq *s)
{
    Backend *be = e->be;
    int row = e->forward.max_rows - 1; /* no pass has so many */
    size_t dim = (size_t)e->model->config.dim;
    be->copy(be, e->forward.final + (size_t)row * dim,
             memory_hidden(&e->mem, s->src >= 0 ? s->src : s->slot), dim * sizeof(float));
    return row;
}

void prefix_own_state(Engine *e, Seq *s)
{
    if (s->src < 0) return;
    memory_copy_slot(&e->mem, s->slot, s->src);
    slots_release(e->mem.frames, s->src);
    s->src = -1;
}

/* ---- leaving ---- */

/* Row i of w's pass is that of the token whose state the slot has. */
static void copy_hidden(Engine *e, const Work *w, int i, int32_t slot)
{
    Backend *be = e->be;
    size_t dim = (size_t)e->model->config.dim;
    be->copy(be, memory_hidden(&e->mem, slot), w->final + (size_t)(w->row + i) * dim,
             dim * sizeof(float));
}

static void save_hidden(Engine *e, const Work *w, int i)
{
    copy_hidden(e, w, i, w->seq->slot);
    w->seq->n_hidden = w->seq->n_past;
}

/* ---- text that is held back ---- */

/* The slot of the d-th node of w's kept path, before it is promoted; -1: there is none. */
static int32_t slot_on_path(const Work *w, int d)
{
    int node = w->kept.path[d] - w->first_node;
    return node < 0 ? w->seq->slot : node < w->n_slots ? w->slot[node] : -1;
}

/* Takes a slot for the state after the d-th node of w's path. 1: it is to be made of records. */
static int hold_inside(Engine *e, const Work *w, int d)
{
    Seq *s = w->seq;
    int of_records = e->forward.records && !s->on_device;
    if (of_records && cache_claim_slots(e->mem.cache, 1, &s->held)) {
        memory_copy_slot(&e->mem, s->held, s->slot);
    } else if (!of_records && w->state_m == STATE_OF_ANY) {
        s->held = slot_on_path(w, d);
        slots_hold(e->mem.frames, s->held);
    } else {
        s->held = -1;
        return 0;
    }
    s->n_held = w->start + d + 1;
    copy_hidden(e, w, w->kept.path[d], s->held);
    return of_records;
}

int prefix_hold(Engine *e, Work *w)
{
    Seq *s = w->seq;
    int d = w->n_sent, last = w->kept.m, held_before = s->holds_text;
    if (!s->keep_answer || !w->n_sampled) return 0;
    s->holds_text = w->kept.stop >= 0 && d <= last;
    if (s->holds_text && !d && held_before) return 0; /* it goes on */
    drop_held(e, s);
    if (!s->holds_text) return 0;
    if (w->is_tree && d < last) return hold_inside(e, w, d);
    w->hold_promoted = 1;
    return 0;
}

/* The state that was promoted is held, and the sequence goes on in another slot. */
static void hold_promoted(Engine *e, const Work *w)
{
    Seq *s = w->seq;
    int32_t next;
    if (s->src < 0) {
        if (!w->n_rows || s->on_device || !cache_claim_slots(e->mem.cache, 1, &next)) return;
        copy_hidden(e, w, w->is_tree ? w->kept.path[w->kept.m] : w->n_rows - 1, s->slot);
        s->src = s->slot;
        s->slot = next;
    }
    slots_hold(e->mem.frames, s->src);
    s->held = s->src;
    s->n_held = s->n_past;
}

/* ---- keeping ---- */

/* The cache keeps the state after s's first n tokens; 1: it has the slot from now on. */
static int keep(Engine *e, Seq *s, int n, int32_t slot, CacheKept kind)
{
    Cache *cache = e->mem.cache;
    double now = now_s();
    cache_touch_since(cache, s->node, s->found_at, now);
    int32_t node = cache_keep(cache, s->req.salt, s->node, s->token, n,
                              memory_pages(&e->mem, seq_index(e, s)), slot, kind, now);
    if (node < 0) return 0;
    cache_pin(cache, node);
    cache_unpin(cache, s->node);
    s->node = node;
    int kept = slots_refs(e->mem.frames, slot) > 1;
    if (kept && kind != KEPT_LOADED) tiers_save(e, s, n, slot);
    return kept;
}

void prefix_loaded(Engine *e, Seq *s, CacheHit *hit)
{
    if (s->src >= 0) slots_release(e->mem.frames, s->src);
    s->src = -1;
    *hit = (CacheHit){.node = s->node,
                      .n = s->n_loading,
                      .slot = -1,
                      .matched = hit->matched > s->n_loading ? hit->matched : s->n_loading,
                      .branch = hit->branch > s->n_loading ? hit->branch : 0};
}

/* In the middle of a sequence: it needs a slot to go on in. */
static void keep_and_go_on(Engine *e, Seq *s, CacheKept kind)
{
    int32_t next;
    int in_place = e->options.cache.policy == POLICY_NONE && !slots_free_count(e->mem.frames);
    if (in_place || !cache_claim_slots(e->mem.cache, 1, &next)) {
        cache_refuse(e->mem.cache, REFUSED_MEMORY);
        return;
    }
    assert(s->src < 0 && s->n_hidden == s->n_past);
    if (keep(e, s, s->n_past, s->slot, kind)) {
        s->src = s->slot;
        s->slot = next;
    } else {
        slots_release(e->mem.frames, next);
    }
}

void prefix_share(Engine *e, Seq *s)
{
    keep_and_go_on(e, s, KEPT_LOADED);
}

void prefix_after_step(Engine *e, const Work *w)
{
    Seq *s = w->seq;
    int at_branch = s->n_past == s->keep_branch || s->n_past == s->keep_system;
    int ends = w->n_sampled && w->kept.stop;
    int keeps = !w->is_tree && w->n_rows && (at_branch || s->n_past == s->keep_stable);
    int has_state = w->n_rows && (w->state_m == STATE_OF_ANY || w->state_m == w->kept.m);
    if (w->n_sampled && w->kept.stop < 0) return; /* NaN: nothing of it is kept */
    if (keeps || (ends && s->keep_answer && has_state))
        save_hidden(e, w, w->is_tree ? w->kept.path[w->kept.m] : w->n_rows - 1);
    if (keeps) keep_and_go_on(e, s, at_branch ? KEPT_BRANCH : KEPT_PROMPT);
    if (w->hold_promoted && ends)
        s->holds_text = 0; /* what is held is not in the state */
    else if (w->hold_promoted)
        hold_promoted(e, w);
}

void prefix_end(Engine *e, Seq *s)
{
    if (s->finish != FINISH_STOP && s->finish != FINISH_LENGTH) return;
    if (!prefix_keeps(e, &s->req)) return;
    if (!s->keep_answer) {
        if (s->req.answer_changes) cache_refuse(e->mem.cache, REFUSED_CHANGES);
        return;
    }
    int cut = s->finish == FINISH_STOP && s->stop_token < 0; /* else what is held is sent now */
    if (cut && s->held >= 0) {
        keep(e, s, s->n_held, s->held, KEPT_ANSWER);
        return;
    }
    if (s->src >= 0) return; /* nothing was computed since the last one was kept */
    if (s->n_hidden != s->n_past || (cut && s->holds_text))
        cache_refuse(e->mem.cache, REFUSED_LOST);
    else
        keep(e, s, s->n_past, s->slot, KEPT_ANSWER);
}
