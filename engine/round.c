/* round.c: see round.h. */
#include "engine/round.h"

#include <assert.h>
#include <string.h>

#include "base/clock.h"
#include "engine/arrays.h"
#include "engine/state.h"

/* ---- memory ---- */

static int most_trees(const Engine *e)
{
    return e->options.max_seqs < MAX_TREE_ROWS ? e->options.max_seqs : MAX_TREE_ROWS;
}

int round_rows_ahead(const Engine *e)
{
    return e->be->is_host ? 0 : engine_draft_levels(&e->options) + 1;
}

static int drafts_on_device(const Engine *e)
{
    return e->options.drafter && e->options.drafter->queue_drafts;
}

static size_t final_bytes(const Engine *e, int rows)
{
    return (size_t)rows * (size_t)e->model->config.dim * sizeof(float);
}

enum { MAX_ARRAYS = 7 + BACKEND_MARKS };

static int list_arrays(Engine *e, BackendArray array[MAX_ARRAYS])
{
    Round *r = &e->rounds.arrays;
    size_t trees = (size_t)most_trees(e), ints = MAX_TREE_ROWS * sizeof(int32_t);
    size_t drafts = drafts_on_device(e) ? trees : 1;
    int n = 0;
    array[n++] = (BackendArray){&r->seq, ints};
    array[n++] = (BackendArray){&r->seqs, (size_t)e->options.max_seqs * sizeof(RoundSeq)};
    array[n++] = (BackendArray){&r->slot, ints};
    array[n++] = (BackendArray){&r->pool, drafts * sizeof(DraftPool)};
    array[n++] = (BackendArray){&r->tree, trees * sizeof(RoundTree)};
    array[n++] = (BackendArray){&r->hidden, ints};
    array[n++] = (BackendArray){&r->last, ints};
    for (int i = 0; i < BACKEND_MARKS && e->options.cache.on; i++)
        array[n++] = (BackendArray){&e->rounds.flight[i].final, final_bytes(e, MAX_TREE_NODES)};
    return n;
}

int round_open(Engine *e, Error *err)
{
    Rounds *r = &e->rounds;
    Backend *be = e->be;
    BackendArray array[MAX_ARRAYS];
    size_t trees = (size_t)most_trees(e) * sizeof(RoundTree);
    if (be->is_host) return 0;
    r->open = 1;
    r->owner = backend_new_owner(be);
    int n = list_arrays(e, array);
    if (arrays_take(be, array, n, err)) return -1;
    e->scratch_bytes += arrays_bytes(array, n);
    for (int i = 0; i < BACKEND_MARKS; i++) {
        Flight *f = &r->flight[i];
        f->seq_sent = be->host_alloc(be, MAX_TREE_ROWS * sizeof(int32_t), err);
        f->slot_sent =
            f->seq_sent ? be->host_alloc(be, MAX_TREE_ROWS * sizeof(int32_t), err) : NULL;
        f->tree = f->slot_sent ? be->host_alloc(be, trees, err) : NULL;
        if (!f->tree) return -1;
    }
    return 0;
}

void round_close(Engine *e)
{
    Rounds *r = &e->rounds;
    Backend *be = e->be;
    BackendArray array[MAX_ARRAYS];
    Error err;
    if (!r->open) return;
    if (r->n_flying) be->sync(be, &err); /* it writes into what is given back now */
    arrays_give_back(be, array, list_arrays(e, array));
    for (int i = 0; i < BACKEND_MARKS; i++) {
        Flight *f = &r->flight[i];
        void *host[] = {f->seq_sent, f->slot_sent, f->tree};
        for (size_t k = 0; k < sizeof host / sizeof *host; k++)
            if (host[k]) be->host_free(be, host[k]);
    }
}

/* ---- queueing ---- */

static void sample_round(Engine *e, const Round *r)
{
    Backend *be = e->be;
    be->sample(be, &(Sample){.n = r->n * r->n_nodes,
                             .n_vocab = e->model->config.n_vocab,
                             .n_top = 1,
                             .logits = e->forward.logits,
                             .allowed = e->allowed,
                             .row = e->dev.row,
                             .id = e->dev.next,
                             .bad = e->dev.bad,
                             .uncut = r->uncut});
}

/* In state mode replay nodes leave records, unless the root is alone. */
static int has_records(const Engine *e, int depth)
{
    return e->forward.records && depth;
}

static void accept_round(Engine *e, const Round *r)
{
    Backend *be = e->be;
    int fold = has_records(e, r->depth);
    const Records *records = &e->records;
    be->accept_trees(be, &(AcceptTrees){.n = r->n,
                                        .n_nodes = r->n_nodes,
                                        .depth = r->depth,
                                        .n_vocab = e->model->config.n_vocab,
                                        .synthetic = e->options.synthetic,
                                        .seq = r->seq,
                                        .seqs = r->seqs,
                                        .slot = r->slot,
                                        .fold_path = fold ? records->path : NULL,
                                        .fold_length = records->length,
                                        .fold_from = records->from,
                                        .fold_slot = records->slot,
                                        .fold_stride = records->n_rows,
                                        .tree = r->tree,
                                        .next = e->dev.next,
                                        .bad = e->dev.bad,
                                        .move_seq = e->dev.move_seq,
                                        .move_from = e->dev.move_from,
                                        .move_to = e->dev.move_to,
                                        .meta = e->head.meta,
                                        .hidden = r->hidden,
                                        .last = r->last});
    if (r->depth) engine_move_rows(e, r->n * r->depth);
    if (fold) records_queue_fold(records, &e->mem, r->n);
}

/* What a round is to a recording. */
typedef struct {
    Engine *e;
    Round round;
    const Flight *flight;
} RoundRun;

static void run_round(void *ctx)
{
    const RoundRun *run = ctx;
    const Round *r = &run->round;
    Engine *e = run->e;
    const Drafter *d = e->options.drafter;
    if (r->depth) d->queue_drafts(d->self, r);
    e->be->plant_trees(e->be, &(PlantTrees){.n = r->n,
                                            .n_nodes = r->n_nodes,
                                            .seq = r->seq,
                                            .seqs = r->seqs,
                                            .pool = r->depth ? r->pool : NULL,
                                            .slot = has_records(e, r->depth) ? NULL : r->slot,
                                            .tree = r->tree,
                                            .meta = e->forward.meta,
                                            .sample = {e->dev.row, e->dev.path}});
    forward_queue(&e->forward, r->n * r->n_nodes, r->n_keys);
    sample_round(e, r);
    accept_round(e, r);
    if (run->flight->is_shown) d->queue_observe(d->self, r);
}

/* What the device must know of a sequence that the host has moved on since. */
static void send_seq(Engine *e, int index)
{
    Seq *s = &e->seq[index];
    if (s->on_device) return;
    RoundSeq q = {.row = {.params = s->req.params,
                          .pos = s->n_tokens,
                          .counts = s->penalised ? s->counts : NULL,
                          .n_bias = s->req.n_bias,
                          .bias_id = s->bias_id,
                          .bias = s->bias,
                          .n_ban = s->n_ban,
                          .ban = s->ban},
                  .counts = s->penalised ? s->counts : NULL,
                  .root = s->token[s->n_tokens - 1],
                  .pos = s->n_past,
                  .slot = s->slot,
                  .n_generated = seq_n_generated(s),
                  .min_tokens = s->req.min_tokens,
                  .max_tokens = s->req.max_tokens,
                  .n_end = s->n_ban - s->first_end,
                  .end = s->ban + s->first_end};
    e->be->upload(e->be, e->rounds.arrays.seqs + index, &q, sizeof q);
    s->on_device = 1;
}

/* The same of all in flight f, and what they are to its round. Returns the last position. */
static int send_seqs(Engine *e, Flight *f, Round *r)
{
    int last = 0;
    f->who = (CostCompany){0};
    r->uncut = 1;
    for (int i = 0; i < f->n; i++) {
        const Seq *s = &e->seq[f->index[i]];
        send_seq(e, f->index[i]);
        f->seq_sent[i] = f->index[i];
        cost_join(&f->who, s->n_past, s->first_seen);
        if (s->n_past > last) last = s->n_past;
        if (sample_is_cut(&s->req.params)) r->uncut = 0;
    }
    return last;
}

/*
 * 1 when what the drafter makes of f's rows is of use, as in step.c. No matter of where an answer
 * is, so that f's recording stays the same to its end.
 */
static int is_shown(const Engine *e, const Flight *f)
{
    if (!e->options.drafter || f->depth) return f->depth > 0;
    for (int i = 0; i < f->n; i++) {
        const EngineRequest *r = &e->seq[f->index[i]].req;
        if (prefix_keeps(e, r)) return 1;
        if (r->draft_max && engine_draft_levels(&e->options)) return 1;
    }
    return 0;
}

/* Queues flight f, whose sequences are `ahead` tokens at most beyond what the host knows. */
static void launch(Engine *e, Flight *f, int ahead)
{
    Backend *be = e->be;
    f->is_shown = is_shown(e, f);
    RoundRun run = {.e = e, .round = e->rounds.arrays, .flight = f};
    Round *r = &run.round;
    int last, mark = (int)(f - e->rounds.flight);
    r->n = f->n;
    r->n_nodes = f->n_nodes;
    r->depth = f->depth;
    r->topk = e->options.draft_topk;
    r->final = e->forward.final;
    last = send_seqs(e, f, r);
    r->n_keys = forward_n_keys(&e->mem, last + ahead + f->depth + 1);
    memcpy(f->slot_sent, f->slot, (size_t)(f->n * f->n_nodes) * sizeof(int32_t));
    be->upload(be, r->seq, f->seq_sent, (size_t)f->n * sizeof(int32_t));
    be->upload(be, r->slot, f->slot_sent, (size_t)(f->n * f->n_nodes) * sizeof(int32_t));
    f->is_ahead = e->rounds.n_flying > 0;
    f->is_settled = be->replay(be,
                               &(ReplayKey){.owner = e->rounds.owner,
                                            .n = f->n,
                                            .m = f->n_nodes,
                                            .first = f->is_shown ? f->depth : -1,
                                            .n_keys = r->n_keys,
                                            .uncut = r->uncut},
                               run_round, &run);
    if (f->final) be->copy(be, f->final, r->final, final_bytes(e, f->n * f->n_nodes));
    be->download_later(be, f->tree, r->tree, (size_t)f->n * sizeof(RoundTree));
    be->mark(be, mark);
    e->rounds.n_flying++;
    e->totals.rounds++;
    e->totals.rounds_ahead += e->rounds.n_flying > 1;
}

static Flight *flight_at(Engine *e, int i)
{
    return &e->rounds.flight[(e->rounds.first + i) % BACKEND_MARKS];
}

/* ---- which steps are rounds ---- */

/* Levels that a tree of so many nodes can have. */
static int tree_levels(const Work *w)
{
    return w->max_depth < w->max_nodes ? w->max_depth : w->max_nodes - 1;
}

/* One shape for all trees; nobody wants to know more than tokens. */
static int is_round(const Engine *e, int *n_nodes, int *depth)
{
    const Work *first = &e->work[0];
    if (!e->rounds.open || e->n_trees != e->n_work) return 0;
    if (e->options.drafter && !drafts_on_device(e)) return 0;
    for (int i = 0; i < e->n_work; i++) {
        const Work *w = &e->work[i];
        if (w->seq->req.n_logprobs >= 0 || w->seq->req.constraint.self ||
            w->max_nodes != first->max_nodes || tree_levels(w) != tree_levels(first))
            return 0;
        /* a stop that an answer outlives may fall into a path that is folded already */
        if (e->forward.records && w->seq->req.n_forced) return 0;
    }
    *depth = tree_levels(first);
    *n_nodes = *depth ? first->max_nodes : 1;
    if (e->options.draft_topk == 1 && *n_nodes > *depth + 1) *n_nodes = *depth + 1;
    /* rows of the head's layer that the nodes of all levels may write */
    return (*depth - 1) * e->options.draft_topk <= MAX_TREE_NODES;
}

/* All n slots, what the cache can spare among them, or none and 0. */
static int claim_all(Engine *e, int n, int32_t *slot)
{
    int got = cache_claim_slots(e->mem.cache, n, slot);
    if (got == n) return 1;
    while (got > 0)
        slots_release(e->mem.frames, slot[--got]);
    return 0;
}

/* A slot for each tree's first node, or the main one. */
static void take_first_slots(Engine *e, Flight *f)
{
    int32_t slot[MAX_TREE_NODES];
    int own = claim_all(e, f->n, slot);
    for (int i = 0; i < f->n; i++)
        f->slot[i * f->n_nodes] = own ? slot[i] : e->seq[f->index[i]].slot;
    f->own_from = 0;
    f->n_own = own;
}

/* Slots for the roots, and what schedule claimed for the other nodes. */
static void take_slots(Engine *e, Flight *f)
{
    int others = f->n_nodes - 1;
    take_first_slots(e, f);
    f->own_from = !f->n_own;
    f->n_own += others;
    for (int i = 0; i < f->n; i++) {
        Work *w = &e->work[i];
        memcpy(&f->slot[i * f->n_nodes + 1], w->slot, (size_t)others * sizeof(int32_t));
        while (w->n_slots > others)
            slots_release(e->mem.frames, w->slot[--w->n_slots]);
    }
}

int round_begin(Engine *e)
{
    int n_nodes, depth;
    assert(!e->rounds.n_flying);
    if (!is_round(e, &n_nodes, &depth)) return 0;
    Flight *f = flight_at(e, 0);
    f->n = e->n_work;
    f->n_nodes = n_nodes;
    f->depth = depth;
    for (int i = 0; i < f->n; i++) {
        f->index[i] = e->work[i].index;
        prefix_own_state(e, e->work[i].seq);
    }
    if (e->forward.records)
        take_first_slots(e, f);
    else
        take_slots(e, f);
    launch(e, f, 0);
    return 1;
}

/* 1 when the step after flight f is sure to be a round of the same sequences, if none ends. */
static int goes_on_alike(const Engine *e, const Flight *f)
{
    int n_decode = 0;
    for (int i = 0; i < e->options.max_seqs; i++) {
        const Seq *s = &e->seq[i];
        if (s->paused || s->state == SEQ_FREE) continue;
        if (s->state != SEQ_DECODE) return 0;
        n_decode++;
    }
    if (n_decode != f->n || (e->n_waiting && n_decode < e->options.max_seqs)) return 0;
    for (int i = 0; i < f->n; i++) {
        const Seq *s = f->index[i] < 0 ? NULL : &e->seq[f->index[i]];
        if (!s || s->paused || seq_n_left(s) <= 1) return 0;
    }
    return 1;
}

/* What the round after f is to be; 0: that depth is not of use to all. */
static int shape_ahead(Engine *e, const Flight *f, Flight *next)
{
    next->n = f->n;
    next->n_nodes = f->n_nodes;
    next->depth = f->depth;
    if (e->options.draft_auto) {
        next->depth = schedule_round_depth(e, f->index, f->n);
        next->n_nodes = next->depth + 1;
    }
    for (int i = 0; i < f->n; i++)
        if (next->depth && schedule_useful_depth(e, &e->seq[f->index[i]]) < next->depth) return 0;
    memcpy(next->index, f->index, sizeof next->index);
    return 1;
}

/* Slots for the round after f; 0: there are too few. Where f's are main slots, so may these be. */
static int slots_ahead(Engine *e, const Flight *f, Flight *next)
{
    if (e->forward.records) {
        take_first_slots(e, next);
        return next->n_own || !f->n_own;
    }
    next->own_from = 0;
    next->n_own = next->n_nodes;
    return claim_all(e, next->n * next->n_nodes, next->slot);
}

void round_run_ahead(Engine *e)
{
    const Flight *f = flight_at(e, 0);
    Flight *next = flight_at(e, 1);
    if (e->rounds.n_flying != 1 || !goes_on_alike(e, f)) return;
    for (int i = 0; i < f->n; i++)
        if (memory_reserve(&e->mem, f->index[i], e->seq[f->index[i]].n_tokens + e->overhang))
            return;
    if (!shape_ahead(e, f, next) || !slots_ahead(e, f, next)) return;
    launch(e, next, f->depth + 1);
}

/* ---- reading ---- */

/*
 * The state of which kept paths the slot holds that is promoted (Work.state_m). Nodes with slots of
 * their own have theirs. A slot that the device has made of records holds that of the whole path
 * that it accepted, unless the next round has gone on in it.
 */
static int state_left(const Engine *e, const Flight *f, int i)
{
    const Flight *next = &e->rounds.flight[(e->rounds.first + 1) % BACKEND_MARKS];
    if (!f->final) return STATE_OF_NONE;
    if (!e->forward.records) return STATE_OF_ANY;
    for (int k = 0; e->rounds.n_flying > 1 && k < next->n; k++)
        if (next->index[k] == f->index[i] && !next->n_own) return STATE_OF_NONE;
    return f->tree[i].m;
}

/* Tree i of f as the step's work, and what the target chose at its nodes. */
static void read_tree(Engine *e, const Flight *f, int i)
{
    const RoundTree *t = &f->tree[i];
    Work *w = &e->work[e->n_work++];
    Seq *s = &e->seq[f->index[i]];
    *w = (Work){.seq = s,
                .index = f->index[i],
                .is_tree = 1,
                .start = s->n_past,
                .row = i * f->n_nodes,
                .n_rows = t->n,
                .final = f->final,
                .state_m = state_left(e, f, i),
                .n_logits = t->n,
                .sampled = i * f->n_nodes,
                .n_sampled = t->n};
    w->tree.n = t->n;
    memcpy(w->tree.token, t->token, sizeof t->token);
    memcpy(w->tree.parent, t->parent, sizeof t->parent);
    memcpy(w->tree.depth, t->depth, sizeof t->depth);
    memcpy(w->tree.value, t->value, sizeof t->value);
    memset(w->tree.from + 1, GUESS_HEAD, sizeof w->tree.from - 1);
    memcpy(e->host.next + w->sampled, t->next, (size_t)t->n * sizeof *t->next);
    assert(tree_valid(&w->tree, e->model->config.n_vocab));
    assert(w->tree.token[0] == s->token[s->n_tokens - 1]);
    w->n_slots = f->n_own;
    memcpy(w->slot, &f->slot[i * f->n_nodes + f->own_from], (size_t)w->n_slots * sizeof *w->slot);
    w->first_node = f->own_from;
    w->is_folded = has_records(e, f->depth);
}

/*
 * A round took the time between its end and that of the one before it, where it was queued by then;
 * recording one takes the host longer than running it, and is not what rounds take. Where the
 * drafter sees nothing, nobody gets drafts, and it takes less than those for which there is a
 * choice.
 */
static void learn_time(Engine *e, const Flight *f)
{
    Rounds *r = &e->rounds;
    double before = r->read_at;
    r->read_at = clock_ms();
    int is_settled = f->is_settled && (r->n_flying < 2 || flight_at(e, 1)->is_settled);
    if (e->options.draft_auto && f->is_shown && f->is_ahead && is_settled)
        cost_learn_round(&e->growth.cost, &f->who, f->depth, r->read_at - before);
}

int round_read(Engine *e, Error *err)
{
    Flight *f = flight_at(e, 0);
    if (e->be->wait(e->be, (int)(f - e->rounds.flight), err)) return -1;
    learn_time(e, f);
    e->n_work = 0;
    for (int i = 0; i < f->n; i++)
        if (f->index[i] >= 0) read_tree(e, f, i);
    e->n_trees = e->n_work;
    e->rounds.first = (e->rounds.first + 1) % BACKEND_MARKS;
    e->rounds.n_flying--;
    return 0;
}

void round_forget(Engine *e, int index)
{
    for (int k = 0; k < e->rounds.n_flying; k++) {
        Flight *f = flight_at(e, k);
        for (int i = 0; i < f->n; i++) {
            if (f->index[i] != index) continue;
            f->index[i] = -1;
            const int32_t *own = &f->slot[i * f->n_nodes + f->own_from];
            for (int j = 0; j < f->n_own; j++)
                slots_release(e->mem.frames, own[j]);
        }
    }
    e->seq[index].on_device = 0;
}
