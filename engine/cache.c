/* cache.c: see cache.h. The tree itself is in radix.c, what memory is free in frames.c. */
#include "engine/cache.h"

#include <assert.h>
#include <math.h>

#include "base/mem.h"
#include "engine/flops.h"
#include "engine/frames.h"
#include "engine/radix.h"

struct Cache {
    CacheOptions options;
    FlopCost cost;
    Frames *frames;
    Radix tree;
    PageMove *move; /* [pages per frame] */
    void (*moved)(void *ctx, const PageMove *move);
    void *moved_ctx;
    void (*going)(void *ctx, int32_t node);
    void *going_ctx;
    double alpha; /* in use */
    CacheStats stats;
};

Cache *cache_open(const CacheOptions *o, Frames *frames, int max_nodes, const FlopCost *cost)
{
    Cache *c = mem_alloc(1, sizeof *c);
    int per_frame = frames_pages_per_frame(frames);
    int max_cells = o->on ? frames_count(frames) * per_frame + max_nodes : 0;
    c->options = *o;
    c->cost = *cost;
    c->frames = frames;
    c->alpha = o->policy == POLICY_FLOP && o->alpha > 0 ? o->alpha : 0;
    c->move = mem_alloc((size_t)per_frame, sizeof *c->move);
    radix_open(&c->tree, o->on ? max_nodes + 1 : 1, max_cells);
    return c;
}

void cache_close(Cache *c)
{
    if (!c) return;
    radix_close(&c->tree);
    mem_free(c->move);
    mem_free(c);
}

void cache_copy(Cache *to, const Cache *from, Frames *frames)
{
    frames_copy(frames, from->frames);
    radix_copy(&to->tree, &from->tree);
    to->frames = frames;
    to->stats = from->stats;
}

void cache_on_move(Cache *c, void (*moved)(void *ctx, const PageMove *move), void *ctx)
{
    c->moved = moved;
    c->moved_ctx = ctx;
}

void cache_on_evict(Cache *c, void (*going)(void *ctx, int32_t node), void *ctx)
{
    c->going = going;
    c->going_ctx = ctx;
}

void cache_set_alpha(Cache *c, double alpha)
{
    c->alpha = alpha;
}

/* ---- letting go ---- */

static Node *node_at(const Cache *c, int32_t node)
{
    return &c->tree.node[node];
}

static void drop_slot(Cache *c, Node *n)
{
    slots_release(c->frames, n->slot);
    n->slot = -1;
    c->stats.states--;
}

static void remove_leaf(Cache *c, int32_t leaf)
{
    Node *n = node_at(c, leaf);
    if (n->slot >= 0) drop_slot(c, n);
    for (int32_t cell = n->first_cell; cell >= 0; cell = c->tree.cell[cell].next)
        pages_release(c->frames, c->tree.cell[cell].page);
    radix_remove(&c->tree, leaf);
}

/* A node without a state is there only for those below it, or for who has pinned it. */
static void tidy(Cache *c, int32_t node)
{
    while (node != RADIX_ROOT) {
        const Node *n = node_at(c, node);
        int32_t parent = n->parent, shared;
        if (n->slot >= 0 || n->pins || n->n_children > 1) return;
        if (n->n_children == 1) {
            radix_join(&c->tree, node, &shared);
            if (shared >= 0) pages_release(c->frames, shared);
            return;
        }
        remove_leaf(c, node);
        node = parent;
    }
}

void cache_drop_state(Cache *c, int32_t node)
{
    Node *n = node_at(c, node);
    if (n->slot < 0) return;
    drop_slot(c, n);
    tidy(c, node);
}

/* May it go? One with a child only lets go of its state. */
static int is_candidate(const Node *n)
{
    return n->n_children == 1 ? n->slot >= 0 : !n->n_children && !n->pins_here;
}

/* FLOPs that a hit of node saves beyond one of its parent, by the page of memory that it takes. */
static double saving(const Cache *c, const Node *n)
{
    int pages = n->slot >= 0 ? frames_pages_per_frame(c->frames) : 0;
    if (!n->n_children) pages += n->n_cells;
    return flops_between(&c->cost, n->start, n->end) / (pages ? pages : 1);
}

/* 1 / age, as Marconi has it: what was used just now stands out, all that is old is alike. */
static double recency(const Node *n, double now)
{
    static const double YOUNGEST = 1e-3; /* seconds */
    double age = now - n->used;
    return 1 / (age > YOUNGEST ? age : YOUNGEST);
}

typedef struct {
    double least, most;
} Range;

static void widen(Range *r, double x)
{
    if (x < r->least) r->least = x;
    if (x > r->most) r->most = x;
}

static double scaled(const Range *r, double x)
{
    return r->most > r->least ? (x - r->least) / (r->most - r->least) : 0;
}

/* The candidate worth least, or -1. Of those alike the one used longest ago. */
static int32_t pick_by_worth(const Cache *c)
{
    const Radix *t = &c->tree;
    double now = t->newest >= 0 ? t->node[t->newest].used : 0, least = INFINITY;
    Range age = {INFINITY, -INFINITY}, flops = age;
    int32_t pick = -1;
    for (int32_t i = t->oldest; i >= 0; i = t->node[i].newer) {
        if (!is_candidate(&t->node[i])) continue;
        widen(&age, recency(&t->node[i], now));
        widen(&flops, saving(c, &t->node[i]));
    }
    for (int32_t i = t->oldest; i >= 0; i = t->node[i].newer) {
        const Node *n = &t->node[i];
        if (!is_candidate(n)) continue;
        double worth = scaled(&age, recency(n, now)) + c->alpha * scaled(&flops, saving(c, n));
        if (worth >= least) continue;
        least = worth;
        pick = i;
    }
    return pick;
}

static int32_t pick_oldest(const Cache *c)
{
    const Radix *t = &c->tree;
    int32_t i = t->oldest;
    while (i >= 0 && !is_candidate(&t->node[i]))
        i = t->node[i].newer;
    return i;
}

/* In need: the oldest state that nobody else holds, wherever it is. */
static int32_t pick_any_state(const Cache *c)
{
    const Radix *t = &c->tree;
    for (int32_t i = t->oldest; i >= 0; i = t->node[i].newer)
        if (t->node[i].slot >= 0 && slots_refs(c->frames, t->node[i].slot) == 1) return i;
    return -1;
}

static int32_t pick_candidate(const Cache *c)
{
    return c->alpha > 0 ? pick_by_worth(c) : pick_oldest(c);
}

/* The whole node, or its state alone. */
static void let_go(Cache *c, int32_t node)
{
    Node *n = node_at(c, node);
    if (c->going && n->slot >= 0) c->going(c->going_ctx, node);
    if (n->n_children || n->pins_here) {
        c->stats.evicted_states++;
        drop_slot(c, n);
        tidy(c, node);
    } else {
        int32_t parent = n->parent;
        c->stats.evicted_nodes++;
        remove_leaf(c, node);
        tidy(c, parent);
    }
}

int cache_evict(Cache *c)
{
    int32_t pick = pick_candidate(c);
    if (pick < 0) pick = pick_any_state(c);
    if (pick < 0) return 0;
    let_go(c, pick);
    return 1;
}

/* Nodes without a state are there for those below alone: they go with the last of these. */
void cache_clear(Cache *c)
{
    for (int32_t i = RADIX_ROOT + 1; i < c->tree.max_nodes; i++)
        if (node_at(c, i)->parent >= 0) cache_drop_state(c, i);
}

/* ---- claims ---- */

static int compact(Cache *c)
{
    int n = frames_compact(c->frames, c->move);
    for (int i = 0; i < n && c->moved; i++)
        c->moved(c->moved_ctx, &c->move[i]);
    return n >= 0;
}

/* Pages that are the cache's alone, and those of frames whose states are. */
static int evictable_pages(const Cache *c)
{
    const Radix *t = &c->tree;
    int n = 0, per_frame = frames_pages_per_frame(c->frames);
    for (int32_t i = t->oldest; i >= 0; i = t->node[i].newer) {
        const Node *e = &t->node[i];
        if (!e->pins_here) n += e->n_cells;
        if (e->slot >= 0 && slots_refs(c->frames, e->slot) == 1) n += per_frame;
    }
    return n;
}

/* Could a frame be emptied at all? Else nothing should go in vain. */
static int can_empty_a_frame(const Cache *c)
{
    int per_frame = frames_pages_per_frame(c->frames);
    int room = pages_free_count(c->frames) - frames_empty(c->frames) * per_frame;
    return room + evictable_pages(c) >= per_frame;
}

int cache_make_slots(Cache *c, int n)
{
    const Frames *f = c->frames;
    while (slots_free_count(f) < n) {
        if (frames_empty(f) < n && compact(c)) continue;
        if (!can_empty_a_frame(c) || !cache_evict(c)) break;
    }
    return slots_free_count(f);
}

int cache_claim_slots(Cache *c, int n, int32_t *slot)
{
    cache_make_slots(c, n);
    return slots_claim(c->frames, n, slot);
}

int cache_claim_pages(Cache *c, int n, int32_t *page)
{
    if (!pages_claim(c->frames, n, page)) return 0;
    if (pages_free_count(c->frames) + evictable_pages(c) < n) return -1;
    while (cache_evict(c))
        if (!pages_claim(c->frames, n, page)) return 0;
    return -1;
}

/* ---- finding ---- */

CacheHit cache_find(const Cache *c, uint64_t salt, const int32_t *token, int n)
{
    const Radix *t = &c->tree;
    CacheHit hit = {.slot = -1};
    RadixWalk w = {.child = -1};
    if (!c->options.on) return hit;
    while (radix_step(t, salt, token, n, &w)) {
        const Node *e = &t->node[w.node];
        if (e->slot < 0) continue;
        hit.node = w.node;
        hit.n = e->end;
        hit.slot = e->slot;
    }
    hit.matched = w.n;
    /* the tree goes on here in another way, or the prompt ends where it goes on */
    if (w.n - hit.n >= MIN_BRANCH) hit.branch = w.n;
    return hit;
}

void cache_use(Cache *c, const CacheHit *hit, int n, double now)
{
    CacheStats *s = &c->stats;
    if (!c->options.on) return;
    s->lookups++;
    s->hits += hit->n > 0;
    s->asked_tokens += n;
    s->hit_tokens += hit->n;
    s->matched_tokens += hit->matched;
    s->flops_saved += flops_between(&c->cost, 0, hit->n);
    radix_touch(&c->tree, hit->node, now);
}

void cache_touch(Cache *c, int32_t node, double now)
{
    if (node_at(c, node)->used < now) radix_touch(&c->tree, node, now);
}

/* From the root down, so that the deepest is the youngest. */
void cache_touch_since(Cache *c, int32_t node, double since, double now)
{
    for (int32_t top = node; top != RADIX_ROOT;) {
        top = RADIX_ROOT;
        for (int32_t i = node; i != RADIX_ROOT; i = node_at(c, i)->parent)
            if (node_at(c, i)->used >= since && node_at(c, i)->used < now) top = i;
        radix_touch(&c->tree, top, now);
    }
}

void cache_pin(Cache *c, int32_t node)
{
    node_at(c, node)->pins++;
    for (; node >= 0; node = node_at(c, node)->parent)
        node_at(c, node)->pins_here++;
}

void cache_unpin(Cache *c, int32_t node)
{
    assert(node_at(c, node)->pins > 0);
    node_at(c, node)->pins--;
    for (int32_t i = node; i >= 0; i = node_at(c, i)->parent)
        node_at(c, i)->pins_here--;
    tidy(c, node);
}

void cache_pages(const Cache *c, int32_t node, int n, int32_t *page)
{
    const Radix *t = &c->tree;
    int end = radix_cells_for(0, n); /* pages from here on are known */
    assert(n <= t->node[node].end);
    for (; node != RADIX_ROOT; node = t->node[node].parent) {
        const Node *e = &t->node[node];
        int b = e->start / PAGE_TOKENS, first = b;
        for (int32_t i = e->first_cell; i >= 0 && b < end; i = t->cell[i].next)
            page[b++] = t->cell[i].page;
        if (first < end) end = first;
    }
}

int cache_prefix(const Cache *c, int32_t node, int32_t *token, int32_t *page, int32_t *slot,
                 uint64_t *salt)
{
    const Radix *t = &c->tree;
    int n = t->node[node].end;
    *slot = t->node[node].slot;
    *salt = t->node[node].salt;
    cache_pages(c, node, n, page);
    for (; node != RADIX_ROOT; node = t->node[node].parent) {
        const Node *e = &t->node[node];
        int pos = e->start;
        for (int32_t i = e->first_cell; i >= 0; i = t->cell[i].next)
            for (int end = (pos / PAGE_TOKENS + 1) * PAGE_TOKENS; pos < end && pos < e->end; pos++)
                token[pos] = t->tokens[i].at[pos % PAGE_TOKENS];
    }
    return n;
}

/* ---- keeping ---- */

void cache_refuse(Cache *c, CacheRefused why)
{
    if (c->options.on) c->stats.refused[why]++;
}

/* How far the tree goes below `from` on the way of n tokens. */
static RadixWalk walk(const Cache *c, uint64_t salt, int32_t from, const int32_t *token, int n)
{
    RadixWalk w = {.node = from, .child = -1, .n = c->tree.node[from].end};
    while (radix_step(&c->tree, salt, token, n, &w))
        ;
    return w;
}

/* Has the tree nodes and cells for what the way of n tokens lacks beyond w? */
static int has_room(const Radix *t, const RadixWalk *w, int n)
{
    int splits = w->child >= 0, adds = w->n < n;
    int cells = splits + (adds ? radix_cells_for(w->n, n) : 0);
    return t->max_nodes - 1 - t->n_nodes >= splits + adds && t->n_free_cells >= cells;
}

/* The node at n tokens, w.n of which are there; made if it is not. */
static int32_t reach(Cache *c, uint64_t salt, RadixWalk w, const int32_t *token, int n,
                     const int32_t *page)
{
    Radix *t = &c->tree;
    int32_t at = w.node, shared = -1;
    if (w.child >= 0) {
        at = radix_split(t, w.child, w.n, &shared);
        if (shared >= 0) pages_hold(c->frames, shared);
    }
    if (w.n == n) return at;
    at = radix_add(t, salt, at, token, n, page);
    for (int32_t i = t->node[at].first_cell; i >= 0; i = t->cell[i].next)
        pages_hold(c->frames, t->cell[i].page);
    return at;
}

/* The same, in place of others if the tree is full; -1: it stays full. */
static int32_t find_place(Cache *c, uint64_t salt, int32_t from, const int32_t *token, int n,
                          const int32_t *page)
{
    RadixWalk w = walk(c, salt, from, token, n);
    while (!has_room(&c->tree, &w, n)) {
        int32_t pick = c->options.policy == POLICY_NONE ? -1 : pick_candidate(c);
        if (pick < 0) return -1;
        let_go(c, pick);
        w = walk(c, salt, from, token, n);
    }
    return reach(c, salt, w, token, n, page);
}

static int refused(Cache *c, CacheRefused why)
{
    cache_refuse(c, why);
    return -1;
}

int32_t cache_keep(Cache *c, uint64_t salt, int32_t from, const int32_t *token, int n,
                   const int32_t *page, int32_t slot, CacheKept kind, double now)
{
    assert(n >= c->tree.node[from].end);
    if (!c->options.on || !n) return -1;
    if (c->options.policy == POLICY_NONE && !slots_free_count(c->frames))
        return refused(c, REFUSED_MEMORY);
    cache_pin(c, from); /* making room must not take what we stand on */
    int32_t here = find_place(c, salt, from, token, n, page);
    if (here < 0) {
        cache_unpin(c, from);
        return refused(c, REFUSED_NODES);
    }
    Node *e = node_at(c, here);
    if (e->slot >= 0) {
        cache_refuse(c, REFUSED_KNOWN);
    } else {
        slots_hold(c->frames, slot);
        e->slot = slot;
        c->stats.states++;
        c->stats.kept[kind]++;
    }
    radix_touch(&c->tree, here, now);
    cache_unpin(c, from);
    return here;
}

CacheStats cache_stats(const Cache *c)
{
    CacheStats s = c->stats;
    s.nodes = c->tree.n_nodes;
    s.pages = c->options.on ? c->tree.max_cells - c->tree.n_free_cells : 0;
    s.alpha = c->alpha;
    return s;
}
