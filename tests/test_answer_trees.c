/*
 * test_answer_trees.c: return_trees, what each step verified: over real sockets, on the
 * demonstration model. The kept nodes and what follows them are the answer.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "tests/analyzer.h"
#include "tests/served.h"

#define CHAT        "/v1/chat/completions"
#define COMPLETIONS "/v1/completions"

/* Appends the id that "token_id:N" names. */
static void add_id(json_t *ids, const json_t *text)
{
    const char *s = json_string_value(text);
    assert_true(s && !strncmp(s, "token_id:", 9));
    json_array_append_new(ids, json_integer(atoi(s + 9)));
}

/* Appends what a tree's step emitted, in tokens as ids; its root must be the last token. */
static void add_emitted(json_t *ids, const json_t *tree)
{
    const json_t *token = served_at(tree, "token"), *parent = served_at(tree, "parent"),
                 *kept = served_at(tree, "kept");
    size_t n = json_array_size(token), end = 0;
    json_t *root = json_array();
    assert_true(n >= 1 && json_array_size(parent) == n && json_array_size(kept) == n);
    add_id(root, json_array_get(token, 0));
    assert_true(json_equal(json_array_get(root, 0), json_array_get(ids, json_array_size(ids) - 1)));
    json_decref(root);
    assert_int_equal(json_integer_value(json_array_get(parent, 0)), -1);
    for (size_t i = 1; i < n; i++) {
        if (!json_integer_value(json_array_get(kept, i))) continue;
        assert_int_equal(json_integer_value(json_array_get(parent, i)), end);
        add_id(ids, json_array_get(token, i));
        end = i;
    }
    add_id(ids, json_object_get(tree, "next"));
}

/* What trees[] of a choice say that it is, after its first token, which is in no step. */
static void check_choice(const json_t *ids, const json_t *trees)
{
    json_t *told = json_array(), *tree;
    size_t i;
    json_array_append(told, json_array_get(ids, 0));
    assert_true(json_array_size(trees) > 0);
    json_array_foreach(trees, i, tree) add_emitted(told, tree);
    if (!json_equal(told, (json_t *)ids)) fail_msg("%s", json_dumps(told, 0));
    json_decref(told);
}

/* The trees and ids of choice 0 of all events. */
static void join(const json_t *events, json_t *trees, json_t *ids)
{
    size_t i;
    json_t *event;
    json_array_foreach(events, i, event)
    {
        json_array_extend(trees, (json_t *)served_at(event, "choices.0.trees"));
        json_array_extend(ids, (json_t *)served_at(event, "choices.0.token_ids"));
    }
}

#define FIELDS                                                                                     \
    "\"max_tokens\": 40, \"ignore_eos\": true, \"temperature\": 0, \"return_trees\": true, "       \
    "\"return_token_ids\": true, "                                                                 \
    "\"return_tokens_as_token_ids\": true"
#define MESSAGES                                                                                   \
    "\"messages\": [{\"role\": \"user\", \"content\": \"I want to find an Italian restaurant\"}]"

/* Whole and streamed say the same, and it is the answer. */
static void check_route(const char *path, const char *whole, const char *streamed)
{
    json_t *reply = served_post(served, path, whole, 200);
    json_t *events = served_events(served, path, streamed);
    json_t *trees = json_array(), *ids = json_array();
    join(events, trees, ids);
    assert_true(json_array_size(events) > 3);
    check_choice(served_at(reply, "choices.0.token_ids"), served_at(reply, "choices.0.trees"));
    assert_true(json_equal(ids, (json_t *)served_at(reply, "choices.0.token_ids")));
    assert_true(json_equal(trees, (json_t *)served_at(reply, "choices.0.trees")));
    json_decref(ids);
    json_decref(trees);
    json_decref(events);
    json_decref(reply);
}

static void test_routes(void **state)
{
    (void)state;
    check_route(COMPLETIONS, "{\"prompt\": \"I want to\", " FIELDS "}",
                "{\"prompt\": \"I want to\", \"stream\": true, " FIELDS "}");
    check_route(CHAT, "{" MESSAGES ", " FIELDS "}", "{" MESSAGES ", \"stream\": true, " FIELDS "}");
}

static int most_nodes(const json_t *trees)
{
    size_t i;
    json_t *tree;
    int most = 0;
    json_array_foreach(trees, i, tree)
    {
        int n = (int)json_array_size(json_object_get(tree, "token"));
        if (n > most) most = n;
    }
    return most;
}

/* Without drafts a tree is its root; with them these are the nodes that the figures count. */
static void test_drafts(void **state)
{
    (void)state;
    json_t *with = served_post(served, CHAT, "{" MESSAGES ", " FIELDS "}", 200);
    json_t *without =
        served_post(served, CHAT, "{" MESSAGES ", \"speculative.n_max\": 0, " FIELDS "}", 200);
    const json_t *trees = served_at(with, "choices.0.trees");
    size_t i, n_nodes = 0;
    json_t *tree;
    json_array_foreach(trees, i, tree) n_nodes += json_array_size(json_object_get(tree, "token"));
    assert_int_equal(n_nodes - json_array_size(trees), served_int_at(with, "timings.draft_n"));
    assert_true(most_nodes(trees) > 1);
    assert_int_equal(most_nodes(served_at(without, "choices.0.trees")), 1);
    check_choice(served_at(without, "choices.0.token_ids"), served_at(without, "choices.0.trees"));
    json_decref(without);
    json_decref(with);
}

/* Each choice has its own trees; nobody has them who does not ask; tokens are texts. */
static void test_choices(void **state)
{
    (void)state;
    json_t *two = served_post(
        served, CHAT, "{" MESSAGES ", " FIELDS ", \"n\": 2, \"temperature\": 1, \"seed\": 3}", 200);
    for (int i = 0; i < 2; i++) {
        char ids[32], trees[32];
        snprintf(ids, sizeof ids, "choices.%d.token_ids", i);
        snprintf(trees, sizeof trees, "choices.%d.trees", i);
        check_choice(served_at(two, ids), served_at(two, trees));
    }
    json_t *none = served_post(served, CHAT, "{" MESSAGES ", \"max_tokens\": 5}", 200);
    assert_null(served_at(none, "choices.0.trees"));
    json_t *text =
        served_post(served, CHAT,
                    "{" MESSAGES ", \"max_tokens\": 9, \"temperature\": 0, \"return_trees\": true, "
                    "\"chat_template_kwargs\": {\"enable_thinking\": false}}",
                    200);
    const char *root = served_text_at(text, "choices.0.trees.0.token.0");
    assert_true(*root);
    assert_memory_equal(served_text_at(text, "choices.0.message.content"), root, strlen(root));
    json_decref(text);
    json_decref(none);
    json_decref(two);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_routes),
        cmocka_unit_test(test_drafts),
        cmocka_unit_test(test_choices),
    };
    return cmocka_run_group_tests(tests, served_open, served_close);
}
