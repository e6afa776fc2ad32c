/* rates.c: see rates.h. */
#include "engine/rates.h"

#include <assert.h>

/* Steps after which what was seen of a level is old. */
enum { OLD_STEPS = 16 };

/* Weights of what is seen now, in one sequence's rates and in those of all. */
typedef struct {
    double often, seldom;
} Weights;

static const Weights OF_ONE = {1.0 / 32, 1.0 / 4}, OF_ALL = {1.0 / 128, 1.0 / 16};
static const double FIRST_RATE = 0.7;

/* A bin's chance is at first as sure as if it had been seen so often. */
enum { BELIEVED = 4 };

/* Where bins end: finer where a guess is nearly sure, as many are. */
static const float bin_end[SAID_BINS] = {0.02F, 0.05F, 0.1F, 0.15F, 0.2F,  0.3F,  0.4F,  0.5F,
                                         0.6F,  0.7F,  0.8F, 0.9F,  0.95F, 0.98F, 0.99F, 1.0F};

static int bin_of(float p)
{
    int i = 0;
    while (i < SAID_BINS - 1 && p >= bin_end[i])
        i++;
    return i;
}

void rates_init(DraftRates *r)
{
    *r = (DraftRates){0};
    for (int d = 1; d <= MAX_LEVELS; d++)
        r->level[d] = FIRST_RATE;
    for (int k = 0; k < RATE_BINS; k++) {
        int i = k % SAID_BINS;
        r->bin[k].chance = ((i ? bin_end[i - 1] : 0) + bin_end[i]) / 2;
    }
}

/* A set of the nodes that are their parent's best child, of a head's guesses or of the others. */
static uint64_t best_children(const Tree *t)
{
    int best[2][MAX_TREE_NODES] = {0}; /* of each node: the copies', the head's */
    uint64_t set = 0;
    _Static_assert(MAX_TREE_NODES <= 64, "a bit for each node");
    for (int i = 1; i < t->n; i++) {
        int *b = &best[t->from[i] != GUESS_COPY][t->parent[i]];
        if (!*b || t->value[i] > t->value[*b]) *b = i;
    }
    for (int i = 0; i < t->n; i++)
        set |= UINT64_C(1) << best[0][i] | UINT64_C(1) << best[1][i];
    return set;
}

static int is_in(uint64_t set, int i)
{
    return (int)(set >> i & 1);
}

/* The bin of node i. */
static int bin_at(const Tree *t, int i, int is_best)
{
    assert(t->from[i] > 0 && t->from[i] <= GUESS_BOTH);
    return ((t->from[i] - 1) * 2 + is_best) * SAID_BINS + bin_of(tree_share(t, i));
}

void rates_value(const DraftRates *r, const Tree *t, float *chance)
{
    uint64_t best = best_children(t);
    float sum[MAX_TREE_NODES] = {0};
    chance[0] = 1;
    for (int i = 1; i < t->n; i++) {
        chance[i] = (float)r->bin[bin_at(t, i, is_in(best, i))].chance;
        sum[t->parent[i]] += chance[i];
    }
    for (int i = 1; i < t->n; i++) {
        int p = t->parent[i];
        chance[i] *= chance[p] / (sum[p] > 1 ? sum[p] : 1);
    }
}

/* What is seen seldom counts for more. */
static void move_level(DraftRates *r, int d, int is_right, long step, const Weights *w)
{
    double weight = step - r->seen_at[d] >= OLD_STEPS ? w->seldom : w->often;
    r->level[d] += (is_right - r->level[d]) * weight;
    r->seen_at[d] = step;
}

/* A mean at first, then one of what was seen last. */
static void move_bin(RateBin *b, int is_right, const Weights *w)
{
    double weight = 1.0 / (BELIEVED + ++b->n_seen);
    if (weight <= w->often) {
        weight = w->often;
        b->n_seen--;
    }
    b->chance += (is_right - b->chance) * weight;
}

static void learn_child(DraftRates *r, const Tree *t, int i, int is_best, int is_right, long step,
                        const Weights *w)
{
    int is_head = t->from[i] != GUESS_COPY;
    move_bin(&r->bin[bin_at(t, i, is_best)], is_right, w);
    if (is_best && is_head && t->depth[i] <= MAX_LEVELS)
        move_level(r, t->depth[i], is_right, step, w);
}

void rates_learn(DraftRates *r, DraftRates *all, const Tree *t, const int32_t *token, int n,
                 long step)
{
    uint64_t best = best_children(t);
    for (int d = 0, node = 0; d < n && node >= 0; d++) {
        int next = -1;
        for (int i = node + 1; i < t->n; i++) {
            if (t->parent[i] != node) continue;
            int is_right = t->token[i] == token[d], is_best = is_in(best, i);
            learn_child(r, t, i, is_best, is_right, step, &OF_ONE);
            learn_child(all, t, i, is_best, is_right, step, &OF_ALL);
            if (is_right) next = i;
        }
        node = next;
    }
}
