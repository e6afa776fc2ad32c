/*
 * engine.c: opening, submitting, cancelling, events. The step itself is in step.c.
 */
#include "engine/engine.h"

#include <assert.h>
#include <limits.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/arrays.h"
#include "engine/flops.h"
#include "engine/state.h"

EngineOptions engine_defaults(void)
{
    return (EngineOptions){.max_seqs = 8,
                           .max_waiting = 64,
                           .chunk_rows = 256,
                           .reserve = 128,
                           .tree_nodes = 4,
                           .draft_depth = 3,
                           .draft_topk = 1};
}

static int check_options(const EngineOptions *o, int ctx_limit, Error *err)
{
    struct {
        const char *name;
        int value, lo, hi;
    } range[] = {{"max-seqs", o->max_seqs, 1, MAX_SEQS},
                 {"max-waiting", o->max_waiting, 1, 1 << 20},
                 {"ubatch-size", o->chunk_rows, 1, 1 << 16},
                 {"tree-nodes", o->tree_nodes, 1, MAX_TREE_NODES},
                 {"draft-depth", o->draft_depth, 0, MAX_TREE_NODES - 1},
                 {"draft-topk", o->draft_topk, 1, MAX_TOP - 1},
                 {"draft-vocab", o->draft_vocab.n_first, 0, INT_MAX},
                 {"ctx-size", o->ctx_size, 0, ctx_limit},
                 {"reserve", o->reserve, 0, 1 << 20},
                 {"slots", o->n_slots, 0, 1 << 20}};
    for (size_t i = 0; i < sizeof range / sizeof *range; i++)
        if (range[i].value < range[i].lo || range[i].value > range[i].hi)
            return error_set(err, ERR_INPUT, "%s is %d, must be %d to %d", range[i].name,
                             range[i].value, range[i].lo, range[i].hi);
    if (o->memory < 0) return error_set(err, ERR_INPUT, "memory is negative");
    return 0;
}

enum { MAX_ARRAYS = 15 + 3 * MAX_SEQS };

/* Of each sequence's counts. */
static size_t counts_stride(const Engine *e)
{
    return ((size_t)e->model->config.n_vocab + 63) / 64 * 64;
}

/*
 * The backend's: of the step, and the sequences'. Their counts are one block, of which few pages
 * are touched: only penalties need them.
 */
static int list_arrays(Engine *e, BackendArray array[MAX_ARRAYS])
{
    size_t scored = (size_t)e->max_scored, mask = mask_words(e) * sizeof(uint64_t);
    size_t counts = counts_stride(e) * (size_t)e->options.max_seqs * sizeof *e->counts;
    StepDevice *d = &e->dev;
    int n = 0;
    array[n++] = (BackendArray){&d->row, MAX_SAMPLED * sizeof *d->row};
    array[n++] = (BackendArray){&d->path, MAX_SAMPLED * MAX_TREE_NODES * sizeof *d->path};
    array[n++] = (BackendArray){&d->next, MAX_SAMPLED * sizeof *d->next};
    array[n++] = (BackendArray){&d->bad, MAX_SAMPLED * sizeof *d->bad};
    array[n++] = (BackendArray){&d->mask, MAX_SAMPLED * mask};
    array[n++] = (BackendArray){&d->move_seq, MAX_TREE_ROWS * sizeof *d->move_seq};
    array[n++] = (BackendArray){&d->move_from, MAX_TREE_ROWS * sizeof *d->move_from};
    array[n++] = (BackendArray){&d->move_to, MAX_TREE_ROWS * sizeof *d->move_to};
    array[n++] = (BackendArray){&d->scored, scored * sizeof *d->scored};
    array[n++] = (BackendArray){&d->rank, scored * sizeof *d->rank};
    array[n++] = (BackendArray){&d->top_id, scored * MAX_LOGPROBS * sizeof *d->top_id};
    array[n++] = (BackendArray){&d->logprob, scored * sizeof *d->logprob};
    array[n++] = (BackendArray){&d->top_logprob, scored * MAX_LOGPROBS * sizeof *d->top_logprob};
    array[n++] = (BackendArray){&e->counts, counts};
    if (e->options.allowed) array[n++] = (BackendArray){&e->allowed, mask};
    for (int i = 0; i < e->options.max_seqs; i++) {
        Seq *s = &e->seq[i];
        array[n++] = (BackendArray){&s->bias_id, MAX_LOGIT_BIAS * sizeof *s->bias_id};
        array[n++] = (BackendArray){&s->bias, MAX_LOGIT_BIAS * sizeof *s->bias};
        array[n++] = (BackendArray){&s->ban, MAX_BAN * sizeof *s->ban};
    }
    return n;
}

/* What the host has beside them, or of them: where memory is the host's the large ones are both's.
 */
static int open_step_host(Engine *e, Error *err)
{
    size_t rows = (size_t)e->forward.max_rows, scored = (size_t)e->max_scored;
    StepHost *h = &e->host;
    h->mask = e->dev.mask;
    if (!e->be->is_host) h->mask = mem_map(MAX_SAMPLED * mask_words(e) * sizeof *h->mask);
    if (!h->mask) return error_set(err, ERR_LIMIT, "no memory for masks of tokens");
    h->scored = mem_alloc(scored, sizeof *h->scored);
    h->rank = mem_alloc(scored, sizeof *h->rank);
    h->top_id = mem_alloc(scored * MAX_LOGPROBS, sizeof *h->top_id);
    h->logprob = mem_alloc(scored, sizeof *h->logprob);
    h->top_logprob = mem_alloc(scored * MAX_LOGPROBS, sizeof *h->top_logprob);
    h->seen_seq = mem_alloc(rows, sizeof *h->seen_seq);
    h->seen_pos = mem_alloc(rows, sizeof *h->seen_pos);
    h->seen_token = mem_alloc(rows, sizeof *h->seen_token);
    h->seen_hidden = mem_alloc(rows, sizeof *h->seen_hidden);
    return 0;
}

static int open_seqs(Engine *e, Error *err)
{
    size_t stride = counts_stride(e), all = stride * (size_t)e->options.max_seqs;
    e->counts_host = e->be->is_host ? e->counts : mem_map(all * sizeof *e->counts_host);
    if (!e->counts_host) return error_set(err, ERR_LIMIT, "no memory for counts of tokens");
    for (int i = 0; i < e->options.max_seqs; i++) {
        Seq *s = &e->seq[i];
        s->token = mem_alloc((size_t)e->options.ctx_size, sizeof *s->token);
        s->counts_host = e->counts_host + (size_t)i * stride;
        s->counts = e->counts + (size_t)i * stride;
    }
    return 0;
}

static int open_arrays(Engine *e, Error *err)
{
    BackendArray array[MAX_ARRAYS];
    if (arrays_take(e->be, array, list_arrays(e, array), err)) return -1;
    if (open_step_host(e, err) || open_seqs(e, err)) return -1;
    if (e->allowed)
        e->be->upload(e->be, e->allowed, e->options.allowed, mask_words(e) * sizeof *e->allowed);
    return 0;
}

static void close_arrays(Engine *e)
{
    BackendArray array[MAX_ARRAYS];
    StepHost *h = &e->host;
    void *host[] = {h->scored,   h->rank,     h->top_id,     h->logprob,    h->top_logprob,
                    h->seen_seq, h->seen_pos, h->seen_token, h->seen_hidden};
    for (size_t i = 0; i < sizeof host / sizeof *host; i++)
        mem_free(host[i]);
    for (int i = 0; i < e->options.max_seqs; i++)
        mem_free(e->seq[i].token);
    if (h->mask != e->dev.mask) mem_unmap(h->mask);
    if (e->counts_host != e->counts) mem_unmap(e->counts_host);
    arrays_give_back(e->be, array, list_arrays(e, array));
}

int engine_uses_head(const Engine *e)
{
    const Drafter *d = e->options.drafter;
    return d && d->uses_head && e->model->has_mtp;
}

/* KV rows past the committed ones: the tree's, or those of the head's passes while drafting. */
static int overhang_rows(const Engine *e)
{
    return (e->options.drafter ? MAX_TREE_NODES + 1 : 1) + round_rows_ahead(e);
}

static int open_records(Engine *e, int n_rows, int max_rows, Error *err)
{
    if (!n_rows) return 0;
    if (records_open(&e->records, e->model, n_rows, max_rows, err)) return -1;
    e->forward.records = &e->records;
    return 0;
}

/* What the parts of a step move. Records, moved KV rows and activations are left out. */
static void init_cost(Engine *e)
{
    const Model *m = e->model;
    const ModelConfig *c = &m->config;
    double kv = 2.0 * (double)e->mem.kv_row_bytes;
    CostBytes b = {.state = (double)memory_slot_bytes(c),
                   .key = kv * c->n_full,
                   .head_key = engine_uses_head(e) ? kv : 0,
                   .head = engine_uses_head(e) ? model_head_bytes(m) : 0,
                   .scored = scored_bytes(&e->head.scored),
                   .fold = e->forward.records ? 2.0 * (double)memory_slot_bytes(c) : 0};
    for (int n = 1; n <= COST_ROWS; n++)
        b.pass[n] = model_pass_bytes(m, n);
    growth_init(&e->growth, &b, e->options.synthetic > 0,
                e->options.drafter && e->options.drafter->is_free);
}

/* On a device whose prompts run in blocks a prompt's states are exact at whole blocks alone. */
KeepRules engine_keep_rules(const Engine *e)
{
    return (KeepRules){.keep_answers = e->options.cache.keep_answers,
                       .keep_prompts = 1,
                       .block = e->be->prefill_differs ? PREFILL_BLOCK : 0};
}

/*
 * What the tuning of alpha needs of the host's memory: three trees like the cache's, and windows of
 * tokens that are as many as the serving memory holds, a few times over.
 */
static int open_tuner(Engine *e, int max_nodes, Error *err)
{
    enum { MAX_REQUESTS = 1024, TIMES = 4, MAX_TOKENS = 1 << 22 };
    const EngineOptions *o = &e->options;
    const Memory *mem = &e->mem;
    if (!o->cache.on || o->cache.policy != POLICY_FLOP || o->cache.alpha >= 0) return 0;
    int64_t tokens = (int64_t)TIMES * mem->n_frames * mem->pages_per_frame * PAGE_TOKENS;
    TuneSetup setup = {.cache = o->cache,
                       .cost = model_flops(&e->model->config),
                       .n_frames = mem->n_frames,
                       .pages_per_frame = mem->pages_per_frame,
                       .max_slots = o->n_slots ? o->n_slots : mem->n_frames,
                       .max_nodes = max_nodes,
                       .rules = engine_keep_rules(e),
                       .max_requests = MAX_REQUESTS,
                       .max_tokens = tokens < MAX_TOKENS ? (int)tokens : MAX_TOKENS};
    e->tuner = tune_open(&setup, 1, err);
    return e->tuner ? 0 : -1;
}

static int open_parts(Engine *e, Error *err)
{
    EngineOptions *o = &e->options;
    const Model *m = e->model;
    Budget budget;
    int apart = e->be->prefill_differs; /* a prompt begins at PROMPT_ROW */
    int before = apart ? MAX_TREE_ROWS : budget_tree_rows(e);
    int max_rows = o->chunk_rows + before + 1, max_logits = LOGIT_ROWS;
    e->max_scored = max_rows;
    if (apart) e->max_scored = max_logits = MAX_TREE_ROWS + PROMPT_SCORE_ROWS;
    int max_meta = max_rows + MAX_TREE_ROWS * MAX_SEQS, has_head = engine_uses_head(e);
    e->scratch_bytes = forward_bytes(m, max_rows, max_logits);
    if (has_head) e->scratch_bytes += head_bytes(m, max_rows, max_meta, &o->draft_vocab);
    if (budget_plan(e, max_rows, &budget, err)) return -1;
    MemoryOptions memory = {.kv_type = o->kv_type,
                            .n_frames = budget.n_frames,
                            .max_slots = o->n_slots,
                            .max_seqs = o->max_seqs,
                            .seq_rows = o->ctx_size + e->overhang,
                            .max_nodes = 2 * budget.n_frames + 16, /* a state each, or two below */
                            .cache = o->cache};
    if (memory_open(&e->mem, m, &memory, err)) return -1;
    if (forward_open(&e->forward, m, &e->mem, max_rows, max_logits, err)) return -1;
    if (open_records(e, budget.record_rows, max_rows, err) || tiers_open(e, err) ||
        open_tuner(e, memory.max_nodes, err))
        return -1;
    batch_open(&e->batch, max_rows);
    if (has_head) {
        if (head_open(&e->head, &e->forward, max_meta, &o->draft_vocab, err)) return -1;
        if (o->draft_auto && e->be->is_host) e->head.from = e->head_from;
    }
    init_cost(e);
    if (open_arrays(e, err) || round_open(e, err)) return -1;
    e->waiting = mem_alloc((size_t)o->max_waiting, sizeof *e->waiting);
    e->waiting_since = mem_alloc((size_t)o->max_waiting, sizeof *e->waiting_since);
    e->max_events =
        2 * max_rows + 3 * o->max_seqs + o->max_seqs * (MAX_FORCED + 1) + o->max_waiting + 2;
    e->event = mem_alloc((size_t)e->max_events, sizeof *e->event);
    return o->drafter ? o->drafter->bind(o->drafter->self, e, err) : 0;
}

/* Limits within which shapes are chosen step by step: of a device's rounds, chains. */
static void open_draft_shape(EngineOptions *o, const Backend *be)
{
    if (!o->drafter) o->tree_nodes = 1;
    o->draft_auto = o->draft_auto && o->drafter && (be->is_host || o->drafter->queue_drafts);
    if (!o->draft_auto) return;
    o->tree_nodes = be->is_host ? GROWTH_NODES : MAX_LEVELS + 1;
    o->draft_depth = o->drafter->is_free ? GROWTH_NODES - 1 : MAX_LEVELS;
    o->draft_topk = be->is_host ? GROWTH_TOPK : 1;
}

/* Rows of a chunk that ends on a block: at most as many as asked for, but one block. */
static int whole_blocks(int chunk_rows)
{
    return chunk_rows < PREFILL_BLOCK ? PREFILL_BLOCK : chunk_rows / PREFILL_BLOCK * PREFILL_BLOCK;
}

Engine *engine_open(const struct Model *model, const EngineOptions *options, Error *err)
{
    if (check_options(options, model->config.ctx_limit, err)) return NULL;
    Engine *e = mem_alloc(1, sizeof *e);
    e->options = *options;
    e->model = model;
    e->be = model->backend;
    open_draft_shape(&e->options, e->be);
    e->options.state_mode = budget_state_mode(e);
    if (e->be->prefill_differs) e->options.chunk_rows = whole_blocks(e->options.chunk_rows);
    e->overhang = overhang_rows(e);
    if (open_parts(e, err)) {
        engine_close(e);
        return NULL;
    }
    return e;
}

void engine_close(Engine *e)
{
    if (!e) return;
    round_close(e);
    tiers_close(e);
    tune_close(e->tuner);
    close_arrays(e);
    mem_free(e->waiting);
    mem_free(e->waiting_since);
    mem_free(e->event);
    head_close(&e->head);
    batch_close(&e->batch);
    records_close(&e->records);
    forward_close(&e->forward);
    memory_close(&e->mem);
    mem_free(e);
}

int engine_submit(Engine *e, const EngineRequest *request, Error *err)
{
    if (request_check(e, request, err)) return -1;
    if (e->n_waiting == e->options.max_waiting)
        return error_set(err, ERR_BUSY, "%d requests are waiting already", e->n_waiting);
    int i = (e->first_waiting + e->n_waiting++) % e->options.max_waiting;
    EngineRequest *r = &e->waiting[i];
    *r = *request;
    if (r->max_tokens < 0) r->max_tokens = e->options.ctx_size - r->n_prompt;
    if (!r->n_stable) r->n_stable = r->n_prompt;
    e->waiting_since[i] = clock_ms();
    return 0;
}

Event *engine_add_event(Engine *e, EventType type, uint64_t id)
{
    assert(e->n_events < e->max_events);
    Event *ev = &e->event[e->n_events++];
    memset(ev, 0, sizeof *ev);
    ev->type = type;
    ev->id = id;
    return ev;
}

const Event *engine_next_event(Engine *e)
{
    if (e->next_event < e->n_events) return &e->event[e->next_event++];
    e->n_events = e->next_event = 0;
    return NULL;
}

void seq_give_up_memory(Engine *e, Seq *seq)
{
    if (seq->state == SEQ_PARKED) return; /* it has none */
    if (seq->state == SEQ_LOADING) tiers_stop_loading(e, seq);
    round_forget(e, seq_index(e, seq));
    prefix_release(e, seq);
}

/* What has been served teaches the tuning, whether it was found in the cache or not. */
static void tell_tuner(Engine *e, const Seq *seq)
{
    double end = clock_ms() / 1000;
    const EngineRequest *r = &seq->req;
    int whole = seq->finish == FINISH_STOP || seq->finish == FINISH_LENGTH;
    if (!e->tuner || !whole || !prefix_reads(r)) return;
    CachedRequest served = {.token = seq->token,
                            .n_prompt = r->n_prompt,
                            .n_answer = seq_n_generated(seq),
                            .n_stable = r->n_stable,
                            .n_system = r->n_system,
                            .answer_changes = r->answer_changes,
                            .salt = r->salt,
                            /* one at a time there: it begins when the one before is over */
                            .now = seq->found_at > e->told_at ? seq->found_at : e->told_at,
                            .end = end};
    e->told_at = end;
    tune_served(e->tuner, e->mem.cache, &served, seq->stats.n_cached);
}

const RequestStats *seq_stats(Seq *seq)
{
    double now = clock_ms();
    RequestStats *s = &seq->stats;
    s->n_prompt = seq->req.n_prompt;
    s->n_generated = seq_n_generated(seq);
    s->wait_ms = seq->started - seq->submitted;
    s->prompt_ms = (seq->first_token > 0 ? seq->first_token : now) - seq->started;
    s->decode_ms = seq->first_token > 0 ? now - seq->first_token : 0;
    return s;
}

void engine_finish(Engine *e, Seq *seq)
{
    const RequestStats *stats = seq_stats(seq);
    prefix_end(e, seq);
    seq_give_up_memory(e, seq);
    seq->state = SEQ_FREE;
    Event *ev = engine_add_event(e, EVENT_DONE, seq->req.id);
    ev->finish = seq->finish;
    ev->stop_token = seq->stop_token;
    ev->stats = *stats;
    tell_tuner(e, seq);
}

/* Takes waiting request i (counted from the oldest) out of the ring. */
static void drop_waiting(Engine *e, int i)
{
    int max = e->options.max_waiting;
    for (; i + 1 < e->n_waiting; i++) {
        int to = (e->first_waiting + i) % max, from = (to + 1) % max;
        e->waiting[to] = e->waiting[from];
        e->waiting_since[to] = e->waiting_since[from];
    }
    e->n_waiting--;
}

void engine_cancel(Engine *e, uint64_t id)
{
    for (int i = 0; i < e->options.max_seqs; i++) {
        Seq *s = &e->seq[i];
        if (s->state == SEQ_FREE || s->req.id != id) continue;
        s->finish = FINISH_CANCELLED;
        s->stop_token = -1;
        engine_finish(e, s);
        return;
    }
    for (int i = 0; i < e->n_waiting; i++) {
        int at = (e->first_waiting + i) % e->options.max_waiting;
        if (e->waiting[at].id != id) continue;
        Event *ev = engine_add_event(e, EVENT_DONE, id);
        ev->finish = FINISH_CANCELLED;
        ev->stop_token = -1;
        ev->stats.n_prompt = e->waiting[at].n_prompt;
        ev->stats.wait_ms = clock_ms() - e->waiting_since[at];
        drop_waiting(e, i);
        return;
    }
}

void engine_pause(Engine *e, uint64_t id, int paused)
{
    for (int i = 0; i < e->options.max_seqs; i++)
        if (e->seq[i].state != SEQ_FREE && e->seq[i].req.id == id) e->seq[i].paused = paused;
    for (int i = 0; i < e->n_waiting; i++) {
        EngineRequest *r = &e->waiting[(e->first_waiting + i) % e->options.max_waiting];
        if (r->id == id) r->paused = paused;
    }
}

void engine_flush_cache(Engine *e)
{
    cache_clear(e->mem.cache);
    tiers_clear(e);
}

int engine_draft_levels(const EngineOptions *o)
{
    if (!o->drafter) return 0;
    return o->draft_depth < o->tree_nodes ? o->draft_depth : o->tree_nodes - 1;
}

void engine_status(const Engine *e, EngineStatus *s)
{
    *s = (EngineStatus){.waiting = e->n_waiting,
                        .queued = e->n_waiting,
                        .slots = slots_used(e->mem.frames) + slots_free_count(e->mem.frames),
                        .slots_free = slots_free_count(e->mem.frames),
                        .state_mode = e->options.state_mode,
                        .pages = pages_used(e->mem.frames) + pages_free_count(e->mem.frames),
                        .pages_free = pages_free_count(e->mem.frames),
                        .ctx_size = e->options.ctx_size,
                        .max_seqs = e->options.max_seqs,
                        .n_vocab = e->model->config.n_vocab,
                        .preemptions = e->n_preemptions,
                        .totals = e->totals,
                        .cache = cache_stats(e->mem.cache),
                        .draft_depth = engine_draft_levels(&e->options),
                        .draft_auto = e->options.draft_auto,
                        .drafter = e->options.drafter ? e->options.drafter->name : NULL,
                        .draft_vocab = e->head.scored.n_ids,
                        .draft_vocab_bytes = scored_bytes(&e->head.scored),
                        .n_params = e->model->n_params,
                        .file_bytes = e->model->file_bytes};
    s->cache.waits = e->n_prefix_waits;
    tiers_status(e, s);
    for (int i = 0; i < e->options.max_seqs; i++) {
        SeqState state = e->seq[i].state;
        s->waiting += state == SEQ_PARKED || state == SEQ_LOADING;
        s->running += state == SEQ_PREFILL || state == SEQ_DECODE;
    }
}

const struct Model *engine_model(const Engine *e)
{
    return e->model;
}

const ModelConfig *engine_config(const Engine *e)
{
    return &e->model->config;
}

Head *engine_head(Engine *e)
{
    return e->head.f ? &e->head : NULL;
}

const EngineOptions *engine_options(const Engine *e)
{
    return &e->options;
}

const uint64_t *engine_allowed(const Engine *e)
{
    return e->allowed;
}
