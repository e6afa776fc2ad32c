/*
 * cost.h: what the parts of a step take, learnt from steps while serving.
 *
 * A step drafts, level by level; it runs a pass over all rows; it keeps up what the kept rows
 * leave. Each part takes the bytes that it moves by a factor that is learnt for each of a few
 * numbers of rows: so one step tells something of all others, whatever the context, and what was
 * never tried looks as cheap as its neighbours let hope and is tried. No allocation.
 */
#ifndef OFFSHOOT_ENGINE_COST_H
#define OFFSHOOT_ENGINE_COST_H

#include "engine/rates.h"

enum {
    COST_ROWS = 64,  /* sequences and rows of all trees of a step */
    COST_CELLS = 12, /* numbers of rows that have a factor */
};

/* What is moved, in bytes. */
typedef struct {
    double pass[COST_ROWS + 1]; /* weights of a pass over n rows */
    double state;               /* of a sequence: read and written */
    double key, head_key;       /* of a token of context: in the pass; in the draft head's layer */
    double head, scored;        /* weights of that layer; of the LM head's rows that it scores */
    double fold;                /* of a sequence after a pass with drafts */
} CostBytes;

/* The parts of a step; the second level of drafts costs the head's layer, the first does not. */
typedef enum {
    COST_PASS,
    COST_FIRST_LEVEL,
    COST_NEXT_LEVEL,
    COST_UPKEEP,
    COST_DRAFTED_UPKEEP, /* after a pass with drafts */
    COST_ROUND,          /* all of a step that a device does as one (round.h) */
    N_COST_PARTS
} CostPart;

/* Milliseconds a byte. */
typedef struct {
    double factor[COST_CELLS];
    int n_seen[COST_CELLS];
    long n_learnt; /* steps */
    int n_doubted; /* steps that were left out */
} CostCurve;

typedef struct {
    CostBytes bytes;
    CostCurve curve[N_COST_PARTS];
    /* of rows by the dozens: in a pass; of those that the drafter sees, after it */
    double prompt_row_ms, shown_row_ms;
} Cost;

/* Who is in a step. */
typedef struct {
    int n;            /* sequences that decode, up to COST_ROWS */
    double keys;      /* tokens of all their contexts */
    double head_keys; /* those that the drafter has seen */
    int prompt_rows;  /* beside them */
} CostCompany;

/* A sequence joins them: n_tokens of context, of which the drafter has seen those from first_seen.
 */
static inline void cost_join(CostCompany *who, int n_tokens, int first_seen)
{
    who->n++;
    who->keys += n_tokens;
    who->head_keys += n_tokens - first_seen;
}

/* A step that was. */
typedef struct {
    CostCompany who;
    int n_rows;                     /* of all trees */
    int level_rows[MAX_LEVELS + 1]; /* nodes after which level 1.. guessed; 0: there was none */
    int n_kept;                     /* of the trees' rows, those that the drafter has seen */
    int n_shown;                    /* of the prompt's rows, those that the drafter has seen */
    double draft_ms, pass_ms, upkeep_ms;
} CostStep;

void cost_init(Cost *c, const CostBytes *bytes);

/*
 * Of n rows of a prompt how many, the last ones, the drafter is to see: all where that is little
 * beside the prompt's own time, else as many as take little.
 */
int cost_shown_rows(const Cost *c, int n);

/* What the step took. */
void cost_learn(Cost *c, const CostStep *s);

/* The same of a device's round, whose sequences all had `levels` levels of drafts, in chains. */
void cost_learn_round(Cost *c, const CostCompany *who, int levels, double ms);

/*
 * Rows of a pass, or of a round, that are no great risk: twice as many as were seen more than once.
 * So what rows take is learnt from below.
 */
int cost_safe_rows(const Cost *c, CostPart part);

/* Milliseconds of a level of drafts, 1.., that guesses what follows n_rows nodes. */
double cost_level_ms(const Cost *c, const CostCompany *who, int level, int n_rows);

/* Of a pass over n_rows rows of trees, the roots among them, and those of a prompt. */
double cost_pass_ms(const Cost *c, const CostCompany *who, int n_rows);

/* Of the upkeep of n_kept rows of trees; 0 beside many rows of a prompt, with whose it is done. */
double cost_upkeep_ms(const Cost *c, const CostCompany *who, int n_kept, int has_drafts);

/* Of a device's round: n (levels + 1) rows, COST_ROWS at most. */
double cost_round_ms(const Cost *c, const CostCompany *who, int levels);

#endif
