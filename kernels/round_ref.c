/*
 * round_ref.c: the plain definitions of round.h, and what the CPU runs: a handful of nodes a
 * sequence is no work for two threads.
 */
#include "kernels/ops_ref.h"
#include "kernels/round_steps.h"

void grow_drafts_ref(const GrowDrafts *a)
{
    for (int i = 0; i < a->n; i++)
        grow_draft(a, i);
}

void plant_trees_ref(const PlantTrees *a)
{
    for (int i = 0; i < a->n; i++)
        plant_tree(a, i);
}

void accept_trees_ref(const AcceptTrees *a)
{
    for (int i = 0; i < a->n; i++)
        accept_tree(a, i);
}
