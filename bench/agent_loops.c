/* agent_loops.c: see agent_loops.h. */
#include "bench/agent_loops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "bench/json_lines.h"

/* ---- messages as the API has them ---- */

static const char *function_name(const json_t *call)
{
    return json_string_value(json_object_get(json_object_get(call, "function"), "name"));
}

static json_t *new_id(size_t i)
{
    char id[32];
    snprintf(id, sizeof id, "call_%zu", i);
    return json_string(id);
}

/* The call with an id and arguments as text, or NULL. */
static json_t *wire_call(const json_t *call, size_t i, Error *err)
{
    const char *name = function_name(call);
    json_t *arguments = json_object_get(json_object_get(call, "function"), "arguments");
    json_t *id = json_object_get(call, "id");
    if (!name || (!json_is_object(arguments) && !json_is_string(arguments))) {
        error_set(err, ERR_INPUT, "tool call %zu needs function.name and function.arguments", i);
        return NULL;
    }
    char *text = json_is_object(arguments) ? json_dumps(arguments, 0) : NULL;
    json_t *wire =
        json_pack("{s:o, s:s, s:{s:s, s:o}}", "id",
                  json_is_string(id) ? json_incref(id) : new_id(i), "type", "function", "function",
                  "name", name, "arguments", text ? json_string(text) : json_incref(arguments));
    free(text);
    return wire;
}

static int set_calls(json_t *message, const json_t *calls, Error *err)
{
    json_t *list = json_array(), *call;
    size_t i;
    int failed = 0;
    json_array_foreach(calls, i, call)
    {
        json_t *wire = wire_call(call, i, err);
        failed = !wire;
        if (failed) break;
        json_array_append_new(list, wire);
    }
    json_object_set_new(message, "tool_calls", list);
    return failed ? -1 : 0;
}

/* n_results: results since the last assistant turn. NULL: it is no message. */
static json_t *wire_message(const json_t *message, size_t *n_results, Error *err)
{
    const char *role = json_string_value(json_object_get(message, "role"));
    const json_t *calls = json_object_get(message, "tool_calls");
    if (!role || (calls && !json_is_array(calls))) {
        error_set(err, ERR_INPUT, role ? "'tool_calls' is no array" : "it has no 'role'");
        return NULL;
    }
    json_t *wire = json_copy((json_t *)message);
    if (!strcmp(role, "tool")) {
        if (!json_object_get(wire, "tool_call_id"))
            json_object_set_new(wire, "tool_call_id", new_id(*n_results));
        ++*n_results;
    }
    if (json_lines_is_answer(message)) *n_results = 0;
    if (calls && set_calls(wire, calls, err)) {
        json_decref(wire);
        return NULL;
    }
    return wire;
}

/* ---- turns ---- */

/* answer: the file's own, or NULL. */
static AgentTurn turn_of(int loop, int number, const json_t *answer)
{
    const char *call = function_name(json_array_get(json_object_get(answer, "tool_calls"), 0));
    AgentTurn turn = {.loop = loop, .turn = number, .opens = number == 1};
    if (call) turn.call = mem_strdup(call);
    return turn;
}

static void add_turn(AgentLoops *a, AgentTurn turn, json_t *history, json_t *tools,
                     const char *fields)
{
    char name[64];
    if (a->cases.n == a->cap) {
        a->cap = a->cap ? 2 * a->cap : 64;
        a->turn = mem_realloc(a->turn, (size_t)a->cap, sizeof *a->turn);
    }
    a->turn[a->cases.n] = turn;
    snprintf(name, sizeof name, "loop %d, turn %d", turn.loop, turn.turn);
    load_cases_add_chat(&a->cases, name, history, tools, fields);
}

/* The turns of a loop; how many, or -1. */
static int add_loop(AgentLoops *a, int loop, const json_t *messages, json_t *tools,
                    const char *fields, Error *err)
{
    json_t *history = json_array(), *message;
    size_t i, n_results = 0;
    int n_turns = 0;
    Error why = {0};
    json_array_foreach(messages, i, message)
    {
        json_t *wire = wire_message(message, &n_results, &why);
        if (!wire) {
            error_set(err, why.code, "message %zu: %s", i + 1, why.msg);
            n_turns = -1;
            break;
        }
        if (i && json_lines_is_answer(message))
            add_turn(a, turn_of(loop, ++n_turns, message), history, tools, fields);
        json_array_append_new(history, wire);
    }
    if (n_turns >= 0 && i && !json_lines_is_answer(json_array_get(messages, i - 1)))
        add_turn(a, turn_of(loop, ++n_turns, NULL), history, tools, fields);
    json_decref(history);
    return n_turns;
}

typedef struct {
    AgentLoops *loops;
    const char *fields;
} Reading;

static int add_line(void *ctx, int number, const json_t *line, Error *err)
{
    const Reading *r = ctx;
    AgentLoops *a = r->loops;
    const json_t *messages = json_object_get(line, "messages");
    json_t *tools;
    if (!json_is_array(messages)) return error_set(err, ERR_INPUT, "'messages' is no array");
    if (json_lines_tools(line, &tools, err)) return -1;
    int n = add_loop(a, number, messages, tools, r->fields, err);
    if (!n) return error_set(err, ERR_INPUT, "'messages' waits for no answer");
    a->n_loops += n > 0;
    return n < 0 ? -1 : 0;
}

int agent_loops_read(AgentLoops *a, const char *path, int limit, const char *fields, Error *err)
{
    Reading r = {a, fields};
    return json_lines_read(path, limit, add_line, &r, err);
}

void agent_loops_free(AgentLoops *a)
{
    for (int k = 0; k < a->cases.n; k++)
        mem_free(a->turn[k].call);
    mem_free(a->turn);
    load_cases_free(&a->cases);
    *a = (AgentLoops){0};
}
