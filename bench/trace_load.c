/*
 * trace_load.c: conversations and agent loops, made from a few knobs; see TraceLoad.
 *
 * A session begins with one of a few system prompts; every turn adds what the user or a tool says,
 * and the answer. Every draw comes from the seed and the session's number, so a load is the same in
 * every run, and a longer one begins with a shorter one.
 */
#include <math.h>

#include "bench/trace_parts.h"

/* What a made part stands for: its seed's highest bits. */
enum { MADE_SYSTEM = 1, MADE_QUESTION, MADE_ANSWER, MADE_KEPT_ANSWER };

static uint64_t part_seed(const TraceLoad *l, int kind, int session, int turn)
{
    uint64_t seed = (uint64_t)l->seed * UINT64_C(0x9E3779B97F4A7C15);
    return seed + ((uint64_t)kind << 60) + ((uint64_t)session << 24) + (uint64_t)turn;
}

/* Around mean, at least one token. */
static int draw_length(const TraceLoad *l, double mean, uint64_t *state)
{
    enum { LONGEST = TRACE_MOST / 4 };
    double radius = sqrt(2 * trace_exponential(state));
    double normal = radius * cos(2 * 3.14159265358979323846 * trace_uniform(state));
    double n = mean * exp(l->spread * normal - l->spread * l->spread / 2);
    if (n > LONGEST) n = LONGEST;
    return n < 1 ? 1 : (int)n;
}

/* The same length and tokens for all sessions that have it. */
static void add_system(const TraceLoad *l, TraceHistory *h, uint64_t *state)
{
    if (l->systems < 1) return;
    int which = (int)(trace_uniform(state) * l->systems);
    uint64_t own = part_seed(l, MADE_SYSTEM, which, 1);
    int n = draw_length(l, l->system_tokens, &own);
    trace_history_add(h, trace_made(part_seed(l, MADE_SYSTEM, which, 0), n));
}

static void add_session(Trace *t, const TraceLoad *l, int session, double start)
{
    TraceHistory h = {0};
    TraceClock clock = {.load = l, .now = start};
    clock.state = part_seed(l, 0, session, 0) * UINT64_C(0xD1342543DE82EF95);
    add_system(l, &h, &clock.state);
    int known = 0; /* tokens of the request before, as the next prompt has them */
    for (int turn = 0;; turn++) {
        int n_question = draw_length(l, l->question, &clock.state);
        int n_answer = draw_length(l, l->answer, &clock.state), n_reasoning = 0;
        if (l->reasoning >= 1) n_reasoning = draw_length(l, l->reasoning, &clock.state);
        int n = h.n_tokens + n_question + n_reasoning + n_answer;
        if (n > l->most) break;
        trace_history_add(&h, trace_made(part_seed(l, MADE_QUESTION, session, turn), n_question));
        TracePart answer =
            trace_made(part_seed(l, MADE_ANSWER, session, turn), n_reasoning + n_answer);
        TraceTurn is = {.ts = clock.now,
                        .session = session,
                        .answer_changes = n_reasoning > 0,
                        .n_new = n - known};
        trace_add(t, &is, &h, answer);
        if (n_reasoning) {
            known = h.n_tokens;
            answer = trace_made(part_seed(l, MADE_KEPT_ANSWER, session, turn), n_answer);
        } else {
            known = n;
        }
        trace_history_add(&h, answer);
        trace_clock_answered(&clock, n_reasoning + n_answer);
        if (trace_uniform(&clock.state) * l->turns < 1) break;
    }
    trace_history_free(&h);
}

int trace_make(Trace *t, const TraceLoad *load, Error *err)
{
    uint64_t state = part_seed(load, 0, 0, 1);
    double start = 0;
    for (int s = 0; s < (int)load->sessions; s++) {
        add_session(t, load, s, start);
        start += trace_next_start(load, &state);
    }
    t->n_sessions = (int)load->sessions;
    if (t->n) return 0;
    return error_set(err, ERR_INPUT, "--load: no request has %g tokens at most", load->most);
}
