/* bpe.c: see bpe.h. */
#include "text/bpe.h"

#include <assert.h>

#include "base/mem.h"

typedef struct BpeSymbol {
    int32_t id, len;    /* len in bytes; 0 once merged into its left neighbour */
    int32_t prev, next; /* -1 at the ends */
} BpeSymbol;

typedef struct BpeCandidate {
    uint64_t key;    /* rank << 32 | position of the left symbol: the order of merging */
    int32_t id, len; /* what the pair becomes, and how many bytes that covers */
} BpeCandidate;

static const uint64_t FREE = UINT64_MAX;

void bpe_init(Bpe *bpe, size_t n_merges)
{
    uint32_t n_slots = 16;
    while (n_slots < 2 * n_merges)
        n_slots *= 2;
    bpe->mask = n_slots - 1;
    bpe->merge = mem_alloc(n_slots, sizeof *bpe->merge);
    for (uint32_t i = 0; i < n_slots; i++)
        bpe->merge[i].pair = FREE;
}

void bpe_free(Bpe *bpe)
{
    mem_free(bpe->merge);
    bpe->merge = NULL;
}

/* MurmurHash3's finalizer: every bit of the pair moves every bit of the slot. */
static uint32_t hash_pair(uint64_t x)
{
    x = (x ^ x >> 33) * 0xFF51AFD7ED558CCDu;
    x = (x ^ x >> 33) * 0xC4CEB9FE1A85EC53u;
    return (uint32_t)(x ^ x >> 33);
}

static BpeMerge *find_merge(const Bpe *bpe, int32_t left, int32_t right)
{
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    for (uint32_t i = hash_pair(pair);; i++) {
        BpeMerge *m = &bpe->merge[i & bpe->mask];
        if (m->pair == pair || m->pair == FREE) return m;
    }
}

void bpe_add_merge(Bpe *bpe, int32_t left, int32_t right, int32_t rank, int32_t id)
{
    BpeMerge *m = find_merge(bpe, left, right);
    *m = (BpeMerge){(uint64_t)(uint32_t)left << 32 | (uint32_t)right, rank, id};
}

void bpe_scratch_free(BpeScratch *s)
{
    mem_free(s->symbol);
    mem_free(s->heap);
    *s = (BpeScratch){0};
}

static void scratch_reserve(BpeScratch *s, size_t len)
{
    if (len <= s->cap) return;
    size_t cap = s->cap ? s->cap : 64;
    while (cap < len)
        cap *= 2;
    s->symbol = mem_realloc(s->symbol, cap, sizeof *s->symbol);
    /* At most len - 1 candidates to begin with; each merge takes one and gives at most two. */
    s->heap = mem_realloc(s->heap, 2 * cap, sizeof *s->heap);
    s->cap = cap;
}

static void heap_push(BpeScratch *s, BpeCandidate c)
{
    size_t i = s->n_heap++;
    while (i && s->heap[(i - 1) / 2].key > c.key) {
        s->heap[i] = s->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    s->heap[i] = c;
}

static BpeCandidate heap_pop(BpeScratch *s)
{
    BpeCandidate top = s->heap[0], last = s->heap[--s->n_heap];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= s->n_heap) break;
        if (child + 1 < s->n_heap && s->heap[child + 1].key < s->heap[child].key) child++;
        if (s->heap[child].key >= last.key) break;
        s->heap[i] = s->heap[child];
        i = child;
    }
    s->heap[i] = last;
    return top;
}

/* Puts the merge of the symbol at pos with its right neighbour on the heap, if there is one. */
static void consider(const Bpe *bpe, BpeScratch *s, int32_t pos)
{
    const BpeSymbol *left = &s->symbol[pos];
    if (left->next < 0) return;
    const BpeSymbol *right = &s->symbol[left->next];
    const BpeMerge *m = find_merge(bpe, left->id, right->id);
    if (m->pair == FREE) return;
    uint64_t key = (uint64_t)(uint32_t)m->rank << 32 | (uint32_t)pos;
    heap_push(s, (BpeCandidate){key, m->id, left->len + right->len});
}

/*
 * Merges the pair of a candidate unless one of the two was merged meanwhile. Symbols only grow, so
 * the pair is still the same if and only if it still covers as many bytes.
 */
static void apply(const Bpe *bpe, BpeScratch *s, BpeCandidate c)
{
    int32_t pos = (int32_t)(uint32_t)c.key;
    BpeSymbol *left = &s->symbol[pos];
    if (!left->len || left->next < 0) return;
    BpeSymbol *right = &s->symbol[left->next];
    if (left->len + right->len != c.len) return;

    left->id = c.id;
    left->len = c.len;
    left->next = right->next;
    right->len = 0;
    if (left->next >= 0) s->symbol[left->next].prev = pos;
    if (left->prev >= 0) consider(bpe, s, left->prev);
    consider(bpe, s, pos);
}

void bpe_encode(const Bpe *bpe, BpeScratch *s, const char *piece, size_t len, TokenList *out)
{
    assert(len <= INT32_MAX);
    if (!len) return;
    int32_t n = (int32_t)len;
    scratch_reserve(s, len);
    s->n_heap = 0;
    for (int32_t i = 0; i < n; i++)
        s->symbol[i] =
            (BpeSymbol){bpe->byte_id[(unsigned char)piece[i]], 1, i - 1, i + 1 < n ? i + 1 : -1};
    for (int32_t i = 0; i + 1 < n; i++)
        consider(bpe, s, i);
    while (s->n_heap)
        apply(bpe, s, heap_pop(s));
    for (int32_t i = 0; i >= 0; i = s->symbol[i].next)
        token_list_add(out, s->symbol[i].id);
}
