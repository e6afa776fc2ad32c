/*
 * store.c: see store.h.
 *
 * Blocks lie in one array and are found through a hash table with linear probing, whose slots carry
 * 32 bits of the key so that a probe rarely looks at the wrong block. A block matches when its
 * tokens do and its parent is the block matched before (a first one, when its salt does): by
 * induction all of the prefix is compared, and a collision of hashes costs a probe, nothing else.
 */
#include "engine/store.h"

#include <assert.h>
#include <string.h>

#include "base/mem.h"

enum { NONE = -1 };

typedef struct {
    Hash key;
    int32_t token[PAGE_TOKENS];
    int32_t parent; /* the block before; in a free one the next free */
    int32_t item;
    int32_t depth;  /* blocks before it */
    int32_t states; /* items: states whose last full block it is */
} Block;

typedef struct {
    uint64_t salt;
    int64_t bytes;
    int32_t older, younger; /* older: in a free one the next free */
    int32_t needs;
    int32_t last;       /* block: a run's last, a state's last full one */
    int32_t n_blocks;   /* of a run */
    int32_t next_state; /* of the same block */
    int32_t n_rest;
    int32_t rest[PAGE_TOKENS - 1];
    int kind, is_ready, is_marked;
} Item;

typedef struct {
    uint32_t tag;
    int32_t block; /* + 1; 0: the slot is empty */
} TableSlot;

struct Store {
    Block *block;
    Item *item;
    TableSlot *table;
    size_t mask;
    int max_blocks, max_items;
    int n_blocks, n_items;
    int new_blocks, new_items; /* ever used; those behind were never touched */
    int32_t free_block, free_item;
    int32_t oldest, youngest;
    int64_t bytes, max_bytes;
};

static size_t table_size(int max_blocks)
{
    size_t n = 16;
    while (n < 2 * (size_t)max_blocks)
        n *= 2;
    return n;
}

Store *store_open(int64_t max_bytes, int max_items, int max_blocks, Error *err)
{
    assert(max_items > 0 && max_blocks > 0);
    Store *s = mem_alloc(1, sizeof *s);
    s->block = mem_map((size_t)max_blocks * sizeof *s->block);
    s->item = mem_map((size_t)max_items * sizeof *s->item);
    s->table = mem_map(table_size(max_blocks) * sizeof *s->table);
    if (!s->block || !s->item || !s->table) {
        error_set(err, ERR_DEVICE, "no memory for an index of %d items and %d blocks", max_items,
                  max_blocks);
        store_close(s);
        return NULL;
    }
    s->mask = table_size(max_blocks) - 1;
    s->max_bytes = max_bytes;
    s->max_blocks = max_blocks;
    s->max_items = max_items;
    s->free_block = s->free_item = s->oldest = s->youngest = NONE;
    return s;
}

void store_close(Store *s)
{
    if (!s) return;
    mem_unmap(s->block);
    mem_unmap(s->item);
    mem_unmap(s->table);
    mem_free(s);
}

/* ---- keys and the table ---- */

static Hash first_key(uint64_t salt)
{
    return hash_key(NULL, 0, salt);
}

static Hash next_key(Hash before, const int32_t *token, int n)
{
    struct {
        Hash before;
        int32_t token[PAGE_TOKENS];
    } in = {.before = before};
    memcpy(in.token, token, (size_t)n * sizeof *token);
    return hash_key(&in, sizeof in.before + (size_t)n * sizeof *token, 0);
}

static uint32_t tag_of(Hash key)
{
    return (uint32_t)(key.high >> 32);
}

static int32_t lookup(const Store *s, Hash key, int32_t parent, uint64_t salt, const int32_t *token)
{
    for (size_t i = key.low & s->mask; s->table[i].block; i = (i + 1) & s->mask) {
        if (s->table[i].tag != tag_of(key)) continue;
        const Block *b = &s->block[s->table[i].block - 1];
        if (hash_equal(b->key, key) && b->parent == parent &&
            (parent != NONE || s->item[b->item].salt == salt) &&
            !memcmp(b->token, token, sizeof b->token))
            return s->table[i].block - 1;
    }
    return NONE;
}

static void table_add(Store *s, int32_t block)
{
    Hash key = s->block[block].key;
    size_t i = key.low & s->mask;
    while (s->table[i].block)
        i = (i + 1) & s->mask;
    s->table[i] = (TableSlot){tag_of(key), block + 1};
}

/* Moves later ones of the same cluster up, so that no probe ends too early. */
static void table_remove(Store *s, int32_t block)
{
    size_t gap = s->block[block].key.low & s->mask;
    while (s->table[gap].block != block + 1)
        gap = (gap + 1) & s->mask;
    for (size_t i = (gap + 1) & s->mask; s->table[i].block; i = (i + 1) & s->mask) {
        size_t home = s->block[s->table[i].block - 1].key.low & s->mask;
        if (((i - home) & s->mask) < ((i - gap) & s->mask)) continue;
        s->table[gap] = s->table[i];
        gap = i;
    }
    s->table[gap] = (TableSlot){0};
}

/* ---- looking up ---- */

int store_match(const Store *s, uint64_t salt, const int32_t *token, int n, int32_t *last)
{
    Hash key = first_key(salt);
    int32_t at = NONE;
    int b = 0;
    for (; (b + 1) * PAGE_TOKENS <= n; b++) {
        key = next_key(key, token + b * PAGE_TOKENS, PAGE_TOKENS);
        int32_t next = lookup(s, key, at, salt, token + b * PAGE_TOKENS);
        if (next == NONE) break;
        at = next;
    }
    if (last) *last = at;
    return b;
}

/* The ready state behind a block with the longest rest of at most n tokens that token[] begin with.
 */
static int32_t longest_state(const Store *s, int32_t block, const int32_t *token, int n)
{
    int32_t best = NONE;
    int longest = -1;
    for (int32_t i = s->block[block].states; i != NONE; i = s->item[i].next_state) {
        const Item *it = &s->item[i];
        if (!it->is_ready || it->n_rest > n || it->n_rest <= longest) continue;
        if (memcmp(it->rest, token, (size_t)it->n_rest * sizeof *token)) continue;
        best = i;
        longest = it->n_rest;
    }
    return best;
}

StoreHit store_find(const Store *s, uint64_t salt, const int32_t *token, int n)
{
    StoreHit hit = {.item = NONE};
    Hash key = first_key(salt);
    int32_t last = NONE;
    for (int end = PAGE_TOKENS; end <= n; end += PAGE_TOKENS) {
        const int32_t *block = token + end - PAGE_TOKENS;
        key = next_key(key, block, PAGE_TOKENS);
        last = lookup(s, key, last, salt, block);
        if (last == NONE) break;
        int32_t state = longest_state(s, last, token + end, n - end);
        if (state != NONE) hit = (StoreHit){state, end + s->item[state].n_rest};
    }
    return hit;
}

int32_t store_state(const Store *s, int32_t last, const int32_t *rest, int n_rest)
{
    for (int32_t i = s->block[last].states; i != NONE; i = s->item[i].next_state)
        if (s->item[i].n_rest == n_rest &&
            !memcmp(s->item[i].rest, rest, (size_t)n_rest * sizeof *rest))
            return i;
    return NONE;
}

StoreItem store_item(const Store *s, int32_t item)
{
    const Item *it = &s->item[item];
    StoreItem out = {.kind = it->kind, .salt = it->salt, .bytes = it->bytes};
    if (it->kind == STORE_OTHER) return out;
    const Block *b = &s->block[it->last];
    out.n_tokens = (b->depth + 1) * PAGE_TOKENS + it->n_rest;
    out.first = b->depth + 1 - it->n_blocks;
    out.n_blocks = it->n_blocks;
    out.key = it->kind == STORE_RUN ? b->key : next_key(b->key, it->rest, it->n_rest);
    return out;
}

int32_t store_needs(const Store *s, int32_t item)
{
    return s->item[item].needs;
}

int32_t store_block_item(const Store *s, int32_t block)
{
    return s->block[block].item;
}

int store_chain(const Store *s, int32_t item, int32_t *block)
{
    int32_t b = s->item[item].last;
    int n = s->block[b].depth + 1;
    for (int i = n - 1; i >= 0; i--, b = s->block[b].parent)
        block[i] = b;
    return n;
}

int64_t store_bytes(const Store *s)
{
    return s->bytes;
}

int store_count(const Store *s)
{
    return s->n_items;
}

/* ---- the order of use ---- */

static void list_remove(Store *s, int32_t item)
{
    Item *it = &s->item[item];
    *(it->older == NONE ? &s->oldest : &s->item[it->older].younger) = it->younger;
    *(it->younger == NONE ? &s->youngest : &s->item[it->younger].older) = it->older;
}

static void list_append(Store *s, int32_t item)
{
    Item *it = &s->item[item];
    it->older = s->youngest;
    it->younger = NONE;
    *(s->youngest == NONE ? &s->oldest : &s->item[s->youngest].younger) = item;
    s->youngest = item;
}

/* From the item towards the first block: so what is needed ends up younger than what needs it. */
void store_use(Store *s, int32_t item)
{
    for (; item != NONE; item = s->item[item].needs) {
        list_remove(s, item);
        list_append(s, item);
    }
}

int32_t store_oldest(const Store *s)
{
    return s->oldest;
}

/* ---- adding ---- */

int store_refuse(TierRefused *why, TierRefused because)
{
    *why = because;
    return -1;
}

int store_plan(Store *s, StorePlan *p, int max_tokens, int first_page, TierRefused *why)
{
    int n_full = p->n / PAGE_TOKENS;
    if (n_full < 1) return store_refuse(why, TIER_SHORT);
    if (p->n > max_tokens) return store_refuse(why, TIER_LARGE);
    p->n_known = store_match(s, p->salt, p->token, p->n, &p->last);
    p->n_new = n_full - p->n_known;
    p->n_rest = p->n % PAGE_TOKENS;
    p->state = p->n_new ? NONE : store_state(s, p->last, p->token + p->n - p->n_rest, p->n_rest);
    if (p->state != NONE) {
        store_use(s, p->state);
        return store_refuse(why, TIER_KNOWN);
    }
    return first_page > p->n_known ? store_refuse(why, TIER_MISSING) : 0;
}

int store_has_room(const Store *s, int n_items, int n_blocks)
{
    return s->n_items + n_items <= s->max_items && s->n_blocks + n_blocks <= s->max_blocks;
}

static int32_t take_item(Store *s, Item with)
{
    int32_t item = s->free_item;
    assert(s->n_items < s->max_items);
    if (item == NONE)
        item = s->new_items++;
    else
        s->free_item = s->item[item].older;
    s->item[item] = with;
    s->n_items++;
    s->bytes += with.bytes;
    list_append(s, item);
    store_use(s, item);
    return item;
}

static int32_t take_block(Store *s, const Block *with)
{
    int32_t block = s->free_block;
    assert(s->n_blocks < s->max_blocks);
    if (block == NONE)
        block = s->new_blocks++;
    else
        s->free_block = s->block[block].parent;
    s->block[block] = *with;
    s->n_blocks++;
    table_add(s, block);
    return block;
}

int32_t store_add_run(Store *s, uint64_t salt, int32_t last, const int32_t *token, int n_blocks,
                      int64_t bytes)
{
    assert(n_blocks > 0);
    int32_t item = take_item(s, (Item){.salt = salt,
                                       .bytes = bytes,
                                       .needs = last == NONE ? NONE : s->block[last].item,
                                       .n_blocks = n_blocks,
                                       .kind = STORE_RUN});
    for (int i = 0; i < n_blocks; i++, token += PAGE_TOKENS) {
        Hash before = last == NONE ? first_key(salt) : s->block[last].key;
        Block b = {.key = next_key(before, token, PAGE_TOKENS),
                   .parent = last,
                   .item = item,
                   .depth = last == NONE ? 0 : s->block[last].depth + 1,
                   .states = NONE};
        memcpy(b.token, token, sizeof b.token);
        last = take_block(s, &b);
    }
    s->item[item].last = last;
    return item;
}

int32_t store_add_state(Store *s, int32_t last, const int32_t *rest, int n_rest, int64_t bytes)
{
    assert(last != NONE);
    assert(n_rest >= 0 && n_rest < PAGE_TOKENS);
    Block *b = &s->block[last];
    Item it = {.salt = s->item[b->item].salt,
               .bytes = bytes,
               .needs = b->item,
               .last = last,
               .next_state = b->states,
               .n_rest = n_rest,
               .kind = STORE_STATE};
    memcpy(it.rest, rest, (size_t)n_rest * sizeof *rest);
    return b->states = take_item(s, it);
}

void store_set_ready(Store *s, int32_t item)
{
    s->item[item].is_ready = 1;
}

int32_t store_add_planned(Store *s, const StorePlan *p, int64_t run_bytes, int64_t state_bytes,
                          int32_t *run)
{
    int32_t last = p->last;
    *run = NONE;
    if (p->n_new) {
        *run = store_add_run(s, p->salt, last, p->token + p->n_known * PAGE_TOKENS, p->n_new,
                             run_bytes);
        last = s->item[*run].last;
    }
    return store_add_state(s, last, p->token + p->n - p->n_rest, p->n_rest, state_bytes);
}

int32_t store_add_other(Store *s, int64_t bytes)
{
    return take_item(s, (Item){.bytes = bytes, .needs = NONE, .last = NONE, .kind = STORE_OTHER});
}

/* ---- dropping ---- */

static void free_blocks(Store *s, const Item *run)
{
    int32_t b = run->last;
    for (int i = 0; i < run->n_blocks; i++) {
        int32_t before = s->block[b].parent;
        assert(s->block[b].states == NONE);
        table_remove(s, b);
        s->block[b].parent = s->free_block;
        s->free_block = b;
        s->n_blocks--;
        b = before;
    }
}

static void unlink_state(Store *s, int32_t item)
{
    int32_t *at = &s->block[s->item[item].last].states;
    while (*at != item)
        at = &s->item[*at].next_state;
    *at = s->item[item].next_state;
}

static void free_one(Store *s, int32_t item)
{
    Item *it = &s->item[item];
    if (it->kind == STORE_RUN) free_blocks(s, it);
    if (it->kind == STORE_STATE) unlink_state(s, item);
    list_remove(s, item);
    s->bytes -= it->bytes;
    s->n_items--;
    it->older = s->free_item;
    s->free_item = item;
}

/* What needs the item is older than it: one way down the list marks all, one way up drops them. */
void store_drop(Store *s, int32_t item, void (*dropped)(void *ctx, int32_t item), void *ctx)
{
    s->item[item].is_marked = 1;
    for (int32_t i = s->item[item].older; i != NONE; i = s->item[i].older) {
        int32_t needs = s->item[i].needs;
        s->item[i].is_marked = needs != NONE && s->item[needs].is_marked;
    }
    for (int32_t i = s->oldest, next; i != NONE; i = next) {
        int done = i == item;
        next = s->item[i].younger;
        if (s->item[i].is_marked) {
            s->item[i].is_marked = 0;
            if (dropped) dropped(ctx, i);
            free_one(s, i);
        }
        if (done) break;
    }
}

/* ---- room ---- */

/* Whether a run and a state fit beside the runs that they need, with nothing else there. */
static int can_fit(const Store *s, int32_t needs, int n_blocks, int64_t bytes)
{
    int n_items = 2;
    for (; needs != NONE; needs = s->item[needs].needs, n_items++) {
        bytes += s->item[needs].bytes;
        n_blocks += s->item[needs].n_blocks;
    }
    return bytes <= s->max_bytes && n_items <= s->max_items && n_blocks <= s->max_blocks;
}

/* What they need is the youngest of all: when nothing else is left there is room. */
int store_make_room(Store *s, int32_t last, int n_blocks, int64_t bytes,
                    void (*dropped)(void *ctx, int32_t item), void *ctx)
{
    int32_t needs = last == NONE ? NONE : s->block[last].item;
    if (!can_fit(s, needs, n_blocks, bytes)) return -1;
    store_use(s, needs);
    while (s->bytes + bytes > s->max_bytes || !store_has_room(s, 2, n_blocks))
        store_drop(s, s->oldest, dropped, ctx);
    return 0;
}
