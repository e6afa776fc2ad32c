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

/* Tokens, up to NGRAM_MAX, that text[0..end) and token[0..n) end with alike. */
static int common(const int32_t *text, int end, const int32_t *token, int n)
{
    int k = 0;
    while (k < NGRAM_MAX && k < end && k < n && text[end - 1 - k] == token[n - 1 - k])
        k++;
    return k;
}

int ngram_find(const int32_t *text, int n_text, const int32_t *token, int n, int *matched)
{
    int best = -1, first = n_text > NGRAM_WINDOW ? n_text - NGRAM_WINDOW : 0;
    int last = text == token ? n_text - 1 : n_text;
    *matched = NGRAM_MIN - 1;
    for (int end = last; end > first && *matched < NGRAM_MAX; end--) {
        if (text[end - 1] != token[n - 1]) continue;
        int k = common(text, end, token, n);
        if (k <= *matched) continue;
        *matched = k;
        best = end;
    }
    return best;
}

/* What follows in text from `from` on; behind its end the draft's own tokens, if it goes on there.
 */
static void add_chain(const Ngram *g, const DraftRequest *r, const int32_t *text, int n,
                      int goes_on, int from, int matched)
{
    Tree *t = r->tree;
    for (int d = 0; d < r->max_depth && t->n < r->max_nodes; d++) {
        int i = from + d;
        if (i >= n && !goes_on) return;
        int32_t token = i < n ? text[i] : t->token[1 + i - n];
        if (!copying_allowed(g->allowed, token)) return;
        tree_join(t, d, token, t->value[d] * copying_chance(matched + d), GUESS_COPY);
    }
}

static void draft_chain(const Ngram *g, const DraftRequest *r)
{
    int n = r->root_pos + 1, said, predicted;
    int from = ngram_find(r->token, n, r->token, n, &said);
    int ahead = ngram_find(r->predicted, r->n_predicted, r->token, n, &predicted);
    if (ahead >= 0 && predicted >= said)
        add_chain(g, r, r->predicted, r->n_predicted, 0, ahead, predicted);
    else if (from >= 0)
        add_chain(g, r, r->token, n, 1, from, said);
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
                     .propose = ngram_propose,
                     .close = ngram_close};
}
