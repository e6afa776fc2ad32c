/*
 * slots.c: see slots.h. The free list is a stack of indices: the slot used last is warm in cache.
 */
#include "engine/slots.h"

#include <assert.h>

#include "base/mem.h"

struct SlotPool {
    int n, n_free;
    int32_t *free; /* [n], the first n_free are free */
    int32_t *refs; /* [n] */
};

SlotPool *slots_open(int n_slots)
{
    SlotPool *pool = mem_alloc(1, sizeof *pool);
    pool->n = n_slots;
    pool->free = mem_alloc((size_t)n_slots, sizeof *pool->free);
    pool->refs = mem_alloc((size_t)n_slots, sizeof *pool->refs);
    for (int i = n_slots - 1; i >= 0; i--)
        pool->free[pool->n_free++] = i;
    return pool;
}

void slots_close(SlotPool *pool)
{
    if (!pool) return;
    mem_free(pool->free);
    mem_free(pool->refs);
    mem_free(pool);
}

int slots_claim(SlotPool *pool, int n, int32_t *slot)
{
    int got = 0;
    while (got < n && pool->n_free > 0) {
        int32_t s = pool->free[--pool->n_free];
        assert(pool->refs[s] == 0);
        pool->refs[s] = 1;
        slot[got++] = s;
    }
    return got;
}

void slots_hold(SlotPool *pool, int32_t slot)
{
    assert(slot >= 0 && slot < pool->n);
    assert(pool->refs[slot] > 0);
    pool->refs[slot]++;
}

void slots_release(SlotPool *pool, int32_t slot)
{
    assert(slot >= 0 && slot < pool->n);
    assert(pool->refs[slot] > 0);
    if (--pool->refs[slot] == 0) pool->free[pool->n_free++] = slot;
}

void slots_promote(SlotPool *pool, int32_t *main_slot, const int32_t *slot, int n, int winner)
{
    assert(winner >= -1 && winner < n);
    if (winner >= 0) {
        slots_release(pool, *main_slot);
        *main_slot = slot[winner];
    }
    for (int i = 0; i < n; i++)
        if (i != winner) slots_release(pool, slot[i]);
}

int slots_refs(const SlotPool *pool, int32_t slot)
{
    assert(slot >= 0 && slot < pool->n);
    return pool->refs[slot];
}

int slots_free_count(const SlotPool *pool)
{
    return pool->n_free;
}
