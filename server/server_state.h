/*
 * server_state.h: what the parts of the server share. It belongs to the server's thread but where
 * it says otherwise; what is set when the service is loaded stays, and tasks of the workers read it
 * too.
 */
#ifndef OFFSHOOT_SERVER_SERVER_STATE_H
#define OFFSHOOT_SERVER_SERVER_STATE_H

#include <stdatomic.h>
#include <time.h>

#include <event2/event.h>

#include "server/dispatch.h"
#include "server/handover.h"
#include "server/loading.h"
#include "server/metrics.h"
#include "server/returned.h"
#include "server/server.h"
#include "server/stream.h"
#include "server/structures.h"
#include "server/worker.h"

typedef struct Call Call;
typedef struct Order Order;

enum { N_SIGNALS = 3 }; /* that end it */

struct Server {
    const Settings *settings;
    ServerLimits limits;
    const Service *service; /* &loaded; NULL while it is loading */
    Service loaded;
    const ModelConfig *config; /* the model's */
    int ctx_size, n_vocab;
    int draft_depth;           /* levels below the root that a tree may have */
    TokenList end_of_thinking; /* what is put in when reasoning grows too long */
    time_t started;
    double opened_ms; /* on the monotonic clock */
    char fingerprint[64];

    struct event_base *base;
    Http *http;
    Loading *loading;
    Dispatch *dispatch;
    StreamPulse *pulse;
    Worker *worker;         /* reads large bodies, writes large replies */
    Worker *compiler;       /* goes on with requests whose grammar is to be compiled */
    Structures *structures; /* NULL while it is loading */
    Metrics *metrics;       /* NULL while it is loading */
    Returned *returned;     /* NULL: no prefix cache */
    struct event *on_loaded, *on_reports, *on_worked, *on_compiled, *on_second, *on_stop,
        *on_drained, *on_left;
    struct event *on_signal[N_SIGNALS];
    int hung_up;        /* SIGHUP came */
    int stop_fd;        /* an eventfd; counts server_stop's calls */
    Handover *handover; /* our place, offered; NULL: it is not */
    int predecessor;    /* a connection to who has our place until we are ready; -1 */
    int handed_over;    /* our place is another's: old connections go on, to their next reply */

    Call *calls; /* all that are open */
    Call *dirty; /* those with something new for their clients */
    Order *orders;
    int draining;
    int lost; /* the device is gone or loading failed, for the reason in failure */
    Error failure;
    atomic_size_t json_bytes; /* of the bodies of all open requests, on any thread */
    atomic_int n_live;        /* dispatch_n_live, for other threads */
    atomic_int is_ready;      /* for other threads */
};

enum {
    INLINE_BODY_BYTES = 64 << 10, /* larger ones are read by the worker */
    SLICE_BYTES = 2 * (64 << 10), /* of which it reads so much in a turn: 64 KiB are searched for
                                     added tokens, then merged */
    MAX_LARGE_BODIES = 32,        /* that wait for it; then 429 */
    MAX_COMPILING = 4096,         /* requests that wait for a grammar; then 429 */
    ENCODE_MARGIN = 1 << 17,      /* tokens past the context that are still counted */
};

/*
 * Runs a task that reads the body of ex: at once to its end or to what takes long, or when it is
 * large by the worker, for which the body is copied to *body (to be freed by done). 0, or -1 and
 * the error was sent. *text and *len are the body.
 */
int server_run_task(Server *s, Exchange *ex, const Task *task, char **body, const char **text,
                    size_t *len);

/*
 * api_parse_body, and an error where the JSON of all open requests would be too much; one alone may
 * be as large as it is. server_hold_json: the same for JSON of the request that was read elsewhere.
 * *held, 0 at first, of which nobody else knows, is for server_forget_json, also after a failure.
 * On any thread.
 */
json_t *server_parse_body(Server *s, const char *text, size_t len, size_t *held, ApiError *err);
int server_hold_json(Server *s, size_t bytes, size_t *held, ApiError *err);
void server_forget_json(Server *s, size_t held);

/* What a request gets that does not say; max_tokens is what the route gives. */
ApiDefaults server_defaults(const Server *s, int max_tokens);

/* The system_fingerprint of replies: "offshoot-VERSION-DEVICE". */
const char *server_fingerprint(const Server *s);

/*
 * Any name will do (or NULL), unless the user wants it otherwise: clients ask for models of other
 * houses.
 */
int server_check_model(const Server *s, const char *asked, ApiError *err);

/* Sends *err as a reply and ends the exchange. */
void server_refuse(Exchange *ex, const ApiError *err);

/* 1 where new work is refused; who has handed over does what comes by its old connections. */
int server_is_ending(const Server *s);

/* Refuses, with 503, where the server is ending or its engine stands still. 1 when it did. */
int server_refuse_unwell(const Server *s, Exchange *ex);

/* What counts the tokens of a chat that came as another API's request. */
typedef struct {
    json_t *(*translate)(const json_t *body, ApiError *err); /* as in translate.h */
    const ApiFieldName *(*names)(const json_t *body);        /* for errors */
    ApiDefaults (*defaults)(const Server *s);
    const char *before; /* the reply, up to the number; a brace ends it */
} ChatCount;

/* Replies with the length of the prompt that a body makes; asks no engine. */
void api_count_chat(Server *s, Exchange *ex, const ChatCount *count);

/* Whether a request to the Server may go on to its route; a refusal was sent when not. */
int server_admit(void *server, Exchange *ex);

/* Calls the route of a request that was admitted. */
void server_route(void *server, Exchange *ex);

/* The routes. Each replies, or keeps the exchange for later. */
void api_completions(Server *s, Exchange *ex);
void api_chat(Server *s, Exchange *ex);
void api_anthropic(Server *s, Exchange *ex);
void api_anthropic_count(Server *s, Exchange *ex);
void api_anthropic_other(Server *s, Exchange *ex);
void api_responses(Server *s, Exchange *ex);
void api_responses_count(Server *s, Exchange *ex);
void api_models(Server *s, Exchange *ex);
void api_health(Server *s, Exchange *ex);
void api_page(Server *s, Exchange *ex);
void api_version(Server *s, Exchange *ex);
void api_metrics(Server *s, Exchange *ex);
void api_props(Server *s, Exchange *ex);
void api_tokenizer_info(Server *s, Exchange *ex);
void api_server_info(Server *s, Exchange *ex);
void api_model_info(Server *s, Exchange *ex);
void api_load(Server *s, Exchange *ex);
void api_loads(Server *s, Exchange *ex);
void api_health_generate(Server *s, Exchange *ex);
void api_flush_cache(Server *s, Exchange *ex);
void api_abort_request(Server *s, Exchange *ex);
void api_tokenize(Server *s, Exchange *ex);
void api_detokenize(Server *s, Exchange *ex);
void api_apply_template(Server *s, Exchange *ex);

#endif
