/* id_set.c: see id_set.h. */
#include "server/id_set.h"

#include <string.h>

#include "base/mem.h"

void id_set_open(IdSet *s, const int32_t *id, int n, int n_vocab)
{
    s->n_words = ((size_t)n_vocab + 63) / 64;
    s->word = mem_alloc(s->n_words, sizeof *s->word);
    for (int i = 0; i < n; i++)
        s->word[id[i] / 64] |= UINT64_C(1) << (id[i] % 64);
}

void id_set_close(IdSet *s)
{
    mem_free(s->word);
    *s = (IdSet){0};
}

static void begin(void *self, int seq)
{
    (void)self;
    (void)seq;
}

static int step(void *self, int from, int32_t token, int to)
{
    const IdSet *s = self;
    (void)from;
    (void)to;
    return s->word[token / 64] >> (token % 64) & 1 ? 0 : -1;
}

static int allowed(void *self, int state, uint64_t *mask)
{
    const IdSet *s = self;
    (void)state;
    memcpy(mask, s->word, s->n_words * sizeof *mask);
    return 0;
}

Constraint id_set_constraint(IdSet *s)
{
    return (Constraint){s, begin, step, allowed};
}
