/*
 * grammar_steps.c: see grammar_steps.h.
 */
#include "text/grammar_steps.h"

#include <string.h>

#include "base/hash.h"
#include "base/mem.h"

enum {
    MAX_STEP_THREADS = 1 << 17, /* of all states */
    STEP_SLOTS = 2 * MAX_STEP_STATES,
};

typedef struct {
    int first, n; /* of its threads */
    int16_t next[256];
} StepState;

struct GrammarSteps {
    int n, n_threads;
    StepState state[MAX_STEP_STATES];
    GrammarThread thread[MAX_STEP_THREADS];
    int16_t slot[STEP_SLOTS]; /* states by their threads' hash; STEP_NOT_KNOWN: free */
};

GrammarSteps *grammar_steps_open(void)
{
    GrammarSteps *s = mem_map(sizeof *s);
    if (s) grammar_steps_clear(s);
    return s;
}

void grammar_steps_close(GrammarSteps *s)
{
    mem_unmap(s);
}

void grammar_steps_clear(GrammarSteps *s)
{
    s->n = s->n_threads = 0;
    for (int i = 0; i < STEP_SLOTS; i++)
        s->slot[i] = STEP_NOT_KNOWN;
}

static int is_state(const GrammarSteps *s, int number, const GrammarState *state)
{
    const StepState *there = &s->state[number];
    return there->n == state->n && !memcmp(s->thread + there->first, state->thread,
                                           (size_t)state->n * sizeof *state->thread);
}

int grammar_steps_add(GrammarSteps *s, const GrammarState *state)
{
    size_t bytes = (size_t)state->n * sizeof *state->thread;
    size_t at = hash_sum(state->thread, bytes) % STEP_SLOTS;
    for (; s->slot[at] != STEP_NOT_KNOWN; at = (at + 1) % STEP_SLOTS)
        if (is_state(s, s->slot[at], state)) return s->slot[at];
    if (s->n == MAX_STEP_STATES || s->n_threads + state->n > MAX_STEP_THREADS)
        return STEP_NOT_KNOWN;
    StepState *new = &s->state[s->n];
    *new = (StepState){.first = s->n_threads, .n = state->n};
    for (int i = 0; i < 256; i++)
        new->next[i] = STEP_NOT_KNOWN;
    memcpy(s->thread + s->n_threads, state->thread, bytes);
    s->n_threads += state->n;
    s->slot[at] = (int16_t)s->n;
    return s->n++;
}

void grammar_steps_get(const GrammarSteps *s, int number, GrammarState *out)
{
    const StepState *there = &s->state[number];
    out->n = there->n;
    out->is_cut = 0;
    memcpy(out->thread, s->thread + there->first, (size_t)there->n * sizeof *out->thread);
}

int grammar_steps_next(const GrammarSteps *s, int from, uint8_t byte)
{
    return s->state[from].next[byte];
}

void grammar_steps_set(GrammarSteps *s, int from, uint8_t byte, int to)
{
    s->state[from].next[byte] = (int16_t)to;
}
