/* cost.c: see cost.h. */
#include "engine/cost.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* Numbers of rows that have a factor; between them it is interpolated. */
static const int cell_rows[COST_CELLS] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64};

/* Before any step: 10 GB/s. Only ratios matter. */
static const double FIRST_FACTOR = 1e-7;

/* Of the time of a prompt's rows what the drafter may take for seeing them; it sees some always. */
static const double SHOWN_SHARE = 1.0 / 16;
enum { LEAST_SHOWN = 64 };

/* From so many rows on a prompt's rows decide what a row of the pass costs. */
enum { MANY_ROWS = 32 };

/* What the first steps say of a part is not believed much. */
enum { FEW_STEPS = 8 };

/* Of what the bytes say at the pass's rate; a first step that takes longer was likely stalled. */
static const double DOUBTFUL = 2;

void cost_init(Cost *c, const CostBytes *bytes)
{
    memset(c, 0, sizeof *c);
    c->bytes = *bytes;
    c->bytes.scored += 1; /* a drafter that reads nothing takes time too */
    c->bytes.head += 1;
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

/* The nearest cell below i that was seen, or -1. */
static int seen_below(const CostCurve *k, int i)
{
    while (--i >= 0 && !k->n_seen[i])
        ;
    return i;
}

/* Beyond all that was seen: as it grew between the last two cells that were, a and b below a. */
static double beyond(const CostCurve *k, int i, int a, int b)
{
    if (b < 0 || k->factor[b] >= k->factor[a]) return k->factor[a];
    double slope = (k->factor[a] - k->factor[b]) / (cell_rows[a] - cell_rows[b]);
    return k->factor[a] + slope * (cell_rows[i] - cell_rows[a]);
}

/*
 * A cell that was never seen takes after the nearest one that was, of two the one of fewer rows,
 * and beyond the last one grows on; a part that was never seen takes after the pass.
 */
static double factor(const Cost *c, CostPart part, int i)
{
    const CostCurve *k = &c->curve[part];
    int a = seen_below(k, i), above = i;
    if (k->n_seen[i]) return k->factor[i];
    while (above < COST_CELLS && !k->n_seen[above])
        above++;
    if (a >= 0 && above == COST_CELLS) return beyond(k, i, a, seen_below(k, a));
    if (a >= 0 && i - a <= above - i) return k->factor[a];
    if (above < COST_CELLS) return k->factor[above];
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

/*
 * A stall in the first step of a part would make it look too dear to be tried again, so one that
 * is far too long is left out, and the second decides.
 */
static int is_doubted(CostCurve *k, CostPart part, double ratio)
{
    return part != COST_PASS && !k->n_learnt && ratio > DOUBTFUL && !k->n_doubted++;
}

static void learn(Cost *c, CostPart part, int n_rows, double ratio)
{
    CostCurve *k = &c->curve[part];
    int i;
    double share = place(n_rows, &i);
    if (is_doubted(k, part, ratio)) return;
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

double cost_pass_ms(const Cost *c, const CostCompany *w, int n_rows)
{
    const CostBytes *b = &c->bytes;
    int n = n_rows + w->prompt_rows;
    if (w->prompt_rows >= MANY_ROWS) return c->prompt_row_ms * n;
    if (n > COST_ROWS) n = COST_ROWS;
    return part_ms(c, COST_PASS, n, b->pass[n] + 2 * w->n * b->state + w->keys * b->key);
}

double cost_upkeep_ms(const Cost *c, const CostCompany *w, int n_kept, int has_drafts)
{
    const CostBytes *b = &c->bytes;
    double bytes = b->head + w->head_keys * b->head_key;
    if (w->prompt_rows >= MANY_ROWS) return 0;
    if (!has_drafts) return part_ms(c, COST_UPKEEP, n_kept, bytes);
    return part_ms(c, COST_DRAFTED_UPKEEP, n_kept, bytes + w->n * b->fold);
}

double cost_level_ms(const Cost *c, const CostCompany *w, int level, int n_rows)
{
    const CostBytes *b = &c->bytes;
    if (level == 1) /* from rows that the upkeep has left */
        return part_ms(c, COST_FIRST_LEVEL, n_rows, b->scored);
    return part_ms(c, COST_NEXT_LEVEL, n_rows, b->scored + b->head + w->head_keys * b->head_key);
}

double cost_round_ms(const Cost *c, const CostCompany *w, int levels)
{
    const CostBytes *b = &c->bytes;
    int n = w->n * (levels + 1);
    assert(n <= COST_ROWS);
    double head = b->head + w->head_keys * b->head_key; /* each level but the first, the upkeep */
    double bytes = b->pass[n] + 2 * w->n * b->state + w->keys * b->key + head;
    if (levels) bytes += levels * b->scored + (levels - 1) * head + w->n * b->fold;
    return part_ms(c, COST_ROUND, n, bytes);
}

int cost_safe_rows(const Cost *c, CostPart part)
{
    const CostCurve *k = &c->curve[part];
    for (int i = COST_CELLS - 1; i >= 0; i--)
        if (k->n_seen[i] > 1) return 2 * cell_rows[i] < COST_ROWS ? 2 * cell_rows[i] : COST_ROWS;
    return 1;
}

/* ---- learning ---- */

/* Drafts of one level teach what the first takes; the others what the rest does. */
static void learn_drafts(Cost *c, const CostStep *s)
{
    double first = cost_level_ms(c, &s->who, 1, s->level_rows[1]), next = 0;
    for (int d = 2; d <= MAX_LEVELS && s->level_rows[d]; d++)
        next += cost_level_ms(c, &s->who, d, s->level_rows[d]);
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
    move_mean(&c->prompt_row_ms, s->pass_ms / (s->n_rows + s->who.prompt_rows));
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

void cost_learn_round(Cost *c, const CostCompany *who, int levels, double ms)
{
    learn(c, COST_ROUND, who->n * (levels + 1), ms / cost_round_ms(c, who, levels));
}

void cost_learn(Cost *c, const CostStep *s)
{
    const CostCompany *w = &s->who;
    int has_drafts = s->n_rows > w->n;
    if (w->prompt_rows >= MANY_ROWS) learn_prompt_rows(c, s);
    if (!w->n) return;
    if (s->level_rows[1]) learn_drafts(c, s);
    if (w->prompt_rows) return;
    learn(c, COST_PASS, s->n_rows, s->pass_ms / cost_pass_ms(c, w, s->n_rows));
    if (!s->n_kept) return;
    learn(c, has_drafts ? COST_DRAFTED_UPKEEP : COST_UPKEEP, s->n_kept,
          s->upkeep_ms / cost_upkeep_ms(c, w, s->n_kept, has_drafts));
}
