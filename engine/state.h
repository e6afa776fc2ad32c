/*
 * state.h: what is behind an Engine; for engine/ alone.
 */
#ifndef OFFSHOOT_ENGINE_STATE_H
#define OFFSHOOT_ENGINE_STATE_H

#include "engine/engine.h"
#include "engine/forward.h"
#include "engine/growth.h"
#include "engine/head.h"
#include "engine/memory.h"
#include "engine/round.h"
#include "engine/tiers.h"
#include "engine/tune.h"
#include "spec/accept.h"

enum {
    MAX_TREE_ROWS = MAX_TREE_NODES,    /* rows that all trees of a pass share */
    LOGIT_ROWS = 32,                   /* whose logits a host has room for at a time */
    PROMPT_SCORE_ROWS = PREFILL_BLOCK, /* prompt rows scored a pass where these run apart */
    MAX_SAMPLED = MAX_TREE_ROWS + 1,   /* tree rows and the end of one prompt */
    MAX_BAN = MAX_EOS + MAX_STOP_IDS,
    MAX_FRUITLESS = 64, /* then the rest of the answer is decoded plainly */
};

typedef enum {
    SEQ_FREE,
    SEQ_PARKED, /* it has no slot and no pages: it gave them up and waits for others, or waits for a
                   prefix that another sequence computes */
    SEQ_LOADING, /* it has memory, into which more of its prefix is read */
    SEQ_PREFILL, /* tokens before the last one are still to be processed */
    SEQ_DECODE,
} SeqState;

typedef struct Seq {
    SeqState state;
    uint64_t order;    /* of admission */
    EngineRequest req; /* as engine_submit has completed it */
    int32_t *token;    /* [ctx_size] the prompt and what was generated after it */
    int n_tokens;
    int n_past;      /* tokens whose KV rows and state are committed */
    int n_scored;    /* prompt tokens whose EVENT_PROMPT was given */
    int paused;      /* takes no part in steps */
    long chunk_step; /* the step of its last prompt chunk; at first that of its admission */
    int on_device;   /* rounds keep its RoundSeq and its counts up to date */

    /* its state, and its prefix in the cache (prefix.c) */
    int32_t slot;    /* main slot, its alone */
    int32_t src;     /* where its state is until its next row: a slot that others hold too; or -1 */
    int from_hidden; /* the row before n_past is src's hidden row: the cache's, not computed here */
    int n_hidden;    /* slot holds the hidden row of the token before this position */
    int32_t node;    /* of the cache, pinned: its pages up to there are shared */
    double found_at; /* when its hit was looked for, s */
    int keep_branch, keep_stable; /* positions where a state is to be kept, or 0 */
    int keep_system;              /* one more of these */
    int keep_answer;              /* 1: so is the one at the answer's end */
    int holds_text;               /* the client has less text than the tokens say */
    int32_t held; /* then: the state after the last token wholly sent; -1: it is gone */
    int n_held;   /* tokens up to there */

    /* SEQ_LOADING (tiers.c) */
    CacheHit load_hit; /* what the cache had */
    int n_loading;     /* the prefix's tokens */
    int load_job;      /* -1 when it is done */
    int load_failed;   /* it is not tried again */
    int waits_staging; /* the job is not queued yet */
    int is_staged;     /* it reads to staging memory */
    int is_uploaded;   /* it is done; the bytes are on their way to the device */

    /* drafts */
    int first_seen;   /* index of the first row that the drafter sees, as in engine/head.h */
    int n_fruitless;  /* drafted steps in a row of which no draft was accepted */
    DraftRates rates; /* with draft_auto */

    /* its end */
    FinishReason finish;
    int is_form_lost; /* its constraint cannot tell what may come next */
    int32_t stop_token;
    double submitted, started, first_token; /* ms */
    RequestStats stats;

    /* backend memory, for SampleRow; counts_host mirrors counts */
    int penalised;                  /* counts are kept */
    uint32_t *counts, *counts_host; /* [n_vocab] */
    int32_t *bias_id, *ban;         /* [MAX_LOGIT_BIAS], [MAX_BAN] */
    float *bias;
    int32_t ban_host[MAX_BAN];
    int n_ban, first_end; /* of ban: from there on they are what ends it */
} Seq;

/*
 * What one sequence does in a step: a tree, or a chunk of tokens that are known: its prompt, and
 * after a preemption its answer so far.
 */
typedef struct {
    Seq *seq;
    int index;       /* of seq */
    int is_tree;     /* 0: a chunk */
    int is_prompt;   /* of a chunk: it runs apart, as a prompt (Backend.prefill_differs) */
    int ends_chunks; /* of a chunk: the last one */
    int start;       /* position of its first row: the root's, or where the chunk begins */
    int max_depth;   /* of its tree */
    int max_nodes;
    int row, n_rows;
    int hidden_row;      /* of a chunk behind a hit: where the row before its first one is */
    int logit, n_logits; /* its rows of logits; those sampled are the last n_sampled */
    int sampled, n_sampled;
    uint64_t chosen; /* nodes whose choice is known, a bit each */
    int n_chosen;    /* of a chunk: rows of logits that had their turn */
    Tree tree;
    int32_t slot[MAX_TREE_NODES]; /* of nodes first_node.., none in state mode replay */
    int n_slots;
    int first_node; /* 1: the root writes the main slot; 0: one of its own */
    int is_folded;  /* slot[0], if there is one, has the state of all of the path */
    AcceptedPath kept;
    int n_sent; /* of the tokens that it emits: up to the last after which no text is held back */
    int hold_promoted;  /* the promoted state is that of the last token wholly sent */
    const float *final; /* row: its first row's hidden row, backend memory */
    int state_m;        /* its slot has the state of a kept path of so many drafts, or STATE_OF_ */
} Work;

enum { STATE_OF_ANY = -1, STATE_OF_NONE = -2 };

/* Host copies of what a pass left, and staging for what goes to the backend. */
typedef struct {
    SampleRow row[MAX_SAMPLED];
    int32_t path[MAX_SAMPLED][MAX_TREE_NODES];
    int32_t next[MAX_SAMPLED];
    uint8_t bad[MAX_SAMPLED];
    uint64_t *mask; /* [MAX_SAMPLED][mask_words] of rows that have one; on a host the device's */
    int32_t move_seq[MAX_TREE_ROWS], move_from[MAX_TREE_ROWS], move_to[MAX_TREE_ROWS];
    int n_moves;
    int32_t fold_row[2 * MAX_TREE_ROWS]; /* paths one after another */
    KeptPath fold[MAX_TREE_ROWS];
    /* log-probabilities, [max_scored] */
    int32_t *scored, *rank, *top_id;
    float *logprob, *top_logprob;
    /* rows for the drafter, [max_rows] */
    int32_t *seen_seq, *seen_pos, *seen_token, *seen_hidden;
    int n_seen;
} StepHost;

/* The same arrays in backend memory. */
typedef struct {
    SampleRow *row;
    int32_t *path, *next;
    uint8_t *bad;
    uint64_t *mask;
    int32_t *move_seq, *move_from, *move_to;
    int32_t *scored, *rank, *top_id;
    float *logprob, *top_logprob;
} StepDevice;

struct Engine {
    EngineOptions options;
    const Model *model;
    Backend *be;
    Memory mem;
    Forward forward;
    Records records;             /* open in state mode replay; in the budget, as mem is */
    Head head;                   /* open with engine_uses_head */
    Growth growth;               /* with draft_auto */
    int32_t head_from[MAX_SEQS]; /* of each sequence first_seen */
    int leaves_rows_out;         /* rows in the cache may be none that a drafter has seen */
    Batch batch;
    uint64_t *allowed;              /* backend memory or NULL */
    uint32_t *counts, *counts_host; /* the sequences' */
    int overhang;                   /* KV rows beyond the committed ones that a step may use */
    size_t scratch_bytes;
    int tree_rows;  /* that all trees of a pass share */
    int max_scored; /* rows of a batch that can want logits */

    Seq seq[MAX_SEQS];
    EngineRequest *waiting; /* ring of max_waiting */
    double *waiting_since;
    int first_waiting, n_waiting;
    uint64_t n_admitted;
    long n_steps, n_preemptions, n_prefix_waits;
    StepTotals totals;
    double lap; /* ms, since when the part of a step that runs now does */

    Rounds rounds;
    Tuner *tuner;   /* NULL: alpha is fixed */
    double told_at; /* end of the request that it heard of last, s */
    Tiers tiers;
    Work work[MAX_SEQS + 1];
    int n_work, n_trees; /* trees come first */
    StepHost host;
    StepDevice dev;

    Event *event; /* [max_events] */
    int n_events, next_event, max_events;
};

_Static_assert((int)MAX_TREE_ROWS <= (int)MAX_DRAFT_ROWS,
               "kernels take any tree that leaves records");

static inline int seq_index(const Engine *e, const Seq *s)
{
    return (int)(s - e->seq);
}

static inline int seq_n_generated(const Seq *s)
{
    return s->n_tokens - s->req.n_prompt;
}

/* Tokens that it may still generate. */
static inline int seq_n_left(const Seq *s)
{
    return s->req.max_tokens - seq_n_generated(s);
}

/* Words of a bit set over the vocabulary. */
static inline size_t mask_words(const Engine *e)
{
    return ((size_t)e->model->config.n_vocab + 63) / 64;
}

/* ---- requests and their ends (engine.c, request.c) ---- */

/* 0, or -1 and what engine_submit says is wrong with r. */
int request_check(const Engine *e, const EngineRequest *r, Error *err);

/* The next free event, zeroed but for its type and id. */
Event *engine_add_event(Engine *e, EventType type, uint64_t id);

/* 1: it has the model's draft head open, and its drafter keeps the head's rows up. */
int engine_uses_head(const Engine *e);

/* Where its prefix cache takes states. */
KeepRules engine_keep_rules(const Engine *e);

/* Its slot and its pages go back to the pools; what is in flight for it is dropped. */
void seq_give_up_memory(Engine *e, Seq *seq);

/* Its figures up to now. */
const RequestStats *seq_stats(Seq *seq);

/* Frees what seq holds and reports it done with seq->finish. */
void engine_finish(Engine *e, Seq *seq);

/* ---- what the budget is spent on (budget.c) ---- */

typedef struct {
    int n_frames;
    int record_rows; /* of trees; 0: state mode slots */
} Budget;

/* States that pay in drafts; what memory there is may say otherwise. */
StateMode budget_state_mode(const Engine *e);

/* Rows that all trees of a pass can have. */
int budget_tree_rows(const Engine *e);

/*
 * Frames, and in state mode replay records first, for passes of max_rows rows. Sets options.memory,
 * .ctx_size and .state_mode to what they come to, and tree_rows. 0, or -1 and an Error.
 */
int budget_plan(Engine *e, int max_rows, Budget *b, Error *err);

/* ---- who takes part in a step (schedule.c) ---- */

/* Fills e->work: admits who fits, one tree per decoding sequence, one chunk of one prompt. */
void schedule(Engine *e);

/* s, which has memory, takes part from now on, behind its hit. */
void schedule_begin(Engine *e, Seq *s, const CacheHit *hit);

/* Levels of drafts that can still be of use to s. */
int schedule_useful_depth(const Engine *e, const Seq *s);

/* Levels of a device's round of n sequences whose shape the engine chooses. */
int schedule_round_depth(Engine *e, const int *index, int n);

/* ---- what the target chooses (choose.c) ---- */

/* How it samples after node of w's tree; the path's tokens go to path. */
SampleRow work_sample_row(const Work *w, int node, int32_t *path);

/* Chooses and scores what follows each row of the pass that is wanted. */
void choose_next(Engine *e);

/* ---- answers with a grammar (constrain.c); the others are left as they are ---- */

/* A state for each node of w's tree; those that may not come leave it. */
void constrain_drafts(Engine *e, Work *w);

/* What may follow node of w's tree: for the row at place `at` of those that are to be sampled. */
void constrain_row(Engine *e, const Work *w, int node, int at);

/* w's kept path has been chosen: its state is the sequence's. */
void constrain_kept(const Work *w);

/* ---- the step (step.c) ---- */

/* Queues the first n moves of e->dev. */
void engine_move_rows(Engine *e, int n);

/* ---- what a step gives (emit.c) ---- */

/* Why a kept path ends in a stop: AcceptedPath.stop. After STOP_FORCE the sequence goes on. */
enum { STOP_END = 1, STOP_WATCHER, STOP_LENGTH, STOP_FORCE };

/* What the whole pass was, and how many tokens it moved on. */
void count_pass(Engine *e);

/* To the caller: tokens, the end of those that stopped; statistics. */
void emit_tokens(Engine *e);

/* ---- the prefix cache (prefix.c) ---- */

/* 1: r is looked up. A prompt that is scored is not: all of its rows are wanted. */
static inline int prefix_reads(const EngineRequest *r)
{
    return !r->no_cache && !r->prompt_logprobs;
}

/* 1: r may leave something there: states, and rows of K and V, the head's too. */
static inline int prefix_keeps(const Engine *e, const EngineRequest *r)
{
    return e->options.cache.on && !r->no_cache;
}

/*
 * A slot for r's sequence at index, and pages for token[0..n) and n_more rows, with what the cache
 * has of them: 0, or -1 and nothing.
 */
int prefix_take(Engine *e, int index, const EngineRequest *r, const int32_t *token, int n,
                int n_more, CacheHit *hit);

/* The same for n_rows in all, with nothing of the cache: where nobody else has memory, 0. */
int prefix_take_none(Engine *e, int index, int n_rows, CacheHit *hit);

/* The sequence begins behind its hit: where it is to leave states. */
void prefix_begin(Engine *e, Seq *s, const CacheHit *hit);

/* Its slot, pages, and grip on the cache go back. */
void prefix_release(Engine *e, Seq *s);

/*
 * 1 when a sequence that runs is about to keep a state on the way of token[0..n) that is well
 * beyond what the cache has: waiting for it costs less than computing.
 */
int prefix_is_coming(Engine *e, const EngineRequest *r, const int32_t *token, int n);

/* Rows until the next position where s is to leave a state, at most n_rows. */
int prefix_rows(const Seq *s, int n_rows);

/* The hidden row from which s goes on is where drafters and the lm head find it; its index. */
int prefix_hidden_row(Engine *e, const Seq *s);

/*
 * Before w's path is promoted: where the client has less text than the tokens say, holds the state
 * of what it has. 1: that is still to be made of records, of the path's first w->n_sent + 1 rows.
 */
int prefix_hold(Engine *e, Work *w);

/* The state after the rows of w, which was promoted: kept if that was planned. */
void prefix_after_step(Engine *e, const Work *w);

/* The state at the end of an answer. */
void prefix_end(Engine *e, Seq *s);

/* s has been given the state and the rows of its first n_loading tokens: its hit is that. */
void prefix_loaded(Engine *e, Seq *s, CacheHit *hit);

/* Keeps what s has been given, for others. */
void prefix_share(Engine *e, Seq *s);

/* s has its state in its own slot. */
void prefix_own_state(Engine *e, Seq *s);

/* ---- rounds on a device (round.h) ---- */

int round_open(Engine *e, Error *err);
void round_close(Engine *e);

/* KV rows that a round may write beyond those of a step that the host waits for. */
int round_rows_ahead(const Engine *e);

/* Queues what schedule planned as a round; 0 when it cannot be one. Nothing may be in flight. */
int round_begin(Engine *e);

/* Queues the round after the one in flight, where all that is sure to be wanted. */
void round_run_ahead(Engine *e);

/* Waits for the oldest round in flight: its trees are e->work, its choices e->host.next. */
int round_read(Engine *e, Error *err);

/* Drops what is in flight for a sequence; its slots there go back to the pool. */
void round_forget(Engine *e, int index);

#endif
