/*
 * test_company.c: what one client does and the others do not feel: readers that stall, bodies that
 * take long to read; and what all of them feel: a lost device.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/mem.h"
#include "tests/analyzer.h"
#include "tests/served.h"

#define COMPLETIONS "/v1/completions"
#define SHORT       "{\"prompt\": \"Hello\", \"max_tokens\": 4, \"temperature\": 0}"

#define CHAT "\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]"

/* A sample of /metrics. */
static double metric(const Served *s, const char *name)
{
    HttpReply r = http_exchange(s->port, "GET", "/metrics", "", "");
    const char *line = strstr(strbuf_str(&r.body), "# TYPE");
    for (; line; line = strchr(line + 1, '\n'))
        if (!strncmp(line + 1, name, strlen(name)) && line[1 + strlen(name)] == '{') break;
    if (!line) fail_msg("no %s", name);
    double value = atof(strchr(line + 1, '}') + 1);
    http_reply_free(&r);
    return value;
}

/* ---- slow readers ---- */

/* Chunks of some KiB a token, so that buffers are full soon. */
#define FAT_OF(n)                                                                                  \
    "{\"logprobs\": 20, \"stream\": true, \"max_tokens\": 1500, \"ignore_eos\": true, "            \
    "\"temperature\": 0, \"prompt\": \"Hello\", \"n\": " n "}"
#define FAT FAT_OF("1")

static int start_slow_reader(const Served *s, const char *body)
{
    int fd = http_connect(s->port), small = 4096;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    http_send(fd, "POST", COMPLETIONS, "", body);
    return fd;
}

/* Waits until no more tokens are made. */
static double wait_until_still(const Served *s)
{
    double before = -1, now = metric(s, "vllm:generation_tokens_total");
    for (int i = 0; i < 300 && (now < 1 || now != before); i++) {
        before = now;
        usleep(200000);
        now = metric(s, "vllm:generation_tokens_total");
    }
    assert_true(now == before);
    return now;
}

/* Who does not read is not written for; what he reads later is the whole answer. */
static void test_slow_reader_pauses(void **state)
{
    (void)state;
    ServedOptions o = served_defaults();
    o.limits.http.unsent_bytes = 256 << 10;
    o.limits.behind_s = 2;
    Served *s = served_start(&o);
    int fd = start_slow_reader(s, FAT);
    double made = wait_until_still(s);
    assert_true(made > 0 && made < 1400);
    assert_int_equal((int)metric(s, "vllm:num_requests_running"), 1);
    served_expect_alive(s); /* the others go on */
    usleep(3200000);        /* nobody waits for the place: it is kept */
    HttpReply reply;
    StrBuf rest = {0};
    int large = 1 << 20;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &large, sizeof large);
    assert_int_equal(http_read(fd, &rest, 0, &reply), 0);
    json_t *events = http_events(&reply), *alone = served_events(s, COMPLETIONS, FAT);
    StrBuf text[2] = {{0}};
    for (int k = 0; k < 2; k++) {
        json_t *event;
        size_t i;
        json_array_foreach(k ? alone : events, i, event)
        {
            strbuf_puts(&text[k], json_string_value(served_at(event, "choices.0.text")));
        }
    }
    assert_string_equal(strbuf_str(&text[0]), strbuf_str(&text[1]));
    for (int k = 0; k < 2; k++)
        strbuf_free(&text[k]);
    json_decref(alone);
    json_decref(events);
    http_reply_free(&reply);
    strbuf_free(&rest);
    close(fd);
    assert_int_equal(served_stop(s), 0);
}

/* A place that only answers of slow readers wait for, its own or another's, is kept, too. */
static void test_slow_reader_of_many(void **state)
{
    (void)state;
    ServedOptions o = served_defaults();
    o.limits.http.unsent_bytes = 256 << 10;
    o.limits.behind_s = 2;
    o.max_seqs = 2;
    Served *s = served_start(&o);
    int one = start_slow_reader(s, FAT);
    for (int i = 0; i < 3000 && metric(s, "vllm:num_requests_running") < 1; i++)
        usleep(10000);
    int many = start_slow_reader(s, FAT_OF("3"));
    wait_until_still(s);
    usleep(3200000);
    assert_int_equal((int)metric(s, "vllm:num_requests_running"), 2);
    assert_int_equal((int)metric(s, "vllm:num_requests_waiting"), 2);
    close(one);
    close(many);
    served_wait_idle(s);
    assert_int_equal(served_stop(s), 0);
}

/* n others wait for the only sequence, which belongs to one who does not read. */
static void check_place_for(int n)
{
    enum { MOST = 4 };
    ServedOptions o = served_defaults();
    o.limits.http.unsent_bytes = 256 << 10;
    o.limits.behind_s = 1;
    o.max_seqs = 1;
    Served *s = served_start(&o);
    int fd = start_slow_reader(s, FAT), waiting[MOST];
    wait_until_still(s);
    for (int i = 0; i < n; i++) {
        waiting[i] = http_connect(s->port);
        http_send(waiting[i], "POST", COMPLETIONS, "", SHORT);
    }
    for (int i = 0; i < n; i++) {
        HttpReply reply;
        StrBuf rest = {0};
        assert_int_equal(http_read(waiting[i], &rest, 0, &reply), 0);
        assert_int_equal(reply.status, 200);
        http_reply_free(&reply);
        strbuf_free(&rest);
        close(waiting[i]);
    }
    served_wait_idle(s);
    close(fd);
    assert_int_equal(served_stop(s), 0);
}

/* After a while those who wait come first: in the engine, which takes one beside the one that runs,
 * and before it. */
static void test_slow_reader_makes_place(void **state)
{
    (void)state;
    check_place_for(1);
    check_place_for(4);
}

/* ---- large bodies ---- */

/* {"KEY": "word word ..."MORE} of about n_bytes. To be freed. */
static char *large_body(const char *key, size_t n_bytes, const char *more)
{
    StrBuf body = {0};
    strbuf_printf(&body, "{\"%s\": \"", key);
    while (body.len < n_bytes)
        strbuf_puts(&body, "word ");
    strbuf_printf(&body, "\"%s}", more);
    return body.data;
}

static void test_large_bodies(void **state)
{
    (void)state;
    Served *s = served_start(NULL);
    char *body = large_body("prompt", 200000, "");
    json_t *reply = served_post(s, "/tokenize", body, 200);
    json_int_t count = json_integer_value(json_object_get(reply, "count"));
    assert_true(count > 8192);
    json_decref(reply);
    char *completion = large_body("prompt", 200000, ", \"max_tokens\": 1"), number[32];
    reply = served_post(s, COMPLETIONS, completion, 400);
    const char *message = json_string_value(served_at(reply, "error.message"));
    snprintf(number, sizeof number, "has %d tokens.", (int)count);
    assert_non_null(strstr(message, "maximum context length is"));
    assert_non_null(strstr(message, number));
    json_decref(reply);

    char *huge = large_body("prompt", 4000000, ", \"max_tokens\": 1"); /* not read to its end */
    reply = served_post(s, COMPLETIONS, huge, 400);
    assert_non_null(strstr(json_string_value(served_at(reply, "error.message")), "has more than"));
    assert_string_equal(json_string_value(served_at(reply, "error.code")),
                        "context_length_exceeded");
    json_decref(reply);

    /* Large for another reason: it is answered as if it were small. */
    char *padded = large_body("metadata", 300000,
                              ", \"prompt\": \"Hello\", \"max_tokens\": 4, "
                              "\"temperature\": 0");
    json_t *large = served_post(s, COMPLETIONS, padded, 200);
    json_t *small = served_post(s, COMPLETIONS, SHORT, 200);
    assert_string_equal(json_string_value(served_at(large, "choices.0.text")),
                        json_string_value(served_at(small, "choices.0.text")));
    json_decref(small);
    json_decref(large);

    /* Clients that go while their body is read, or before its answer is made. */
    for (int i = 0; i < 20; i++) {
        int fd = http_connect(s->port);
        http_send(fd, "POST", i & 1 ? COMPLETIONS : "/tokenize", "", i % 3 ? padded : huge);
        if (i & 4) usleep(3000);
        close(fd);
    }
    served_expect_alive(s);
    /* And when the server stops with such work before it. */
    int fd = http_connect(s->port);
    http_send(fd, "POST", "/tokenize", "", huge);
    mem_free(padded);
    mem_free(huge);
    mem_free(completion);
    mem_free(body);
    assert_int_equal(served_stop(s), 0);
    close(fd);
}

/* What would cost gigabytes to parse is refused before. */
static void test_costly_json(void **state)
{
    (void)state;
    Served *s = served_start(NULL);
    static const struct {
        const char *piece, *why;
        int n;
    } rows[] = {{"[],", "lists and objects", 1 << 19},
                {"{\"a\":1},", "lists and objects", 1 << 19},
                {"1,", "values", 5 << 20},
                {"[", "nested deeper", 60000}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        StrBuf body = {0};
        strbuf_puts(&body, "{\"tokens\": [");
        for (int k = 0; k < rows[i].n; k++)
            strbuf_puts(&body, rows[i].piece);
        strbuf_puts(&body, "1]}");
        json_t *reply = served_post(s, "/detokenize", body.data, 400);
        if (!strstr(json_string_value(served_at(reply, "error.message")), rows[i].why))
            fail_msg("%s", json_string_value(served_at(reply, "error.message")));
        json_decref(reply);
        strbuf_free(&body);
    }
    served_expect_alive(s);
    assert_int_equal(served_stop(s), 0);
}

/* Bodies that never end may take only so much in all; then others are let in again. */
static void test_many_bodies_at_once(void **state)
{
    (void)state;
    enum { N = 8, SENT = 40000 };
    ServedOptions o = served_defaults();
    o.limits.http.all_bodies_bytes = 5 * SENT + SENT / 2;
    o.limits.http.request_timeout_s = 2;
    Served *s = served_start(&o);
    static char half[SENT];
    static const char head[] = "POST /v1/completions HTTP/1.1\r\nContent-Length: 60000\r\n\r\n";
    int fd[N], n_busy = 0, n_late = 0;
    memset(half, ' ', sizeof half);
    for (int i = 0; i < N; i++) {
        fd[i] = http_connect(s->port);
        http_write(fd[i], head, sizeof head - 1);
        http_write(fd[i], half, sizeof half);
    }
    for (int i = 0; i < N; i++) {
        HttpReply reply;
        StrBuf rest = {0};
        assert_int_equal(http_read(fd[i], &rest, 0, &reply), 0);
        n_busy += reply.status == 503;
        n_late += reply.status == 408;
        http_reply_free(&reply);
        strbuf_free(&rest);
        close(fd[i]);
    }
    assert_int_equal(n_busy, N - 5);
    assert_int_equal(n_late, 5);
    served_expect_alive(s);
    assert_int_equal(served_stop(s), 0);
}

/* A body of a thousand numbers that nobody asks for: some 50 KB once it is parsed. */
static const char *with_numbers(StrBuf *body, const char *fields)
{
    strbuf_clear(body);
    strbuf_puts(body, fields);
    strbuf_puts(body, ", \"x\": [");
    for (int i = 0; i < 1000; i++)
        strbuf_puts(body, "1,");
    strbuf_puts(body, "1]}");
    return strbuf_str(body);
}

/* The same in a text, as vLLM takes a schema: long texts, so that it is not answered soon. */
static const char *with_schema(StrBuf *body)
{
    strbuf_clear(body);
    strbuf_puts(body,
                "{\"prompt\": \"Hello\", \"max_tokens\": 7000, \"structured_outputs\": {\"json\":"
                "\"{\\\"type\\\": \\\"array\\\", \\\"minItems\\\": 1000, \\\"items\\\": {"
                "\\\"type\\\": \\\"string\\\", \\\"minLength\\\": 4096}, "
                "\\\"examples\\\": [");
    for (int i = 0; i < 1000; i++)
        strbuf_puts(body, "1,");
    strbuf_puts(body, "1]}\"}}");
    return strbuf_str(body);
}

/* The JSON of requests stays until they are answered, so it has a bound, too. */
static void test_json_of_many(void **state)
{
    (void)state;
    enum { N = 4, IN_TEXT = 2 };
    ServedOptions o = served_defaults();
    o.limits.all_json_bytes = N * 56000;
    Served *s = served_start(&o);
    StrBuf body = {0};
    int fd[N], status = 0;
    for (int i = 0; i < N; i++) {
        fd[i] = http_connect(s->port);
        if (i < IN_TEXT)
            with_schema(&body);
        else
            with_numbers(&body,
                         "{\"prompt\": \"Hello\", \"max_tokens\": 7000, \"ignore_eos\": true");
        http_send(fd[i], "POST", COMPLETIONS, "", body.data);
    }
    while (metric(s, "vllm:num_requests_running") + metric(s, "vllm:num_requests_waiting") < N)
        usleep(10000);
    json_decref(served_post(s, COMPLETIONS, body.data, 429));
    json_decref(served_post(s, COMPLETIONS, with_schema(&body), 429));
    json_decref(served_post(s, "/tokenize", with_numbers(&body, "{\"prompt\": \"Hello\""), 429));
    for (int i = 0; i < N; i++)
        close(fd[i]);
    for (int i = 0; i < 500 && status != 200; i++) {
        HttpReply r = http_exchange(s->port, "POST", "/tokenize", "", body.data);
        status = r.status;
        http_reply_free(&r);
        usleep(10000);
    }
    assert_int_equal(status, 200);
    strbuf_free(&body);
    served_expect_alive(s);
    assert_int_equal(served_stop(s), 0);
}

/* ---- a lost device ---- */

/* All who were being answered hear of it, at once or in their stream; then the server ends. */
static void test_lost_device(void **state)
{
    (void)state;
    static const char *const bodies[] = {
        "{\"prompt\": \"Hello\", \"max_tokens\": 7000, \"ignore_eos\": true, \"stream\": true}",
        "{\"prompt\": \"Hello\", \"max_tokens\": 7000, \"ignore_eos\": true}",
        "{\"prompt\": \"Hi\", \"max_tokens\": 7000, \"ignore_eos\": true}",
    };
    ServedOptions o = served_defaults();
    o.max_seqs = 2; /* the third one waits */
    served_lose_device(0);
    Served *s = served_start(&o);
    int fd[3];
    for (int i = 0; i < 3; i++) {
        fd[i] = http_connect(s->port);
        http_send(fd[i], "POST", COMPLETIONS, "", bodies[i]);
    }
    while (metric(s, "vllm:generation_tokens_total") < 20)
        usleep(10000);
    served_lose_device(1);
    for (int i = 0; i < 3; i++) {
        HttpReply reply;
        StrBuf rest = {0};
        assert_int_equal(http_read(fd[i], &rest, 0, &reply), 0);
        assert_int_equal(reply.status, i ? 500 : 200);
        assert_non_null(strstr(strbuf_str(&reply.body), "server_error"));
        assert_non_null(strstr(strbuf_str(&reply.body), "fell off the bus"));
        if (!i) assert_non_null(strstr(strbuf_str(&reply.body), "data: [DONE]"));
        http_reply_free(&reply);
        strbuf_free(&rest);
        close(fd[i]);
    }
    served_join(s);
    assert_int_equal(s->err.code, ERR_DEVICE);
    assert_int_equal(served_stop(s), -1);
    served_lose_device(0);
}

/* ---- large bodies in company ---- */

static int begin_tokenize(const Served *s, const char *body)
{
    int fd = http_connect(s->port);
    http_send(fd, "POST", "/tokenize", "", body);
    return fd;
}

static json_int_t read_count(int fd)
{
    HttpReply reply;
    StrBuf rest = {0};
    assert_int_equal(http_read(fd, &rest, 0, &reply), 0);
    assert_int_equal(reply.status, 200);
    const char *count = strstr(strbuf_str(&reply.body), "\"count\":");
    assert_non_null(count);
    json_int_t n = strtol(count + 8, NULL, 10);
    http_reply_free(&reply);
    strbuf_free(&rest);
    return n;
}

/*
 * A body beyond 64 KiB is answered before one of 8 MiB that the worker already has: the huge one
 * came whole before the first byte of the other, which takes a few slices, not hundreds.
 */
static void test_large_overtakes_huge(void **state)
{
    (void)state;
    enum { HUGE = 8 << 20, LARGE = 100 << 10 };
    Served *s = served_start(NULL);
    char *huge = large_body("prompt", HUGE, ""), *large = large_body("prompt", LARGE, "");
    int first = begin_tokenize(s, huge);
    usleep(200000); /* the worker has it; if not, the test has nothing to find */
    int second = begin_tokenize(s, large);
    assert_true(read_count(second) > LARGE / 16);
    assert_false(http_readable(first, 0));
    assert_true(read_count(first) > HUGE / 16);
    close(first);
    close(second);
    mem_free(huge);
    mem_free(large);
    assert_int_equal(served_stop(s), 0);
}

/* What a refused request says of its prompt's length. */
static long told_tokens(const Served *s, const char *path, const char *body)
{
    json_t *reply = served_post(s, path, body, 400);
    const char *has = strstr(served_text_at(reply, "error.message"), "However, ");
    assert_non_null(has);
    long n = strtol(has + strcspn(has, "0123456789"), NULL, 10);
    json_decref(reply);
    return n;
}

/* Lists of texts, and chats: each text has all its tokens, wherever the slices end. */
static void test_many_texts_in_slices(void **state)
{
    (void)state;
    enum { N = 500, LONG = 200000 };
    Served *s = served_start(NULL);
    char *words = large_body("prompt", LONG, "");
    const char *text = strchr(words, ':') + 2;
    int n_text = (int)strlen(text) - 1; /* without the brace: a JSON string */
    StrBuf parts = {0}, prompts = {0}, chat = {0};
    strbuf_puts(&parts, "{\"return_token_strs\": true, \"with_pieces\": true, \"content\": [");
    strbuf_puts(&prompts, "{\"prompt\": [");
    for (int i = 0; i < N; i++) {
        strbuf_puts(&parts, "\"one two  three\", 7, ");
        strbuf_puts(&prompts, "\"Hello\", ");
    }
    strbuf_printf(&parts, "%.*s, 8]}", n_text, text);
    strbuf_printf(&prompts, "%.*s], \"max_tokens\": 1}", n_text, text);
    strbuf_printf(&chat, "{\"messages\": [{\"role\": \"user\", \"content\": %.*s}]}", n_text, text);

    json_t *one = served_post(s, "/tokenize", "{\"content\": \"one two  three\"}", 200);
    json_t *whole = served_post(s, "/tokenize", words, 200);
    long n_one = served_int_at(one, "count"), n_whole = served_int_at(whole, "count");
    json_t *all = served_post(s, "/tokenize", parts.data, 200);
    assert_int_equal(served_int_at(all, "count"), N * (n_one + 1) + n_whole + 1);
    const json_t *ids = served_at(all, "tokens"), *strings = served_at(all, "token_strs");
    assert_int_equal(json_array_size(ids), served_int_at(all, "count"));
    assert_int_equal(json_array_size(strings), json_array_size(ids));
    for (long i = 0; i < n_whole; i++) {
        const json_t *id = json_array_get(ids, (size_t)(N * (n_one + 1) + i));
        assert_true(json_equal(json_object_get(id, "id"),
                               json_array_get(served_at(whole, "tokens"), (size_t)i)));
    }
    json_decref(all);

    assert_int_equal(told_tokens(s, COMPLETIONS, prompts.data), n_whole);
    all = served_post(s, "/tokenize", chat.data, 200);
    assert_true(served_int_at(all, "count") > n_whole);
    assert_int_equal(told_tokens(s, "/v1/chat/completions", chat.data),
                     served_int_at(all, "count"));
    json_decref(all);
    json_decref(one);
    json_decref(whole);
    strbuf_free(&parts);
    strbuf_free(&prompts);
    strbuf_free(&chat);
    mem_free(words);
    served_expect_alive(s);
    assert_int_equal(served_stop(s), 0);
}

/* What jansson gives back on the server's thread. */
static pthread_t server_thread;
static atomic_int n_freed_there;

static void counting_free(void *p)
{
    if (pthread_equal(pthread_self(), server_thread)) atomic_fetch_add(&n_freed_there, 1);
    free(p);
}

/* What a large body has become is not freed by the thread that all streams come from. */
static void test_who_frees_large_bodies(void **state)
{
    (void)state;
    enum { N = 100000 };
    static const struct {
        const char *path, *begin;
        int status;
    } rows[] = {{"/tokenize", "{\"prompt\": \"Hello\"", 200},
                {"/detokenize", "{\"tokens\": 1", 400},
                {COMPLETIONS, "{\"prompt\": \"Hello\", \"max_tokens\": 1", 200},
                {COMPLETIONS, "{\"prompt\": 1", 400},
                {"/v1/responses", "{\"input\": \"Hello\", \"max_output_tokens\": 1", 200}};
    Served *s = served_start(NULL);
    server_thread = s->thread;
    json_set_alloc_funcs(malloc, counting_free);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        StrBuf body = {0};
        strbuf_printf(&body, "%s, \"x\": [1", rows[i].begin);
        for (int k = 1; k < N; k++)
            strbuf_puts(&body, ",1");
        strbuf_puts(&body, "]}");
        atomic_store(&n_freed_there, 0);
        json_decref(served_post(s, rows[i].path, body.data, rows[i].status));
        served_expect_alive(s); /* behind all that the server has done for it */
        if (atomic_load(&n_freed_there) >= N)
            fail_msg("%s, %d: %d", rows[i].path, rows[i].status, atomic_load(&n_freed_there));
        strbuf_free(&body);
    }
    json_set_alloc_funcs(malloc, free);
    assert_int_equal(served_stop(s), 0);
}

/* Nor is a reply with thousands of log-probabilities written there; and its client may go. */
static void test_who_writes_large_replies(void **state)
{
    (void)state;
    enum { N = 500 };
    static const char body[] = "{\"prompt\": \"Hello\", \"max_tokens\": 500, \"logprobs\": 20, "
                               "\"ignore_eos\": true, \"temperature\": 0}";
    Served *s = served_start(NULL);
    server_thread = s->thread;
    json_set_alloc_funcs(malloc, counting_free);
    atomic_store(&n_freed_there, 0);
    json_t *reply = served_post(s, COMPLETIONS, body, 200);
    assert_int_equal(json_array_size(served_at(reply, "choices.0.logprobs.top_logprobs")), N);
    json_decref(reply);
    served_expect_alive(s);
    assert_in_range(atomic_load(&n_freed_there), 0, N);
    json_set_alloc_funcs(malloc, free);
    for (int i = 0; i < 4; i++) {
        int fd = http_connect(s->port);
        http_send(fd, "POST", COMPLETIONS, "", body);
        usleep(100000 * (useconds_t)i); /* before it is done, or while it is written, or after */
        close(fd);
    }
    served_expect_alive(s);
    assert_int_equal(served_stop(s), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slow_reader_pauses),
        cmocka_unit_test(test_slow_reader_of_many),
        cmocka_unit_test(test_slow_reader_makes_place),
        cmocka_unit_test(test_large_bodies),
        cmocka_unit_test(test_costly_json),
        cmocka_unit_test(test_many_bodies_at_once),
        cmocka_unit_test(test_json_of_many),
        cmocka_unit_test(test_lost_device),
        cmocka_unit_test(test_large_overtakes_huge),
        cmocka_unit_test(test_many_texts_in_slices),
        cmocka_unit_test(test_who_frees_large_bodies),
        cmocka_unit_test(test_who_writes_large_replies),
    };
    return cmocka_run_group_tests(tests, served_open_model, served_close_model);
}
