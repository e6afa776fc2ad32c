/* scripted.c: see scripted.h. */
#include "drafts/scripted.h"

#include <string.h>

#include "base/mem.h"
#include "engine/engine.h"

typedef struct {
    const Model *model;
    ScriptMode mode;
    Script *script;
    int n_scripts;
    uint64_t random;
    const Script *match[MAX_SEQS]; /* the one that agrees with all tokens seen, or NULL */
} Scripted;

static uint32_t next_random(Scripted *s)
{
    s->random = s->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(s->random >> 33);
}

static int scripted_bind(void *self, struct Engine *engine, Error *err)
{
    (void)self;
    (void)engine;
    (void)err;
    return 0;
}

/*
 * Several scripts may begin alike: the first that agrees with all of a and also has pos -> token.
 */
static const Script *find(const Scripted *s, const Script *a, int pos, int32_t token)
{
    for (int i = 0; i < s->n_scripts; i++) {
        const Script *b = &s->script[i];
        if (b->n <= pos || b->token[pos] != token) continue;
        if (a && memcmp(a->token, b->token, (size_t)pos * sizeof *b->token)) continue;
        return b;
    }
    return NULL;
}

/* The script that sequence seq follows when token comes at pos. */
static void follow(Scripted *s, int seq, int pos, int32_t token)
{
    const Script *m = s->match[seq];
    if (m && (pos >= m->n || m->token[pos] != token)) s->match[seq] = find(s, m, pos, token);
}

static void scripted_begin(void *self, int seq, const int32_t *token, int n)
{
    Scripted *s = self;
    s->match[seq] = find(s, NULL, 0, token[0]);
    for (int i = 1; i < n; i++)
        follow(s, seq, i, token[i]);
}

static void scripted_observe(void *self, const DraftObserved *r)
{
    Scripted *s = self;
    for (int i = 0; i < r->n; i++)
        follow(s, r->seq[i], r->pos[i], r->token[i]);
}

static int32_t truth(const Script *m, int pos)
{
    return m && pos < m->n ? m->token[pos] : -1;
}

/* A token that is not the right one. */
static int32_t lie(Scripted *s, int32_t right)
{
    int vocab = s->model->config.n_vocab;
    int32_t token = (int32_t)(next_random(s) % (uint32_t)vocab);
    return token == right ? (token + 1) % vocab : token;
}

static void add_perfect(const Script *m, const DraftRequest *r)
{
    int node = 0;
    for (int d = 1; d <= r->max_depth && r->tree->n < r->max_nodes; d++) {
        int32_t token = truth(m, r->root_pos + d);
        if (token < 0) return;
        node = tree_add(r->tree, node, token, 1);
    }
}

/* Random wrong nodes under random parents; siblings of the truth get random values around it. */
static void add_lies(Scripted *s, const Script *m, const DraftRequest *r)
{
    Tree *t = r->tree;
    for (int tries = 0; tries < 4 * MAX_TREE_NODES && t->n < r->max_nodes; tries++) {
        int parent = (int)(next_random(s) % (uint32_t)t->n);
        int depth = t->depth[parent] + 1;
        if (depth > r->max_depth) continue;
        int32_t right = truth(m, r->root_pos + depth);
        tree_add(t, parent, lie(s, right), (float)(next_random(s) % 1000) / 1000);
    }
}

static void add_hidden_truth(Scripted *s, const Script *m, const DraftRequest *r)
{
    int node = 0, depth = (int)(next_random(s) % (uint32_t)(r->max_depth + 1));
    for (int d = 1; d <= depth && r->tree->n < r->max_nodes; d++) {
        int32_t token = truth(m, r->root_pos + d);
        if (token < 0) return;
        node = tree_add(r->tree, node, token, r->tree->value[node] * 0.7f);
    }
}

static void scripted_propose(void *self, const DraftRequest *request, int n,
                             const DraftGuide *guide)
{
    (void)guide; /* what it gives it knows anyway */
    Scripted *s = self;
    for (int i = 0; i < n; i++) {
        const DraftRequest *r = &request[i];
        const Script *m = s->match[r->seq];
        if (s->mode == SCRIPT_PERFECT) add_perfect(m, r);
        if (s->mode == SCRIPT_MIXED) add_hidden_truth(s, m, r);
        if (s->mode != SCRIPT_PERFECT) add_lies(s, m, r);
        tree_order(r->tree, r->max_nodes);
    }
}

static void scripted_close(void *self)
{
    Scripted *s = self;
    mem_free(s->script);
    mem_free(s);
}

int scripted_drafter_open(const Model *model, ScriptMode mode, const Script *scripts, int n,
                          uint64_t seed, Drafter *out, Error *err)
{
    (void)err;
    Scripted *s = mem_alloc(1, sizeof *s);
    s->model = model;
    s->mode = mode;
    s->random = seed * 2 + 1;
    s->n_scripts = n;
    s->script = mem_alloc((size_t)n, sizeof *s->script);
    if (n) memcpy(s->script, scripts, (size_t)n * sizeof *s->script);
    *out = (Drafter){.name = mode == SCRIPT_PERFECT ? "perfect"
                             : mode == SCRIPT_LIE   ? "liar"
                                                    : "mixed",
                     .self = s,
                     .bind = scripted_bind,
                     .begin = scripted_begin,
                     .observe = scripted_observe,
                     .propose = scripted_propose,
                     .close = scripted_close};
    return 0;
}
