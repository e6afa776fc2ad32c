/*
 * api_routers.c: what the routers of SGLang and vLLM ask of a server behind them: what it is, how
 * much it has to do, whether it lives, and to forget.
 */
#include "server/call.h"

#include <time.h>

#include "base/version.h"
#include "server/json_out.h"
#include "server/orders.h"

/* SGLang's own bench reads avg_spec_accept_length; without drafts its servers have none. */
static json_t *internal_state(const Server *s, const EngineStatus *status)
{
    json_t *state = json_pack("{s:i}", "effective_max_running_requests_per_dp", status->max_seqs);
    if (status->drafter)
        json_object_set_new(state, "avg_spec_accept_length",
                            json_real(metrics_acceptance_length(s->metrics)));
    return state;
}

/* Paths of the host are nobody's business: the model's name stands for its folder. */
void api_server_info(Server *s, Exchange *ex)
{
    const char *name = s->service->model_name;
    EngineStatus status;
    dispatch_status(s->dispatch, &status);
    json_t *body = json_pack("{s:s, s:o, s:o, s:i, s:i, s:i, s:i, s:i, s:s, s:[o]}", "version",
                             OFFSHOOT_VERSION, "model_path", json_text(name), "served_model_name",
                             json_text(name), "tp_size", 1, "dp_size", 1, "max_total_num_tokens",
                             status.pages * PAGE_TOKENS, "context_length", s->ctx_size,
                             "max_running_requests", status.max_seqs, "disaggregation_mode", "null",
                             "internal_states", internal_state(s, &status));
    exchange_json(ex, body);
}

void api_model_info(Server *s, Exchange *ex)
{
    const char *name = s->service->model_name;
    exchange_json(ex,
                  json_pack("{s:o, s:o, s:o, s:b, s:s, s:s, s:i}", "model_path", json_text(name),
                            "tokenizer_path", json_text(name), "served_model_name", json_text(name),
                            "is_generation", 1, "weight_version", "default", "model_type",
                            s->config->model_type, "context_length", s->ctx_size));
}

typedef struct {
    EngineStatus status;
    int n_live, n_waiting; /* answers; the others run */
    json_int_t n_used;     /* tokens of prompts and answers in the engine */
    json_int_t n_tokens;   /* of all: the work that a new request would wait for */
} Load;

static void add_answer(Load *load, const Answer *a)
{
    json_int_t n = a->request.n_prompt + a->n_tokens;
    if (a->state == ANSWER_DONE) return;
    load->n_tokens += n;
    if (a->state == ANSWER_RUNNING) load->n_used += n;
}

static Load read_load(const Server *s)
{
    Load load = {.n_live = dispatch_n_live(s->dispatch)};
    dispatch_status(s->dispatch, &load.status);
    for (const Call *call = s->calls; call; call = call->next)
        for (int i = 0; !call->is_lent && i < call->n_answers; i++)
            add_answer(&load, &call->answers[i]);
    if (load.n_live > load.status.running) load.n_waiting = load.n_live - load.status.running;
    return load;
}

/* SGLang's older list. */
void api_load(Server *s, Exchange *ex)
{
    Load load = read_load(s);
    exchange_json(ex, json_pack("[{s:i, s:i, s:i, s:I}]", "dp_rank", 0, "num_reqs", load.n_live,
                                "num_waiting_reqs", load.n_waiting, "num_tokens", load.n_tokens));
}

/* Its newer object. What is not measured here, as throughput, is not in it. */
void api_loads(Server *s, Exchange *ex)
{
    Load load = read_load(s);
    int n_running = load.n_live - load.n_waiting, n_most = load.status.max_seqs;
    int n_room = load.status.pages * PAGE_TOKENS;
    double usage = (double)load.n_used / n_room, utilization = (double)n_running / n_most;
    char timestamp[32];
    time_t now = time(NULL);
    struct tm utc;
    strftime(timestamp, sizeof timestamp, "%Y-%m-%dT%H:%M:%S+00:00", gmtime_r(&now, &utc));
    json_t *rank = json_pack(
        "{s:i, s:i, s:i, s:i, s:I, s:I, s:i, s:i, s:f, s:f}", "dp_rank", 0, "num_running_reqs",
        n_running, "num_waiting_reqs", load.n_waiting, "num_total_reqs", load.n_live,
        "num_used_tokens", load.n_used, "num_total_tokens", load.n_tokens, "max_total_num_tokens",
        n_room, "max_running_requests", n_most, "token_usage", usage, "utilization", utilization);
    json_t *sums = json_pack("{s:i, s:i, s:i, s:I, s:I, s:f, s:f}", "total_running_reqs", n_running,
                             "total_waiting_reqs", load.n_waiting, "total_reqs", load.n_live,
                             "total_used_tokens", load.n_used, "total_tokens", load.n_tokens,
                             "avg_token_usage", usage, "avg_utilization", utilization);
    exchange_json(ex, json_pack("{s:s, s:s, s:i, s:[o], s:o}", "timestamp", timestamp, "version",
                                OFFSHOOT_VERSION, "dp_rank_count", 1, "loads", rank, "aggregate",
                                sums));
}

void api_health_generate(Server *s, Exchange *ex)
{
    orders_give(s, ex, ORDER_NONE, s->limits.order_s);
}

void api_flush_cache(Server *s, Exchange *ex)
{
    orders_give(s, ex, ORDER_FLUSH_CACHE, 0);
}

/* {"rid": ...}, or {"abort_all": true}. */
void api_abort_request(Server *s, Exchange *ex)
{
    ApiError err = {0};
    size_t len;
    const char *text = exchange_body(ex, &len);
    int all = 0, refused;
    if (len > INLINE_BODY_BYTES) {
        exchange_error(ex, 413, "request_too_large", NULL, "the body is too large for this route");
        return;
    }
    json_t *body = api_parse_body(text, len, NULL, &err);
    const char *rid = json_string_value(json_field(body, "rid"));
    refused = !body || api_read_bool(body, "abort_all", &all, &err);
    if (!refused && !all && !rid)
        refused = api_error(&err, ERR_INPUT, "rid", "rid must be the id of a request");
    if (refused)
        server_refuse(ex, &err);
    else
        exchange_json(ex, json_pack("{s:i}", "aborted", call_abort(s, all ? NULL : rid)));
    json_decref(body);
}
