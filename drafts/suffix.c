/* suffix.c: see suffix.h. */
#include "drafts/suffix.h"

#include "base/mem.h"
#include "drafts/automaton.h"
#include "drafts/copying.h"
#include "engine/engine.h"
#include "engine/head.h"

enum {
    MOST_GUESSES = 8, /* after a node */
    MOST_SHORTER = 4, /* ends of the sequence that have a say in them */
    MOST_EDGES = 32,  /* of a state that are looked at, the latest */
    NO_TOKEN = -1,
};

/* Guesses that are less likely do not matter. */
static const float LEAST = 1.0F / 64;

typedef struct {
    Automaton automaton;
    int32_t first, n; /* tokens [first, first + n) of the sequence are in it */
} Known;

typedef struct {
    const uint64_t *allowed;
    Known *known; /* [max_seqs] */
    int max_seqs;
} Suffix;

static int suffix_bind(void *self, struct Engine *engine, Error *err)
{
    Suffix *s = self;
    const EngineOptions *o = engine_options(engine);
    (void)err;
    s->allowed = o->allowed;
    s->max_seqs = o->max_seqs;
    s->known = mem_alloc((size_t)s->max_seqs, sizeof *s->known);
    int most = o->ctx_size + MAX_PREDICTED + 1;
    for (int i = 0; i < s->max_seqs; i++)
        automaton_open(&s->known[i].automaton, most < SUFFIX_WINDOW ? most : SUFFIX_WINDOW);
    return 0;
}

static void suffix_close(void *self)
{
    Suffix *s = self;
    for (int i = 0; i < s->max_seqs; i++)
        automaton_close(&s->known[i].automaton);
    mem_free(s->known);
    mem_free(s);
}

static void suffix_begin(void *self, int seq, const int32_t *token, int n)
{
    Suffix *s = self;
    (void)token; /* they come with the first request */
    (void)n;
    s->known[seq].first = s->known[seq].n = 0;
}

/* The automaton begins with what the client predicts, and a token that is none. */
static void learn_predicted(Known *k, const DraftRequest *r)
{
    automaton_clear(&k->automaton);
    for (int i = 0; i < r->n_predicted; i++)
        automaton_add(&k->automaton, r->predicted[i]);
    if (r->n_predicted) automaton_add(&k->automaton, NO_TOKEN);
}

/* Where there is no room for more it begins anew with the last tokens. */
static void learn(Known *k, const DraftRequest *r)
{
    Automaton *a = &k->automaton;
    int n = r->root_pos + 1;
    if (!k->n) learn_predicted(k, r);
    if (a->n_tokens + n - (k->first + k->n) > a->max_tokens) {
        k->first = n - (a->max_tokens - a->max_tokens / 4);
        k->n = 0;
        automaton_clear(a);
    }
    while (k->first + k->n < n)
        automaton_add(a, r->token[k->first + k->n++]);
}

/* The last `matched` tokens before what is to be guessed: one of the sequences of state. */
typedef struct {
    int32_t state, matched;
} End;

typedef struct {
    int32_t token;
    float chance; /* after its parent */
    End end;      /* its own */
} Guess;

/* Adds to what is known of a token, or puts it in its place; the best stay. */
static int add_guess(Guess *guess, int n, const Guess *more)
{
    int i = 0;
    while (i < n && guess[i].token != more->token)
        i++;
    if (i < n) {
        guess[i].chance += more->chance;
    } else {
        if (n == MOST_GUESSES && guess[n - 1].chance >= more->chance) return n;
        i = n < MOST_GUESSES ? n++ : n - 1;
        guess[i] = *more;
    }
    for (; i > 0 && guess[i - 1].chance < guess[i].chance; i--) {
        Guess moved = guess[i];
        guess[i] = guess[i - 1];
        guess[i - 1] = moved;
    }
    return n;
}

/* What followed `end` adds to the guesses, with `weight` of all chances. */
static int add_followers(const Suffix *s, const Automaton *a, End end, float weight, Guess *guess,
                         int n)
{
    int32_t total = 0, k = 0;
    int32_t first = a->state[end.state].edge;
    for (int32_t i = first; i >= 0 && k < MOST_EDGES; i = a->edge[i].next, k++)
        total += a->state[a->edge[i].to].count;
    for (int32_t i = first; i >= 0 && k > 0; i = a->edge[i].next, k--) {
        const AutomatonEdge *e = &a->edge[i];
        float share = (float)a->state[e->to].count / (float)total;
        Guess more = {e->token, weight * share, {e->to, end.matched + 1}};
        if (copying_allowed(s->allowed, e->token)) n = add_guess(guess, n, &more);
    }
    return n;
}

/* What may follow end, the likeliest first: the longest end is heard first, the next for the rest.
 */
static int guess_next(const Suffix *s, const Automaton *a, End end, Guess *guess)
{
    float left = 1;
    int n = 0;
    for (int k = 0; k < MOST_SHORTER && end.state > 0 && left > LEAST; k++) {
        float sure = copying_chance(end.matched);
        if (a->state[end.state].edge >= 0) {
            n = add_followers(s, a, end, left * sure, guess, n);
            left *= 1 - sure;
        }
        end.state = a->state[end.state].link;
        end.matched = a->state[end.state].len;
    }
    return n;
}

/* Nodes that may join a tree. */
typedef struct {
    struct {
        Guess guess;
        float value;
        int parent;
    } at[MAX_TREE_NODES * MOST_GUESSES];
    int n;
} Candidates;

static void add_candidates(const Suffix *s, const Automaton *a, const DraftRequest *r, int node,
                           End end, Candidates *c)
{
    Guess guess[MOST_GUESSES];
    if (r->tree->depth[node] >= r->max_depth) return;
    int n = guess_next(s, a, end, guess);
    for (int i = 0; i < n && i < r->topk; i++) {
        float value = r->tree->value[node] * guess[i].chance;
        if (value < LEAST) return;
        c->at[c->n].guess = guess[i];
        c->at[c->n].value = value;
        c->at[c->n++].parent = node;
    }
}

static int best_candidate(const Candidates *c)
{
    int best = 0;
    for (int i = 1; i < c->n; i++)
        if (c->at[i].value > c->at[best].value) best = i;
    return best;
}

static void draft_tree(const Suffix *s, const DraftRequest *r)
{
    Known *k = &s->known[r->seq];
    const Automaton *a = &k->automaton;
    Candidates c = {.n = 0};
    learn(k, r);
    int32_t match = automaton_match(a);
    add_candidates(s, a, r, 0, (End){match, a->state[match].len}, &c);
    while (c.n && r->tree->n < r->max_nodes) {
        int i = best_candidate(&c);
        Guess g = c.at[i].guess;
        int node = tree_join(r->tree, c.at[i].parent, g.token, c.at[i].value, GUESS_COPY);
        c.at[i] = c.at[--c.n];
        add_candidates(s, a, r, node, g.end, &c);
    }
    tree_order(r->tree, r->max_nodes);
}

static void suffix_propose(void *self, const DraftRequest *request, int n, const DraftGuide *guide)
{
    (void)guide; /* what it finds costs nothing */
    for (int i = 0; i < n; i++)
        draft_tree(self, &request[i]);
}

void suffix_drafter_open(Drafter *out)
{
    *out = (Drafter){.name = "suffix",
                     .self = mem_alloc(1, sizeof(Suffix)),
                     .is_free = 1,
                     .bind = suffix_bind,
                     .begin = suffix_begin,
                     .propose = suffix_propose,
                     .close = suffix_close};
}
