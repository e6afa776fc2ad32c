/* returned.c: see returned.h. */
#include "server/returned.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

typedef struct {
    uint64_t hash; /* of salt and prompt */
    int n_prompt;
    int n; /* tokens of the answer */
    int32_t *token;
} Remembered;

struct Returned {
    const Tokenizer *tok;
    Remembered answer[MAX_REMEMBERED]; /* a ring */
    int n, next;
};

Returned *returned_open(const Tokenizer *tok)
{
    Returned *r = mem_alloc(1, sizeof *r);
    r->tok = tok;
    return r;
}

void returned_close(Returned *r)
{
    if (!r) return;
    for (int i = 0; i < r->n; i++)
        mem_free(r->answer[i].token);
    mem_free(r);
}

/* Goes on with a hash of n tokens: 64 bits, each of which depends on all before. */
static uint64_t hash_more(uint64_t h, const int32_t *token, int n)
{
    for (int i = 0; i < n; i++) {
        h = (h ^ (uint32_t)token[i]) * UINT64_C(0x9E3779B97F4A7C15);
        h ^= h >> 32;
    }
    return h;
}

void returned_add(Returned *r, uint64_t salt, const int32_t *prompt, int n_prompt,
                  const int32_t *answer, int n_answer)
{
    if (n_answer < 1) return;
    Remembered *a = &r->answer[r->next];
    int n = n_answer < MAX_REMEMBERED_TOKENS ? n_answer : MAX_REMEMBERED_TOKENS;
    mem_free(a->token);
    *a = (Remembered){.hash = hash_more(salt, prompt, n_prompt), .n_prompt = n_prompt, .n = n};
    a->token = mem_alloc((size_t)n, sizeof *a->token);
    memcpy(a->token, answer, (size_t)n * sizeof *answer);
    r->next = (r->next + 1) % MAX_REMEMBERED;
    if (r->n < MAX_REMEMBERED) r->n++;
}

/* What text[0..n), which is not empty, is to the answer. */
static ReturnedHow compare(const Returned *r, const Remembered *a, const int32_t *text, int n)
{
    int same = 0;
    while (same < n && same < a->n && text[same] == a->token[same])
        same++;
    if (same == a->n) return RETURNED_SAME;
    if (same == n) return RETURNED_CHANGED; /* the end is missing */
    return tokenizer_same_text(r->tok, text + same, n - same, a->token + same, a->n - same)
               ? RETURNED_RECUT
               : RETURNED_CHANGED;
}

static int by_length(const void *x, const void *y)
{
    const Remembered *a = *(const Remembered *const *)x, *b = *(const Remembered *const *)y;
    return (a->n_prompt > b->n_prompt) - (a->n_prompt < b->n_prompt);
}

ReturnedHow returned_look(const Returned *r, uint64_t salt, const int32_t *prompt, int n_prompt)
{
    const Remembered *order[MAX_REMEMBERED] = {NULL};
    ReturnedHow best = RETURNED_NONE;
    uint64_t hash = salt;
    int at = 0, best_at = 0;
    for (int i = 0; i < r->n; i++)
        order[i] = &r->answer[i];
    qsort(order, (size_t)r->n, sizeof(const Remembered *), by_length);
    for (int i = 0; i < r->n && order[i]->n_prompt < n_prompt; i++) {
        const Remembered *a = order[i];
        hash = hash_more(hash, prompt + at, a->n_prompt - at);
        at = a->n_prompt;
        if (hash != a->hash) continue;
        ReturnedHow how = compare(r, a, prompt + at, n_prompt - at);
        if (best == RETURNED_NONE || at > best_at || how < best) best = how;
        best_at = at;
    }
    return best;
}
