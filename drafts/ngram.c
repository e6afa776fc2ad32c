/* ngram.c: see ngram.h. Source: prompt lookup decoding,
 * github.com/apoorvumang/prompt-lookup-decoding.
 */
#include "drafts/ngram.h"

#include "base/mem.h"
#include "drafts/copying.h"
#include "engine/engine.h"
#include "engine/head.h"

typedef struct {
    const uint64_t *allowed;
} Ngram;

static int ngram_bind(void *self, struct Engine *engine, Error *err)
{
    Ngram *g = self;
    (void)err;
    g->allowed = engine_options(engine)->allowed;
    return 0;
}

static void ngram_begin(void *self, int seq, const int32_t *token, int n)
{
    (void)self; /* each draft looks for itself */
    (void)seq;
    (void)token;
    (void)n;
}

/* Tokens, up to NGRAM_MAX, that token[0..n) and token[0..end) end with alike. */
static int common(const int32_t *token, int end, int n)
{
    int k = 0;
    while (k < NGRAM_MAX && k < end && token[end - 1 - k] == token[n - 1 - k])
        k++;
    return k;
}

int ngram_find(const int32_t *token, int n, int *matched)
{
    int best = -1, first = n > NGRAM_WINDOW ? n - NGRAM_WINDOW : 0;
    *matched = NGRAM_MIN - 1;
    for (int end = n - 1; end > first && *matched < NGRAM_MAX; end--) {
        if (token[end - 1] != token[n - 1]) continue;
        int k = common(token, end, n);
        if (k <= *matched) continue;
        *matched = k;
        best = end;
    }
    return best;
}

static void draft_chain(const Ngram *g, const DraftRequest *r)
{
    Tree *t = r->tree;
    int n = r->root_pos + 1, matched, from = ngram_find(r->token, n, &matched);
    if (from < 0) return;
    for (int d = 0; d < r->max_depth && t->n < r->max_nodes; d++) {
        int i = from + d; /* behind the end are the draft's own */
        int32_t token = i < n ? r->token[i] : t->token[1 + i - n];
        if (!copying_allowed(g->allowed, token)) return;
        tree_join(t, d, token, t->value[d] * copying_chance(matched + d), GUESS_COPY);
    }
}

static void ngram_propose(void *self, const DraftRequest *request, int n, const DraftGuide *guide)
{
    (void)guide; /* what it finds costs nothing */
    for (int i = 0; i < n; i++)
        draft_chain(self, &request[i]);
}

static void ngram_close(void *self)
{
    mem_free(self);
}

void ngram_drafter_open(Drafter *out)
{
    *out = (Drafter){.name = "ngram",
                     .self = mem_alloc(1, sizeof(Ngram)),
                     .is_free = 1,
                     .bind = ngram_bind,
                     .begin = ngram_begin,
                     .propose = ngram_propose,
                     .close = ngram_close};
}
