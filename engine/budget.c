/*
 * budget.c: what --memory is spent on.
 *
 * Frames, which hold states and KV, and in state mode replay the records of draft trees. Records
 * are taken first, but only so many that the frames have most of it: with fewer, trees are smaller,
 * and with none states have slots. No token depends on that.
 */
#include <limits.h>

#include "engine/state.h"

static const int64_t MAX_DEFAULT_MEMORY = (int64_t)4 << 30;

/* Records have one part of so many at most. */
enum { RECORDS_SHARE = 4 };

/* A host has other things to do: a quarter. A GPU is ours: all but 5 % and the scratch to come. */
static int64_t default_memory(const Engine *e)
{
    int64_t free_bytes = (int64_t)e->be->free_bytes(e->be);
    if (!e->be->is_host) return free_bytes / 100 * 95 - (int64_t)e->scratch_bytes;
    return free_bytes / 4 < MAX_DEFAULT_MEMORY ? free_bytes / 4 : MAX_DEFAULT_MEMORY;
}

/*
 * auto. States that a tree of n rows moves: slots reads one and writes n; replay reads one, and its
 * fold reads and writes one whatever n is; a row's records are 4 % of a state. A CPU reads a cache
 * line before it writes it, so there replay moves less from 2 rows on, elsewhere from 3.
 *
 * Measured on one core of a Xeon (AVX-512, 2 MiB of L2), CPU ms of convolution and delta rule in
 * all layers of a pass, slots / replay + fold of two rows:
 *     rows   Qwen3.5-0.8B's shape   models/demo
 *        2   9.0 /  3.7 + 3.1       0.45 / 0.16 + 0.14
 *        4    24 /  4.9 + 3.4        1.1 / 0.27 + 0.16
 *        8    50 /  7.7 + 3.2        3.0 / 0.6  + 0.2
 *       16   113 / 11   + 3.2        6.1 / 1.5  + 0.2
 * A whole pass of 4 rows of the first takes 167 ms against 143 + 3. On a GPU neither has been
 * measured: there the rule is the bytes alone.
 */
StateMode budget_state_mode(const Engine *e)
{
    const EngineOptions *o = &e->options;
    int has_drafts = o->drafter && o->tree_nodes > 1 && e->model->config.n_recurrent > 0;
    if (!has_drafts) return STATE_SLOTS;
    if (o->state_mode != STATE_AUTO) return o->state_mode;
    return o->tree_nodes >= (e->be->is_host ? 2 : 3) ? STATE_REPLAY : STATE_SLOTS;
}

int budget_tree_rows(const Engine *e)
{
    int rows = e->options.max_seqs * e->options.tree_nodes;
    return rows < MAX_TREE_ROWS ? rows : MAX_TREE_ROWS;
}

/* States that all trees can use at a time. */
static int64_t most_slots(const Engine *e)
{
    const EngineOptions *o = &e->options;
    int tree_rows = o->max_seqs * o->tree_nodes;
    if (o->n_slots) return o->n_slots;
    /* two rounds in flight, and what the one before left */
    if (o->state_mode == STATE_REPLAY) return o->max_seqs * (e->be->is_host ? 1 : 3);
    int64_t slots =
        tree_rows < o->max_seqs + MAX_TREE_ROWS ? tree_rows : o->max_seqs + MAX_TREE_ROWS;
    return e->be->is_host ? slots : o->max_seqs + 2 * slots;
}

static int64_t frame_tokens(const Engine *e)
{
    const Model *m = e->model;
    KvType type = e->options.kv_type;
    size_t pages = memory_frame_bytes(m, type) / memory_page_bytes(m, type);
    return (int64_t)pages * PAGE_TOKENS;
}

/*
 * Rows of trees that have records in the budget: no more than leave it a sequence of the context
 * that was asked for.
 */
static int plan_records(const Engine *e, int64_t budget, int max_rows)
{
    const EngineOptions *o = &e->options;
    int64_t tokens = frame_tokens(e), most = budget / RECORDS_SHARE;
    int64_t frames = 1 + (o->ctx_size + e->overhang + tokens - 1) / tokens;
    int64_t room = budget - frames * (int64_t)memory_frame_bytes(e->model, o->kv_type);
    if (o->state_mode != STATE_REPLAY) return 0;
    if (most > room) most = room;
    for (int rows = budget_tree_rows(e); rows > 1; rows--)
        if ((int64_t)records_bytes(e->model, rows, max_rows) <= most) return rows;
    return 0;
}

/* Frames that budget gives; without a cache no more than sequences can fill. */
static int plan_frames(Engine *e, int64_t budget, Budget *b, Error *err)
{
    EngineOptions *o = &e->options;
    const Model *m = e->model;
    int64_t frame = (int64_t)memory_frame_bytes(m, o->kv_type), tokens = frame_tokens(e);
    int ctx = o->ctx_size ? o->ctx_size : m->config.ctx_limit;
    int64_t pages = (int64_t)o->max_seqs * pages_for(ctx + e->overhang);
    int64_t most = memory_frames_for(m, o->kv_type, most_slots(e), pages), frames = budget / frame;
    if (frames > INT_MAX / (tokens / PAGE_TOKENS)) frames = INT_MAX / (tokens / PAGE_TOKENS);
    if (frames > most && !o->cache.on) frames = most;
    int64_t fits = (frames - 1) * tokens - e->overhang;
    if (fits < 2)
        return error_set(err, ERR_LIMIT,
                         "memory of %lld bytes holds no sequence: a state takes a frame of %lld "
                         "bytes, 16 tokens of KV %lld; raise --memory",
                         (long long)budget, (long long)frame,
                         (long long)memory_page_bytes(m, o->kv_type));
    if (o->ctx_size && fits < o->ctx_size)
        return error_set(err, ERR_LIMIT,
                         "ctx-size %d needs more than the memory of %lld bytes, which holds %lld "
                         "tokens; lower --ctx-size or raise --memory",
                         o->ctx_size, (long long)budget, (long long)fits);
    o->ctx_size = (int)(fits < ctx ? fits : ctx);
    b->n_frames = (int)frames;
    return 0;
}

int budget_plan(Engine *e, int max_rows, Budget *b, Error *err)
{
    EngineOptions *o = &e->options;
    int64_t budget = o->memory ? o->memory : default_memory(e), records = 0;
    b->record_rows = plan_records(e, budget, max_rows);
    e->tree_rows = budget_tree_rows(e);
    if (b->record_rows) {
        e->tree_rows = b->record_rows;
        records = (int64_t)records_bytes(e->model, b->record_rows, max_rows);
    } else {
        o->state_mode = STATE_SLOTS;
    }
    o->memory = budget;
    return plan_frames(e, budget - records, b, err);
}

/* A host gives pages as they are first written: what it lacks would show in mid-answer. */
static void print_scarcity(const Engine *e, FILE *out)
{
    const double mib = 1024.0 * 1024.0;
    double left = (double)e->be->free_bytes(e->be);
    double taken = (double)e->mem.frame_bytes * e->mem.n_frames + (double)e->records.bytes;
    if (e->tiers.host) taken += (double)e->options.host_cache;
    if (e->be->is_host && taken > left)
        fprintf(out,
                "the system has %.1f MiB left for these %.1f MiB (--memory, --host-cache): it may "
                "end the process as they fill\n",
                left / mib, taken / mib);
}

void engine_print_memory(const Engine *e, FILE *out)
{
    const double mib = 1024.0 * 1024.0;
    const Memory *m = &e->mem;
    int per_seq = pages_for(e->options.ctx_size + e->overhang);
    int seq_frames = 1 + (per_seq + m->pages_per_frame - 1) / m->pages_per_frame;
    double kv_row = (double)m->page_bytes / PAGE_TOKENS;
    fprintf(out, "%-10s %10.1f MiB\n", "weights",
            (double)(e->model->weight_bytes + e->model->head_weight_bytes) / mib);
    fprintf(out, "%-10s %10.1f MiB  %d of %.1f KiB, each a state or %d tokens of KV (%s)\n",
            "frames", (double)m->frame_bytes * m->n_frames / mib, m->n_frames,
            (double)m->frame_bytes / 1024, m->pages_per_frame * PAGE_TOKENS,
            m->kv_type == KV_BF16 ? "bf16" : "f32");
    if (e->records.bytes)
        fprintf(out, "%-10s %10.1f MiB  %d rows of draft trees; of --memory, as the frames are\n",
                "records", (double)e->records.bytes / mib, e->records.n_rows);
    fprintf(out, "%-10s %10.1f MiB\n", "scratch",
            (double)(e->scratch_bytes + e->be->scratch_bytes) / mib);
    fprintf(out, "a sequence of n tokens takes n + %d rows of KV of %.1f KiB and one state",
            e->overhang, kv_row / 1024);
    if (!e->records.bytes && e->options.tree_nodes > 1)
        fprintf(out, ", up to %d more while its tree is verified", e->options.tree_nodes - 1);
    fprintf(out,
            ";\n%d sequences of the full context of %d tokens fit (--memory, --ctx-size); %s\n",
            m->n_frames / seq_frames, e->options.ctx_size,
            e->options.cache.on ? "the prefix cache has what they leave" : "no prefix cache");
    int scored = e->head.scored.n_ids, all = e->model->config.n_vocab;
    if (scored && scored < all)
        fprintf(out, "drafts are of %d of %d ids (--draft-vocab)\n", scored, all);
    if (scored && e->model->options.draft_quant)
        fprintf(out, "the draft head's weights are %s (--draft-quant)\n",
                quant_name(e->model->options.draft_quant));
    print_scarcity(e, out);
}
