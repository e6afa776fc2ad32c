/*
 * cost_case.h: what tests of costs and of what is drafted for them make up.
 */
#ifndef OFFSHOOT_TESTS_COST_CASE_H
#define OFFSHOOT_TESTS_COST_CASE_H

#include "engine/cost.h"

/* A little model: weights of 100 MB, a head of 10. */
CostBytes cost_case_bytes(void);

/* In [0, 1), by a state that begins with any number. */
double cost_case_lot(uint64_t *state);

#endif
