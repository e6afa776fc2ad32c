/*
 * test_step_trees.c: the tree of each step, for who asks for it: on the demonstration model, over
 * whole answers, plain, in chains and in trees, alone and in company.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/asked.h"
#include "tests/tree_log.h"

enum { N_ASKED = 3, MOST_TOKENS = 48 };

typedef struct {
    TreeLog log[N_ASKED];
    int n_branches; /* trees of which some node has two children */
} Seen;

static int has_branch(const StepTree *t)
{
    for (int i = 2; i < t->n; i++)
        for (int k = 1; k < i; k++)
            if (t->parent[k] == t->parent[i]) return 1;
    return 0;
}

/* The last one asks for no trees and is given none. */
static void run(Engine *e, Seen *seen)
{
    Error err;
    for (int done = 0; done < N_ASKED;) {
        if (engine_step(e, &err) < 0) fail_msg("%s", err.msg);
        for (const Event *ev; (ev = engine_next_event(e));) {
            int at = (int)ev->id - 1;
            done += ev->type == EVENT_DONE;
            if (at == N_ASKED - 1) {
                assert_int_not_equal(ev->type, EVENT_TREE);
                continue;
            }
            tree_log_take(&seen->log[at], ev);
            if (ev->type == EVENT_TREE) seen->n_branches += has_branch(&ev->tree);
        }
    }
}

static void ask(Engine *e, Seen *seen)
{
    int32_t prompt[N_ASKED][MAX_PROMPT];
    for (int i = 0; i < N_ASKED; i++) {
        const json_t *ref = json_array_get(asked_references, (size_t)i);
        int n = asked_load_ids(json_object_get(ref, "prompt_ids"), prompt[i], MAX_PROMPT);
        EngineRequest r = asked_greedy((uint64_t)i + 1, prompt[i], n, MOST_TOKENS);
        r.trees = i < N_ASKED - 1;
        asked_submit(e, &r);
    }
    run(e, seen);
    asked_expect_idle(e);
}

static void test_trees(void **state)
{
    (void)state;
    static const int shape[][3] = {{1, 0, 1}, {4, 3, 1}, {12, 4, 3}};
    for (size_t k = 0; k < sizeof shape / sizeof *shape; k++) {
        AskedEngine s;
        Seen seen = {0};
        int accepted = 0;
        EngineOptions o = asked_options(shape[k][0], shape[k][1], shape[k][2]);
        asked_open(&s, o);
        ask(s.engine, &seen);
        for (int i = 0; i < N_ASKED - 1; i++) {
            assert_true(seen.log[i].n_trees > 2);
            accepted += seen.log[i].n_accepted;
        }
        assert_int_equal(accepted > 0, shape[k][0] > 1);
        assert_int_equal(seen.n_branches > 0, shape[k][2] > 1);
        asked_close(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_trees),
    };
    return cmocka_run_group_tests(tests, asked_open_demo, asked_close_demo);
}
