/*
 * test_access.c: who may ask the server: its keys, and the pages of which origins.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "tests/analyzer.h"
#include "tests/served.h"

#define COMPLETIONS "/v1/completions"
#define SHORT       "{\"prompt\": \"Hello\", \"max_tokens\": 3, \"temperature\": 0}"
#define STREAMED    "{\"prompt\": \"Hello\", \"max_tokens\": 3, \"temperature\": 0, \"stream\": true}"

static void test_api_key(void **state)
{
    (void)state;
    static const struct {
        const char *path, *headers;
        int status;
    } rows[] = {
        {"/health", "", 200},
        {"/v1/models", "", 401},
        {"/v1/models", "Authorization: Bearer\r\n", 401},
        {"/v1/models", "Authorization: Bearer \r\n", 401},
        {"/v1/models", "Authorization: Bearer secre\r\n", 401},
        {"/v1/models", "Authorization: Bearer secrett\r\n", 401},
        {"/v1/models", "Authorization: Bearer secretsecret\r\n", 401},
        {"/v1/models", "Authorization: Basic secret\r\n", 401},
        {"/v1/models", "x-api-key: Secret\r\n", 401},
        {"/v1/models", "Authorization: Bearer secret\r\n", 200},
        {"/v1/models", "authorization: bearer secret\r\n", 200},
        {"/v1/models", "x-api-key: secret\r\n", 200},
    };
    ServedOptions o = served_defaults();
    o.api_key = "secret";
    Served *s = served_start(&o);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        HttpReply r = http_exchange(s->port, "GET", rows[i].path, rows[i].headers, "");
        if (r.status != rows[i].status) fail_msg("%s: %d", rows[i].headers, r.status);
        if (r.status == 401) served_expect_error(&r, "authentication_error");
        if (r.status == 401) assert_string_equal(http_header(&r, "WWW-Authenticate"), "Bearer");
        http_reply_free(&r);
    }
    HttpReply r = http_exchange(s->port, "OPTIONS", "/v1/chat/completions", "", "");
    assert_int_equal(r.status, 204);
    http_reply_free(&r);
    assert_int_equal(served_stop(s), 0);
}

static void test_several_keys(void **state)
{
    (void)state;
    static const struct {
        const char *headers;
        int status;
    } rows[] = {
        {"", 401},
        {"x-api-key: one\r\n", 200},
        {"x-api-key: two\r\n", 200},
        {"Authorization: Bearer three\r\n", 200},
        {"Authorization:   BEARER   two\r\n", 200},
        {"Authorization: Bearer wrong\r\nx-api-key: one\r\n", 200},
        {"Authorization: Bearer\r\n", 401},
        {"Authorization: Bearer \r\n", 401},
        {"Authorization: Bearer onetwo\r\n", 401},
        {"Authorization: Bearer one,two\r\n", 401},
        {"Authorization: Bearerone\r\n", 401},
        {"Authorization: one\r\n", 401},
        {"x-api-key: \r\n", 401},
        {"x-api-key: ,\r\n", 401},
    };
    ServedOptions o = served_defaults();
    o.api_key = "one, two ,,three,";
    Served *s = served_start(&o);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        HttpReply r = http_exchange(s->port, "GET", "/v1/models", rows[i].headers, "");
        if (r.status != rows[i].status) fail_msg("%s: %d", rows[i].headers, r.status);
        http_reply_free(&r);
    }
    assert_int_equal(served_stop(s), 0);
}

/* The value, or "" when the header is absent. */
static void assert_header(const HttpReply *r, const char *name, const char *value)
{
    const char *is = http_header(r, name);
    if (strcmp(is ? is : "", value) != 0) fail_msg("%s: %s, not %s", name, is ? is : "", value);
}

static void test_cors(void **state)
{
    (void)state;
    char large[2000]; /* more than it takes */
    memset(large, ' ', sizeof large);
    large[sizeof large - 1] = 0;
    static const struct {
        const char *origins, *origin, *allowed, *vary;
    } rows[] = {
        {NULL, "https://a.example", "", ""},
        {"*", "https://a.example", "*", "Origin"},
        {"*", NULL, "", "Origin"},
        {"https://a.example, http://b:80", "http://b:80", "http://b:80", "Origin"},
        {"https://a.example, http://b:80", "https://a.example", "https://a.example", "Origin"},
        {"https://a.example, http://b:80", "https://a.example.org", "", "Origin"},
        {"https://a.example, http://b:80", "http://b", "", "Origin"},
        {"https://a.example, http://b:80", "null", "", "Origin"},
    };
    const char *const asked[][3] = {
        {"OPTIONS", COMPLETIONS, ""}, {"OPTIONS", "/nowhere", ""},     {"GET", "/health", ""},
        {"POST", COMPLETIONS, SHORT}, {"POST", COMPLETIONS, STREAMED}, {"POST", COMPLETIONS, "{"},
        {"POST", COMPLETIONS, large},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char headers[200] = "";
        ServedOptions o = served_defaults();
        o.cors = rows[i].origins;
        o.limits.http.body_bytes = sizeof large - 2;
        Served *s = served_start(&o);
        if (rows[i].origin)
            snprintf(headers, sizeof headers,
                     "Origin: %s\r\nAccess-Control-Request-Headers: x-a, x-b\r\n", rows[i].origin);
        for (size_t j = 0; j < sizeof asked / sizeof *asked; j++) {
            HttpReply r = http_exchange(s->port, asked[j][0], asked[j][1], headers, asked[j][2]);
            int preflight = j < 2, given = *rows[i].allowed != 0;
            if (preflight) assert_int_equal(r.status, 204);
            if (preflight) assert_non_null(http_header(&r, "Allow"));
            assert_header(&r, "Access-Control-Allow-Origin", rows[i].allowed);
            assert_header(&r, "Vary", rows[i].vary);
            assert_header(&r, "Access-Control-Expose-Headers",
                          given ? "x-request-id, request-id, retry-after, x-should-retry" : "");
            assert_header(&r, "Access-Control-Allow-Methods",
                          given && preflight ? "GET, POST, OPTIONS" : "");
            assert_header(&r, "Access-Control-Allow-Headers", given && preflight ? "x-a, x-b" : "");
            assert_header(&r, "Access-Control-Max-Age", given && preflight ? "86400" : "");
            http_reply_free(&r);
        }
        assert_int_equal(served_stop(s), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_api_key),
        cmocka_unit_test(test_several_keys),
        cmocka_unit_test(test_cors),
    };
    return cmocka_run_group_tests(tests, served_open_model, served_close_model);
}
