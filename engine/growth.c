/* growth.c: see growth.h. */
#include "engine/growth.h"

#include <assert.h>
#include <string.h>

/* Of the time that may be lost by looking. */
static const double PROBE_SHARE = 1.0 / 50;

/* After so many steps looking is not put off any more. */
enum { MOST_UNPROBED = 8 * PROBE_STEPS };

/* Steps that what a token took is the mean of. */
enum { SEEN_STEPS = 64 };

/* ---- before anything is drafted: chains ---- */

/* A step that grows by one draft after another, and how good it is. */
typedef struct {
    int n_rows, level_rows[MAX_LEVELS + 1];
    double tokens;
} Plan;

static int whole(double tokens)
{
    return (int)(tokens + 0.5);
}

static double plan_ms(const Growth *g, const CostCompany *who, const Plan *p)
{
    double ms = cost_pass_ms(&g->cost, who, p->n_rows);
    ms += cost_upkeep_ms(&g->cost, who, whole(p->tokens), p->n_rows > who->n);
    for (int d = 1; d <= MAX_LEVELS && p->level_rows[d]; d++)
        ms += cost_level_ms(&g->cost, who, d, p->level_rows[d]);
    return ms;
}

/* The sequence whose next draft is most likely to be kept, or -1: there is no room for more. */
static int best_next(const GrowthQuery *q, const int *levels, const double *chance)
{
    int best = -1;
    double most = 0;
    for (int i = 0; i < q->who.n; i++) {
        if (levels[i] >= q->most[i] || levels[i] >= MAX_LEVELS) continue;
        double next = chance[i] * q->rates[i]->level[levels[i] + 1];
        if (best < 0 || next > most) best = i, most = next;
    }
    return best;
}

/*
 * Adds the drafts one by one, the likeliest first, and stays with the best step on the way: by
 * tokens / ms, or where a token is worth token_ms by the ms that it gains. Returns its rate.
 */
static double scan(const Growth *g, const GrowthQuery *q, const CostCompany *who, double token_ms,
                   int *levels)
{
    int at[COST_ROWS] = {0}, n = who->n;
    double chance[COST_ROWS], best = 0;
    Plan p = {.n_rows = n, .tokens = n};
    for (int i = 0; i < n; i++)
        chance[i] = 1;
    for (int next = 0, first = 1; next >= 0; first = 0) {
        double ms = plan_ms(g, who, &p);
        double worth = token_ms > 0 ? p.tokens * token_ms - ms : p.tokens / ms;
        if (first || worth > best) {
            best = worth;
            memcpy(levels, at, (size_t)n * sizeof *levels);
        }
        next = p.n_rows < g->most_rows ? best_next(q, at, chance) : -1;
        if (next < 0) break;
        chance[next] *= q->rates[next]->level[++at[next]];
        p.tokens += chance[next];
        p.level_rows[at[next]]++;
        p.n_rows++;
    }
    return best;
}

/* The step that has `levels`. */
static Plan plan_of(const GrowthQuery *q, const int *levels)
{
    Plan p = {.n_rows = q->who.n, .tokens = q->who.n};
    for (int i = 0; i < q->who.n; i++) {
        double chance = 1;
        for (int d = 1; d <= levels[i]; d++) {
            p.tokens += chance *= q->rates[i]->level[d];
            p.level_rows[d]++;
            p.n_rows++;
        }
    }
    return p;
}

/* Another depth than the best, or the deepest of it: none, one level more or less; where none is
 * best, a few levels. */
static int other_depth(const Growth *g, int depth)
{
    int turn = g->n_probes % 3;
    int d = depth ? turn == 0 ? 0 : turn == 1 ? depth + 1 : depth - 1 : turn + 1;
    return d < MAX_LEVELS ? d : MAX_LEVELS;
}

/*
 * 1: now another shape than the best is tried, which loses lost_ms. Not before the steps since the
 * last one have taken so long that this is a small share; but some time, as what is thought to be
 * lost may be all wrong.
 */
static int may_probe(Growth *g, double best_ms, double lost_ms)
{
    g->unprobed_ms += best_ms;
    int is_dear = lost_ms > g->unprobed_ms * PROBE_SHARE && g->n_unprobed < MOST_UNPROBED;
    if (++g->n_unprobed < PROBE_STEPS || is_dear) return 0;
    g->unprobed_ms = 0;
    g->n_unprobed = 0;
    g->n_probes++;
    return 1;
}

/* Returns 1 when levels are now those of another shape. */
static int probe(Growth *g, const GrowthQuery *q, int *levels)
{
    int other[COST_ROWS], deepest = 0, n = q->who.n;
    for (int i = 0; i < n; i++)
        if (levels[i] > deepest) deepest = levels[i];
    int d = other_depth(g, deepest);
    for (int i = 0; i < n; i++)
        other[i] = d < q->most[i] ? d : q->most[i];
    Plan best = plan_of(q, levels), p = plan_of(q, other);
    double best_ms = plan_ms(g, &q->who, &best);
    double lost_ms = plan_ms(g, &q->who, &p) - best_ms * p.tokens / best.tokens;
    if (!may_probe(g, best_ms, lost_ms)) return 0;
    memcpy(levels, other, (size_t)n * sizeof *levels);
    return 1;
}

void growth_choose(Growth *g, const GrowthQuery *q, int *levels)
{
    CostCompany alone = q->who;
    assert(alone.n > 0 && alone.n <= COST_ROWS);
    alone.prompt_rows = 0;
    g->who = q->who;
    g->n_drafts = 0;
    g->most_rows = cost_safe_rows(&g->cost, COST_PASS);
    if (g->most_rows < alone.n) g->most_rows = alone.n;
    g->token_ms = 1 / scan(g, q, &alone, 0, levels);
    if (g->is_free && g->seen_tokens > 0) g->token_ms = g->seen_ms / g->seen_tokens;
    g->n_steps++;
    g->is_fixed = g->by_lot;
    if (q->who.prompt_rows)
        scan(g, q, &q->who, g->token_ms, levels);
    else if (probe(g, q, levels))
        g->is_fixed = 1;
}

/* ---- a device's rounds ---- */

/* Tokens that a round of that depth is expected to give. */
static double round_tokens(const GrowthQuery *q, int depth)
{
    double tokens = q->who.n;
    for (int i = 0; i < q->who.n; i++) {
        double chance = 1;
        for (int d = 1; d <= depth && d <= q->most[i]; d++)
            tokens += chance *= q->rates[i]->level[d];
    }
    return tokens;
}

/* Levels that a round may have: of use to somebody, and no great risk. */
static int most_levels(const Growth *g, const GrowthQuery *q)
{
    int rows = cost_safe_rows(&g->cost, COST_ROUND), most = 0, n = q->who.n;
    if (rows < n * (ROUND_LEVELS + 1)) rows = n * (ROUND_LEVELS + 1);
    if (rows > COST_ROWS) rows = COST_ROWS;
    for (int i = 0; i < n; i++)
        if (q->most[i] > most) most = q->most[i];
    if (most > rows / n - 1) most = rows / n - 1;
    return most < MAX_LEVELS ? most : MAX_LEVELS;
}

static double round_rate(const Growth *g, const GrowthQuery *q, int depth)
{
    return round_tokens(q, depth) / cost_round_ms(&g->cost, &q->who, depth);
}

int growth_choose_round(Growth *g, const GrowthQuery *q, int *levels)
{
    int n = q->who.n, most = most_levels(g, q), depth = 0;
    assert(n > 0 && n <= COST_ROWS);
    for (int d = 1; d <= most; d++)
        if (round_rate(g, q, d) > round_rate(g, q, depth)) depth = d;
    int other = other_depth(g, depth) < most ? other_depth(g, depth) : most;
    double ms = cost_round_ms(&g->cost, &q->who, depth);
    double lost_ms =
        cost_round_ms(&g->cost, &q->who, other) - round_tokens(q, other) / round_rate(g, q, depth);
    g->who = q->who;
    g->n_steps++;
    g->n_drafts = 0;
    g->is_fixed = 1;
    if (may_probe(g, ms, lost_ms)) depth = other;
    for (int i = 0; i < n; i++)
        levels[i] = depth < q->most[i] ? depth : q->most[i];
    return depth;
}

/* ---- while drafts grow ---- */

/* A node, or a descendant that it may get: `ahead` levels below it, each a best child. */
typedef struct {
    float chance;
    int draft, node, ahead;
} Guess;

/* The likeliest, best first. */
typedef struct {
    Guess guess[COST_ROWS];
    int n;
} Ranking;

/* Of guesses as likely the first offered stays before: a parent before its child. */
static void offer(Ranking *r, int most, Guess guess)
{
    int i = r->n < most ? r->n++ : most;
    for (; i > 0 && r->guess[i - 1].chance < guess.chance; i--)
        if (i < most) r->guess[i] = r->guess[i - 1];
    if (i < most) r->guess[i] = guess;
}

/* All nodes. */
static void rank_nodes(Growth *g, Ranking *r)
{
    r->n = 0;
    for (int i = 0; i < g->n_drafts; i++) {
        GrowthDraft *d = &g->draft[i];
        rates_value(d->rates, d->tree, d->chance);
        for (int k = 1; k < d->tree->n; k++)
            offer(r, g->most_rows - g->who.n, (Guess){d->chance[k], i, k, 0});
    }
}

/* Of each draft the best nodes of the level that a head can go on from, as many as there is room
 * for children. */
static void rank_parents(const Growth *g, int level, Ranking *parents)
{
    parents->n = 0;
    for (int i = 0; i < g->n_drafts; i++) {
        const GrowthDraft *d = &g->draft[i];
        Ranking best = {.n = 0};
        int most = (MAX_TREE_NODES - d->tree->n) / GROWTH_TOPK;
        if (most > GROWTH_TOPK) most = GROWTH_TOPK;
        for (int k = 0; k < d->tree->n; k++)
            if (d->tree->depth[k] == level && d->tree->from[k] != GUESS_COPY)
                offer(&best, most, (Guess){d->chance[k], i, k, 0});
        for (int k = 0; k < best.n; k++)
            offer(parents, g->most_rows - g->who.n, best.guess[k]);
    }
}

/* Tokens that the nodes below `node` are expected to give at this depth. */
static float known_below(const GrowthDraft *d, int node, int depth)
{
    const Tree *t = d->tree;
    uint64_t below = UINT64_C(1) << node;
    float sum = 0;
    for (int i = node + 1; i < t->n; i++) {
        if (!(below >> t->parent[i] & 1)) continue;
        below |= UINT64_C(1) << i;
        if (t->depth[i] == depth) sum += d->chance[i];
    }
    return sum;
}

/*
 * Adds to r what level + ahead would bring of best children below the parents: what a head's are
 * worth, less what is known there already, as they may be the same.
 */
static void add_descendants(const Growth *g, const Ranking *parents, int level, int ahead,
                            Ranking *r)
{
    for (int k = 0; k < parents->n; k++) {
        Guess guess = parents->guess[k];
        const GrowthDraft *d = &g->draft[guess.draft];
        if (level + ahead > d->max_depth) continue;
        for (guess.ahead = 1; guess.ahead <= ahead; guess.ahead++)
            guess.chance *= (float)d->rates->level[level + guess.ahead];
        guess.ahead = ahead;
        guess.chance -= known_below(d, guess.node, level + ahead);
        if (guess.chance > 0) offer(r, g->most_rows - g->who.n, guess);
    }
}

/* Cuts the ranking where it is worth most: to the rows of a pass. Returns what it is worth, ms. */
static double cut_ranking(const Growth *g, Ranking *r)
{
    int taken[COST_ROWS] = {0}, n_rows = g->who.n, n_best = 0, n = 0;
    double tokens = n_rows, best = tokens * g->token_ms - cost_pass_ms(&g->cost, &g->who, n_rows) -
                                   cost_upkeep_ms(&g->cost, &g->who, n_rows, 0);
    for (int k = 0; k < r->n; k++) {
        int i = r->guess[k].draft;
        if (++taken[i] >= g->draft[i].max_nodes) continue; /* its tree is full */
        r->guess[n++] = r->guess[k];
        tokens += r->guess[k].chance;
        double ms = g->pass_ms[++n_rows] + g->upkeep_ms[whole(tokens)];
        double worth = tokens * g->token_ms - ms;
        if (worth <= best) continue;
        best = worth;
        n_best = n;
    }
    r->n = n_best;
    return best;
}

/* Whether r has a descendant of the same node as guess k that is farther ahead. */
static int has_deeper(const Ranking *r, int k)
{
    const Guess *a = &r->guess[k];
    for (int i = 0; i < r->n; i++) {
        const Guess *b = &r->guess[i];
        if (b->draft == a->draft && b->node == a->node && b->ahead > a->ahead) return 1;
    }
    return 0;
}

/* What the levels take that the descendants in r need, and those on the way to them. */
static double levels_ms(const Growth *g, int level, const Ranking *r)
{
    int n_rows[MAX_LEVELS + 1] = {0};
    double ms = 0;
    for (int k = 0; k < r->n; k++) {
        if (has_deeper(r, k)) continue;
        for (int a = 1; a <= r->guess[k].ahead; a++)
            n_rows[a]++;
    }
    for (int a = 1; level + a <= MAX_LEVELS && n_rows[a]; a++)
        ms += cost_level_ms(&g->cost, &g->who, level + a, n_rows[a]);
    return ms;
}

static int expand(void *self, int level, uint64_t *nodes)
{
    Growth *g = self;
    Ranking known, parents, next, best;
    memset(nodes, 0, (size_t)g->n_drafts * sizeof *nodes);
    rank_nodes(g, &known);
    rank_parents(g, level, &parents);
    next = best = known;
    double most = cut_ranking(g, &best);
    for (int ahead = 1; level + ahead <= MAX_LEVELS; ahead++) {
        add_descendants(g, &parents, level, ahead, &next);
        Ranking cut = next;
        double worth = cut_ranking(g, &cut) - levels_ms(g, level, &cut);
        if (worth <= most) continue;
        most = worth;
        best = cut;
    }
    int n = 0;
    for (int k = 0; k < best.n; k++) {
        if (best.guess[k].ahead < 1) continue;
        nodes[best.guess[k].draft] |= (uint64_t)1 << best.guess[k].node;
        n++;
    }
    return n > 0;
}

/* What passes of all sizes take that the trees may have. */
static void set_times(Growth *g)
{
    int most = g->who.n;
    for (int i = 0; i < g->n_drafts; i++)
        most += g->draft[i].max_nodes - 1;
    for (int n = g->who.n; n <= most && n <= g->most_rows; n++) {
        g->pass_ms[n] = cost_pass_ms(&g->cost, &g->who, n);
        g->upkeep_ms[n] = cost_upkeep_ms(&g->cost, &g->who, n, 1);
    }
}

const DraftGuide *growth_begin(Growth *g, const DraftRequest *request, DraftRates *const *rates,
                               int n)
{
    assert(n <= COST_ROWS);
    g->n_drafts = n;
    for (int i = 0; i < n; i++) {
        GrowthDraft *d = &g->draft[i];
        d->rates = rates[i];
        d->tree = request[i].tree;
        d->max_nodes = request[i].max_nodes;
        d->max_depth = request[i].max_depth;
    }
    set_times(g);
    return g->is_fixed ? NULL : &g->guide;
}

void growth_cut(Growth *g)
{
    Ranking known;
    int n_kept[COST_ROWS] = {0};
    for (int i = 0; i < g->n_drafts; i++)
        g->draft[i].grown = *g->draft[i].tree;
    if (g->is_fixed) return;
    rank_nodes(g, &known);
    cut_ranking(g, &known);
    for (int k = 0; k < known.n; k++)
        n_kept[known.guess[k].draft]++;
    for (int i = 0; i < g->n_drafts; i++) {
        GrowthDraft *d = &g->draft[i];
        memcpy(d->tree->value, d->chance, (size_t)d->tree->n * sizeof d->chance[0]);
        tree_order(d->tree, 1 + n_kept[i]);
    }
}

/* ---- after the step ---- */

void growth_learn_kept(Growth *g, int i, const int32_t *token, int n)
{
    GrowthDraft *d = &g->draft[i];
    rates_learn(d->rates, &g->all, &d->grown, token, n, g->n_steps);
}

void growth_learn_step(Growth *g, double ms, int n_tokens)
{
    g->seen_ms += ms - g->seen_ms / SEEN_STEPS;
    g->seen_tokens += n_tokens - g->seen_tokens / SEEN_STEPS;
}

void growth_level_rows(const Growth *g, int level_rows[MAX_LEVELS + 1])
{
    memset(level_rows, 0, (MAX_LEVELS + 1) * sizeof *level_rows);
    for (int i = 0; i < g->n_drafts; i++) {
        const Tree *t = &g->draft[i].grown;
        uint64_t has_child = 0;
        for (int k = 1; k < t->n; k++) {
            uint64_t parent = (uint64_t)1 << t->parent[k];
            if (t->from[k] == GUESS_COPY) continue;
            if (!(has_child & parent) && t->depth[k] <= MAX_LEVELS) level_rows[t->depth[k]]++;
            has_child |= parent;
        }
    }
}

void growth_init(Growth *g, const CostBytes *bytes, int by_lot, int is_free)
{
    memset(g, 0, sizeof *g);
    cost_init(&g->cost, bytes);
    rates_init(&g->all);
    g->by_lot = by_lot;
    g->is_free = is_free;
    g->guide = (DraftGuide){.self = g, .expand = expand};
}
