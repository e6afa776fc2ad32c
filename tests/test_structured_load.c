/*
 * test_structured_load.c: many grammars at once, grammars that come again, clients that leave while
 * theirs is compiled; over real sockets, on the demonstration model.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/strbuf.h"
#include "tests/analyzer.h"
#include "tests/served.h"
#include "tests/textdata.h"

#define CHAT "/v1/chat/completions"

enum { LARGE = 80 << 10 }; /* more than is read on the server's own thread */

static int setup(void **state)
{
    ServedOptions o = served_defaults();
    (void)state;
    o.max_waiting = 64;
    return served_open_with(&o);
}

/* Asks for {"id": i} and nothing else; n_described: bytes of description. */
static char *question(int i, int n_described)
{
    StrBuf body = {0};
    strbuf_printf(
        &body,
        "{'messages':[{'role':'user','content':'Hello'}],'temperature':0,'max_tokens':100,"
        "'enable_thinking':false,'json_schema':{'type':'object','properties':{'id':{"
        "'const':%d}},'required':['id'],'additionalProperties':false,'description':'%*s'"
        "}}",
        i, n_described, "");
    return with_quotes(body.data);
}

static void expect_answer(const HttpReply *r, int i)
{
    if (r->status != 200) fail_msg("%d: %s", r->status, r->body.data);
    json_t *reply = json_loadb(r->body.data, r->body.len, 0, NULL);
    json_t *value = json_loads(served_text_at(reply, "choices.0.message.content"), 0, NULL);
    assert_int_equal(json_object_size(value), 1);
    assert_int_equal(served_int_at(value, "id"), i);
    json_decref(value);
    json_decref(reply);
}

static long n_compiled(void)
{
    static const char name[] = "offshoot:grammar_compile_seconds_count";
    HttpReply r = http_exchange(served->port, "GET", "/metrics", "", "");
    const char *at = strstr(r.body.data, name);
    assert_non_null(at);
    long n = strtol(at + strcspn(at, " "), NULL, 10);
    http_reply_free(&r);
    return n;
}

/* ---- many ---- */

enum { N_CLIENTS = 40 };

/* Each gets the answer to its own schema, however large its request was. */
static void ask_at_once(void)
{
    int fd[N_CLIENTS];
    for (int i = 0; i < N_CLIENTS; i++) {
        char *body = question(i, i % 10 ? i : LARGE);
        fd[i] = http_connect(served->port);
        http_send(fd[i], "POST", CHAT, "", body);
        free(body);
    }
    for (int i = 0; i < N_CLIENTS; i++) {
        StrBuf rest = {0};
        HttpReply r;
        assert_int_equal(http_read(fd[i], &rest, 0, &r), 0);
        expect_answer(&r, i);
        http_reply_free(&r);
        strbuf_free(&rest);
        close(fd[i]);
    }
}

static void test_many(void **state)
{
    (void)state;
    long before = n_compiled();
    ask_at_once();
    assert_int_equal(n_compiled() - before, N_CLIENTS);
    ask_at_once(); /* they are known by now */
    assert_int_equal(n_compiled() - before, N_CLIENTS);
}

/* More than are kept: those that were used longest ago are compiled again. */
static void test_more_than_are_kept(void **state)
{
    (void)state;
    enum { KEPT = 128, MORE = 20 };
    long before = n_compiled();
    for (int i = 0; i < KEPT + MORE; i++) {
        char *body = question(1000 + i, 0);
        HttpReply r = http_exchange(served->port, "POST", CHAT, "", body);
        expect_answer(&r, 1000 + i);
        http_reply_free(&r);
        free(body);
    }
    assert_int_equal(n_compiled() - before, KEPT + MORE);
    static const int again[] = {KEPT + MORE - 1, MORE, MORE - 1};
    for (int i = 0; i < 3; i++) {
        char *body = question(1000 + again[i], 0);
        HttpReply r = http_exchange(served->port, "POST", CHAT, "", body);
        expect_answer(&r, 1000 + again[i]);
        http_reply_free(&r);
        free(body);
        assert_int_equal(n_compiled() - before, KEPT + MORE + (i == 2));
    }
}

/* ---- clients that leave ---- */

/* A schema that takes a while: thousands of properties. */
static char *long_question(int number, int n_described)
{
    StrBuf body = {0};
    strbuf_puts(&body,
                "{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}], "
                "\"max_tokens\": 5, \"json_schema\": {\"type\": \"object\", \"properties\": {");
    for (int i = 0; i < 1500; i++)
        strbuf_printf(&body, "\"p%d_%d\": {\"type\":\"integer\"},", number, i);
    strbuf_printf(&body, "\"x\": {}}, \"description\": \"%*s\"}}", n_described, "");
    return body.data;
}

static void test_clients_that_leave(void **state)
{
    (void)state;
    struct linger reset = {.l_onoff = 1};
    for (int i = 0; i < 12; i++) {
        char *body = long_question(i, i % 2 ? LARGE : 0);
        int fd = http_connect(served->port);
        http_send(fd, "POST", CHAT, "", body);
        usleep((useconds_t)i * 2000);
        if (i % 3) setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        close(fd);
        free(body);
    }
    served_wait_idle(served);
    char *body = question(7, 0);
    HttpReply r = http_exchange(served->port, "POST", CHAT, "", body);
    expect_answer(&r, 7);
    http_reply_free(&r);
    free(body);
    served_wait_idle(served);
}

/* The server ends while grammars are compiled. */
static void test_end(void **state)
{
    (void)state;
    ServedOptions o = served_defaults();
    o.limits.drain_s = 0;
    Served *s = served_start(&o);
    int fd[6];
    for (int i = 0; i < 6; i++) {
        char *body = long_question(i, i % 2 ? LARGE : 0);
        fd[i] = http_connect(s->port);
        http_send(fd[i], "POST", CHAT, "", body);
        free(body);
    }
    usleep(20000);
    assert_int_equal(served_stop(s), 0);
    for (int i = 0; i < 6; i++)
        close(fd[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_more_than_are_kept),
        cmocka_unit_test(test_clients_that_leave),
        cmocka_unit_test(test_end),
    };
    return cmocka_run_group_tests(tests, setup, served_close);
}
