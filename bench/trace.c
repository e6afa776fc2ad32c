/* trace.c: see trace.h. The parts of a trace, its knobs, and which reader a source goes to. */
#include "bench/trace.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/splitmix.h"
#include "bench/trace_parts.h"

/* ---- parts ---- */

void trace_history_add(TraceHistory *h, TracePart part)
{
    if (!part.n) return;
    if (h->n == h->cap) {
        h->cap = h->cap ? 2 * h->cap : 64;
        h->part = mem_realloc(h->part, (size_t)h->cap, sizeof *h->part);
    }
    h->part[h->n++] = part;
    h->n_tokens += part.n;
}

void trace_history_free(TraceHistory *h)
{
    mem_free(h->part);
    *h = (TraceHistory){0};
}

TracePart trace_store(Trace *t, const int32_t *token, int n)
{
    TracePart part = {.from = t->n_tokens, .n = n};
    if (t->n_tokens + (size_t)n > t->cap_tokens) {
        t->cap_tokens = 2 * (t->n_tokens + (size_t)n);
        t->token = mem_realloc(t->token, t->cap_tokens, sizeof *t->token);
    }
    if (n) memcpy(t->token + t->n_tokens, token, (size_t)n * sizeof *token);
    t->n_tokens += (size_t)n;
    return part;
}

TracePart trace_made(uint64_t seed, int n)
{
    return (TracePart){.from = seed, .n = n, .made = 1};
}

static void push_part(Trace *t, TracePart part)
{
    if (!part.n) return;
    if (t->n_parts == t->cap_parts) {
        t->cap_parts = t->cap_parts ? 2 * t->cap_parts : 1024;
        t->part = mem_realloc(t->part, t->cap_parts, sizeof *t->part);
    }
    t->part[t->n_parts++] = part;
}

static void count_request(Trace *t, const TraceRequest *r)
{
    int n = r->n_prompt + r->n_answer;
    if (n > t->longest) t->longest = n;
    t->prompt_tokens += r->n_prompt;
    t->answer_tokens += r->n_answer;
    t->new_tokens += r->n_new;
}

void trace_add(Trace *t, const TraceTurn *turn, const TraceHistory *prompt, TracePart answer)
{
    assert(prompt->n_tokens > 0);
    assert(turn->n_stable <= prompt->n_tokens);
    if (t->n == t->cap) {
        t->cap = t->cap ? 2 * t->cap : 256;
        t->request = mem_realloc(t->request, (size_t)t->cap, sizeof *t->request);
    }
    TraceRequest *r = &t->request[t->n++];
    *r = (TraceRequest){.ts = turn->ts,
                        .session = turn->session,
                        .n_prompt = prompt->n_tokens,
                        .n_answer = answer.n,
                        .n_stable = turn->n_stable ? turn->n_stable : prompt->n_tokens,
                        .answer_changes = turn->answer_changes,
                        .n_new = turn->n_new,
                        .part = t->n_parts};
    for (int i = 0; i < prompt->n; i++)
        push_part(t, prompt->part[i]);
    push_part(t, answer);
    r->n_parts = (int)(t->n_parts - r->part);
    count_request(t, r);
}

void trace_tokens(const Trace *t, int i, int32_t *token)
{
    const TraceRequest *r = &t->request[i];
    for (int p = 0; p < r->n_parts; p++) {
        const TracePart *part = &t->part[r->part + (size_t)p];
        uint64_t seed = splitmix_mix(part->from + 1);
        if (!part->made) memcpy(token, t->token + part->from, (size_t)part->n * sizeof *token);
        for (int k = 0; part->made && k < part->n; k++)
            token[k] = (int32_t)(splitmix_mix(seed + (uint64_t)k) >> 33);
        token += part->n;
    }
}

/* ---- times ---- */

double trace_uniform(uint64_t *state)
{
    return ((double)(splitmix_next(state) >> 12) + 0.5) / (double)(UINT64_C(1) << 52);
}

double trace_exponential(uint64_t *state)
{
    return -log(trace_uniform(state));
}

double trace_next_start(const TraceLoad *load, uint64_t *state)
{
    return trace_exponential(state) / load->rate;
}

void trace_clock_answered(TraceClock *c, int n_answer)
{
    enum { ANSWER_RATE = 50 }; /* tokens per second, of the answer that is waited for */
    c->now += (double)n_answer / ANSWER_RATE + c->load->think * trace_exponential(&c->state);
}

/* ---- knobs ---- */

static const TraceLoad chat_load = {.sessions = 400,
                                    .rate = 1,
                                    .think = 15,
                                    .turns = 6,
                                    .systems = 4,
                                    .system_tokens = 300,
                                    .question = 120,
                                    .answer = 250,
                                    .spread = 0.8,
                                    .most = 8192,
                                    .seed = 1};
static const TraceLoad agent_load = {.sessions = 120,
                                     .rate = 0.5,
                                     .think = 5,
                                     .turns = 20,
                                     .systems = 2,
                                     .system_tokens = 4000,
                                     .question = 800,
                                     .answer = 200,
                                     .spread = 0.8,
                                     .most = 32768,
                                     .seed = 1};

typedef struct {
    const char *name;
    double *value, lo, hi;
    int of_text; /* a file of conversations takes it too */
} Knob;

static int set_knob(const Knob *knobs, int made, const char *text, size_t len, Error *err)
{
    for (const Knob *k = knobs; k->name; k++) {
        size_t n = strlen(k->name);
        if (len < n || memcmp(text, k->name, n) != 0 || text[n] != '=') continue;
        if (!made && !k->of_text)
            return error_set(err, ERR_INPUT, "--load: '%s' is for chat and agent", k->name);
        char *end;
        double v = strtod(text + n + 1, &end);
        if (end == text + n + 1 || end != text + len || !(v >= k->lo && v <= k->hi))
            return error_set(err, ERR_INPUT, "--load: '%.*s', %s must be from %g to %g",
                             (int)(len < 60 ? len : 60), text, k->name, k->lo, k->hi);
        *k->value = v;
        return 0;
    }
    return error_set(err, ERR_INPUT,
                     "--load: '%.*s', expected name=value of sessions, rate, think, turns, "
                     "systems, system-tokens, question, answer, reasoning, spread, most, seed",
                     (int)(len < 40 ? len : 40), text);
}

/* made: 1 of a made load, 0 of a file. */
static int read_knobs(TraceLoad *l, int made, const char *text, Error *err)
{
    const Knob knobs[] = {
        {"sessions", &l->sessions, 1, 1e6, 0},
        {"rate", &l->rate, 1e-6, 1e6, 1},
        {"think", &l->think, 0, 1e7, 1},
        {"turns", &l->turns, 1, 1e4, 0},
        {"systems", &l->systems, 0, 1e6, 0},
        {"system-tokens", &l->system_tokens, 1, TRACE_MOST, 0},
        {"question", &l->question, 1, TRACE_MOST, 0},
        {"answer", &l->answer, 1, TRACE_MOST, 0},
        {"reasoning", &l->reasoning, 0, TRACE_MOST, 0},
        {"spread", &l->spread, 0, 3, 0},
        {"most", &l->most, 2, TRACE_MOST, 0},
        {"seed", &l->seed, 0, 1e15, 1},
        {NULL, NULL, 0, 0, 0},
    };
    for (const char *at = text; at && *at;) {
        size_t len = strcspn(at, ",");
        if (set_knob(knobs, made, at, len, err)) return -1;
        at += len + (at[len] == ',');
    }
    return 0;
}

/* ---- the door ---- */

/* By time; of equal times by the order in which they were added. */
static int compare_requests(const void *x, const void *y)
{
    const TraceRequest *a = x, *b = y;
    if (a->ts != b->ts) return a->ts < b->ts ? -1 : 1;
    return a->part < b->part ? -1 : 1;
}

static int compare_sessions(const void *x, const void *y)
{
    long a = *(const long *)x, b = *(const long *)y;
    return (a > b) - (a < b);
}

static int count_sessions(const Trace *t)
{
    int n = 0;
    long *session = mem_alloc((size_t)t->n + 1, sizeof *session);
    for (int i = 0; i < t->n; i++)
        session[i] = t->request[i].session;
    qsort(session, (size_t)t->n, sizeof *session, compare_sessions);
    for (int i = 0; i < t->n; i++)
        n += !i || session[i] != session[i - 1];
    mem_free(session);
    return n;
}

int trace_open(Trace *t, const char *source, const char *knobs, const Tokenizer *tok, Error *err)
{
    *t = (Trace){0};
    int agent = !strcmp(source, "agent"), made = agent || !strcmp(source, "chat");
    TraceLoad load = agent ? agent_load : chat_load;
    int bad = read_knobs(&load, made, knobs, err);
    if (!bad) bad = made ? trace_make(t, &load, err) : trace_read(t, source, &load, tok, err);
    if (bad) {
        trace_close(t);
        return -1;
    }
    qsort(t->request, (size_t)t->n, sizeof *t->request, compare_requests);
    if (t->n_sessions) t->n_sessions = count_sessions(t); /* those that have a request */
    return 0;
}

static void count_again(Trace *t)
{
    t->longest = 0;
    t->prompt_tokens = t->answer_tokens = t->new_tokens = 0;
    for (int i = 0; i < t->n; i++)
        count_request(t, &t->request[i]);
    if (t->n_sessions) t->n_sessions = count_sessions(t); /* else the trace tells of none */
}

void trace_limit(Trace *t, int n)
{
    if (n < t->n) t->n = n;
    count_again(t);
}

int trace_leave_out(Trace *t, int most)
{
    int n = 0, all = t->n;
    for (int i = 0; i < all; i++) {
        const TraceRequest *r = &t->request[i];
        if (r->n_prompt + (r->n_answer ? r->n_answer : 1) <= most) t->request[n++] = *r;
    }
    t->n = n;
    count_again(t);
    return all - n;
}

void trace_close(Trace *t)
{
    mem_free(t->request);
    mem_free(t->part);
    mem_free(t->token);
    *t = (Trace){0};
}
