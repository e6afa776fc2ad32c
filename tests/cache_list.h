/*
 * cache_list.h: a plain list of what a prefix cache was given and has not let go, and what follows
 * from it: which nodes there are, and who has to go next.
 *
 * From the list a trie is built anew whenever it is asked for. A row of KV is the hash of the
 * tokens up to it, and so is a state.
 */
#ifndef OFFSHOOT_TESTS_CACHE_LIST_H
#define OFFSHOOT_TESTS_CACHE_LIST_H

#include "engine/cache.h"
#include "engine/frames.h"
#include "tests/near.h"

enum {
    MAX_FRAMES = 40,
    MAX_PLACES = 80,
    MAX_LEN = 112,
    MAX_SEQ_PAGES = MAX_LEN / PAGE_TOKENS,
    MAX_SEQS = 5,
    MAX_POINTS = 2 * (MAX_FRAMES + MAX_SEQS),
    HISTORY = 8,
    POISON = 1,
};

static const FlopCost COST = {.per_token = 96, .per_pair = 2};

typedef struct {
    int frames, per, max_slots, max_nodes;
    CachePolicy policy;
    double alpha;
} Shape;

typedef struct {
    uint64_t salt;
    int n;
    int32_t token[MAX_LEN];
    uint64_t hash[MAX_LEN + 1]; /* [i]: of the salt and i tokens */
} Text;

/* What the cache was given and has not let go. */
typedef struct {
    Text text;
    int32_t slot, node;
    double used;
    long touched; /* order of use */
} Kept;

typedef struct {
    int runs, keep_answer;
    Text text;
    int n_past, keep_at[2];
    int32_t slot, src, node; /* -1: none */
    int n_node;              /* tokens up to node, which it pins */
    double node_used;        /* when the node was last of use, if it lost its state since */
    int n_pages;
    int32_t page[MAX_SEQ_PAGES];
} Seq;

/* How often what is rare happened. */
typedef struct {
    int hits, inside_page, branches, copied, moves, known, dropped, preempted, went_in_need;
    int no_pages, no_slots, no_nodes, no_room, at_max_slots, evicted_states, evicted_nodes;
    int cleared;
} Seen;

/* The cache, what it is told to do, and the list: kept[] and what each seq[] pins. */
typedef struct {
    Shape shape;
    Rng rng;
    Frames *frames, *spare_frames;
    Cache *cache, *spare;
    uint64_t bytes[MAX_PLACES][PAGE_TOKENS]; /* a state is the first word of its frame */
    Kept kept[MAX_FRAMES];
    int n_kept;
    Seq seq[MAX_SEQS];
    Text history[HISTORY];
    int next_history;
    double now, alpha;
    long n_touched;
    long evicted_states, evicted_nodes; /* counted here */
    Seen *seen;
} World;

/* ---- texts ---- */

Text text_new(uint64_t salt);
void text_append(Text *t, int32_t token);

/* Tokens that a and b have in common. */
int text_common(const Text *a, const Text *b);

/* ---- the trie that the list stands for ---- */

typedef struct {
    const Text *text;
    int n, kept; /* index, or -1 */
    int pins, pins_here;
    int start, children;
} Point;

typedef struct {
    Point at[MAX_POINTS];
    int n;
} Trie;

/* Nodes are what is kept, what is pinned, and where two of these part. */
void list_trie(const World *w, Trie *t);

/* Pages of a node's edge. */
int list_cells(const Point *p);

/* ---- what goes ---- */

int list_find(const World *w, const Text *t, int n); /* index of the prefix, -1: it is not kept */
int list_slot_holders(const World *w, int32_t slot);

/* Who pins the node of a prefix knows when it was of use. */
void list_tell_used(World *w, const Text *t, int n, double used);
void list_forget(World *w, int kept);

/* The list lets go of as many as the cache has. In need even of what it may not, at last. */
void list_follow(World *w, int in_need);
int list_nothing_can_go(const World *w, int in_need);

#endif
