/*
 * schedule.c: who takes part in a step.
 *
 * First come, first served: a waiting request starts when a sequence, a slot and pages for its
 * prompt and the beginning of its answer are free. Every decoding sequence gets a tree; the trees
 * of a pass share its tree rows. One prompt gets a chunk of rows, each in its turn, so a long
 * prompt delays nobody by more than a chunk. Where prompts run apart from decoding
 * (Backend.prefill_differs) a chunk begins on a multiple of PREFILL_BLOCK and ends on one or with
 * its prompt: what follows the prompt was decoded, and is computed again as decoding does.
 *
 * A sequence begins behind what the prefix cache has of its tokens. One whose prompt goes on like
 * one that is being computed waits for that one's state and shares it.
 *
 * A sequence takes pages as it grows, at first from the cache. When there are none, the youngest
 * one is preempted: its pages and its slot go to the others, it goes before all who wait, and its
 * tokens are computed again, to the same bits. The oldest never is, and the pool holds a whole
 * context, so all come to their end.
 */
#include <assert.h>
#include <string.h>

#include "base/clock.h"
#include "engine/state.h"

/* Slots for drafts that cost nothing to make, where each node needs one. */
enum { FREE_LEVELS = 3 };

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
    int32_t *ban = s->ban_host;
    int n = 0;
    for (int i = 0; i < c->n_eos; i++)
        ban[n++] = c->eos[i];
    for (int i = 0; i < s->req.n_stop_ids; i++)
        ban[n++] = s->req.stop_ids[i];
    e->be->upload(e->be, s->ban, ban, (size_t)n * sizeof *ban);
    s->n_ban = n;
    s->first_end = s->req.ignore_eos ? n - s->req.n_stop_ids : 0;
}

/*
 * Where the drafter sees the last rows of s's prompt alone it sees none before them: not those of
 * the cache either, which others have left out. What goes to disk is whole, for other servers.
 */
static int first_seen(Engine *e, const Seq *s, int n_cached)
{
    int n = s->n_tokens - n_cached, shown = cost_shown_rows(&e->growth.cost, n);
    if (!e->options.draft_auto || e->options.cache_dir) return 0;
    if (shown < n) e->leaves_rows_out = 1;
    return e->leaves_rows_out ? s->n_tokens - shown : 0;
}

/* Behind what the cache has, in the slot and the pages that it now has. */
void schedule_begin(Engine *e, Seq *s, const CacheHit *hit)
{
    const Drafter *d = e->options.drafter;
    s->state = SEQ_PREFILL;
    s->on_device = 0;
    s->rates = e->growth.all;
    s->first_seen = e->head_from[seq_index(e, s)] = first_seen(e, s, hit->n);
    s->chunk_step = e->n_steps;
    prefix_begin(e, s, hit);
    if (d && d->begin) d->begin(d->self, seq_index(e, s), s->token, hit->n ? hit->n : 1);
}

/* It begins, unless there is more on disk: then later. */
static void begin(Engine *e, Seq *s, const CacheHit *hit)
{
    if (!tiers_load(e, s, hit)) schedule_begin(e, s, hit);
}

/* Parked until it begins. */
static void start(Engine *e, Seq *s, const EngineRequest *r, double since)
{
    s->state = SEQ_PARKED;
    s->order = e->n_admitted++;
    s->req = *r;
    memcpy(s->token, r->prompt, (size_t)r->n_prompt * sizeof *s->token);
    s->n_tokens = r->n_prompt;
    if (r->constraint.self) r->constraint.begin(r->constraint.self, seq_index(e, s));
    s->n_scored = s->n_fruitless = s->load_failed = 0;
    s->load_job = -1;
    s->is_form_lost = 0;
    s->waits_staging = s->is_uploaded = s->is_staged = 0;
    s->paused = r->paused;
    s->stop_token = -1;
    s->submitted = since;
    s->started = clock_ms();
    s->first_token = 0;
    memset(&s->stats, 0, sizeof s->stats);
    s->penalised = uses_counts(&r->params);
    if (s->penalised) start_counts(e, s);
    e->be->upload(e->be, s->bias_id, r->bias_id, (size_t)r->n_bias * sizeof *s->bias_id);
    e->be->upload(e->be, s->bias, r->bias, (size_t)r->n_bias * sizeof *s->bias);
    start_ban(e, s);
}

/* Who gives its memory up: one that is paused, else the one that came last. */
static Seq *pick_victim(Engine *e)
{
    Seq *victim = NULL;
    for (int i = 0; i < e->options.max_seqs; i++) {
        Seq *s = &e->seq[i];
        if (s->state != SEQ_PREFILL && s->state != SEQ_DECODE) continue;
        if (!victim || s->paused > victim->paused ||
            (s->paused == victim->paused && s->order > victim->order))
            victim = s;
    }
    return victim;
}

static void preempt(Engine *e, Seq *s)
{
    seq_give_up_memory(e, s);
    s->state = SEQ_PARKED;
    s->stats.n_preemptions++;
    e->n_preemptions++;
}

/*
 * Memory for all tokens so far and the beginning of what follows; if need be that of those who are
 * paused. A hit that ends inside of a page takes one page more than its tokens do: a pool of one
 * context may lack it, and then nobody's end would bring it. 0, or -1: not now.
 */
static int find_place(Engine *e, int index, const EngineRequest *r, const int32_t *token,
                      int n_tokens, int n_left, CacheHit *hit)
{
    int more = n_left < e->options.reserve ? n_left : e->options.reserve;
    while (prefix_take(e, index, r, token, n_tokens, more + e->overhang, hit)) {
        Seq *victim = pick_victim(e);
        if (!victim) return prefix_take_none(e, index, n_tokens + more + e->overhang, hit);
        if (!victim->paused) return -1;
        preempt(e, victim);
    }
    return 0;
}

/* The parked one that came first after `after` (0: of all), and may go on. */
static Seq *next_parked(Engine *e, uint64_t after)
{
    Seq *next = NULL;
    for (int i = 0; i < e->options.max_seqs; i++) {
        Seq *s = &e->seq[i];
        if (s->state != SEQ_PARKED || s->paused || s->order < after) continue;
        if (!next || s->order < next->order) next = s;
    }
    return next;
}

/* Those who are parked, but for those who wait for a prefix. -1: one finds no place. */
static int admit_parked(Engine *e)
{
    CacheHit hit;
    for (Seq *s = next_parked(e, 0); s; s = next_parked(e, s->order + 1)) {
        if (prefix_is_coming(e, &s->req, s->token, s->n_tokens)) continue;
        if (find_place(e, seq_index(e, s), &s->req, s->token, s->n_tokens, seq_n_left(s), &hit))
            return -1;
        begin(e, s, &hit);
    }
    return 0;
}

/*
 * Those who are parked go before those who wait. Of these one whose prefix another computes is
 * parked too, and the next may begin.
 */
static void admit(Engine *e)
{
    CacheHit hit;
    if (admit_parked(e)) return;
    while (e->n_waiting) {
        const EngineRequest *r = &e->waiting[e->first_waiting];
        int index = find_free_seq(e);
        if (index < 0) return;
        int waits = prefix_is_coming(e, r, r->prompt, r->n_prompt);
        if (!waits && find_place(e, index, r, r->prompt, r->n_prompt, r->max_tokens, &hit)) return;
        start(e, &e->seq[index], r, e->waiting_since[e->first_waiting]);
        if (!waits) begin(e, &e->seq[index], &hit);
        e->n_prefix_waits += waits;
        e->first_waiting = (e->first_waiting + 1) % e->options.max_waiting;
        e->n_waiting--;
    }
}

static int decodes(const Seq *s)
{
    return s->state == SEQ_DECODE && !s->paused;
}

static int runs(const Seq *s)
{
    return (s->state == SEQ_PREFILL || s->state == SEQ_DECODE) && !s->paused;
}

/*
 * Every decoding sequence gets the pages that its tree may write, or is preempted; one that goes
 * on as a prompt behind forced tokens, those that they take. Who begins has them already.
 */
static void take_pages(Engine *e)
{
    for (int i = 0; i < e->options.max_seqs; i++) {
        Seq *s = &e->seq[i];
        while (runs(s) && memory_reserve(&e->mem, i, s->n_tokens + e->overhang)) {
            Seq *victim = pick_victim(e);
            assert(victim); /* s itself, if nobody else */
            preempt(e, victim);
        }
    }
}

static Work *add_work(Engine *e, Seq *s)
{
    Work *w = &e->work[e->n_work++];
    w->seq = s;
    w->index = seq_index(e, s);
    w->start = s->n_past;
    w->is_tree = w->is_prompt = w->ends_chunks = w->is_folded = w->max_depth = 0;
    w->n_slots = w->n_sampled = w->n_sent = w->hold_promoted = w->n_chosen = 0;
    w->chosen = 0;
    w->first_node = 1;
    w->final = e->forward.final;
    w->state_m = STATE_OF_ANY;
    return w;
}

/* No draft beyond the last token that may be emitted. */
int schedule_useful_depth(const Engine *e, const Seq *s)
{
    int depth = engine_draft_levels(&e->options);
    if (s->n_fruitless >= MAX_FRUITLESS) return 0;
    if (s->req.draft_max >= 0 && s->req.draft_max < depth) depth = s->req.draft_max;
    int left = seq_n_left(s) - 1;
    return left < depth ? left : depth;
}

/* One of n sequences that decode joins those of q; levels of drafts that are of use to it. */
static int add_query(const Engine *e, const Seq *s, int n, GrowthQuery *q)
{
    int share = e->tree_rows / n - 1, useful = schedule_useful_depth(e, s), at = q->who.n;
    int most = useful < share ? useful : share;
    q->rates[at] = &s->rates;
    q->most[at] = most < 0 ? 0 : most;
    cost_join(&q->who, s->n_past, s->first_seen);
    return useful;
}

/*
 * Levels of drafts for each decoding sequence, in order, beside prompt's chunk: what the user has
 * fixed, or what the engine thinks best as long as nothing is drafted.
 */
static void choose_levels(Engine *e, int n_decode, const Seq *prompt, int *levels)
{
    GrowthQuery q = {0};
    for (int i = 0, n = 0; n < n_decode; i++)
        if (decodes(&e->seq[i])) levels[n++] = add_query(e, &e->seq[i], n_decode, &q);
    if (prompt) {
        int left = prompt->n_tokens - prompt->n_past;
        q.who.prompt_rows = left < e->options.chunk_rows ? left : e->options.chunk_rows;
    }
    if (!n_decode || !e->options.draft_auto) return;
    if (e->be->is_host)
        growth_choose(&e->growth, &q, levels);
    else
        growth_choose_round(&e->growth, &q, levels);
}

int schedule_round_depth(Engine *e, const int *index, int n)
{
    GrowthQuery q = {0};
    int levels[MAX_SEQS];
    for (int i = 0; i < n; i++)
        add_query(e, &e->seq[index[i]], n, &q);
    return growth_choose_round(&e->growth, &q, levels);
}

/*
 * A tree of up to max_rows rows: as many nodes as there are slots for, the root in the main slot.
 * n_after more sequences will want slots in this step. In state mode replay it needs none, so that
 * one that grows as far as it pays may be larger than the chain of `levels`; and one that may get
 * drafts that cost nothing is asked for in any case.
 */
static void plan_tree(Engine *e, Seq *s, int levels, int max_rows, int n_after)
{
    Work *w = add_work(e, s);
    w->is_tree = 1;
    tree_init(&w->tree, s->token[s->n_tokens - 1]);
    int nodes = e->options.tree_nodes;
    int grows = e->options.draft_auto && !e->growth.is_fixed;
    if (grows && e->growth.is_free && levels < FREE_LEVELS) levels = FREE_LEVELS;
    w->max_depth = levels;
    w->max_nodes = 1;
    if (levels < 1) return;
    if (grows) w->max_depth = schedule_useful_depth(e, s);
    if (w->max_depth < 1) return;
    if (e->options.draft_auto && !(grows && e->forward.records)) nodes = levels + 1;
    if (nodes > max_rows) nodes = max_rows;
    if (nodes < 2) return;
    if (e->forward.records) {
        w->max_nodes = nodes;
        return;
    }
    int n_free = cache_make_slots(e->mem.cache, (nodes - 1) * (n_after + 1));
    int share = n_free / (n_after + 1); /* leave the others theirs */
    w->n_slots = slots_claim(e->mem.frames, nodes - 1 < share ? nodes - 1 : share, w->slot);
    w->max_nodes = w->n_slots + 1;
}

static void plan_chunk(Engine *e, Seq *s)
{
    Work *w = add_work(e, s);
    int in_prompt = e->be->prefill_differs && s->n_past < s->req.n_prompt;
    int in_block = s->n_past % PREFILL_BLOCK; /* behind an answer that came from the cache */
    w->is_prompt = in_prompt && !in_block;
    int left = (in_prompt ? s->req.n_prompt : s->n_tokens) - s->n_past;
    int most = e->options.chunk_rows;
    if (s->req.prompt_logprobs && e->be->prefill_differs && most > PROMPT_SCORE_ROWS)
        most = PROMPT_SCORE_ROWS;
    if (in_prompt && in_block && most > PREFILL_BLOCK - in_block) most = PREFILL_BLOCK - in_block;
    w->n_rows = prefix_rows(s, left < most ? left : most);
    w->ends_chunks = w->start + w->n_rows == s->n_tokens;
    tree_init(&w->tree, s->token[w->start + w->n_rows - 1]);
    s->chunk_step = e->n_steps;
}

/*
 * The prompt that has waited longest for a chunk; of those alike the one admitted last, which has
 * had none yet.
 */
static Seq *next_prompt(Engine *e)
{
    Seq *next = NULL;
    for (int i = 0; i < e->options.max_seqs; i++) {
        Seq *s = &e->seq[i];
        if (s->state != SEQ_PREFILL || s->paused) continue;
        if (!next || s->chunk_step < next->chunk_step ||
            (s->chunk_step == next->chunk_step && s->order > next->order))
            next = s;
    }
    return next;
}

void schedule(Engine *e)
{
    int n_decode = 0, levels[MAX_SEQS];
    e->n_work = 0;
    take_pages(e);
    admit(e);
    for (int i = 0; i < e->options.max_seqs; i++)
        n_decode += decodes(&e->seq[i]);
    Seq *prompt = next_prompt(e);
    choose_levels(e, n_decode, prompt, levels);
    for (int i = 0, k = 0; k < n_decode; i++) {
        if (!decodes(&e->seq[i])) continue;
        plan_tree(e, &e->seq[i], levels[k], e->tree_rows / n_decode, n_decode - 1 - k);
        k++;
    }
    e->n_trees = e->n_work;
    if (prompt) plan_chunk(e, prompt);
}
