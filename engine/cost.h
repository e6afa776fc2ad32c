/*
 * cost.h: how deep to draft, where the user has not said: learnt from steps while serving.
 *
 * A step verifies a chain of drafts for each of its sequences. It gives
 *     E = sequences + the sum of the chances that each draft is kept
 * tokens and takes
 *     T = drafting, level by level + the pass over all rows + the upkeep of the rows that are kept
 * and the drafts are those with the largest E / T, none among them. Beside a prompt's rows, which
 * are computed anyway, a draft is worth the time that its token would take otherwise.
 *
 * Each part of T is the bytes that it moves by a factor that is learnt for each of a few numbers of
 * rows: so one step tells something of all others, whatever the context, and what was never tried
 * looks as cheap as its neighbours and is tried. The chance of a level, given the one before, is
 * learnt for each sequence, which begins with what all of them have taught. Now and then a step
 * has another shape than the best, so that what has changed is seen; that loses a fiftieth at most.
 *
 * Choices depend on time, so they may decide nothing but speed. No allocation.
 */
#ifndef OFFSHOOT_ENGINE_COST_H
#define OFFSHOOT_ENGINE_COST_H

enum {
    MAX_LEVELS = 7,   /* of a chain: 8 sequences' fill a pass of 64 rows */
    COST_ROWS = 64,   /* sequences and rows of all trees of a step */
    COST_CELLS = 12,  /* numbers of rows that have a factor */
    PROBE_STEPS = 32, /* at least from one such step to the next */
};

/* What is moved, in bytes. */
typedef struct {
    double pass[COST_ROWS + 1]; /* weights of a pass over n rows */
    double state;               /* of a sequence: read and written */
    double key, head_key;       /* of a token of context: in the pass; in the draft head's layer */
    double head, scored;        /* weights of that layer; of the LM head's rows that it scores */
    double fold;                /* of a sequence after a pass with drafts */
} CostBytes;

/* The parts of a step; the second draft of a chain costs the head's layer, the first does not. */
typedef enum {
    COST_PASS,
    COST_FIRST_LEVEL,
    COST_NEXT_LEVEL,
    COST_UPKEEP,
    COST_DRAFTED_UPKEEP, /* after a pass with drafts */
    N_COST_PARTS
} CostPart;

/* Milliseconds a byte. */
typedef struct {
    double factor[COST_CELLS];
    int n_seen[COST_CELLS];
    long n_learnt; /* steps */
} CostCurve;

/* rate[d]: the chance that level d is kept when d - 1 was; [0] is not used. */
typedef struct {
    double rate[MAX_LEVELS + 1];
    long seen_at[MAX_LEVELS + 1]; /* the step */
} DraftRates;

typedef struct {
    CostBytes bytes;
    CostCurve curve[N_COST_PARTS];
    /* of rows by the dozens: in a pass; of those that the drafter sees, after it */
    double prompt_row_ms, shown_row_ms;
    DraftRates all;
    long n_steps;
    int n_probes, n_unprobed; /* steps since the last */
    double unprobed_ms;       /* that they were thought to take */
} Cost;

/* A step that is to come. */
typedef struct {
    int n; /* sequences that decode, 1..COST_ROWS */
    const DraftRates *rates[COST_ROWS];
    int most[COST_ROWS]; /* levels that can be of use; with the roots COST_ROWS rows at most */
    double keys;         /* tokens of all contexts */
    double head_keys;    /* those that the drafter has seen */
    int prompt_rows;     /* beside them */
} CostQuery;

/* A step that was. */
typedef struct {
    int n, n_rows;                  /* sequences that decode; rows of their trees */
    int level_rows[MAX_LEVELS + 1]; /* rows of level 1..; 0: the draft went no deeper */
    int n_kept;                     /* of the trees' rows */
    double keys, head_keys;
    int prompt_rows, n_shown; /* of which the drafter has seen so many */
    double draft_ms, pass_ms, upkeep_ms;
} CostStep;

void cost_init(Cost *c, const CostBytes *bytes);

/*
 * Of n rows of a prompt how many, the last ones, the drafter is to see: all where that is little
 * beside the prompt's own time, else as many as take little.
 */
int cost_shown_rows(const Cost *c, int n);

/* Levels of drafts for each of q's sequences. */
void cost_choose(Cost *c, const CostQuery *q, int *levels);

/* What the step that was chosen took. */
void cost_learn(Cost *c, const CostStep *s);

/* What became of a chain of n_levels: the first n_kept are, and the next is not, if there is one.
 */
void cost_kept(Cost *c, DraftRates *r, int n_levels, int n_kept);

#endif
