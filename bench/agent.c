/* agent.c: `bench agent`. See bench.h. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "bench/agent_loops.h"
#include "bench/json_lines.h"
#include "bench/json_report.h"
#include "bench/replay.h"

enum { DEFAULT_ANSWER = 96 };

static const char SAMPLE[] = "bench/prompts/agent.jsonl";

static void set_if_given(json_t *fields, const char *name, double value)
{
    if (!isnan(value)) json_object_set_new(fields, name, json_real(value));
}

/* Greedy answers without thinking, unless the user says otherwise; draws by lot repeat. */
static char *request_fields(const Settings *set)
{
    json_t *fields = json_pack("{s:f, s:i, s:{s:b}}", "temperature",
                               isnan(set->temperature) ? 0 : set->temperature, "max_tokens",
                               set->max_tokens > 0 ? set->max_tokens : DEFAULT_ANSWER,
                               "chat_template_kwargs", "enable_thinking", set->thinking == ON);
    json_object_set_new(fields, "seed", json_integer(set->seed < 0 ? 1 : set->seed));
    set_if_given(fields, "top_p", set->top_p);
    set_if_given(fields, "min_p", set->min_p);
    if (set->top_k >= 0) json_object_set_new(fields, "top_k", json_integer(set->top_k));
    if (set->url && set->model) json_object_set_new(fields, "model", json_string(set->model));
    char *text = json_dumps(fields, JSON_COMPACT);
    json_decref(fields);
    return text;
}

/* ---- the report ---- */

/* Of the answers, which the rows share: those that call the function that the file's turn calls. */
static int n_calls_right(const AgentLoops *a)
{
    int n = 0;
    for (int k = 0; k < a->cases.n; k++) {
        const char *name = NULL, *form = a->cases.list[k].alone.form;
        json_t *answer = a->turn[k].call && form ? json_loads(form, 0, NULL) : NULL;
        json_unpack(answer, "{s:[{s:{s:[{s:{s:s}}]}}]}", "choices", "message", "tool_calls",
                    "function", "name", &name);
        n += name && !strcmp(name, a->turn[k].call);
        json_decref(answer);
    }
    return n;
}

static int n_calls(const AgentLoops *a)
{
    int n = 0;
    for (int k = 0; k < a->cases.n; k++)
        n += a->turn[k].call != NULL;
    return n;
}

/* The first turn of a loop reads tools and all; the others have little that is new. */
static void print_by_place(const AgentLoops *a, const Replay *r)
{
    char *opens = mem_alloc((size_t)r->n_turns, 1), *goes_on = mem_alloc((size_t)r->n_turns, 1);
    for (int k = 0; k < r->n_turns; k++) {
        opens[k] = (char)a->turn[k].opens;
        goes_on[k] = (char)!opens[k];
    }
    printf("\n%-12s %26s %26s\n", "", "first turn of a loop, ms", "later turns, ms");
    printf("%-5s %-6s %8s %8s %8s %8s %8s %8s\n", "cache", "drafts", "p50", "p95", "p99", "p50",
           "p95", "p99");
    for (int i = 0; i < r->n_rows; i++) {
        ReplaySum first = replay_sum(r, i, opens), later = replay_sum(r, i, goes_on);
        replay_print_name(&r->row[i]);
        for (int p = 0; p < 3; p++)
            printf(" %8.1f", first.first_ms_p[p]);
        for (int p = 0; p < 3; p++)
            printf(" %8.1f", later.first_ms_p[p]);
        printf("\n");
    }
    mem_free(opens);
    mem_free(goes_on);
}

static void print_rest(const AgentLoops *a, const Replay *r)
{
    print_by_place(a, r);
    printf("\n%d loops, %d turns; of %d turns with calls %d answers call the same function\n",
           a->n_loops, r->n_turns, n_calls(a), n_calls_right(a));
    if (r->n_left_out) printf("prompts too long for the context: %d\n", r->n_left_out);
}

static json_t *turns_json(const AgentLoops *a, const ReplayRow *row)
{
    json_t *list = json_array();
    for (int k = 0; k < a->cases.n; k++) {
        json_t *turn = replay_turn_json(&row->turn[k]);
        json_object_set_new(turn, "loop", json_integer(a->turn[k].loop));
        json_object_set_new(turn, "turn", json_integer(a->turn[k].turn));
        json_array_append_new(list, turn);
    }
    return list;
}

static void print_json(const AgentLoops *a, const Replay *r, const char *model)
{
    json_t *rows = json_array();
    for (int i = 0; i < r->n_rows; i++) {
        json_t *row = replay_row_json(r, i);
        json_object_set_new(row, "each", turns_json(a, &r->row[i]));
        json_array_append_new(rows, row);
    }
    json_t *report = json_pack("{s:s?, s:i, s:i, s:i, s:i, s:i, s:o}", "model", model, "loops",
                               a->n_loops, "turns", r->n_turns, "left_out", r->n_left_out, "calls",
                               n_calls(a), "calls_right", n_calls_right(a), "rows", rows);
    json_report_print(report);
}

int bench_agent_run(const Service *s, const EngineOpener *opener, Error *err)
{
    const Settings *set = s->settings;
    AgentLoops loops = {0};
    Replay replay = {0};
    const char *path = json_lines_path(set->prompts, SAMPLE, err);
    if (!path) return -1;
    char *fields = request_fields(set); /* jansson's */
    int failed = agent_loops_read(&loops, path, set->limit, fields, err);
    free(fields);
    if (!failed) {
        ReplayPlan plan = {
            .cases = &loops.cases, .n_conns = 1, .compare_drafts = 1, .quiet = set->json};
        if (!set->json && s->model_name) printf("model: %s\n", s->model_name); /* none with --url */
        failed = replay_run(&replay, &plan, s, opener, err);
    }
    if (!failed && set->json) print_json(&loops, &replay, s->model_name);
    if (!failed && !set->json) print_rest(&loops, &replay);
    if (!failed) failed = replay_check(&replay, err);
    replay_free(&replay);
    agent_loops_free(&loops);
    return failed ? -1 : 0;
}
