/*
 * test_bench_agent.c: bench agent asks what the file says, counts what servers say, and does not
 * take a lost answer for a fast one.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/agent_loops.h"
#include "bench/json_lines.h"
#include "tests/analyzer.h"
#include "tests/checkpoint.h"
#include "tests/run_binary.h"
#include "tests/served.h"
#include "tests/stub_server.h"

/*
 * With a function that the demo model knows: a call and its result; then two calls in one turn, of
 * which one has an id and arguments as text already.
 */
#define FIRST_LOOP                                                                                 \
    "{\"id\":\"a\",\"tools\":[{\"type\":\"function\""                                              \
    ",\"function\":{\"name\":\"FindRestaurants\""                                                  \
    ",\"description\":\"Find restaurants by location and by category\","                           \
    "\"parameters\":{\"type\":\"object\",\"properties\":{\"category\":{\"type\":\"string\"}"       \
    ",\"location\":{\"type\":\"string\"}},\"required\":[\"category\",\"location\"]}}}],"           \
    "\"messages\":["                                                                               \
    "{\"role\":\"user\",\"content\":\"I want to find an Italian restaurant in San Jose\"},"        \
    "{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":["                                    \
    "{\"type\":\"function\""                                                                       \
    ",\"function\":{\"name\":\"FindRestaurants\",\"arguments\":{\"category\":\"Italian\"}}}]},"    \
    "{\"role\":\"tool\",\"content\":\"[\\\"Olive\\\"]\"},"                                         \
    "{\"role\":\"assistant\",\"content\":\"Olive is nice.\"},"                                     \
    "{\"role\":\"user\",\"content\":\"And two others?\"},"                                         \
    "{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":\"x\""                       \
    ",\"function\":{\"name\":\"FindRestaurants\""                                                  \
    ",\"arguments\":\"{\\\"category\\\": \\\"Thai\\\"}\"}}"                                        \
    ",{\"function\":{\"name\":\"FindRestaurants\",\"arguments\":{\"category\":\"Greek\"}}}]},"     \
    "{\"role\":\"tool\",\"tool_call_id\":\"x\",\"content\":\"[]\"},"                               \
    "{\"role\":\"tool\",\"content\":\"[\\\"Ikaros\\\"]\"},"                                        \
    "{\"role\":\"assistant\",\"content\":\"There is Ikaros.\"}]}\n"

/* No tools; the assistant greets, which nobody can be asked for. */
#define SECOND_LOOP                                                                                \
    "{\"id\":\"b\",\"messages\":["                                                                 \
    "{\"role\":\"assistant\",\"content\":\"Hello! What can I do for you?\"},"                      \
    "{\"role\":\"user\",\"content\":\"Tell me a joke.\"},"                                         \
    "{\"role\":\"assistant\",\"content\":\"No.\"}]}\n"

enum { N_TURNS = 5 };

/* ---- the file ---- */

static int read_loops(AgentLoops *a, const char *text, int limit, Error *err)
{
    char path[64];
    FILE *f = tmpfile();
    assert_non_null(f);
    fputs(text, f);
    fflush(f);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fileno(f));
    *a = (AgentLoops){0};
    int rc = agent_loops_read(a, path, limit, "{\"max_tokens\":7}", err);
    fclose(f);
    return rc;
}

static json_t *body_of(const AgentLoops *a, int k)
{
    json_t *body = json_loads(a->cases.list[k].body[0], 0, NULL);
    assert_non_null(body);
    return body;
}

static void test_turns_have_their_history(void **state)
{
    (void)state;
    static const struct {
        int loop, turn, opens, n_messages;
        const char *call;
    } want[N_TURNS] = {
        {1, 1, 1, 1, "FindRestaurants"},
        {1, 2, 0, 3, NULL},
        {1, 3, 0, 5, "FindRestaurants"},
        {1, 4, 0, 8, NULL},
        {2, 1, 1, 2, NULL},
    };
    AgentLoops a;
    Error err = {0};
    assert_int_equal(read_loops(&a, FIRST_LOOP SECOND_LOOP, 0, &err), 0);
    assert_int_equal(a.n_loops, 2);
    assert_int_equal(a.cases.n, N_TURNS);
    for (int k = 0; k < N_TURNS; k++) {
        json_t *body = body_of(&a, k), *streamed = json_loads(a.cases.list[k].body[1], 0, NULL);
        assert_int_equal(a.turn[k].loop, want[k].loop);
        assert_int_equal(a.turn[k].turn, want[k].turn);
        assert_int_equal(a.turn[k].opens, want[k].opens);
        assert_int_equal(json_array_size(json_object_get(body, "messages")), want[k].n_messages);
        assert_int_equal(json_array_size(json_object_get(body, "tools")), want[k].loop == 1);
        assert_int_equal(served_int_at(body, "max_tokens"), 7);
        assert_true(json_is_true(json_object_get(streamed, "stream")));
        assert_true(json_is_true(served_at(streamed, "stream_options.include_usage")));
        assert_int_equal(!a.turn[k].call, !want[k].call);
        if (want[k].call) assert_string_equal(a.turn[k].call, want[k].call);
        json_decref(body);
        json_decref(streamed);
    }
    agent_loops_free(&a);
    assert_int_equal(read_loops(&a, FIRST_LOOP SECOND_LOOP, 1, &err), 0);
    assert_int_equal(a.cases.n, 4);
    agent_loops_free(&a);
}

/* A last message may wait for an answer that the file does not have. */
static void test_last_message_waits(void **state)
{
    (void)state;
    AgentLoops a;
    Error err = {0};
    static const char lines[] =
        "{\"tools\":null,\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}\n"
        "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},"
        "{\"role\":\"assistant\",\"content\":\"Yes?\"},{\"role\":\"user\",\"content\":\"Bye\"}]}\n";
    static const int n_messages[] = {1, 1, 3};
    assert_int_equal(read_loops(&a, lines, 0, &err), 0);
    assert_int_equal(a.n_loops, 2);
    assert_int_equal(a.cases.n, 3);
    for (int k = 0; k < 3; k++) {
        json_t *body = body_of(&a, k);
        assert_int_equal(json_array_size(json_object_get(body, "messages")), n_messages[k]);
        assert_null(json_object_get(body, "tools"));
        json_decref(body);
    }
    assert_true(a.turn[2].loop == 2 && a.turn[2].turn == 2 && !a.turn[2].opens && !a.turn[2].call);
    agent_loops_free(&a);
}

/* Ids where there are none, arguments as text; the rest is as it was. */
static void test_calls_are_in_the_wire_form(void **state)
{
    (void)state;
    AgentLoops a;
    Error err = {0};
    assert_int_equal(read_loops(&a, FIRST_LOOP, 0, &err), 0);
    json_t *body = body_of(&a, 3);
#define TEXT(path) served_text_at(body, "messages." path)
    assert_string_equal(TEXT("0.content"), "I want to find an Italian restaurant in San Jose");
    assert_string_equal(TEXT("1.tool_calls.0.id"), "call_0");
    assert_string_equal(TEXT("1.tool_calls.0.type"), "function");
    assert_string_equal(TEXT("1.tool_calls.0.function.name"), "FindRestaurants");
    assert_string_equal(TEXT("1.tool_calls.0.function.arguments"), "{\"category\": \"Italian\"}");
    assert_string_equal(TEXT("2.tool_call_id"), "call_0");
    assert_string_equal(TEXT("2.content"), "[\"Olive\"]");
    assert_string_equal(TEXT("5.tool_calls.0.id"), "x");
    assert_string_equal(TEXT("5.tool_calls.0.function.arguments"), "{\"category\": \"Thai\"}");
    assert_string_equal(TEXT("5.tool_calls.1.id"), "call_1");
    assert_string_equal(TEXT("6.tool_call_id"), "x");
    assert_string_equal(TEXT("7.tool_call_id"), "call_1");
#undef TEXT
    json_decref(body);
    agent_loops_free(&a);
}

static void test_bad_files(void **state)
{
    (void)state;
    static const struct {
        const char *line, *says;
    } bad[] = {
        {"{\"messages\":[", "line 2: "},
        {"[]", "line 2: 'messages' is no array"},
        {"{\"messages\":{}}", "line 2: 'messages' is no array"},
        {"{\"messages\":[]}", "line 2: 'messages' waits for no answer"},
        {"{\"messages\":[{\"role\":\"assistant\",\"content\":\"a\"}]}", "line 2: 'messages' waits"},
        {"{\"messages\":[{\"role\":\"user\"},7]}", "line 2: message 2: it has no 'role'"},
        {"{\"messages\":[{\"role\":1}]}", "message 1: it has no 'role'"},
        {"{\"messages\":[],\"tools\":{}}", "'tools' is no array"},
        {"{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":{}}]}", "'tool_calls' is no array"},
        {"{\"messages\":[{\"role\":\"user\"},{\"role\":\"assistant\",\"tool_calls\":[{}]}]}",
         "message 2: tool call 0 needs function.name and function.arguments"},
        {"{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
         "\"arguments\":[]}}]}]}",
         "function.arguments"},
    };
    AgentLoops a;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        StrBuf text = {0};
        Error err = {0};
        strbuf_printf(&text, "%s%s\n", SECOND_LOOP, bad[i].line);
        assert_int_equal(read_loops(&a, strbuf_str(&text), 0, &err), -1);
        assert_int_equal(err.code, ERR_INPUT);
        if (!strstr(err.msg, bad[i].says)) fail_msg("'%s', not '%s'", err.msg, bad[i].says);
        agent_loops_free(&a);
        strbuf_free(&text);
    }
    Error err = {0};
    assert_int_equal(read_loops(&a, "", 0, &err), -1);
    assert_non_null(strstr(err.msg, "has no lines"));
    agent_loops_free(&a);
    assert_int_equal(agent_loops_read(&a, "/nowhere", 0, "{}", &err), -1);
    assert_int_equal(err.code, ERR_FILE);
    assert_string_equal(err.msg, "cannot open '/nowhere': No such file or directory");
    assert_string_equal(json_lines_path("/nowhere", "/none", &err), "/nowhere");
    assert_string_equal(json_lines_path(NULL, "/dev/null", &err), "/dev/null");
    assert_null(json_lines_path(NULL, "/none", &err));
    assert_string_equal(err.msg,
                        "cannot open '/none': No such file or directory; give --prompts FILE");
    agent_loops_free(&a);
}

/* ---- a server that is a few lines here ---- */

/* As llama.cpp streams: a comment, events, counts in timings. The pause is before the first event.
 */
enum { PAUSE_MS = 60 };

static const char said_first[] = ": hold on\n\n";
static const char said_then[] =
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"a\"},"
    "\"finish_reason\":null}],\"timings\":{\"cache_n\":1}}\n\n"
    "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n"
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":50,\"completion_tokens\":9,"
    "\"total_tokens\":59},\"timings\":{\"cache_n\":40,\"draft_n\":6,\"draft_n_accepted\":4}}\n\n"
    "data: [DONE]\n\n";

/* As others stream, who tell of no drafts. */
static const char said_little[] =
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"},\"finish_reason\":\"stop\"}]}"
    "\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":50,\"completion_tokens\":9}}\n\n"
    "data: [DONE]\n\n";

typedef struct {
    StubServer server;
    const char *says; /* NULL: said_then */
    int n_requests;
    int breaks_at; /* that request, from 1, gets a 500; 0: none */
    int closes;    /* 1: after each reply, without a word */
    StrBuf asked;  /* the last request */
} Stub;

static void serve_connection(void *ctx, int fd)
{
    Stub *s = ctx;
    StrBuf in = {0};
    while (stub_server_read(fd, &in)) {
        char head[128];
        const char *says = s->says ? s->says : said_then;
        strbuf_clear(&s->asked);
        strbuf_puts(&s->asked, strbuf_str(&in));
        if (++s->n_requests == s->breaks_at) {
            stub_server_send(fd, "HTTP/1.1 500 no\r\nContent-Length: 2\r\n\r\n{}");
            continue;
        }
        snprintf(
            head, sizeof head,
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %zu\r\n\r\n",
            strlen(said_first) + strlen(says));
        stub_server_send(fd, head);
        stub_server_send(fd, said_first);
        usleep(PAUSE_MS * 1000);
        stub_server_send(fd, says);
        if (s->closes) break;
    }
    strbuf_free(&in);
}

#define AT_STDIN "--prompts", "/dev/stdin"

/* form: one more word, or NULL. */
static RunResult run_against(Stub *s, const char *loops, const char *form)
{
    stub_server_start(&s->server, serve_connection, s);
    RunResult r = RUN_ON(loops, "bench", "agent", "--url", s->server.url, AT_STDIN, form);
    stub_server_stop(&s->server);
    strbuf_free(&s->asked);
    return r;
}

/* One row; its counts are the server's; a comment is no token. */
static void test_counts_are_the_servers(void **state)
{
    (void)state;
    Stub stub = {0};
    RunResult r = run_against(&stub, FIRST_LOOP SECOND_LOOP, "--json");
    assert_run(&r, 0, "\"rows\"");
    json_t *report = json_loads(strbuf_str(&r.out), 0, NULL);
    assert_int_equal(json_array_size(json_object_get(report, "rows")), 1);
    assert_int_equal(served_int_at(report, "loops"), 2);
    assert_int_equal(served_int_at(report, "turns"), N_TURNS);
    assert_int_equal(served_int_at(report, "calls"), 2);
    assert_int_equal(served_int_at(report, "calls_right"), 0);
    assert_true(json_is_null(served_at(report, "rows.0.prefix_cache")));
    assert_int_equal(served_int_at(report, "rows.0.turns"), N_TURNS);
    assert_int_equal(served_int_at(report, "rows.0.prompt_tokens"), N_TURNS * 50);
    assert_int_equal(served_int_at(report, "rows.0.cached_tokens"), N_TURNS * 40);
    assert_int_equal(served_int_at(report, "rows.0.completion_tokens"), N_TURNS * 9);
    assert_int_equal(served_int_at(report, "rows.0.drafted"), N_TURNS * 6);
    assert_int_equal(served_int_at(report, "rows.0.accepted"), N_TURNS * 4);
    assert_true(json_real_value(served_at(report, "rows.0.acceptance_length")) == 2);
    assert_true(json_real_value(served_at(report, "rows.0.first_token_ms_p50")) >= PAUSE_MS);
    assert_int_equal(json_array_size(served_at(report, "rows.0.each")), N_TURNS);
    assert_int_equal(served_int_at(report, "rows.0.each.3.loop"), 1);
    assert_int_equal(served_int_at(report, "rows.0.each.3.turn"), 4);
    assert_int_equal(served_int_at(report, "rows.0.each.3.cached_tokens"), 40);
    json_decref(report);
    run_result_free(&r);
}

/* What it does not tell is not taken for plain decoding. */
static void test_length_is_not_known(void **state)
{
    (void)state;
    Stub stub = {.says = said_little}, tells = {0};
    expect_run(run_against(&stub, SECOND_LOOP, "--json"), 0,
               "\"acceptance_length\": null,\n   \"tok");
    expect_run(run_against(&stub, SECOND_LOOP, NULL), 0, "       50        0        9      - ");
    RunResult r = run_against(&tells, SECOND_LOOP, NULL);
    assert_run(&r, 0, "\n-     -      ");
    expect_run(r, 0, "       50       40        9   2.00 ");
}

/* Another server is told how to draw, where somebody has said it. */
static void test_sampling_is_sent(void **state)
{
    (void)state;
    static const char *const fields[] = {"\"temperature\":0.5", "\"top_p\":0.25", "\"min_p\":0.125",
                                         "\"top_k\":7"};
    for (int said = 0; said < 2; said++) {
        Stub stub = {0};
        stub_server_start(&stub.server, serve_connection, &stub);
#define ASK "bench", "agent", AT_STDIN, "--url", stub.server.url
        RunResult r = said ? RUN_ON(SECOND_LOOP, ASK, "--temperature", "0.5", "--top-p", "0.25",
                                    "--min-p", "0.125", "--top-k", "7")
                           : RUN_ON(SECOND_LOOP, ASK);
#undef ASK
        stub_server_stop(&stub.server);
        expect_run(r, 0, "1 loops, 1 turns");
        for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
            if (said && !strstr(stub.asked.data, fields[i])) fail_msg("no %s", fields[i]);
        if (!said) assert_null(strstr(stub.asked.data, "_p\""));
        if (!said) assert_null(strstr(stub.asked.data, "top_k"));
        strbuf_free(&stub.asked);
    }
}

static void test_a_lost_answer_is_an_error(void **state)
{
    (void)state;
    Stub stub = {.breaks_at = 3};
    RunResult r = run_against(&stub, FIRST_LOOP, NULL);
    assert_run(&r, 6, "1 of 4 requests got no answer");
    assert_run(&r, 6, "loop 1, turn 3");
    run_result_free(&r);
    expect_run(RUN("bench", "agent", "--url", "http://127.0.0.1:1"), 6, "got no answer");
    expect_run(RUN("bench", "agent", "--url", "http://127.0.0.1:1", "--prompts", "/nowhere"), 5,
               "/nowhere");
}

/* llama.cpp's server does that; its clients connect again. */
static void test_a_kept_connection_may_end(void **state)
{
    (void)state;
    Stub stub = {.closes = 1};
    RunResult r = run_against(&stub, FIRST_LOOP, "--json");
    assert_run(&r, 0, "\"completion_tokens\": 36,");
    assert_int_equal(stub.n_requests, 4);
    run_result_free(&r);
}

/* ---- ours ---- */

/* The counts of a row against those of whole replies to the same requests. */
static void check_totals(const Served *s, const json_t *report)
{
    long n_prompt = 0, n_tokens = 0, n_right = 0;
    AgentLoops a;
    Error err = {0};
    assert_int_equal(read_loops(&a, FIRST_LOOP SECOND_LOOP, 0, &err), 0);
    for (int k = 0; k < N_TURNS; k++) {
        json_t *body = body_of(&a, k);
        json_object_set_new(body, "max_tokens", json_integer(48));
        json_object_set_new(body, "temperature", json_integer(0));
        json_object_set_new(body, "chat_template_kwargs", json_pack("{s:b}", "enable_thinking", 0));
        char *text = json_dumps(body, 0);
        json_t *reply = served_post(s, "/v1/chat/completions", text, 200);
        n_prompt += served_int_at(reply, "usage.prompt_tokens");
        n_tokens += served_int_at(reply, "usage.completion_tokens");
        const char *name =
            json_string_value(served_at(reply, "choices.0.message.tool_calls.0.function.name"));
        n_right += name && a.turn[k].call && !strcmp(name, a.turn[k].call);
        free(text);
        json_decref(reply);
        json_decref(body);
    }
    assert_int_equal(served_int_at(report, "rows.0.prompt_tokens"), n_prompt);
    assert_int_equal(served_int_at(report, "rows.0.completion_tokens"), n_tokens);
    assert_int_equal(served_int_at(report, "calls_right"), n_right);
    assert_true(n_right > 0);
    agent_loops_free(&a);
}

static void test_totals_are_right(void **state)
{
    (void)state;
    char url[64];
    Served *s = served_start(NULL);
    snprintf(url, sizeof url, "http://127.0.0.1:%d", s->port);
    RunResult r = RUN_ON(FIRST_LOOP SECOND_LOOP, "bench", "agent", "--url", url, AT_STDIN,
                         "--max-tokens", "48", "--json");
    assert_run(&r, 0, "\"rows\"");
    json_t *report = json_loads(strbuf_str(&r.out), 0, NULL);
    check_totals(s, report);
    json_decref(report);
    run_result_free(&r);
    assert_int_equal(served_stop(s), 0);
}

#define DEMO "--model", "models/demo", "--threads", "1", "--memory", "64M"

/* Four servers, the same answers; drafts and what is cached only where they are on. */
static void test_four_ways_one_answer(void **state)
{
    (void)state;
    RunResult r = RUN_ON(FIRST_LOOP SECOND_LOOP, "bench", "agent", DEMO, AT_STDIN, "--max-tokens",
                         "24", "--json");
    assert_run(&r, 0, "\"rows\"");
    json_t *report = json_loads(strbuf_str(&r.out), 0, NULL);
    const json_t *rows = json_object_get(report, "rows");
    assert_int_equal(json_array_size(rows), 4);
    for (size_t i = 0; i < 4; i++) {
        const json_t *row = json_array_get(rows, i), *first = json_array_get(rows, 0);
        int cache = i >= 2, drafts = i % 2 == 1;
        assert_int_equal(json_is_true(json_object_get(row, "prefix_cache")), cache);
        assert_string_equal(served_text_at(row, "draft"), drafts ? "mtp" : "none");
        assert_int_equal(served_int_at(row, "different"), 0);
        assert_int_equal(served_int_at(row, "turns"), N_TURNS);
        assert_int_equal(served_int_at(row, "completion_tokens"),
                         served_int_at(first, "completion_tokens"));
        assert_int_equal(served_int_at(row, "prompt_tokens"),
                         served_int_at(first, "prompt_tokens"));
        assert_int_equal(served_int_at(row, "drafted") > 0, drafts);
        assert_int_equal(served_int_at(row, "cached_tokens") > 0, cache);
    }
    json_decref(report);
    run_result_free(&r);
}

/* Servers are fresh where all keep what they have in one folder, too. */
static void test_rows_share_nothing(void **state)
{
    (void)state;
    RunResult r = RUN_ON(FIRST_LOOP, "bench", "agent", DEMO, AT_STDIN, "--max-tokens", "2",
                         "--draft", "ngram", "--prefix-cache", "on", "--cache-dir",
                         scratch_dir("bench_agent"), "--json");
    assert_run(&r, 0, "\"rows\"");
    json_t *report = json_loads(strbuf_str(&r.out), 0, NULL);
    long first = served_int_at(report, "rows.0.cached_tokens");
    assert_true(first > 0);
    assert_int_equal(served_int_at(report, "rows.1.cached_tokens"), first);
    json_decref(report);
    run_result_free(&r);
}

static void test_what_is_set_is_not_varied(void **state)
{
    (void)state;
    RunResult r = RUN_ON(SECOND_LOOP, "bench", "agent", DEMO, AT_STDIN, "--max-tokens", "2",
                         "--prefix-cache", "off", "--draft", "none");
    assert_run(&r, 0, "\noff   none ");
    assert_null(strstr(strbuf_str(&r.out), "\non "));
    assert_null(strstr(strbuf_str(&r.out), " mtp "));
    assert_run(&r, 0, "1 loops, 1 turns");
    run_result_free(&r);
    expect_run(RUN_ON(FIRST_LOOP SECOND_LOOP, "bench", "agent", DEMO, AT_STDIN, "--max-tokens", "2",
                      "--ctx-size", "64", "--prefix-cache", "off", "--draft", "none"),
               0, "prompts too long for the context: 4");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_turns_have_their_history),
        cmocka_unit_test(test_last_message_waits),
        cmocka_unit_test(test_calls_are_in_the_wire_form),
        cmocka_unit_test(test_bad_files),
        cmocka_unit_test(test_counts_are_the_servers),
        cmocka_unit_test(test_length_is_not_known),
        cmocka_unit_test(test_sampling_is_sent),
        cmocka_unit_test(test_a_lost_answer_is_an_error),
        cmocka_unit_test(test_a_kept_connection_may_end),
        cmocka_unit_test(test_totals_are_right),
        cmocka_unit_test(test_four_ways_one_answer),
        cmocka_unit_test(test_rows_share_nothing),
        cmocka_unit_test(test_what_is_set_is_not_varied),
    };
    return cmocka_run_group_tests(tests, served_open_model, served_close_model);
}
