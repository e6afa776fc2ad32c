/*
 * result_order.c: results of tools in the order of their calls; see api_request.h.
 *
 * Templates that print no ids leave it to the order which result is whose, and clients send results
 * as they come in.
 */
#include "server/api_request.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

typedef struct {
    json_int_t call; /* which of the calls before it */
    size_t at;       /* its place among the messages */
} Result;

static int compare(const void *a, const void *b)
{
    const Result *x = a, *y = b;
    if (x->call != y->call) return x->call < y->call ? -1 : 1;
    return x->at < y->at ? -1 : 1;
}

static int is_result(const json_t *message)
{
    const char *role = api_word(json_object_get(message, "role"));
    return role && !strcmp(role, "tool");
}

/* The calls of a message by their ids. */
static json_t *number_calls(const json_t *message)
{
    json_t *numbers = json_object(), *call;
    size_t i;
    json_array_foreach(json_field(message, "tool_calls"), i, call)
    {
        const char *id = api_word(json_object_get(call, "id"));
        if (id) json_object_set_new(numbers, id, json_integer((json_int_t)i));
    }
    return numbers;
}

/* Those whose call is not known stay where they are. */
static void sort_results(const json_t *list, const json_t *numbers, size_t from, size_t to,
                         size_t *order)
{
    Result *known = mem_alloc(to - from, sizeof *known);
    size_t *place = mem_alloc(to - from, sizeof *place), n = 0;
    for (size_t i = from; i < to; i++) {
        const char *id = api_word(json_object_get(json_array_get(list, i), "tool_call_id"));
        const json_t *call = id ? json_object_get(numbers, id) : NULL;
        if (!call) continue;
        known[n] = (Result){json_integer_value(call), i};
        place[n++] = i;
    }
    qsort(known, n, sizeof *known, compare);
    for (size_t i = 0; i < n; i++)
        order[place[i]] = known[i].at;
    mem_free(place);
    mem_free(known);
}

size_t *api_message_order(const json_t *list)
{
    size_t n = json_array_size(list), *order = mem_alloc(n, sizeof *order);
    for (size_t i = 0; i < n; i++)
        order[i] = i;
    for (size_t from = 1, to; from < n; from = to + 1) {
        for (to = from; to < n && is_result(json_array_get(list, to));)
            to++;
        if (to - from < 2) continue;
        json_t *numbers = number_calls(json_array_get(list, from - 1));
        sort_results(list, numbers, from, to, order);
        json_decref(numbers);
    }
    return order;
}
