/*
 * engine.h: the only door to the engine: open, submit, cancel, step, next event, close.
 *
 * Tokens in, tokens out; text, HTTP and JSON live elsewhere. One thread owns an Engine. After
 * engine_open nothing here allocates. Events are read with engine_next_event after each step; every
 * submitted request ends in exactly one EVENT_DONE.
 */
#ifndef OFFSHOOT_ENGINE_ENGINE_H
#define OFFSHOOT_ENGINE_ENGINE_H

#include <stdint.h>
#include <stdio.h>

#include "base/constraint.h"
#include "base/error.h"
#include "base/watcher.h"
#include "engine/cache.h"
#include "engine/config.h"
#include "kernels/attention.h"
#include "kernels/sample.h"
#include "spec/drafter.h"

typedef struct Engine Engine;
struct Model; /* engine/model.h */

enum {
    MAX_SEQS = 64,
    MAX_LOGPROBS = 20,
    MAX_STOP_IDS = 64,
    MAX_LOGIT_BIAS = 1024,
    MAX_FORCED = 16,
    MAX_PREDICTED = 8192,
};

/*
 * Where the states of a draft tree are until one of its paths is kept. The tokens are the same.
 *     slots:  every node writes its own state; promotion picks one
 *     replay: the pass writes none, but each node's record; the kept path's records are applied to
 *             the main state by the same steps. slots where memory has no room for records
 */
typedef enum { STATE_AUTO, STATE_SLOTS, STATE_REPLAY } StateMode;

/*
 * The ids that the model's draft head scores, beside its end tokens: no other is drafted by it. No
 * token depends on them, only speed does. Byte-level BPE numbers its ids in the order of merges, so
 * the first are the frequent ones; added tokens are the last.
 */
typedef struct {
    int n_first;           /* ids below this; 0: all */
    const int32_t *always; /* whatever n_first is; those that the model lacks are passed over */
    int n_always;
} DraftVocab;

typedef struct {
    int max_seqs;    /* sequences that run at once, 1..MAX_SEQS */
    int max_waiting; /* requests waiting to run before engine_submit says ERR_BUSY */
    int ctx_size;    /* longest sequence in tokens; 0: the model's limit, capped by memory */
    int64_t memory;  /* bytes for states, KV and records; 0: a quarter of free memory, at most 4 GiB
                      */
    KvType kv_type;  /* K and V in memory; KV_BF16 takes half the memory of KV_F32 */
    int chunk_rows;  /* prompt rows a pass, >= 1; on a GPU whole blocks of 64: rounded down, to 64
                        at least */
    int tree_nodes;  /* rows verified per step and sequence, root included, 1..MAX_TREE_NODES */
    int draft_depth; /* levels below the root */
    int draft_topk;  /* children proposed per node */
    int draft_auto;  /* 1: the engine chooses these three, on a GPU the depth of chains, step by
                        step, by what steps take and how much of drafts is kept (growth.h) */
    DraftVocab draft_vocab; /* always is borrowed */
    int reserve; /* tokens of an answer for which pages are taken when it starts, so that it
                    does not start in vain */
    StateMode state_mode;
    int n_slots; /* frames that may hold states at a time; 0: all of them */
    CacheOptions cache;
    const char *cache_dir; /* folder of the cache's tier on disk, NULL: none. Borrowed */
    int64_t disk_cache;    /* bytes of files there at most */
    int64_t host_cache;    /* bytes of host memory for what the cache lets go; 0: none */
    float synthetic;       /* 0; else first children are accepted at this rate, whatever the target
                              says: to measure speed with dummy weights. See synthetic_rate */
    const uint64_t
        *allowed; /* bit set over n_vocab of ids that may be chosen; NULL: all. Borrowed */
    const Drafter *drafter; /* NULL: plain decoding. Borrowed */
} EngineOptions;

/*
 * Defaults: 8 sequences, 64 waiting, tree 4 / depth 3 / top-k 1, chunks of 256, reserve 128; drafts
 * of all ids; K and V in f32.
 */
EngineOptions engine_defaults(void);

/* Levels that a draft can have, where it is of the shape that is set: each takes a node at least.
 */
int engine_draft_levels(const EngineOptions *o);

typedef struct {
    uint64_t id;           /* the caller's name for it, in every event */
    const int32_t *prompt; /* n_prompt >= 1 ids in [0, n_vocab); borrowed until EVENT_DONE */
    int n_prompt;
    int max_tokens; /* tokens to generate at most; 0: only score the prompt; -1: to the context's
                       end */
    int min_tokens; /* no end token before this many */
    SampleParams params;
    int n_logprobs;      /* -1: none; else the chosen token's and this many alternatives */
    int prompt_logprobs; /* 1: EVENT_PROMPT for every prompt token, with n_logprobs alternatives */
    int trees;           /* 1: EVENT_TREE for every verify step */
    int progress;        /* 1: EVENT_PROGRESS for every part of the prompt that was computed */
    int ignore_eos;
    int draft_max;           /* -1: as the engine is set; 0: no drafting; else the deepest level */
    const int32_t *stop_ids; /* beside the model's end tokens; borrowed */
    int n_stop_ids;
    const int32_t *bias_id; /* borrowed */
    const float *bias;
    int n_bias;
    int paused; /* 1: it takes no part in steps until engine_pause lets it */
    /*
     * What a later prompt will begin with again, as far as the caller knows: where the prefix cache
     * keeps states.
     */
    int n_stable;          /* tokens of the prompt; 0: all of them */
    int n_system;          /* those that another conversation begins with as well; 0: not known */
    int answer_changes;    /* 1: the answer will not come back as it was generated */
    int no_cache;          /* 1: nothing is looked up for it, nothing of it is kept */
    uint64_t salt;         /* requests of different salts share nothing */
    const int32_t *forced; /* what the answer goes on with when the watcher says WATCH_FORCE */
    int n_forced;          /* at most MAX_FORCED; borrowed; they count as generated */
    /*
     * What the answer is likely to repeat: for drafters that copy (drafts/copying.h). No token
     * depends on it. At most MAX_PREDICTED; borrowed
     */
    const int32_t *predicted;
    int n_predicted;
    Constraint constraint; /* what the answer must look like */
    Watcher watcher;       /* called on the engine's thread for each token before it is let out */
} EngineRequest;

typedef enum {
    FINISH_STOP,   /* an end token, a stop id or the watcher */
    FINISH_LENGTH, /* max_tokens or the context's end */
    FINISH_CANCELLED,
    FINISH_ERROR, /* a row held NaN: the answer cannot go on */
    FINISH_FORM,  /* what may come next by its constraint could not be told */
} FinishReason;

/* A step is one verify pass here; the token that a prompt's rows give is in none. */
typedef struct {
    int n_prompt, n_generated;
    int n_cached;        /* prompt tokens that came from the prefix cache */
    int n_preemptions;   /* times it gave its memory up and was computed again */
    int n_steps;         /* verify steps */
    int n_steps_drafted; /* those with at least one draft node */
    int n_drafted;       /* draft nodes verified */
    int n_accepted; /* draft nodes accepted and kept; acceptance length = 1 + n_accepted / n_steps
                     */
    int accepted_hist[MAX_TREE_NODES];  /* steps by how many drafts they accepted */
    int depth_tried[MAX_TREE_NODES];    /* steps that reached a node of depth d - 1 with children */
    int depth_accepted[MAX_TREE_NODES]; /* of those, steps that accepted depth d */
    double wait_ms, prompt_ms, decode_ms; /* in the queue; to the first token; after it */
} RequestStats;

/*
 * What a verify step tried and what came of it. Nodes as in spec/tree.h: node 0 is the root, the
 * last emitted token; parent[i] < i. The step emits the kept nodes' tokens but the root's, then
 * next.
 */
typedef struct {
    int n; /* nodes */
    int32_t token[MAX_TREE_NODES], parent[MAX_TREE_NODES];
    uint8_t kept[MAX_TREE_NODES]; /* 1: on the kept path, as the root always is */
    int32_t next;                 /* chosen after the last kept node; -1: its row held NaN */
} StepTree;

typedef enum {
    EVENT_PROMPT,
    EVENT_PROGRESS,
    EVENT_TREE, /* comes before the tokens of its step */
    EVENT_TOKEN,
    EVENT_DONE,
} EventType;

typedef struct {
    EventType type;
    uint64_t id;
    int32_t token; /* PROMPT, TOKEN; an end token is reported too, as the last TOKEN */
    int pos;       /* its position; PROGRESS: tokens of the prompt that are done */
    int drafted;   /* 1: the token was an accepted draft */
    /*
     * The last TOKEN that a step sampled for its sequence: how many these are, and nodes (root
     * included) and depth of the tree that was verified; 0 nodes: the rows were a prompt's.
     * Elsewhere 0.
     */
    int n_sampled, tree_nodes, tree_depth;
    float logprob; /* of the unprocessed distribution; 0 unless asked for; NaN where nothing
                      predicted the token: PROMPT at pos 0, a forced one */
    int rank;      /* 0: the most likely */
    int n_top;
    int32_t top_id[MAX_LOGPROBS];
    float top_logprob[MAX_LOGPROBS];
    FinishReason finish; /* DONE */
    int32_t stop_token;  /* DONE with FINISH_STOP: the end token or stop id, -1 for the watcher */
    union {
        RequestStats stats; /* DONE; so far: PROGRESS, TOKEN with n_sampled */
        StepTree tree;      /* TREE */
    };
} Event;

/*
 * Takes all memory: frames, records, scratch. The model and its backend must outlive the engine.
 * NULL and an Error that says which option to lower when it does not fit.
 */
Engine *engine_open(const struct Model *model, const EngineOptions *options, Error *err);
void engine_close(Engine *e);

/*
 * Prints the start-up table: weights, frames, records, scratch, what a sequence takes, how many of
 * the whole context fit.
 */
void engine_print_memory(const Engine *e, FILE *out);

/*
 * Queues a request. ERR_LIMIT: prompt and answer do not fit the context or the memory; ERR_BUSY:
 * the queue is full; ERR_INPUT: a token or parameter is out of range. On an error nothing is queued
 * and no event follows.
 */
int engine_submit(Engine *e, const EngineRequest *request, Error *err);

/*
 * Ends a request between steps, with FINISH_CANCELLED; its event must be read before more requests
 * are submitted. An unknown id is ignored.
 */
void engine_cancel(Engine *e, uint64_t id);

/*
 * Holds a sequence back from the next step on, or lets it go on: for a reader that is too slow. Its
 * memory is the first that others may take; then it is computed again. An unknown id is ignored.
 */
void engine_pause(Engine *e, uint64_t id, int paused);

/*
 * Empties the prefix cache, in all its tiers. Running sequences keep what they have of it, and
 * leave states again. Counters go on.
 */
void engine_flush_cache(Engine *e);

/*
 * One step: every decoding sequence gains at least one token. Returns the number of sequences that
 * ran, 0 when there is nothing to do or all are paused, -1 when the device failed. Never allocates.
 * All events must have been read before.
 */
int engine_step(Engine *e, Error *err);

/*
 * 1 when something is on its way to disk: where nothing runs a step now and then, which does not
 * wait for it, brings it there.
 */
int engine_is_saving(const Engine *e);

/*
 * Next event of the last step or cancel, or NULL. The pointer lives until the next step or cancel.
 */
const Event *engine_next_event(Engine *e);

/* Steps by what they held: trees of a root alone, trees with drafts, prompt rows, both. */
typedef enum { STEP_DECODE, STEP_VERIFY, STEP_PREFILL, STEP_MIXED, N_STEP_KINDS } StepKind;

enum { STEP_SIZES = 16 };

/* Counted since engine_open. Times are of the engine's thread. */
typedef struct {
    long steps[N_STEP_KINDS];
    long by_tokens[STEP_SIZES]; /* [i]: steps of (2^(i-1), 2^i] tokens; the last: all larger ones */
    long tokens;                /* prompt rows and emitted tokens of all steps */
    long promoted;              /* draft nodes whose state became their sequence's */
    long kv_moves;              /* KV rows of accepted nodes that had to move */
    long rounds;                /* steps that a device did without the host in between */
    long rounds_ahead;          /* of them, queued before the step before was read */
    double draft_ms;            /* the drafter's */
    double verify_ms;           /* passes with trees */
    double prefill_ms;          /* passes with prompt rows alone */
} StepTotals;

/* What is running, waiting (preempted ones too), free; what was done; and what does not change. */
typedef struct {
    int running, waiting;
    int queued; /* of those that wait: that have not begun */
    int slots, slots_free;
    StateMode state_mode; /* slots or replay */
    int pages, pages_free;
    long preemptions; /* running sequences that had to give up their memory */
    StepTotals totals;
    CacheStats cache;
    struct {
        int on;
        long saving;        /* prefixes on their way to disk now */
        long saved, loaded; /* prefixes */
        long failed;        /* of both */
        long files;
        int64_t bytes;
    } disk;
    struct {
        long saved, loaded; /* prefixes */
        int64_t bytes, max_bytes;
    } host_cache;

    int ctx_size, max_seqs, n_vocab;
    int draft_depth;     /* levels below the root that a tree may have; 0: plain decoding */
    int draft_auto;      /* 1: the engine chooses the shape of each */
    const char *drafter; /* its name, or NULL */
    int draft_vocab;     /* ids that the model's head scores for drafts; 0: it drafts nothing */
    double draft_vocab_bytes; /* of their rows of weights */
    int64_t n_params;         /* of the model */
    int64_t file_bytes;       /* of these in the checkpoint */
} EngineStatus;

void engine_status(const Engine *e, EngineStatus *s);

/* What engine_open got. */
const struct Model *engine_model(const Engine *e);

/* The model's shape and end tokens; lives as long as the model. */
const ModelConfig *engine_config(const Engine *e);

#endif
