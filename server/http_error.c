/* http_error.c: what an error looks like to a client: its status, its type, its body; see http.h.
 */
#include "server/http.h"

#include <string.h>

#include "server/json_out.h"

int http_status(ErrorCode code)
{
    static const int status[] = {
        [ERR_NONE] = 200, [ERR_INPUT] = 400, [ERR_LIMIT] = 400,
        [ERR_BUSY] = 429, [ERR_FILE] = 500,  [ERR_DEVICE] = 500,
    };
    return status[code];
}

typedef struct {
    int status;
    const char *type;
} ErrorType;

static const char *find_type(const ErrorType *types, int status)
{
    while (types->status && types->status != status)
        types++;
    return types->type;
}

json_t *http_error_body(int status, const char *code, const char *param, const char *message)
{
    static const ErrorType types[] = {
        {401, "authentication_error"}, {404, "not_found_error"},  {429, "rate_limit_error"},
        {500, "server_error"},         {503, "overloaded_error"}, {0, "invalid_request_error"},
    };
    return json_pack("{s:{s:o, s:s, s:s?, s:s?}}", "error", "message", json_text(message), "type",
                     find_type(types, status), "param", param, "code", code);
}

int http_is_anthropic(const char *path)
{
    static const char root[] = "/v1/messages";
    size_t n = sizeof root - 1;
    return !strncmp(path, root, n) && (!path[n] || path[n] == '/');
}

/* Our other codes are OpenAI's, and mean nothing to Anthropic's clients. */
static json_t *anthropic_details(const char *code)
{
    if (!code || strcmp(code, "thread_unsupported_request") != 0) return NULL;
    return json_pack("{s:s}", "error_code", code);
}

json_t *http_anthropic_error_body(int status, const char *code, const char *message,
                                  const char *request_id)
{
    static const ErrorType types[] = {
        {401, "authentication_error"}, {404, "not_found_error"},     {408, "timeout_error"},
        {413, "request_too_large"},    {429, "rate_limit_error"},    {500, "api_error"},
        {503, "overloaded_error"},     {0, "invalid_request_error"},
    };
    return json_pack("{s:s, s:{s:s, s:o, s:o*}, s:s}", "type", "error", "error", "type",
                     find_type(types, status), "message", json_text(message), "details",
                     anthropic_details(code), "request_id", request_id);
}
