/*
 * cache.h: the prefix cache: a radix tree over token ids, with KV pages and states.
 *
 * A node stands for a prefix: the tokens of the edges from the root to it. An edge holds the pages
 * of its tokens; a node may hold the state after its last token. A hit is a node with a state on
 * the prompt's way: positions are exact, there is no block grid. Where two branches part inside a
 * page each has a copy. Memory is claimed here too, because whoever needs some makes the cache let
 * go of what is worth least. This file moves no bytes and knows no model: the engine keeps
 * sequences with it, a simulation nothing at all.
 *
 * Worth of a node, after Marconi (Pan et al., MLSys 2025): recency + alpha * FLOPs saved per byte,
 * both scaled to 0..1 over the nodes that may go: those with at most one child, of which one with a
 * child gives up its state alone. A hit refreshes the node that it ends at and no other.
 */
#ifndef OFFSHOOT_ENGINE_CACHE_H
#define OFFSHOOT_ENGINE_CACHE_H

#include <stdint.h>

typedef struct Frames Frames; /* engine/frames.h */
struct PageMove;

enum {
    PAGE_TOKENS = 16,         /* KV rows in a page */
    MIN_BRANCH = PAGE_TOKENS, /* a branch point that saves fewer tokens is not worth a state */
};

/* Pages that n_tokens need. */
static inline int pages_for(int n_tokens)
{
    return (n_tokens + PAGE_TOKENS - 1) / PAGE_TOKENS;
}

/*
 * What goes first when memory is short. none: only what a running sequence needs is taken from the
 * cache, by age; nothing new is kept in place of something old.
 */
typedef enum { POLICY_FLOP, POLICY_LRU, POLICY_NONE } CachePolicy;
#define CACHE_POLICY_CHOICES "flop|lru|none"

/* FLOPs of the first n tokens: n * per_token + n * n / 2 * per_pair. */
typedef struct {
    double per_token;
    double per_pair; /* of a token with an earlier one */
} FlopCost;

typedef struct {
    int on;
    CachePolicy policy;
    double alpha;     /* of POLICY_FLOP; < 0: tuned while serving */
    int keep_answers; /* 1: states at the ends of answers are kept too */
} CacheOptions;

/*
 * Where a state is kept; branch: also at a new system turn's end, where one is to come; loaded:
 * from a lower tier.
 */
typedef enum { KEPT_BRANCH, KEPT_PROMPT, KEPT_ANSWER, KEPT_LOADED, N_KEPT } CacheKept;

/* Why one was not. */
typedef enum {
    REFUSED_MEMORY,  /* no room but in place of what is worth more or in use */
    REFUSED_NODES,   /* the tree is full */
    REFUSED_KNOWN,   /* it is there already */
    REFUSED_LOST,    /* the stop fell inside a run whose states are gone */
    REFUSED_CHANGES, /* the answer will not come back as it was generated */
    N_REFUSED,
} CacheRefused;

typedef struct {
    long lookups, hits;
    long asked_tokens, hit_tokens; /* of prompts that were looked up */
    long matched_tokens;           /* of which KV was there: beyond hit_tokens the state was not */
    long kept[N_KEPT], refused[N_REFUSED];
    long evicted_states, evicted_nodes; /* states alone; nodes with their pages */
    long waits;                         /* prompts that waited for a prefix of another */
    long nodes, states, pages;          /* now */
    double flops_saved;
    double alpha; /* in use */
} CacheStats;

typedef struct Cache Cache;

/* Nothing is kept unless o->on, but memory is claimed here all the same. frames is borrowed. */
Cache *cache_open(const CacheOptions *o, Frames *frames, int max_nodes, const FlopCost *cost);
void cache_close(Cache *c);

/* Told of every page that moves to another place, while memory is claimed. */
void cache_on_move(Cache *c, void (*moved)(void *ctx, const struct PageMove *move), void *ctx);

/* Told of a node whose state is about to go, with or without its pages. It claims nothing. */
void cache_on_evict(Cache *c, void (*going)(void *ctx, int32_t node), void *ctx);

/* A node's tokens, one page for each PAGE_TOKENS of them, state and salt; returns how many. */
int cache_prefix(const Cache *c, int32_t node, int32_t *token, int32_t *page, int32_t *slot,
                 uint64_t *salt);

/* ---- memory; the cache lets go, if it must ---- */

/* Up to n slots or exactly n pages (0, or none and -1), as slots_claim and pages_claim. */
int cache_claim_slots(Cache *c, int n, int32_t *slot);

/* The cache lets go until n slots are free, if it can; returns how many are. */
int cache_make_slots(Cache *c, int n);
int cache_claim_pages(Cache *c, int n, int32_t *page);

/* ---- prefixes ---- */

typedef struct {
    int32_t node; /* the hit's; 0, the root: none */
    int n;        /* tokens up to it */
    int32_t slot; /* the state there, -1 at the root */
    int matched;  /* tokens of the prompt that the tree holds, >= n */
    int branch;   /* where the tree would branch: a state there serves the next such prompt; 0 */
} CacheHit;

/*
 * The deepest state on the way of n tokens. Prefixes of different salts are different. Changes
 * nothing.
 */
CacheHit cache_find(const Cache *c, uint64_t salt, const int32_t *token, int n);

/* Counts a hit of a prompt of n tokens and makes its node young. now: seconds, never falls. */
void cache_use(Cache *c, const CacheHit *hit, int n, double now);

/* Makes a node young without counting. */
void cache_touch(Cache *c, int32_t node, double now);

/*
 * The same for node and those on the way to it that were used at `since` or later: what one request
 * has used or kept is of one age.
 */
void cache_touch_since(Cache *c, int32_t node, double since, double now);

/* A pinned node stays, and all on the way to it; only its state may go. */
void cache_pin(Cache *c, int32_t node);
void cache_unpin(Cache *c, int32_t node);

/* Pages of the first n tokens on the way to node, n at most its depth: one a PAGE_TOKENS. */
void cache_pages(const Cache *c, int32_t node, int n, int32_t *page);

/*
 * Keeps the state in slot after n tokens, whose rows lie in page[]: below from, a pinned node on
 * their way, what is new is added. The cache holds slot and pages beside the caller. Returns the
 * node at n, or -1 and counts why not. A node that has a state keeps its own.
 */
int32_t cache_keep(Cache *c, uint64_t salt, int32_t from, const int32_t *token, int n,
                   const int32_t *page, int32_t slot, CacheKept kind, double now);

/* Counts a state that the caller could not offer. */
void cache_refuse(Cache *c, CacheRefused why);

/* Node's state is not the cache's any more: who holds its slot has it alone. */
void cache_drop_state(Cache *c, int32_t node);

/* The alpha of POLICY_FLOP from now on. */
void cache_set_alpha(Cache *c, double alpha);

/* Makes `to`, opened alike over `frames`, what from is over its own. It counts on from there. */
void cache_copy(Cache *to, const Cache *from, Frames *frames);

/* Lets go of the node worth least. 0: nothing can go. */
int cache_evict(Cache *c);

/*
 * Forgets all states, and all pages but those on the way to a pinned node, which go when it is
 * unpinned. Nobody is told, nothing is counted as evicted.
 */
void cache_clear(Cache *c);

CacheStats cache_stats(const Cache *c);

#endif
