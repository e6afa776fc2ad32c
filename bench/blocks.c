/* blocks.c: see blocks.h. Blocks are a list by age and a hash table, by index. */
#include "bench/blocks.h"

#include "base/mem.h"

typedef struct {
    uint64_t key;
    int older, younger; /* the list; n_blocks is its head */
    int next;           /* in the bucket, -1 ends it */
    long used;          /* by this request last; 0: never filled */
} Block;

struct Blocks {
    int n_blocks, block_tokens;
    unsigned mask;
    int *bucket;  /* [mask + 1] */
    Block *block; /* [n_blocks + 1]: the last is the list's head */
    long now;     /* requests so far */
    int *mine;    /* [n_blocks] of the request */
};

Blocks *blocks_open(int n_blocks, int block_tokens)
{
    Blocks *b = mem_alloc(1, sizeof *b);
    b->n_blocks = n_blocks;
    b->block_tokens = block_tokens;
    unsigned buckets = 64;
    while (buckets < (unsigned)n_blocks)
        buckets *= 2;
    b->mask = buckets - 1;
    b->bucket = mem_alloc(buckets, sizeof *b->bucket);
    for (unsigned i = 0; i < buckets; i++)
        b->bucket[i] = -1;
    b->block = mem_alloc((size_t)n_blocks + 1, sizeof *b->block);
    b->mine = mem_alloc((size_t)n_blocks + 1, sizeof *b->mine);
    for (int i = 0; i <= n_blocks; i++) {
        b->block[i].older = i ? i - 1 : n_blocks;
        b->block[i].younger = i < n_blocks ? i + 1 : 0;
        b->block[i].next = -1;
    }
    return b;
}

void blocks_close(Blocks *b)
{
    if (!b) return;
    mem_free(b->bucket);
    mem_free(b->block);
    mem_free(b->mine);
    mem_free(b);
}

/* ---- table and list ---- */

static int find(const Blocks *b, uint64_t key)
{
    int i = b->bucket[key & b->mask];
    while (i >= 0 && b->block[i].key != key)
        i = b->block[i].next;
    return i;
}

static void drop(Blocks *b, int i)
{
    int *at = &b->bucket[b->block[i].key & b->mask];
    while (*at != i)
        at = &b->block[*at].next;
    *at = b->block[i].next;
}

static void fill(Blocks *b, int i, uint64_t key)
{
    int *bucket = &b->bucket[key & b->mask];
    b->block[i].key = key;
    b->block[i].next = *bucket;
    *bucket = i;
}

/* Makes block i the youngest. */
static void touch(Blocks *b, int i)
{
    Block *x = &b->block[i], *head = &b->block[b->n_blocks];
    b->block[x->older].younger = x->younger;
    b->block[x->younger].older = x->older;
    x->older = head->older;
    x->younger = b->n_blocks;
    b->block[head->older].younger = i;
    head->older = i;
    x->used = b->now;
}

/* ---- requests ---- */

static uint64_t chain(uint64_t key, const int32_t *token, int n)
{
    for (int i = 0; i < n; i++) {
        key = (key ^ (uint32_t)token[i]) * UINT64_C(0x9E3779B97F4A7C15);
        key ^= key >> 29;
    }
    return key;
}

/* The block of this key: there already, or in place of the oldest. -1: all are this request's. */
static int take(Blocks *b, uint64_t key)
{
    int i = find(b, key);
    if (i < 0) {
        i = b->block[b->n_blocks].younger;
        if (i == b->n_blocks || b->block[i].used == b->now) return -1;
        if (b->block[i].used) drop(b, i);
        fill(b, i, key);
    }
    touch(b, i);
    return i;
}

int blocks_request(Blocks *b, const int32_t *token, int n_prompt, int n)
{
    int size = b->block_tokens, n_mine = 0, hit = 0, missed = 0;
    uint64_t key = 1;
    b->now++;
    for (int at = 0; at + size <= n; at += size) {
        key = chain(key, token + at, size);
        missed |= find(b, key) < 0 || at + size >= n_prompt;
        int i = take(b, key);
        if (i < 0) break;
        if (!missed) hit = at + size;
        b->mine[n_mine++] = i;
    }
    while (n_mine > 0)
        touch(b, b->mine[--n_mine]);
    return hit;
}
