/*
 * growth.h: which drafts are worth their time, where the user has not fixed their shape.
 *
 * A step gives
 *     E = sequences + the sum of the chances that each draft is kept
 * tokens and takes T, as cost.h knows it: drafting, the pass over all rows, the upkeep. What a
 * token is worth is the time that it takes otherwise: T / E of the best chains, by what is known
 * before anything is drafted; or of the last steps, where some drafts cost nothing, of which
 * nothing is known before. Drafts then grow by what the drafter says of each guess (rates.h). A
 * level is drafted when it, with those behind it, is expected to bring more than it takes: after
 * the nodes whose best child would be verified then. At last the nodes with the largest E tokens -
 * T are verified, which may be a chain, a tree, or none. Beside a prompt's rows, which are computed
 * anyway, only what the drafts add to T counts.
 * Source: the trees are those of EAGLE-2 (arXiv 2406.16858), cut by cost as in CaDDTree (arXiv
 * 2606.01813).
 *
 * Now and then a step has chains of another depth than the best, so that what has changed is seen;
 * that loses a fiftieth at most. Choices depend on time, so they may decide nothing but speed. No
 * allocation.
 *
 * A device does a step as one round, of one depth for all, of which nobody sees the parts or what
 * the drafter says before it is done (round.h): there only that depth is chosen.
 */
#ifndef OFFSHOOT_ENGINE_GROWTH_H
#define OFFSHOOT_ENGINE_GROWTH_H

#include "engine/cost.h"
#include "engine/rates.h"
#include "spec/drafter.h"

enum {
    ROUND_LEVELS = 3,  /* of a device's rounds, before anything is known */
    GROWTH_NODES = 16, /* of a tree, the root included */
    GROWTH_TOPK = 4,   /* children of a node, and nodes of a level that get some */
    PROBE_STEPS = 32,  /* at least from one such step to the next */
};

/* A step that is to come. */
typedef struct {
    CostCompany who; /* at least one sequence */
    const DraftRates *rates[COST_ROWS];
    int most[COST_ROWS]; /* levels that can be of use; with the roots COST_ROWS rows at most */
} GrowthQuery;

/* A draft of the step. */
typedef struct {
    DraftRates *rates;
    Tree *tree;
    int max_nodes, max_depth;
    float chance[MAX_TREE_NODES];
    Tree grown; /* as it was before it was cut */
} GrowthDraft;

typedef struct {
    Cost cost;
    DraftRates all;
    int by_lot;  /* drafts are kept by lot, chains of them: what is said of guesses means nothing */
    int is_free; /* Drafter.is_free */
    double seen_ms, seen_tokens; /* of the last steps without a prompt, older ones for less */
    long n_steps;
    int n_probes, n_unprobed; /* steps since the last */
    double unprobed_ms;       /* that they were thought to take */

    /* the step that is to come */
    CostCompany who;
    double token_ms;                                         /* what a token is worth */
    double pass_ms[COST_ROWS + 1], upkeep_ms[COST_ROWS + 1]; /* of n rows, with drafts among them */
    int most_rows;                                           /* of the pass */
    int is_fixed; /* drafts are chains of the levels that were chosen */
    GrowthDraft draft[COST_ROWS];
    int n_drafts;
    DraftGuide guide;
} Growth;

void growth_init(Growth *g, const CostBytes *bytes, int by_lot, int is_free);

/*
 * The depth of chains, by what is known before anything is drafted; 0: a sequence goes without.
 * Unless g->is_fixed the others' trees grow as far as they pay.
 */
void growth_choose(Growth *g, const GrowthQuery *q, int *levels);

/*
 * The same where steps are a device's rounds: one depth of chains, for all; levels[i] is that, or
 * what sequence i can use of it. Returns it.
 */
int growth_choose_round(Growth *g, const GrowthQuery *q, int *levels);

/*
 * Before drafts are proposed, where some are: the requests, and the rates of their sequences.
 * Returns the guide, or NULL where chains are fixed. g borrows the trees until growth_cut.
 */
const DraftGuide *growth_begin(Growth *g, const DraftRequest *request, DraftRates *const *rates,
                               int n);

/* When they are: leaves of each tree what is worth a row of the pass, in tree_order's order. */
void growth_cut(Growth *g);

/* The target chose n >= 0 tokens after the root of request i, and along its tree. */
void growth_learn_kept(Growth *g, int i, const int32_t *token, int n);

/* What a step without a prompt's rows took, and how many tokens it gave. */
void growth_learn_step(Growth *g, double ms, int n_tokens);

/* Nodes after which a head guessed each level, of all drafts together. */
void growth_level_rows(const Growth *g, int level_rows[MAX_LEVELS + 1]);

#endif
