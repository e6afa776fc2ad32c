/* cost_case.c: see cost_case.h. */
#include "tests/cost_case.h"

CostBytes cost_case_bytes(void)
{
    CostBytes b = {.state = 1e6, .key = 1e3, .head_key = 1e2, .head = 1e7, .scored = 1e7};
    for (int n = 1; n <= COST_ROWS; n++)
        b.pass[n] = 1e8;
    return b;
}

double cost_case_lot(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 11) / 9007199254740992.0;
}
