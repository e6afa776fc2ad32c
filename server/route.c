/*
 * route.c: which function answers a request, and what is refused before any does.
 */
#include <assert.h>
#include <stddef.h>
#include <string.h>
#include <strings.h>

#include "server/access.h"
#include "server/server_state.h"

typedef struct {
    const char *path; /* a trailing slash: everything below it; "/": itself alone */
    int methods;      /* bits of Method; HEAD goes with GET */
    int open;         /* 1: no key needed */
    int early;        /* 1: answers while the service is loading */
    void (*handle)(Server *s, Exchange *ex);
} Route;

static const Route routes[] = {
    {"/", METHOD_GET, 1, 1, api_page},
    {"/page/", METHOD_GET, 1, 1, api_page},
    {"/health", METHOD_GET, 1, 0, api_health},
    {"/v1/health", METHOD_GET, 1, 0, api_health},
    {"/ping", METHOD_GET, 1, 0, api_health},
    {"/version", METHOD_GET, 1, 1, api_version},
    {"/metrics", METHOD_GET, 1, 0, api_metrics},
    {"/v1/models", METHOD_GET, 0, 0, api_models},
    {"/models", METHOD_GET, 0, 0, api_models},
    {"/v1/models/", METHOD_GET, 0, 0, api_models},
    {"/models/", METHOD_GET, 0, 0, api_models},
    {"/v1/completions", METHOD_POST, 0, 0, api_completions},
    {"/completions", METHOD_POST, 0, 0, api_completions},
    {"/v1/chat/completions", METHOD_POST, 0, 0, api_chat},
    {"/chat/completions", METHOD_POST, 0, 0, api_chat},
    {"/v1/responses", METHOD_POST, 0, 0, api_responses},
    {"/responses", METHOD_POST, 0, 0, api_responses},
    {"/v1/responses/input_tokens", METHOD_POST, 0, 0, api_responses_count},
    {"/responses/input_tokens", METHOD_POST, 0, 0, api_responses_count},
    {"/v1/messages", METHOD_POST, 0, 0, api_anthropic},
    {"/v1/messages/count_tokens", METHOD_POST, 0, 0, api_anthropic_count},
    {"/api/event_logging/batch", METHOD_POST, 1, 1, api_anthropic_other},
    {"/api/hello", METHOD_GET, 1, 1, api_anthropic_other},
    {"/tokenize", METHOD_POST, 0, 0, api_tokenize},
    {"/detokenize", METHOD_POST, 0, 0, api_detokenize},
    {"/apply-template", METHOD_POST, 0, 0, api_apply_template},
    {"/tokenizer_info", METHOD_GET, 0, 0, api_tokenizer_info},
    {"/props", METHOD_GET, 0, 0, api_props},
    /* what routers ask of a worker: api_routers.c */
    {"/server_info", METHOD_GET, 1, 0, api_server_info},
    {"/get_server_info", METHOD_GET, 1, 0, api_server_info},
    {"/model_info", METHOD_GET, 1, 0, api_model_info},
    {"/get_model_info", METHOD_GET, 1, 0, api_model_info},
    {"/v1/loads", METHOD_GET, 1, 0, api_loads},
    {"/get_load", METHOD_GET, 1, 0, api_load},
    {"/get_loads", METHOD_GET, 1, 0, api_load},
    {"/health_generate", METHOD_GET, 1, 0, api_health_generate},
    {"/flush_cache", METHOD_GET | METHOD_POST, 0, 0, api_flush_cache},
    {"/reset_prefix_cache", METHOD_POST, 0, 0, api_flush_cache},
    {"/abort_request", METHOD_POST, 0, 0, api_abort_request},
};

static const Route *find_route(const char *path)
{
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        size_t n = strlen(routes[i].path);
        int below = n > 1 && routes[i].path[n - 1] == '/';
        if (below ? !strncmp(path, routes[i].path, n) && path[n] : !strcmp(path, routes[i].path))
            return &routes[i];
    }
    return NULL;
}

static const char *allowed(const Route *r)
{
    static const char *const text[] = {[METHOD_GET] = "GET, HEAD, OPTIONS",
                                       [METHOD_POST] = "POST, OPTIONS",
                                       [METHOD_GET | METHOD_POST] = "GET, HEAD, POST, OPTIONS"};
    return text[r->methods];
}

/* What is wrong with a request's form, whatever it asks for. 1 when it was refused. */
static int refuse_form(Exchange *ex)
{
    const char *type = exchange_header(ex, "Content-Type");
    const char *encoding = exchange_header(ex, "Content-Encoding");
    if (type && !strncasecmp(type, "multipart/", 10)) {
        exchange_error(ex, 415, NULL, NULL, "the body must be JSON");
        return 1;
    }
    if (encoding && strcasecmp(encoding, "identity") != 0) {
        exchange_error(ex, 415, NULL, NULL, "compressed bodies are not supported");
        return 1;
    }
    return 0;
}

static void answer_options(Exchange *ex, const Route *route)
{
    exchange_add_header(ex, "Allow", route ? allowed(route) : "GET, HEAD, POST, OPTIONS");
    exchange_empty(ex, 204);
}

static void refuse_path(Exchange *ex, const char *path)
{
    exchange_error(ex, 404, NULL, NULL,
                   strncmp(path, "/v1/v1/", 7) ? "there is no such route"
                                               : "the base URL must not repeat /v1");
}

int server_admit(void *ctx, Exchange *ex)
{
    Server *s = ctx;
    const char *path = exchange_path(ex);
    Method method = exchange_method(ex), as = method == METHOD_HEAD ? METHOD_GET : method;
    const Route *route = find_route(path);
    if (route) exchange_set_route(ex, route->path);
    access_add_cors(s->settings->cors, ex);
    if (method == METHOD_OPTIONS) {
        answer_options(ex, route);
    } else if (!route) {
        refuse_path(ex, path);
    } else if (!((int)as & route->methods)) {
        exchange_add_header(ex, "Allow", allowed(route));
        exchange_error(ex, 405, NULL, NULL, "this route does not know this method");
    } else if (!route->open && !access_has_key(s->settings->api_key, ex)) {
        exchange_error(ex, 401, "invalid_api_key", NULL, "no valid API key was given");
    } else if (!s->service && !route->early) {
        exchange_error(ex, 503, "loading", NULL, "Loading model");
    } else {
        if (s->handed_over) exchange_add_header(ex, "Connection", "close");
        return !refuse_form(ex);
    }
    return 0;
}

void server_route(void *ctx, Exchange *ex)
{
    const Route *route = find_route(exchange_path(ex));
    assert(route); /* server_admit has seen it */
    route->handle(ctx, ex);
}
