/*
 * shared_prefix.c: `bench shared-prefix`. See bench.h.
 *
 * Prompts are token ids drawn at random, so that nothing is shared but what is meant to be; each
 * prompt of a group repeats the group's system prompt. Answers go on to their full length, so that
 * every row has the same work but for what is read from the cache.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/splitmix.h"
#include "bench/json_report.h"
#include "bench/replay.h"

enum {
    DEFAULT_ANSWER = 128,
    DEFAULT_CONNECTIONS = 5,
    MAX_IDS = 1 << 28,
    /* Ids that all vocabularies have as plain text: another server's size is not known. */
    FIRST_ID = 300,
    N_IDS = 700,
};

static void draw_ids(int32_t *id, int n, uint64_t *state)
{
    for (int i = 0; i < n; i++)
        id[i] = FIRST_ID + (int32_t)(splitmix_next(state) % N_IDS);
}

/* Group of each prompt: every group's number as often as it has prompts, shuffled. */
static int *shuffled_groups(int n_groups, int n_each, uint64_t *state)
{
    int n = n_groups * n_each;
    int *group = mem_alloc((size_t)n, sizeof *group);
    for (int i = 0; i < n; i++) {
        int at = (int)(splitmix_next(state) % (uint64_t)(i + 1));
        group[i] = group[at];
        group[at] = i / n_each;
    }
    return group;
}

static char *request_fields(const Settings *set)
{
    json_t *fields =
        json_pack("{s:i, s:i, s:b}", "temperature", 0, "max_tokens",
                  set->max_tokens > 0 ? set->max_tokens : DEFAULT_ANSWER, "ignore_eos", 1);
    if (set->url && set->model) json_object_set_new(fields, "model", json_string(set->model));
    char *text = json_dumps(fields, JSON_COMPACT);
    json_decref(fields);
    return text;
}

static void add_prompts(LoadCases *cases, const Settings *set)
{
    int n_system = set->system_tokens, n = n_system + set->question_tokens;
    uint64_t state = set->seed < 0 ? 1 : (uint64_t)set->seed;
    int *group = shuffled_groups(set->groups, set->group_prompts, &state);
    int32_t *id = mem_alloc((size_t)n, sizeof *id);
    char *fields = request_fields(set), name[64];
    for (int i = 0; i < set->groups * set->group_prompts; i++) {
        uint64_t of_group = state + (uint64_t)group[i], of_prompt = ~(uint64_t)i;
        draw_ids(id, n_system, &of_group);
        draw_ids(id + n_system, set->question_tokens, &of_prompt);
        snprintf(name, sizeof name, "group %d, prompt %d", group[i] + 1, i + 1);
        load_cases_add_ids(cases, name, id, n, n, fields);
    }
    free(fields);
    mem_free(id);
    mem_free(group);
}

static int check_size(const Settings *set, Error *err)
{
    double n = (double)set->groups * set->group_prompts;
    double n_ids = n * ((double)set->system_tokens + set->question_tokens);
    if (n_ids <= MAX_IDS) return 0;
    return error_set(err, ERR_LIMIT, "%.0f prompts with %.0f tokens in all: %d tokens is the most",
                     n, n_ids, MAX_IDS);
}

static void print_json(const Replay *r, const char *model, int n_conns)
{
    json_t *rows = json_array();
    for (int i = 0; i < r->n_rows; i++)
        json_array_append_new(rows, replay_row_json(r, i));
    json_t *report = json_pack("{s:s?, s:i, s:i, s:i, s:o}", "model", model, "connections", n_conns,
                               "prompts", r->n_turns, "left_out", r->n_left_out, "rows", rows);
    json_report_print(report);
}

int bench_shared_prefix_run(const Service *s, const EngineOpener *opener, Error *err)
{
    const Settings *set = s->settings;
    LoadCases cases = {0};
    Replay replay = {0};
    ReplayPlan plan = {.cases = &cases, .quiet = set->json};
    if (check_size(set, err) || replay_connections(set, DEFAULT_CONNECTIONS, &plan.n_conns, err))
        return -1;
    add_prompts(&cases, set);
    if (!set->json && s->model_name) printf("model: %s\n", s->model_name); /* none with --url */
    int failed = replay_run(&replay, &plan, s, opener, err);
    if (!failed && set->json) print_json(&replay, s->model_name, plan.n_conns);
    if (!failed && !set->json)
        printf("\n%d groups of %d prompts, %d + %d tokens, %d at a time\n", set->groups,
               set->group_prompts, set->system_tokens, set->question_tokens, plan.n_conns);
    if (!failed && !set->json && replay.n_left_out)
        printf("prompts too long for the context: %d\n", replay.n_left_out);
    if (!failed) failed = replay_check(&replay, err);
    replay_free(&replay);
    load_cases_free(&cases);
    return failed ? -1 : 0;
}
