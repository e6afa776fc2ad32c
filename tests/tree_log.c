/* tree_log.c: see tree_log.h. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include "tests/tree_log.h"

/* The kept nodes are one path from the root; what follows the root there is due, then next. */
static void take_tree(TreeLog *log, const StepTree *t)
{
    int end = 0;
    assert_true(t->n >= 1 && t->n <= MAX_TREE_NODES);
    assert_int_equal(log->at_due, log->n_due);
    assert_true(log->n_tokens > 0);
    assert_int_equal(t->token[0], log->last);
    assert_int_equal(t->parent[0], -1);
    assert_int_equal(t->kept[0], 1);
    log->at_due = log->n_due = 0;
    for (int i = 1; i < t->n; i++) {
        assert_true(t->parent[i] >= 0 && t->parent[i] < i);
        if (!t->kept[i]) continue;
        assert_int_equal(t->parent[i], end);
        log->due[log->n_due++] = t->token[i];
        end = i;
    }
    log->n_accepted += log->n_due;
    log->n_drafted += t->n - 1;
    log->n_trees++;
    if (t->next >= 0) log->due[log->n_due++] = t->next;
}

static void take_token(TreeLog *log, const Event *ev)
{
    log->last = ev->token;
    log->n_tokens++;
    if (log->at_due == log->n_due) {
        assert_false(ev->drafted); /* a prompt's, or forced */
        return;
    }
    assert_int_equal(ev->token, log->due[log->at_due++]);
    assert_int_equal(ev->drafted, log->at_due < log->n_due);
}

void tree_log_take(TreeLog *log, const Event *ev)
{
    if (ev->type == EVENT_TREE) take_tree(log, &ev->tree);
    if (ev->type == EVENT_TOKEN) take_token(log, ev);
    if (ev->type != EVENT_DONE) return;
    assert_int_equal(log->at_due, log->n_due);
    assert_int_equal(log->n_trees, ev->stats.n_steps);
    assert_int_equal(log->n_drafted, ev->stats.n_drafted);
    assert_int_equal(log->n_accepted, ev->stats.n_accepted);
}
