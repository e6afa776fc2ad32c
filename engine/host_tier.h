/*
 * host_tier.h: the prefix cache's tier in host memory: prefixes whose pages and states were copied
 * out of the serving memory, to be copied back when they are asked for.
 *
 * One block of memory is divided into frames (engine/frames.h): a state takes one, a run of pages
 * the gaps. What is kept and what goes first is engine/store.h's. There is no thread: save and load
 * copy by a function of the caller's, which may queue the copy; no copy may be under way when
 * host_tier_save is called again, since it moves and drops what it holds.
 */
#ifndef OFFSHOOT_ENGINE_HOST_TIER_H
#define OFFSHOOT_ENGINE_HOST_TIER_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "engine/store.h"

typedef struct HostTier HostTier;

typedef struct {
    size_t page_bytes, state_bytes;
    int max_tokens; /* of a prefix */
} HostShape;

/* memory is borrowed; the index beside it is not part of its bytes. ERR_LIMIT: too little. */
HostTier *host_tier_open(void *memory, size_t bytes, const HostShape *shape, Error *err);
void host_tier_close(HostTier *t);

/*
 * Tokens of the longest prefix of n that can be loaded, 0 when there is none.
 * Prefixes have at least PAGE_TOKENS tokens.
 */
int host_tier_find(const HostTier *t, uint64_t salt, const int32_t *token, int n);

/* The first page that a save of n tokens would copy: earlier blocks are there. */
int host_tier_first_new(const HostTier *t, uint64_t salt, const int32_t *token, int n);

/* Between this tier's memory and the caller's, either way; bytes are a page's or a state's. */
typedef struct {
    void (*run)(void *ctx, void *to, const void *from, size_t bytes);
    void *ctx;
} HostCopy;

/*
 * Keeps a prefix. page[i] is the page of block first_page + i, up to the last, partial one; what
 * host_tier_first_new leaves out is not looked at. 0, or -1 and why not.
 */
int host_tier_save(HostTier *t, uint64_t salt, const int32_t *token, int n, int first_page,
                   const void *const *page, const void *state, const HostCopy *copy,
                   TierRefused *why);

/* Copies a prefix that host_tier_find told of, from page first_page on. -1: it is not there. */
int host_tier_load(HostTier *t, uint64_t salt, const int32_t *token, int n, int first_page,
                   void *const *page, void *state, const HostCopy *copy);

/* Forgets all. No copy may be under way. */
void host_tier_clear(HostTier *t);

typedef struct {
    long saved, loaded;
    long evicted; /* items that made room */
    int64_t bytes, max_bytes;
} HostTierStats;

HostTierStats host_tier_stats(const HostTier *t);

#endif
