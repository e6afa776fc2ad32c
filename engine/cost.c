/* cost.c: see cost.h. */
#include "engine/cost.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* Numbers of rows that have a factor; between them it is interpolated. */
static const int cell_rows[COST_CELLS] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64};

/* Before any step: 10 GB/s, and the rates of a fair draft head. Only ratios matter. */
static const double FIRST_FACTOR = 1e-7, FIRST_RATE = 0.7;

/* Of the time that may be lost by looking. */
static const double PROBE_SHARE = 1.0 / 50;

/* Of the time of a prompt's rows what the drafter may take for seeing them; it sees some always. */
static const double SHOWN_SHARE = 1.0 / 16;
enum { LEAST_SHOWN = 64 };

/* From so many rows on a prompt's rows decide what a row of the pass costs. */
enum { MANY_ROWS = 32 };

/* What the first steps say of a part is not believed much; after MOST_UNPROBED nothing is. */
enum { FEW_STEPS = 8, MOST_UNPROBED = 8 * PROBE_STEPS };

void cost_init(Cost *c, const CostBytes *bytes)
{
    memset(c, 0, sizeof *c);
    c->bytes = *bytes;
    c->bytes.scored += 1; /* a drafter that reads nothing takes time too */
    c->bytes.head += 1;
    for (int d = 1; d <= MAX_LEVELS; d++)
        c->all.rate[d] = FIRST_RATE;
}

/* ---- curves ---- */

/* n rows lie between cells *i and *i + 1; returns the share of the latter. */
static double place(int n, int *i)
{
    *i = 0;
    while (*i < COST_CELLS - 2 && n >= cell_rows[*i + 1])
        ++*i;
    int from = cell_rows[*i], to = cell_rows[*i + 1];
    return n >= to ? 1 : n <= from ? 0 : (double)(n - from) / (to - from);
}

/*
 * A cell that was never seen takes after the nearest one that was, of two the one of fewer rows; a
 * part that was never seen, after the pass.
 */
static double factor(const Cost *c, CostPart part, int i)
{
    const CostCurve *k = &c->curve[part];
    for (int away = 0; away < COST_CELLS; away++) {
        if (i - away >= 0 && k->n_seen[i - away]) return k->factor[i - away];
        if (i + away < COST_CELLS && k->n_seen[i + away]) return k->factor[i + away];
    }
    return part == COST_PASS ? FIRST_FACTOR : factor(c, COST_PASS, i);
}

static double part_ms(const Cost *c, CostPart part, int n_rows, double bytes)
{
    int i;
    double share = place(n_rows, &i);
    return bytes * ((1 - share) * factor(c, part, i) + share * factor(c, part, i + 1));
}

/*
 * What took `ratio` of what was thought moves the factor. Others use the machine too: they make a
 * pass longer, never shorter. So a shorter one counts for more, of the first few the shortest is
 * taken, one that is far shorter is believed, and one that is far too long counts as twice too
 * long.
 */
static void move_factor(Cost *c, CostPart part, int i, double share, double ratio)
{
    CostCurve *k = &c->curve[part];
    int is_new = k->n_seen[i] < 4;
    double weight = is_new ? 1.0 / 4 : 1.0 / 16;
    if (ratio < 1) weight = is_new || ratio < 0.5 ? 1 : 1.0 / 4;
    if (!k->n_seen[i] && share < 0.5) return;
    if (ratio > 2) ratio = 2;
    k->factor[i] = factor(c, part, i) * (1 + weight * share * (ratio - 1));
    k->n_seen[i]++;
}

static void learn(Cost *c, CostPart part, int n_rows, double ratio)
{
    CostCurve *k = &c->curve[part];
    int i;
    double share = place(n_rows, &i);
    if (!k->n_learnt++) { /* nothing was known */
        i += share > 0.5;
        k->factor[i] = factor(c, part, i) * ratio;
        k->n_seen[i] = 1;
        return;
    }
    if (k->n_learnt <= FEW_STEPS && ratio < 0.5) { /* what was known came of a stall */
        for (int j = 0; j < COST_CELLS; j++)
            k->factor[j] *= ratio;
        return;
    }
    if (share < 1) move_factor(c, part, i, 1 - share, ratio);
    if (share > 0) move_factor(c, part, i + 1, share, ratio);
}

/* ---- what a step takes ---- */

static double pass_ms(const Cost *c, int n, int n_rows, double keys)
{
    const CostBytes *b = &c->bytes;
    return part_ms(c, COST_PASS, n_rows, b->pass[n_rows] + 2 * n * b->state + keys * b->key);
}

/* From rows that the upkeep has left. */
static double first_level_ms(const Cost *c, int n_rows)
{
    return part_ms(c, COST_FIRST_LEVEL, n_rows, c->bytes.scored);
}

static double next_levels_ms(const Cost *c, const int *level_rows, double keys)
{
    const CostBytes *b = &c->bytes;
    double ms = 0, bytes = b->scored + b->head + keys * b->head_key;
    for (int d = 2; d <= MAX_LEVELS && level_rows[d]; d++)
        ms += part_ms(c, COST_NEXT_LEVEL, level_rows[d], bytes);
    return ms;
}

static double draft_ms(const Cost *c, const int *level_rows, double keys)
{
    if (!level_rows[1]) return 0;
    return first_level_ms(c, level_rows[1]) + next_levels_ms(c, level_rows, keys);
}

static double upkeep_ms(const Cost *c, int n, int n_kept, int has_drafts, double keys)
{
    const CostBytes *b = &c->bytes;
    double bytes = b->head + keys * b->head_key;
    if (!has_drafts) return part_ms(c, COST_UPKEEP, n_kept, bytes);
    return part_ms(c, COST_DRAFTED_UPKEEP, n_kept, bytes + n * b->fold);
}

/* ---- choosing ---- */

/* A step that grows by one draft after another, and how good it is. */
typedef struct {
    int n_rows, level_rows[MAX_LEVELS + 1];
    double tokens;
} Plan;

/* In all; or, beside a prompt, all that depends on the drafts. */
static double plan_ms(const Cost *c, const CostQuery *q, const Plan *p)
{
    int kept = (int)(p->tokens + 0.5), n_rows = p->n_rows + q->prompt_rows;
    double ms = draft_ms(c, p->level_rows, q->head_keys);
    if (q->prompt_rows >= MANY_ROWS) return ms + c->prompt_row_ms * n_rows;
    ms += pass_ms(c, q->n, n_rows < COST_ROWS ? n_rows : COST_ROWS, q->keys);
    return ms + upkeep_ms(c, q->n, kept < COST_ROWS ? kept : COST_ROWS, p->n_rows > q->n, q->keys);
}

/* The sequence whose next draft is most likely to be kept, or -1: there is no room for more. */
static int best_next(const CostQuery *q, const int *levels, const double *chance)
{
    int best = -1;
    double most = 0;
    for (int i = 0; i < q->n; i++) {
        if (levels[i] >= q->most[i] || levels[i] >= MAX_LEVELS) continue;
        double next = chance[i] * q->rates[i]->rate[levels[i] + 1];
        if (best < 0 || next > most) best = i, most = next;
    }
    return best;
}

/*
 * Adds the drafts one by one, the likeliest first, and stays with the best step on the way: by
 * tokens / ms, or where a token is worth `price` ms by the ms that it gains. Returns its rate.
 */
static double scan(const Cost *c, const CostQuery *q, double price, int *levels)
{
    int at[COST_ROWS] = {0};
    double chance[COST_ROWS], best = 0;
    Plan p = {.n_rows = q->n, .tokens = q->n};
    for (int i = 0; i < q->n; i++)
        chance[i] = 1;
    for (int next = 0, first = 1; next >= 0; first = 0) {
        double ms = plan_ms(c, q, &p);
        double worth = price > 0 ? p.tokens * price - ms : p.tokens / ms;
        if (first || worth > best) {
            best = worth;
            memcpy(levels, at, (size_t)q->n * sizeof *levels);
        }
        next = p.n_rows < COST_ROWS ? best_next(q, at, chance) : -1;
        if (next < 0) break;
        chance[next] *= q->rates[next]->rate[++at[next]];
        p.tokens += chance[next];
        p.level_rows[at[next]]++;
        p.n_rows++;
    }
    return best;
}

/* The step that has `levels`. */
static Plan plan_of(const CostQuery *q, const int *levels)
{
    Plan p = {.n_rows = q->n, .tokens = q->n};
    for (int i = 0; i < q->n; i++) {
        double chance = 1;
        for (int d = 1; d <= levels[i]; d++) {
            p.tokens += chance *= q->rates[i]->rate[d];
            p.level_rows[d]++;
            p.n_rows++;
        }
    }
    return p;
}

/*
 * Another shape than the best: none, one level more or less; where none is best, a few levels. Not
 * before the steps since the last one have taken so long that what it loses is a small share; but
 * some time, as what is thought to be lost may be all wrong.
 */
static void probe(Cost *c, const CostQuery *q, int *levels)
{
    int other[COST_ROWS], deepest = 0, turn = c->n_probes % 3;
    for (int i = 0; i < q->n; i++)
        if (levels[i] > deepest) deepest = levels[i];
    int d = deepest ? turn == 0 ? 0 : turn == 1 ? deepest + 1 : deepest - 1 : turn + 1;
    if (d > MAX_LEVELS) d = MAX_LEVELS;
    for (int i = 0; i < q->n; i++)
        other[i] = d < q->most[i] ? d : q->most[i];
    Plan best = plan_of(q, levels), p = plan_of(q, other);
    double best_ms = plan_ms(c, q, &best);
    double lost_ms = plan_ms(c, q, &p) - best_ms * p.tokens / best.tokens;
    c->unprobed_ms += best_ms;
    int is_dear = lost_ms > c->unprobed_ms * PROBE_SHARE && c->n_unprobed < MOST_UNPROBED;
    if (++c->n_unprobed < PROBE_STEPS || is_dear) return;
    memcpy(levels, other, (size_t)q->n * sizeof *levels);
    c->unprobed_ms = 0;
    c->n_unprobed = 0;
    c->n_probes++;
}

void cost_choose(Cost *c, const CostQuery *q, int *levels)
{
    assert(q->n > 0 && q->n <= COST_ROWS);
    CostQuery alone = *q;
    alone.prompt_rows = 0;
    double rate = scan(c, &alone, 0, levels);
    c->n_steps++;
    if (q->prompt_rows)
        scan(c, q, 1 / rate, levels);
    else
        probe(c, q, levels);
}

/* ---- learning ---- */

/* Chains of one level teach what the first takes; the others what the rest does. */
static void learn_drafts(Cost *c, const CostStep *s)
{
    double first = first_level_ms(c, s->level_rows[1]);
    double next = next_levels_ms(c, s->level_rows, s->head_keys);
    double ratio = s->draft_ms / (first + next);
    if (next == 0 || !c->curve[COST_FIRST_LEVEL].n_learnt)
        learn(c, COST_FIRST_LEVEL, s->level_rows[1], ratio);
    else
        ratio = fmax((s->draft_ms - first) / next, ratio / 2);
    if (next > 0) learn(c, COST_NEXT_LEVEL, s->level_rows[2], ratio);
}

/* A mean that stalls move little. */
static void move_mean(double *mean, double ms)
{
    *mean += (ms - *mean) * (*mean == 0 ? 1 : ms < *mean ? 1.0 / 4 : 1.0 / 16);
}

static void learn_prompt_rows(Cost *c, const CostStep *s)
{
    move_mean(&c->prompt_row_ms, s->pass_ms / (s->n_rows + s->prompt_rows));
    if (s->n_shown >= MANY_ROWS)
        move_mean(&c->shown_row_ms, s->upkeep_ms / (s->n_kept + s->n_shown));
}

int cost_shown_rows(const Cost *c, int n)
{
    double most = n;
    if (c->shown_row_ms > 0) most = n * SHOWN_SHARE * c->prompt_row_ms / c->shown_row_ms;
    if (most < LEAST_SHOWN) most = LEAST_SHOWN;
    return most < n ? (int)most : n;
}

void cost_learn(Cost *c, const CostStep *s)
{
    int has_drafts = s->n_rows > s->n;
    if (s->prompt_rows >= MANY_ROWS) learn_prompt_rows(c, s);
    if (!s->n) return;
    if (has_drafts) learn_drafts(c, s);
    if (s->prompt_rows) return;
    learn(c, COST_PASS, s->n_rows, s->pass_ms / pass_ms(c, s->n, s->n_rows, s->keys));
    learn(c, has_drafts ? COST_DRAFTED_UPKEEP : COST_UPKEEP, s->n_kept,
          s->upkeep_ms / upkeep_ms(c, s->n, s->n_kept, has_drafts, s->head_keys));
}

/* What is seen seldom counts for more. */
static void move_rate(DraftRates *r, int d, int kept, long step, double weight, double seldom)
{
    if (step - r->seen_at[d] >= PROBE_STEPS / 2) weight = seldom;
    r->rate[d] += (kept - r->rate[d]) * weight;
    r->seen_at[d] = step;
}

void cost_kept(Cost *c, DraftRates *r, int n_levels, int n_kept)
{
    for (int d = 1; d <= n_levels && d <= n_kept + 1 && d <= MAX_LEVELS; d++) {
        move_rate(r, d, d <= n_kept, c->n_steps, 1.0 / 32, 1.0 / 4);
        move_rate(&c->all, d, d <= n_kept, c->n_steps, 1.0 / 128, 1.0 / 16);
    }
}
