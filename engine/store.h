/*
 * store.h: which prefixes a lower tier of the prefix cache holds, and what goes first.
 *
 * A prefix is kept as items of two kinds. A run: full blocks of PAGE_TOKENS tokens, kept once for
 * all prefixes that begin with them. A state: what follows the prefix's last full block, up to
 * PAGE_TOKENS - 1 tokens with their partial page, and the recurrent state after them. An item needs
 * the run that holds the block before it, and with it all the runs on the way. Items are in order
 * of use, and one is never older than what needs it: so the oldest can always go alone.
 *
 * Blocks are found by a hash chained from the first token, then compared: a hit is exact. Where the
 * bytes are is the tier's to know, by the numbers of items and blocks. No memory after store_open.
 */
#ifndef OFFSHOOT_ENGINE_STORE_H
#define OFFSHOOT_ENGINE_STORE_H

#include <stdint.h>

#include "base/error.h"
#include "base/hash.h"
#include "engine/cache.h"

typedef struct Store Store;

/* Why a tier does not keep a prefix. */
typedef enum {
    TIER_KNOWN,   /* it is there, or on its way; it counts as used */
    TIER_BUSY,    /* too many jobs; worth trying again */
    TIER_SHORT,   /* fewer than PAGE_TOKENS tokens */
    TIER_LARGE,   /* more than the tier or a sequence may have */
    TIER_MISSING, /* a page that the caller leaves out is not there (any more) */
    N_TIER_REFUSED,
} TierRefused;

/*
 * For items of max_bytes in all. Memory for so many of them and their blocks; most of it is taken
 * only when it is used.
 */
Store *store_open(int64_t max_bytes, int max_items, int max_blocks, Error *err);
void store_close(Store *s);

/* ---- looking up; nothing changes ---- */

/*
 * Full blocks of n tokens that are there from the first one on; *last, unless last is NULL: the
 * last of them, or -1.
 */
int store_match(const Store *s, uint64_t salt, const int32_t *token, int n, int32_t *last);

typedef struct {
    int32_t item; /* the state's, -1: none */
    int n;        /* tokens before it */
} StoreHit;

/* The longest prefix of n tokens that has a state that is ready. */
StoreHit store_find(const Store *s, uint64_t salt, const int32_t *token, int n);

/* The state after block last and n_rest more tokens, ready or not; -1: none. */
int32_t store_state(const Store *s, int32_t last, const int32_t *rest, int n_rest);

typedef enum { STORE_RUN, STORE_STATE, STORE_OTHER } StoreKind;

typedef struct {
    StoreKind kind;
    uint64_t salt;
    Hash key; /* of the last block; a state's: with the rest */
    int64_t bytes;
    int n_tokens; /* from the first token of all to the item's end */
    int first;    /* block that the item begins with */
    int n_blocks; /* full ones in the item: none in a state */
} StoreItem;

StoreItem store_item(const Store *s, int32_t item);
int32_t store_needs(const Store *s, int32_t item); /* the run that it needs; -1: none */
int32_t store_block_item(const Store *s, int32_t block);

/* All full blocks up to an item's end, the first one first; returns how many. */
int store_chain(const Store *s, int32_t item, int32_t *block);

int64_t store_bytes(const Store *s); /* of all items */
int store_count(const Store *s);

/* ---- adding ---- */

/* A prefix that a tier is to keep, and what of it is there already. */
typedef struct {
    uint64_t salt;
    const int32_t *token; /* [n], borrowed */
    int n;
    int n_known;   /* full blocks that are there, from the first one on */
    int n_new;     /* full blocks behind those */
    int n_rest;    /* tokens behind the last full block */
    int32_t last;  /* of the blocks that are there; -1: none */
    int32_t state; /* the prefix's own, with TIER_KNOWN */
} StorePlan;

/*
 * Fills the plan for p->salt, p->token and p->n. The caller has the prefix's pages from first_page
 * on. 0, or -1 and why a tier for prefixes of up to max_tokens cannot or need not keep it; what is
 * there whole counts as used.
 */
int store_plan(Store *s, StorePlan *p, int max_tokens, int first_page, TierRefused *why);

/* Sets *why and returns -1, so that refusing is one line. */
int store_refuse(TierRefused *why, TierRefused because);

/*
 * Adds the plan's new blocks as a run and its state behind them, which is returned; *run is -1 when
 * no block is new. There must be room.
 */
int32_t store_add_planned(Store *s, const StorePlan *p, int64_t run_bytes, int64_t state_bytes,
                          int32_t *run);

/*
 * Makes room for a run of n_blocks and a state behind block `last` (-1: the first), of so many
 * bytes together, by dropping what is oldest; not what they need, which counts as used. -1, and
 * nothing is dropped, when they cannot fit beside it.
 */
int store_make_room(Store *s, int32_t last, int n_blocks, int64_t bytes,
                    void (*dropped)(void *ctx, int32_t item), void *ctx);

/* Whether the index has room for so many more. */
int store_has_room(const Store *s, int n_items, int n_blocks);

/*
 * Adds n_blocks full blocks behind block `last` (-1: they are a prompt's first); token[] are theirs
 * alone. New items are the youngest.
 */
int32_t store_add_run(Store *s, uint64_t salt, int32_t last, const int32_t *token, int n_blocks,
                      int64_t bytes);

/* A state; store_find sees it once it is ready. */
int32_t store_add_state(Store *s, int32_t last, const int32_t *rest, int n_rest, int64_t bytes);
void store_set_ready(Store *s, int32_t item);

/* Bytes that count and age, and are never found. */
int32_t store_add_other(Store *s, int64_t bytes);

/* ---- age ---- */

/* Makes an item and all that it needs the youngest. */
void store_use(Store *s, int32_t item);

/* The item that was used longest ago, -1 when there is none. Nothing needs it. */
int32_t store_oldest(const Store *s);

/* Forgets an item and all that need it; dropped hears of each while it can still be asked about. */
void store_drop(Store *s, int32_t item, void (*dropped)(void *ctx, int32_t item), void *ctx);

#endif
