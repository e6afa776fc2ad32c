/*
 * host_tier.c: see host_tier.h.
 *
 * The index counts in bytes of whole pages, a state as a whole frame. So when it has made room the
 * room is there; where it is in pieces, pages are moved together until a frame is empty.
 */
#include "engine/host_tier.h"

#include <assert.h>
#include <string.h>

#include "base/mem.h"
#include "engine/frames.h"

enum { MAX_PAGES = 1 << 22 }; /* more memory than that many pages have is not used */

/* Where a state's item has its bytes. */
typedef struct {
    int32_t slot;
    int32_t page; /* the partial one, -1: none */
} Home;

struct HostTier {
    unsigned char *memory;
    HostShape shape;
    int pages_per_frame, n_frames;
    Store *store;
    Frames *frames;
    Home *home;     /* of each item that is a state */
    int32_t *page;  /* of each block */
    int32_t *chain; /* scratch, [max_tokens / PAGE_TOKENS] */
    int32_t *claim; /* scratch, one more */
    PageMove *move; /* scratch, [pages_per_frame] */
    HostTierStats stats;
};

static int n_units(const HostTier *t)
{
    return t->n_frames * t->pages_per_frame;
}

/* ---- opening ---- */

static int open_index(HostTier *t, Error *err)
{
    size_t units = (size_t)n_units(t), blocks = (size_t)t->shape.max_tokens / PAGE_TOKENS;
    int64_t bytes = (int64_t)units * (int64_t)t->shape.page_bytes;
    t->store = store_open(bytes, (int)units, (int)units, err);
    t->home = mem_map(units * sizeof *t->home);
    t->page = mem_map(units * sizeof *t->page);
    t->chain = mem_map(blocks * sizeof *t->chain);
    t->claim = mem_map((blocks + 1) * sizeof *t->claim);
    t->move = mem_map((size_t)t->pages_per_frame * sizeof *t->move);
    t->stats.max_bytes = bytes;
    if (!t->store) return -1;
    if (!t->home || !t->page || !t->chain || !t->claim || !t->move)
        return error_set(err, ERR_DEVICE, "no memory for the index of the host cache");
    t->frames = frames_open(t->n_frames, t->pages_per_frame, t->n_frames);
    return 0;
}

HostTier *host_tier_open(void *memory, size_t bytes, const HostShape *shape, Error *err)
{
    assert(shape->page_bytes > 0 && shape->state_bytes > 0);
    assert(shape->max_tokens >= PAGE_TOKENS);
    size_t per_frame = (shape->state_bytes + shape->page_bytes - 1) / shape->page_bytes;
    size_t n_frames = bytes / (per_frame * shape->page_bytes);
    if (n_frames > MAX_PAGES / per_frame) n_frames = MAX_PAGES / per_frame;
    if (n_frames < 2) {
        error_set(err, ERR_LIMIT,
                  "a host cache of %zu bytes is too small: a state and its tokens take %zu; raise "
                  "--host-cache",
                  bytes, 2 * per_frame * shape->page_bytes);
        return NULL;
    }
    HostTier *t = mem_alloc(1, sizeof *t);
    *t = (HostTier){.memory = memory,
                    .shape = *shape,
                    .pages_per_frame = (int)per_frame,
                    .n_frames = (int)n_frames};
    if (!open_index(t, err)) return t;
    host_tier_close(t);
    return NULL;
}

void host_tier_close(HostTier *t)
{
    if (!t) return;
    frames_close(t->frames);
    store_close(t->store);
    mem_unmap(t->home);
    mem_unmap(t->page);
    mem_unmap(t->chain);
    mem_unmap(t->claim);
    mem_unmap(t->move);
    mem_free(t);
}

/* ---- places ---- */

static unsigned char *at_place(const HostTier *t, int32_t place)
{
    return t->memory + (size_t)place * t->shape.page_bytes;
}

static unsigned char *at_page(const HostTier *t, int32_t page)
{
    return at_place(t, pages_place(t->frames, page));
}

static unsigned char *at_slot(const HostTier *t, int32_t slot)
{
    return at_place(t, slot * t->pages_per_frame);
}

/* An empty frame: the index has made room for it, if in pieces. */
static int32_t claim_slot(HostTier *t)
{
    int32_t slot;
    while (!slots_claim(t->frames, 1, &slot)) {
        int n = frames_compact(t->frames, t->move);
        assert(n >= 0);
        for (int i = 0; i < n; i++)
            memcpy(at_place(t, t->move[i].to), at_place(t, t->move[i].from), t->shape.page_bytes);
    }
    return slot;
}

static void when_dropped(void *ctx, int32_t item)
{
    HostTier *t = ctx;
    StoreItem it = store_item(t->store, item);
    if (it.kind == STORE_STATE) {
        slots_release(t->frames, t->home[item].slot);
        if (t->home[item].page >= 0) pages_release(t->frames, t->home[item].page);
        return;
    }
    store_chain(t->store, item, t->chain);
    for (int b = it.first; b < it.first + it.n_blocks; b++)
        pages_release(t->frames, t->page[t->chain[b]]);
}

/* ---- finding and loading ---- */

int host_tier_find(const HostTier *t, uint64_t salt, const int32_t *token, int n)
{
    return store_find(t->store, salt, token, n).n;
}

int host_tier_first_new(const HostTier *t, uint64_t salt, const int32_t *token, int n)
{
    return store_match(t->store, salt, token, n, NULL);
}

int host_tier_load(HostTier *t, uint64_t salt, const int32_t *token, int n, int first_page,
                   void *const *page, void *state, const HostCopy *copy)
{
    size_t page_bytes = t->shape.page_bytes;
    StoreHit hit = store_find(t->store, salt, token, n);
    if (hit.item < 0 || hit.n != n) return -1;
    const Home *home = &t->home[hit.item];
    int n_full = store_chain(t->store, hit.item, t->chain);
    for (int b = first_page; b < n_full; b++)
        copy->run(copy->ctx, page[b - first_page], at_page(t, t->page[t->chain[b]]), page_bytes);
    if (home->page >= 0 && first_page <= n_full)
        copy->run(copy->ctx, page[n_full - first_page], at_page(t, home->page), page_bytes);
    copy->run(copy->ctx, state, at_slot(t, home->slot), t->shape.state_bytes);
    store_use(t->store, hit.item);
    t->stats.loaded++;
    return 0;
}

/* ---- saving ---- */

int host_tier_save(HostTier *t, uint64_t salt, const int32_t *token, int n, int first_page,
                   const void *const *page, const void *state, const HostCopy *copy,
                   TierRefused *why)
{
    StorePlan p = {.salt = salt, .token = token, .n = n};
    if (store_plan(t->store, &p, t->shape.max_tokens, first_page, why)) return -1;
    int has_partial = p.n_rest > 0, n_pages = p.n_new + has_partial;
    int64_t of_state = (int64_t)(t->pages_per_frame + has_partial) * (int64_t)t->shape.page_bytes;
    int64_t of_run = (int64_t)p.n_new * (int64_t)t->shape.page_bytes;
    int before = store_count(t->store);
    if (store_make_room(t->store, p.last, p.n_new, of_run + of_state, when_dropped, t))
        return store_refuse(why, TIER_LARGE);
    t->stats.evicted += before - store_count(t->store);
    Home home = {.slot = claim_slot(t), .page = -1};
    int failed = pages_claim(t->frames, n_pages, t->claim);
    assert(!failed);
    (void)failed;
    for (int i = 0; i < n_pages; i++)
        copy->run(copy->ctx, at_page(t, t->claim[i]), page[p.n_known - first_page + i],
                  t->shape.page_bytes);
    copy->run(copy->ctx, at_slot(t, home.slot), state, t->shape.state_bytes);
    if (has_partial) home.page = t->claim[p.n_new];
    int32_t run, item = store_add_planned(t->store, &p, of_run, of_state, &run);
    store_chain(t->store, item, t->chain);
    for (int i = 0; i < p.n_new; i++)
        t->page[t->chain[p.n_known + i]] = t->claim[i];
    t->home[item] = home;
    store_set_ready(t->store, item);
    t->stats.saved++;
    return 0;
}

void host_tier_clear(HostTier *t)
{
    for (int32_t item; (item = store_oldest(t->store)) >= 0;)
        store_drop(t->store, item, when_dropped, t);
}

HostTierStats host_tier_stats(const HostTier *t)
{
    HostTierStats s = t->stats;
    s.bytes = store_bytes(t->store);
    return s;
}
