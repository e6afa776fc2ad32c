/* contexts.c: see contexts.h. */
#include "bench/contexts.h"

#include <stdlib.h>

#include "kernels/philox.h"

int contexts_read(Contexts *c, const char *text, int usual, int most, int n_after, Error *err)
{
    *c = (Contexts){{usual < most ? usual : most}, 1};
    if (most < 1)
        return error_set(err, ERR_LIMIT,
                         "with %d tokens behind it the context leaves no room for a prompt",
                         n_after);
    if (!text) return 0;
    c->n = 0;
    for (const char *at = text;; at++) {
        char *end;
        long n = strtol(at, &end, 10);
        if (end == at || n < 1 || (*end && *end != ',') || c->n == MAX_CONTEXTS)
            return error_set(err, ERR_INPUT,
                             "--contexts is '%.60s', expected up to %d numbers, such as 512,4096",
                             text, MAX_CONTEXTS);
        if (n > most)
            return error_set(err, ERR_LIMIT,
                             "--contexts has %ld, at most %d tokens and %d more fit", n, most,
                             n_after);
        c->list[c->n++] = (int)n;
        if (!*end) return 0;
        at = end;
    }
}

void contexts_fill(const Tokenizer *tok, int n_vocab, uint32_t number, int32_t *id, int n)
{
    int size = tokenizer_size(tok), end = size < n_vocab ? size : n_vocab;
    for (int i = 0; i < n; i++) {
        id[i] = (int32_t)(philox_word(number, (uint32_t)i, 0, 0) % (uint32_t)end);
        while (!tokenizer_has(tok, id[i]))
            id[i] = (id[i] + 1) % end;
    }
}
