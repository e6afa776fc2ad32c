/* delta_trees.c: see delta_trees.h. */
#include "tests/delta_trees.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

const DeltaShape batch_shapes[N_BATCH_SHAPES] = {
    {1, 2, 128, 128, 4, 32, 0}, {2, 4, 128, 36, 4, 4, 0}, {2, 2, 64, 24, 4, 12, 0},
    {1, 1, 128, 20, 4, 8, 1},   {1, 1, 256, 8, 4, 8, 0},  {1, 3, 100, 17, 3, 9, 1},
    {2, 2, 20, 12, 8, 12, 0},   {1, 1, 8, 8, 4, 60, 0},   {1, 1, 4, 140, 2, 10, 0},
    {1, 70, 4, 4, 4, 5, 0},     {1, 1, 12, 4, 1, 10, 1},
};

/* How a sequence of a mixed batch uses its slots. */
typedef enum {
    CHAIN_IN_PLACE,   /* a prompt */
    ROOT_IN_PLACE,    /* the engine's tree */
    OWN_SLOTS,        /* a tree that leaves its main slot alone */
    ANY_OF_ITS_SLOTS, /* rows overwrite whatever slot their sequence has */
    N_SLOT_USES,
} SlotUse;

void plant_batch(Rng *r, Layer *l, int n_seqs, int mixed)
{
    int n_rows[N_MAIN] = {0}, first_use = rng_int(r, N_SLOT_USES);
    int32_t *of = ints((size_t)l->rows * N_MAIN); /* the slots that each sequence has */
    for (int i = 0; i < l->rows; i++) {
        int seq = mixed ? rng_int(r, n_seqs) : i * n_seqs / l->rows, n = n_rows[seq]++;
        SlotUse use = (SlotUse)((first_use + seq) % N_SLOT_USES);
        int32_t *has = of + (size_t)seq * (size_t)l->rows, own = N_MAIN + i;
        int is_next = rng_int(r, 2);
        if (n == 0) has[0] = seq;
        l->src[i] = n == 0 ? seq : has[is_next ? n - 1 : rng_int(r, n)];
        l->dst[i] = own;
        if (use == CHAIN_IN_PLACE) l->src[i] = l->dst[i] = seq;
        if (use == ROOT_IN_PLACE && n == 0) l->dst[i] = seq;
        if (use == ANY_OF_ITS_SLOTS && rng_int(r, 2))
            l->dst[i] = rng_int(r, 2) ? l->src[i] : has[rng_int(r, n ? n : 1)];
        has[n] = l->dst[i];
    }
    free(of);
}

/* The row of a call that leaves what row i finds in its slot, or -1. */
static int parent_row(const int32_t *src, const int32_t *dst, int i)
{
    for (int j = i - 1; j >= 0; j--)
        if (dst[j] == src[i]) return j;
    return -1;
}

int is_allowed(const int32_t *src, const int32_t *dst, int n)
{
    for (int i = 0; i < n; i++) {
        int root = i;
        for (int p = i; p >= 0; p = parent_row(src, dst, p))
            root = p;
        for (int k = 0; k < n; k++) /* another slot, and row k starts from it */
            if (src[k] == dst[i] && src[k] != src[root] && parent_row(src, dst, k) < 0) return 0;
    }
    return 1;
}

/* A tree's shape, and beside it: a random one, a chain, and the one with most open branches. */
typedef enum { DRAFT_RANDOM, DRAFT_CHAIN, DRAFT_COMB, N_DRAFT_SHAPES } DraftShape;

/* Row i's parent in a tree of n rows, depth first; parent[] of the rows before it is known. */
static int draft_parent(Rng *r, DraftShape shape, const int32_t *parent, int i, int n)
{
    int p = i - 1;
    if (shape == DRAFT_COMB) return i < n / 2 + 1 ? i - 1 : n - 1 - i;
    while (shape == DRAFT_RANDOM && p > 0 && rng_int(r, 3) == 0)
        p = parent[p];
    return p;
}

void plant_twins(Rng *r, Twins *t)
{
    Layer *a = &t->slots, *b = &t->drafts;
    int rows = a->rows;
    b->parent = ints((size_t)rows);
    for (int at = 0, seq = 0, n; at < rows; at += n, seq++) {
        int left = rows - at, is_prompt = seq % 3 == 1;
        DraftShape shape = (DraftShape)rng_int(r, N_DRAFT_SHAPES);
        n = seq == N_MAIN - 1 ? left : 1 + rng_int(r, left);
        if (n > MAX_DRAFT_ROWS) n = MAX_DRAFT_ROWS;
        assert_true(seq < N_MAIN);
        for (int i = 0; i < n; i++) {
            int p = i ? draft_parent(r, shape, b->parent + at, i, n) : -1;
            b->parent[at + i] = p; /* for now in the tree; a prompt's is not looked at */
            a->src[at + i] = is_prompt || p < 0 ? seq : N_MAIN + at + p;
            a->dst[at + i] = is_prompt ? seq : N_MAIN + at + i;
            b->src[at + i] = seq;
            b->dst[at + i] = is_prompt ? seq : -1;
        }
        for (int i = 1; i < n; i++)
            b->parent[at + i] += at;
        if (is_prompt) continue;
        int k = t->n_paths++, row = at + rng_int(r, n), length = 0;
        if (rng_int(r, 4) == 0) row = at + n - 1;
        for (int i = row; i >= 0; i = b->parent[i])
            length++;
        for (int i = row, m = length; i >= 0; i = b->parent[i])
            t->path[k][--m] = i;
        t->last[k] = row;
        t->length[k] = rng_int(r, 6) ? length : 0; /* 0: nothing of this tree is kept */
        t->from[k] = seq;
        t->slot[k] = rng_int(r, 2) ? seq : N_MAIN + row; /* in place, or in a row's that has none */
    }
}

void plant_one_tree(Rng *r, Layer *l)
{
    for (int i = 0; i < l->rows; i++) {
        l->parent[i] = i ? draft_parent(r, DRAFT_RANDOM, l->parent, i, l->rows) : -1;
        l->src[i] = 0;
        l->dst[i] = -1;
    }
}
