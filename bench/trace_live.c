/* trace_live.c: see trace_live.h. */
#include "bench/trace_live.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "bench/trace_parts.h"

/* ---- ids ---- */

/* The ids that are no added token, in order; *n of them. */
static int32_t *plain_ids(const Tokenizer *tok, int *n)
{
    int size = tokenizer_size(tok), n_added;
    const int32_t *added = tokenizer_added(tok, &n_added);
    char *is_added = mem_alloc((size_t)size + 1, 1);
    int32_t *id = mem_alloc((size_t)size + 1, sizeof *id);
    for (int i = 0; i < n_added; i++)
        is_added[added[i]] = 1;
    *n = 0;
    for (int i = 0; i < size; i++)
        if (tokenizer_has(tok, i) && !is_added[i]) id[(*n)++] = i;
    mem_free(is_added);
    return id;
}

/* ---- sessions ---- */

typedef struct {
    long session;
    int request;
} Place;

static int compare_places(const void *x, const void *y)
{
    const Place *a = x, *b = y;
    if (a->session != b->session) return a->session < b->session ? -1 : 1;
    return a->request < b->request ? -1 : 1;
}

static void find_previous(LiveTrace *l, const Trace *t)
{
    Place *place = mem_alloc((size_t)l->n + 1, sizeof *place);
    for (int i = 0; i < l->n; i++)
        place[i] = (Place){t->request[i].session, i};
    qsort(place, (size_t)l->n, sizeof *place, compare_places);
    for (int i = 0; i < l->n; i++) {
        int same = i && place[i].session == place[i - 1].session;
        l->request[place[i].request].previous = same ? place[i - 1].request : -1;
    }
    mem_free(place);
}

static int begins_with(const LiveRequest *r, const LiveRequest *with)
{
    int n = with->n_prompt + with->n_answer;
    return n <= r->n_prompt && !memcmp(r->token, with->token, (size_t)n * sizeof *r->token);
}

/* The one with most tokens; of equal ones the last. */
static int find_longest(const LiveTrace *l, int i)
{
    int best = -1, n_best = 0;
    for (int j = l->request[i].previous; j >= 0; j = l->request[j].previous) {
        int n = l->request[j].n_prompt + l->request[j].n_answer;
        if (n <= n_best || !begins_with(&l->request[i], &l->request[j])) continue;
        best = j;
        n_best = n;
    }
    return best;
}

/* ---- the interface ---- */

int live_open(LiveTrace *l, const Trace *t, const Tokenizer *tok, Error *err)
{
    int n_plain;
    int32_t *plain = plain_ids(tok, &n_plain);
    *l = (LiveTrace){.n = t->n, .request = mem_alloc((size_t)t->n + 1, sizeof *l->request)};
    for (int i = 0; n_plain && i < t->n; i++) {
        const TraceRequest *from = &t->request[i];
        LiveRequest *r = &l->request[i];
        int n = from->n_prompt + from->n_answer;
        *r = (LiveRequest){.n_prompt = from->n_prompt, .n_answer = from->n_answer};
        r->token = mem_alloc((size_t)n, sizeof *r->token);
        trace_tokens(t, i, r->token);
        for (int k = 0; k < n; k++)
            r->token[k] = plain[r->token[k] % n_plain];
    }
    mem_free(plain);
    if (!n_plain) return error_set(err, ERR_INPUT, "the tokenizer has added tokens alone");
    find_previous(l, t);
    for (int i = 0; i < l->n; i++)
        l->request[i].goes_on = find_longest(l, i);
    return 0;
}

void live_close(LiveTrace *l)
{
    for (int i = 0; i < l->n; i++)
        mem_free(l->request[i].token);
    mem_free(l->request);
    *l = (LiveTrace){0};
}

int live_max_tokens(const LiveRequest *r)
{
    return r->n_answer ? r->n_answer : 1;
}

int live_answered(LiveTrace *l, int i, const int32_t *id, int n, Error *err)
{
    LiveRequest *r = &l->request[i];
    if (n != live_max_tokens(r))
        return error_set(err, ERR_DEVICE, "request %d: %d tokens asked for, %d came", i + 1,
                         live_max_tokens(r), n);
    memcpy(r->token + r->n_prompt, id, (size_t)r->n_answer * sizeof *id);
    return 0;
}

void live_follow(LiveTrace *l, int i)
{
    LiveRequest *r = &l->request[i];
    if (r->goes_on < 0) return;
    const LiveRequest *before = &l->request[r->goes_on];
    memcpy(r->token, before->token,
           (size_t)(before->n_prompt + before->n_answer) * sizeof *r->token);
}

static int n_known(const LiveTrace *l, int i)
{
    const LiveRequest *r = &l->request[i];
    if (r->previous < 0) return 0;
    const LiveRequest *before = &l->request[r->previous];
    int n = 0, most = before->n_prompt + before->n_answer;
    if (most > r->n_prompt + r->n_answer) most = r->n_prompt + r->n_answer;
    while (n < most && r->token[n] == before->token[n])
        n++;
    return n;
}

void live_to_trace(const LiveTrace *l, const Trace *t, Trace *out)
{
    *out = (Trace){.n_sessions = t->n_sessions};
    for (int i = 0; i < l->n; i++) {
        const LiveRequest *r = &l->request[i];
        TraceHistory prompt = {0};
        TraceTurn turn = {.ts = t->request[i].ts,
                          .session = t->request[i].session,
                          .n_new = r->n_prompt + r->n_answer - n_known(l, i)};
        trace_history_add(&prompt, trace_store(out, r->token, r->n_prompt));
        trace_add(out, &turn, &prompt, trace_store(out, r->token + r->n_prompt, r->n_answer));
        trace_history_free(&prompt);
    }
}
