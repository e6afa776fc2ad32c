/*
 * schedule.c: who takes part in a step.
 *
 * First come, first served: a waiting request starts when a sequence, a slot and pages for its
 * prompt, its whole answer and the step's overhang are free, so no running sequence ever lacks a
 * page. Every decoding sequence gets a tree; the trees of a pass share MAX_TREE_ROWS rows. At most
 * one prompt gets a chunk of rows, the one admitted first, so a long prompt delays nobody by more
 * than a chunk.
 */
#include <assert.h>
#include <string.h>

#include "engine/state.h"

static int find_free_seq(const Engine *e)
{
    for (int i = 0; i < e->options.max_seqs; i++)
        if (e->seq[i].state == SEQ_FREE) return i;
    return -1;
}

static int uses_counts(const SampleParams *p)
{
    return p->presence != 0 || p->frequency != 0 || p->repetition != 1;
}

static const uint32_t IN_PROMPT = 0x80000000u;

static void start_counts(Engine *e, Seq *s)
{
    size_t bytes = (size_t)e->model->config.n_vocab * sizeof *s->counts;
    memset(s->counts_host, 0, bytes);
    for (int i = 0; i < s->req.n_prompt; i++)
        s->counts_host[s->req.prompt[i]] |= IN_PROMPT;
    e->be->upload(e->be, s->counts, s->counts_host, bytes);
}

/* Ids that min_tokens keeps out: the model's end tokens and the request's stop ids. */
static void start_ban(Engine *e, Seq *s)
{
    const ModelConfig *c = &e->model->config;
    int32_t ban[MAX_BAN];
    int n = 0;
    for (int i = 0; i < c->n_eos; i++)
        if (c->eos[i] < c->n_vocab) ban[n++] = c->eos[i];
    for (int i = 0; i < s->req.n_stop_ids; i++)
        ban[n++] = s->req.stop_ids[i];
    e->be->upload(e->be, s->ban, ban, (size_t)n * sizeof *ban);
    s->n_ban = n;
}

static void start(Engine *e, int index, int32_t slot, const EngineRequest *r, double since)
{
    Seq *s = &e->seq[index];
    s->state = SEQ_PREFILL;
    s->order = e->n_admitted++;
    s->req = *r;
    s->max_tokens = r->max_tokens < 0 ? e->options.ctx_size - r->n_prompt : r->max_tokens;
    s->n_past = s->n_generated = 0;
    s->root = -1;
    s->slot = slot;
    s->stop_token = -1;
    s->submitted = since;
    s->started = engine_now_ms();
    s->first_token = 0;
    memset(&s->stats, 0, sizeof s->stats);
    s->penalised = uses_counts(&r->params);
    if (s->penalised) start_counts(e, s);
    e->be->upload(e->be, s->bias_id, r->bias_id, (size_t)r->n_bias * sizeof *s->bias_id);
    e->be->upload(e->be, s->bias, r->bias, (size_t)r->n_bias * sizeof *s->bias);
    start_ban(e, s);
    memory_clear_slot(&e->mem, slot);
    const Drafter *d = e->options.drafter;
    if (d) d->begin(d->self, index, r->prompt[0]);
}

static void admit(Engine *e)
{
    while (e->n_waiting) {
        const EngineRequest *r = &e->waiting[e->first_waiting];
        int answer = r->max_tokens < 0 ? e->options.ctx_size - r->n_prompt : r->max_tokens;
        int index = find_free_seq(e);
        int32_t slot;
        if (index < 0 || slots_claim(e->mem.slot_pool, 1, &slot) < 1) return;
        if (memory_reserve(&e->mem, index, r->n_prompt + answer + e->overhang)) {
            slots_release(e->mem.slot_pool, slot);
            return;
        }
        start(e, index, slot, r, e->waiting_since[e->first_waiting]);
        e->first_waiting = (e->first_waiting + 1) % e->options.max_waiting;
        e->n_waiting--;
    }
}

static Work *add_work(Engine *e, Seq *s)
{
    Work *w = &e->work[e->n_work++];
    w->seq = s;
    w->index = (int)(s - e->seq);
    w->start = s->n_past;
    w->is_tree = w->ends_prompt = w->max_depth = 0;
    w->n_slots = w->n_sampled = 0;
    return w;
}

/* Levels that can still be of use: no draft beyond the last token that may be emitted. */
static int useful_depth(const Engine *e, const Seq *s)
{
    int depth = e->options.draft_depth;
    if (s->req.draft_max >= 0 && s->req.draft_max < depth) depth = s->req.draft_max;
    int left = s->max_tokens - s->n_generated - 1;
    return left < depth ? left : depth;
}

/*
 * A tree of up to max_rows rows: as many nodes as there are slots for, the root in the main slot.
 * n_after more sequences will want slots in this step.
 */
static void plan_tree(Engine *e, Seq *s, int max_rows, int n_after)
{
    Work *w = add_work(e, s);
    w->is_tree = 1;
    tree_init(&w->tree, s->root);
    int nodes = e->options.tree_nodes;
    w->max_depth = useful_depth(e, s);
    if (nodes > max_rows) nodes = max_rows;
    if (w->max_depth < 1 || nodes < 2) return;
    int share = slots_free_count(e->mem.slot_pool) / (n_after + 1); /* leave the others theirs */
    w->n_slots = slots_claim(e->mem.slot_pool, nodes - 1 < share ? nodes - 1 : share, w->slot);
}

static void plan_chunk(Engine *e, Seq *s, int tree_rows)
{
    Work *w = add_work(e, s);
    int left = s->req.n_prompt - s->n_past, most = e->options.chunk_rows;
    int score = MAX_TREE_ROWS + SCORE_ROWS - tree_rows;
    if (s->req.prompt_logprobs && most > score) most = score;
    w->n_rows = left < most ? left : most;
    w->ends_prompt = w->n_rows == left;
    tree_init(&w->tree, s->req.prompt[s->n_past + w->n_rows - 1]);
}

void schedule(Engine *e)
{
    int n_decode = 0;
    Seq *prompt = NULL;
    admit(e);
    e->n_work = 0;
    for (int i = 0; i < e->options.max_seqs; i++) {
        Seq *s = &e->seq[i];
        n_decode += s->state == SEQ_DECODE;
        if (s->state == SEQ_PREFILL && (!prompt || s->order < prompt->order)) prompt = s;
    }
    for (int i = 0, left = n_decode; left; i++)
        if (e->seq[i].state == SEQ_DECODE)
            plan_tree(e, &e->seq[i], MAX_TREE_ROWS / n_decode, --left);
    e->n_trees = e->n_work;
    if (prompt) plan_chunk(e, prompt, n_decode ? MAX_TREE_ROWS : 0);
}
