/* dfa.c: see dfa.h. */
#include "text/dfa.h"

#include "base/mem.h"

void dfa_free(Dfa *d)
{
    mem_free(d->next);
    mem_free(d->accepts);
    *d = (Dfa){0};
}

size_t dfa_bytes(const Dfa *d)
{
    size_t n = (size_t)d->n_states;
    return sizeof *d + n * (size_t)d->n_classes * sizeof *d->next + n * sizeof *d->accepts;
}
