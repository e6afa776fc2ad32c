/*
 * tree_log.h: follows the events of one request that asked for trees, and fails where a tree is not
 * what its step emits.
 */
#ifndef OFFSHOOT_TESTS_TREE_LOG_H
#define OFFSHOOT_TESTS_TREE_LOG_H

#include "engine/engine.h"

typedef struct {
    int32_t last; /* the token that was emitted last */
    int n_tokens;
    int32_t due[MAX_TREE_NODES + 1]; /* what the last tree's step still has to emit */
    int at_due, n_due;
    int n_trees, n_drafted, n_accepted; /* to be equal to the request's figures */
} TreeLog;

/* To be told of all events of the request, in order, from a zeroed log on. */
void tree_log_take(TreeLog *log, const Event *ev);

#endif
