/*
 * test_prefix_server.c: the prefix cache as clients see it: what they are told was reused, and that
 * nothing else changes; over real sockets, on the demonstration model.
 *
 * A script is a series of requests. It runs with the cache and without, with drafts and plain, and
 * what its replies say must be the same each time.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/strbuf.h"
#include "server/encoding.h"
#include "tests/analyzer.h"
#include "tests/served.h"
#include "tests/textdata.h"

#define CHAT        "/v1/chat/completions"
#define COMPLETIONS "/v1/completions"
#define BILLING     "x-anthropic-billing-header: cc_version=2.1.177.01c; cc_entrypoint=cli; cch=%s;"

static json_t *tools; /* of the demonstration model */
static int with_cache, with_answers;
static json_t *told;  /* what the replies of a script said */
static long n_cached; /* all that they said to be cached */
static int n_each;    /* answers to each prompt, of which each asks the cache on its own */

static int open_all(void **state)
{
    tools = json_load_file("models/demo/tools.json", 0, NULL);
    return tools ? served_open_model(state) : -1;
}

static int close_all(void **state)
{
    json_decref(tools);
    return served_close_model(state);
}

/* ---- asking ---- */

/* All of a reply's answers but the names of calls, which are drawn by lot. */
static void tell(const json_t *reply)
{
    json_t *choices = json_deep_copy(served_at(reply, "choices")), *choice, *call;
    size_t i, k;
    json_array_foreach(choices, i, choice)
    {
        json_t *calls = json_object_get(json_object_get(choice, "message"), "tool_calls");
        json_array_foreach(calls, k, call)
        {
            json_object_del(call, "id");
        }
    }
    json_array_append_new(told,
                          json_pack("{s:o, s:i, s:i}", "choices", choices, "prompt",
                                    (int)served_int_at(reply, "usage.prompt_tokens"), "answer",
                                    (int)served_int_at(reply, "usage.completion_tokens")));
}

/* Prompt tokens that came from the cache, by all that says so. */
static int cached(const json_t *reply)
{
    long n = served_int_at(reply, "usage.prompt_tokens_details.cached_tokens");
    assert_int_equal(served_int_at(reply, "timings.cache_n"), n);
    assert_int_equal(served_int_at(reply, "timings.prompt_n") + n,
                     served_int_at(reply, "usage.prompt_tokens"));
    if (!with_cache) assert_int_equal(n, 0);
    n_cached += n;
    return (int)n;
}

/* Takes body; fields: more of them, JSON without braces. */
static json_t *ask(const char *path, json_t *body, const char *fields)
{
    char text[512];
    snprintf(text, sizeof text, "{\"temperature\": 0, %s}", fields);
    json_t *more = json_loads(text, 0, NULL);
    assert_non_null(more);
    json_object_update_new(body, more);
    char *dumped = json_dumps(body, 0);
    json_t *reply = served_post(served, path, dumped, 200);
    free(dumped);
    json_decref(body);
    tell(reply);
    return reply;
}

static json_t *chat_body(json_t *messages, int thinking)
{
    return json_pack("{s:O, s:O, s:b}", "messages", messages, "tools", tools, "enable_thinking",
                     thinking);
}

static int cached_of(json_t *reply)
{
    int n = cached(reply);
    json_decref(reply);
    return n;
}

/* The reply's cached tokens, when nothing else matters. */
static int ask_chat(json_t *messages, const char *fields)
{
    return cached_of(ask(CHAT, chat_body(messages, 0), fields));
}

static json_t *question(const char *system, const char *text)
{
    json_t *messages = json_array();
    if (system)
        json_array_append_new(messages,
                              json_pack("{s:s, s:s}", "role", "system", "content", system));
    json_array_append_new(messages, json_pack("{s:s, s:s}", "role", "user", "content", text));
    return messages;
}

/* ---- what the server makes of messages ---- */

typedef struct {
    TokenList ids;
    int n_stable;
} Prompt;

static Prompt prompt_of(json_t *messages, int thinking)
{
    static const ApiDefaults defaults = {
        .max_tokens = -1,
        .chat = {.add_generation_prompt = 1, .enable_thinking = -1},
        .n_vocab = 1};
    Prompt p = {0};
    ApiRequest r = {0};
    ApiError err = {0};
    Encoding e = {0};
    size_t budget = SIZE_MAX;
    if (api_request_read(&r, API_CHAT, chat_body(messages, thinking), &defaults, &err) ||
        encoding_chat(&e, &served->service, &r, &p.ids, &err) || encoding_some(&e, &budget, &err))
        fail_msg("%s", err.error.msg);
    p.n_stable = e.n_stable;
    encoding_free(&e);
    api_request_free(&r);
    return p;
}

static int stable(json_t *messages, int thinking)
{
    Prompt p = prompt_of(messages, thinking);
    token_list_free(&p.ids);
    return p.n_stable;
}

static int length(json_t *messages)
{
    Prompt p = prompt_of(messages, 0);
    int n = p.ids.n;
    token_list_free(&p.ids);
    return n;
}

/* Tokens that two prompts begin with. */
static int common(json_t *a, json_t *b)
{
    Prompt p = prompt_of(a, 0), q = prompt_of(b, 0);
    int n = 0;
    while (n < p.ids.n && n < q.ids.n && p.ids.id[n] == q.ids.id[n])
        n++;
    token_list_free(&p.ids);
    token_list_free(&q.ids);
    return n;
}

static void expect(int got, int least)
{
    if (with_cache && got < least) fail_msg("%d cached, not %d", got, least);
}

static void expect_none(int got)
{
    assert_int_equal(got, 0);
}

/* ---- scripts ---- */

#define DINNER "I want to find an Italian restaurant in San Jose for two people this evening, "

/* A, B, A; A twice more; and a third that begins as both. */
static void repeats(void)
{
    json_t *a = question("You are helpful.", DINNER "with a view");
    json_t *b = question("You are helpful.", DINNER "with music");
    json_t *c = question("You are helpful.", DINNER "with good wine");
    json_t *other = question("You are helpful.", "Where?");
    int n_ab = common(a, b), n_ac = common(a, c), n_system = common(a, other) - 2; /* "user\n" */
    assert_true(n_system > 100);
    assert_true(n_ab >= n_system + 16);
    assert_int_equal(n_ac, n_ab);
    expect_none(ask_chat(a, "\"max_tokens\": 40"));
    int n_b = ask_chat(b, "\"max_tokens\": 40");
    expect(n_b, n_system);
    assert_true(n_b <= n_ab);
    for (int i = 0; i < 3; i++) {
        int n = ask_chat(a, "\"max_tokens\": 40");
        expect(n, stable(a, 0));
        assert_true(n <= length(a));
    }
    /* Where a and b parted there is a state now. */
    expect(ask_chat(c, "\"max_tokens\": 40"), n_ac);
    /* Drawn by lot, with a seed. */
    expect(ask_chat(a, "\"temperature\": 1, \"seed\": 7, \"max_tokens\": 40"), stable(a, 0));
    json_decref(a);
    json_decref(b);
    json_decref(c);
    json_decref(other);
}

/* A counter of the metrics page. */
static long counter(const char *name)
{
    HttpReply r = http_exchange(served->port, "GET", "/metrics", "", "");
    const char *line = strstr(r.body.data, name);
    if (!line) fail_msg("no %s", name);
    line = strchr(line, ' ');
    long value = line ? strtol(line, NULL, 10) : -1;
    http_reply_free(&r);
    return value;
}

#define RETURNED(how)                                                                              \
    counter("\noffshoot:answers_returned_total{model_name=\"demo\",engine=\"0\",as=\"" how "\"}")

static void expect_returned(long same, long recut, long changed)
{
    if (!with_cache) return;
    assert_int_equal(RETURNED("same"), same);
    assert_int_equal(RETURNED("recut"), recut);
    assert_int_equal(RETURNED("changed"), changed);
}

/* The client sends its answer back as it came, with a result for each call or another question. */
static void go_on(json_t *messages, const json_t *reply, const char *result)
{
    json_t *message = json_deep_copy(served_at(reply, "choices.0.message"));
    json_t *calls = json_object_get(message, "tool_calls"), *call;
    size_t i;
    json_array_append_new(messages, message);
    json_array_foreach(calls, i, call)
    {
        json_array_append_new(messages, json_pack("{s:s, s:O, s:s}", "role", "tool", "tool_call_id",
                                                  json_object_get(call, "id"), "content", result));
    }
    if (!json_array_size(calls))
        json_array_append_new(messages, json_pack("{s:s, s:s}", "role", "user", "content", result));
}

/*
 * What the next prompt begins with again. After a call that is the answer too, all but its end
 * token. Else it is what is stable; but a loop of calls is rendered anew after the next question,
 * and then it is what was stable of the last one.
 */
static int is_left(const json_t *reply, json_t *messages, int thinking, int *of_question)
{
    const json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    int n = stable(messages, thinking);
    if (!strcmp(served_text_at(last, "role"), "user")) *of_question = n;
    if (strcmp(served_text_at(reply, "choices.0.finish_reason"), "tool_calls") != 0)
        return *of_question;
    if (!with_answers || thinking) return n;
    return (int)served_int_at(reply, "usage.prompt_tokens") +
           (int)served_int_at(reply, "usage.completion_tokens") - 1;
}

/* Each turn finds what is left of the one before. */
static void converse(int thinking)
{
    static const char *const results[] = {
        "{\"restaurant_name\": \"Bella Mia\", \"price_range\": \"moderate\"}",
        "{\"restaurant_name\": \"Original Joe's\", \"price_range\": \"moderate\"}",
        "I would like to reserve a table there, for 2 people, at half past 6",
        "{\"status\": \"ok\"}",
        "Thank you. And a Chinese one in Palo Alto?",
    };
    enum { TURNS = sizeof results / sizeof *results };
    json_t *messages = question(NULL, "I want to find an Italian restaurant in San Jose");
    int n_calls = 0, n_whole = 0, left = 0, of_question = 0;
    for (int turn = 0; turn <= TURNS; turn++) {
        json_t *reply = ask(CHAT, chat_body(messages, thinking), "\"max_tokens\": 60");
        n_calls += served_at(reply, "choices.0.message.tool_calls") != NULL;
        n_whole += !strcmp(served_text_at(reply, "choices.0.finish_reason"), "tool_calls");
        expect(cached(reply), left);
        left = is_left(reply, messages, thinking, &of_question);
        if (turn < TURNS) go_on(messages, reply, results[turn]);
        json_decref(reply);
    }
    assert_true(thinking || n_calls);
    expect_returned(n_whole, 0, n_calls - n_whole);
    json_decref(messages);
}

static void loop(void)
{
    converse(0);
}

static void loop_with_thinking(void)
{
    converse(1);
}

/* The answer is dropped and something else said: all that was said before is found. */
static void takes_back(int thinking)
{
    json_t *m = question("You are helpful.", "I want to find an Italian restaurant in San Jose");
    for (int turn = 0; turn < 3; turn++) {
        json_t *before = json_deep_copy(m);
        if (!turn) expect_none(cached_of(ask(CHAT, chat_body(m, thinking), "\"max_tokens\": 10")));
        json_array_append_new(m, json_pack("{s:s, s:s}", "role", "user", "content",
                                           "That was no call. Please try once more."));
        expect(cached_of(ask(CHAT, chat_body(m, thinking), "\"max_tokens\": 10")),
               common(before, m));
        json_decref(before);
    }
    json_decref(m);
}

static void dropped(void)
{
    takes_back(0);
}

static void dropped_with_thinking(void)
{
    takes_back(1);
}

static void billing(void)
{
    char system[200];
    int n[3];
    long n_prompt[3];
    for (int i = 0; i < 3; i++) {
        static const char *const cch[] = {"36ee5", "00000", "fffff"};
        int at = snprintf(system, sizeof system, BILLING, cch[i]);
        snprintf(system + at, sizeof system - (size_t)at, "%sYou are a helpful guide to San Jose.",
                 i == 2 ? "" : "\n\n");
        json_t *m = question(system, "Which restaurant is open now?");
        json_t *reply = ask(CHAT, chat_body(m, 0), "\"max_tokens\": 5");
        n[i] = cached(reply);
        n_prompt[i] = served_int_at(reply, "usage.prompt_tokens");
        if (i) expect(n[i], stable(m, 0));
        json_decref(reply);
        json_decref(m);
    }
    expect_none(n[0]);
    assert_int_equal(n_prompt[0], n_prompt[1]);
    assert_int_equal(n_prompt[0], n_prompt[2]);
    /* What a user writes is left alone. */
    json_t *plain = question(NULL, "x-anthropic-billing-header: cch=1;");
    json_t *reply = ask(CHAT, chat_body(plain, 0), "\"max_tokens\": 5");
    json_t *none = question(NULL, "");
    assert_true(served_int_at(reply, "usage.prompt_tokens") > length(none) + 5);
    json_decref(reply);
    json_decref(plain);
    json_decref(none);
}

static void salts(void)
{
    json_t *m = question("You are helpful.", "Where is San Jose?");
    int n = stable(m, 0);
    expect_none(ask_chat(m, "\"max_tokens\": 5"));
    expect_none(ask_chat(m, "\"max_tokens\": 5, \"cache_salt\": \"tenant-1\""));
    expect_none(ask_chat(m, "\"max_tokens\": 5, \"cache_salt\": \"tenant-2\""));
    expect(ask_chat(m, "\"max_tokens\": 5, \"cache_salt\": \"tenant-1\""), n);
    expect(ask_chat(m, "\"max_tokens\": 5, \"cache_salt\": \"tenant-2\""), n);
    expect(ask_chat(m, "\"max_tokens\": 5, \"cache_salt\": null"), n);
    expect(ask_chat(m, "\"max_tokens\": 5, \"cache_salt\": \"\""), n);
    json_decref(m);
}

static void without(void)
{
    json_t *m = question("You are helpful.", "Where is San Jose?");
    expect_none(ask_chat(m, "\"max_tokens\": 5, \"cache_prompt\": false"));
    expect_none(ask_chat(m, "\"max_tokens\": 5"));
    expect_none(ask_chat(m, "\"max_tokens\": 5, \"cache_prompt\": false"));
    expect(ask_chat(m, "\"max_tokens\": 5, \"cache_prompt\": true"), stable(m, 0));
    json_decref(m);
}

static const char essay[] =
    "The city of San Jose lies at the southern end of the bay. It was founded in 1777, and for "
    "most of its time it lived on fruit: apricots, prunes and cherries were dried and sent to the "
    "whole world. Then came the chips";

static json_t *complete(json_t *prompt, const char *fields)
{
    return ask(COMPLETIONS, json_pack("{s:o}", "prompt", prompt), fields);
}

static int complete_n(json_t *prompt, const char *fields)
{
    json_t *reply = complete(prompt, fields);
    int n = cached(reply);
    json_decref(reply);
    return n;
}

/* Raw prompts: texts, to which an answer and more text are added; and ids. */
static void completions(void)
{
    static const char fields[] = "\"max_tokens\": 12, \"ignore_eos\": true";
    StrBuf text = {0};
    strbuf_puts(&text, essay);
    int least = 0;
    for (int i = 0; i < 4; i++) {
        json_t *reply = complete(json_string(strbuf_str(&text)), fields);
        expect(cached(reply), least);
        long n = served_int_at(reply, "usage.prompt_tokens");
        least = (int)n - 3; /* all but what may merge with what follows */
        strbuf_puts(&text, served_text_at(reply, "choices.0.text"));
        strbuf_puts(&text, i == 1 ? "" : ". Moreover");
        json_decref(reply);
    }
    strbuf_free(&text);
    /* A text that ends within a word which then goes on: its last tokens become others. */
    expect_none(complete_n(json_string("It is, they say, a rest"), fields));
    json_t *reply =
        complete(json_string("It is, they say, a restaurant"), "\"max_tokens\": 1, \"n\": 1");
    expect(cached(reply), (int)served_int_at(reply, "usage.prompt_tokens") - 2);
    json_decref(reply);
    json_t *ids = json_array();
    for (int i = 0; i < 60; i++)
        json_array_append_new(ids, json_integer(300 + 7 * i));
    expect_none(complete_n(json_incref(ids), fields));
    expect(complete_n(json_incref(ids), fields), 59);
    json_array_append_new(ids, json_integer(5));
    expect(complete_n(ids, fields), 60);
}

static json_t *ids_and_bytes(const json_t *ids, const char *text)
{
    json_t *all = json_deep_copy(ids);
    for (; *text; text++)
        json_array_append_new(all,
                              json_integer(byte_token(served->service.tok, (unsigned char)*text)));
    return all;
}

/* An answer comes back in its tokens, in others, and not as it was. */
static void returns(void)
{
    static const char fields[] = "\"max_tokens\": 8, \"return_token_ids\": true";
    static const char prompt[] =
        "<|im_start|>user\nI want to find an Italian restaurant in San Jose"
        "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
    json_t *first = complete(json_string(prompt), fields);
    const json_t *ids = served_at(first, "choices.0.prompt_token_ids");
    const char *text = served_text_at(first, "choices.0.text");
    assert_true(strlen(text) > 12); /* more bytes than tokens: it can be cut otherwise */
    json_t *same = json_deep_copy(ids);
    json_array_extend(same, (json_t *)served_at(first, "choices.0.token_ids"));
    json_array_append_new(same, json_integer(5));
    expect_returned(0, 0, 0);
    (void)complete_n(same, "\"max_tokens\": 1");
    expect_returned(1, 0, 0);
    (void)complete_n(ids_and_bytes(ids, text), "\"max_tokens\": 1");
    expect_returned(1, 1, 0);
    (void)complete_n(ids_and_bytes(ids, "~~~"), "\"max_tokens\": 1");
    expect_returned(1, 1, 1);
    (void)complete_n(ids_and_bytes(ids, text), "\"max_tokens\": 1, \"cache_prompt\": false");
    (void)complete_n(ids_and_bytes(ids, text), "\"max_tokens\": 1, \"cache_salt\": \"s\"");
    expect_returned(1, 1, 1);
    json_decref(first);
}

/* Several answers, several prompts: each prompt's tokens count once, found or not. */
static void several(void)
{
    static const char fields[] = "\"max_tokens\": 4, \"n\": 3, \"temperature\": 1, \"seed\": 1";
    n_each = 3;
    expect_none(complete_n(json_string(essay), fields));
    json_t *reply = complete(json_string(essay), fields);
    long n_prompt = served_int_at(reply, "usage.prompt_tokens");
    int n = cached(reply);
    expect(n, (int)n_prompt - 3);
    json_decref(reply);
    reply = complete(json_pack("[s, s, s]", essay, "Once", essay), fields);
    expect(cached(reply), 2 * n);
    json_decref(reply);
}

/* A prompt without an answer is kept; and what scores of a prompt need is computed all the same. */
static void scores(void)
{
    expect_none(complete_n(json_string(essay), "\"max_tokens\": 0"));
    json_t *reply = complete(json_string(essay), "\"max_tokens\": 3, \"logprobs\": 2");
    expect(cached(reply), (int)served_int_at(reply, "usage.prompt_tokens") - 3);
    json_decref(reply);
    for (int i = 0; i < 2; i++) {
        reply = complete(json_string(essay), "\"max_tokens\": 3, \"logprobs\": 2, \"echo\": true, "
                                             "\"prompt_logprobs\": 1");
        assert_int_equal(json_array_size(served_at(reply, "choices.0.logprobs.tokens")),
                         served_int_at(reply, "usage.prompt_tokens") + 3);
        (void)cached(reply);
        json_decref(reply);
    }
}

/* The last chunk of a stream tells the same, and the others told it before. */
static void streams(void)
{
    json_t *m = question(NULL, "Which restaurants are there in Oakland?");
    json_t *body = chat_body(m, 0);
    json_object_update_new(body, json_pack("{s:i, s:i, s:b, s:b, s:{s:b, s:b}}", "max_tokens", 8,
                                           "temperature", 0, "timings_per_token", 1, "stream", 1,
                                           "stream_options", "include_usage", 1,
                                           "continuous_usage_stats", 1));
    char *text = json_dumps(body, 0);
    for (int i = 0; i < 2; i++) {
        json_t *events = served_events(served, CHAT, text), *event;
        const json_t *last = json_array_get(events, json_array_size(events) - 1);
        int n = cached(last);
        size_t k;
        json_array_foreach(events, k, event)
        {
            assert_int_equal(served_int_at(event, "usage.prompt_tokens_details.cached_tokens"), n);
            assert_int_equal(served_int_at(event, "timings.cache_n"), n);
            assert_int_equal(served_int_at(event, "timings.prompt_n"),
                             served_int_at(last, "timings.prompt_n"));
        }
        expect(n, i ? stable(m, 0) : 0);
        if (!i) expect_none(n);
        json_decref(events);
    }
    free(text);
    json_decref(body);
    json_decref(m);
}

/* ---- running them ---- */

static json_t *run(void (*script)(void), const ServedOptions *o)
{
    served = served_start(o);
    with_cache = o->cache.on;
    with_answers = o->cache.keep_answers;
    n_cached = 0;
    n_each = 1;
    told = json_array();
    script();
    served_wait_idle(served);
    if (with_cache) assert_true(n_cached > 0);
    long n_hit = counter("\nvllm:prefix_cache_hits_total{");
    assert_int_equal(counter("\nvllm:prompt_tokens_cached_total{"), n_hit);
    assert_true(n_each == 1 ? n_hit == n_cached : n_hit >= n_each * n_cached);
    assert_true(counter("\nvllm:prefix_cache_queries_total{") >= n_hit);
    assert_int_equal(served_stop(served), 0);
    return told;
}

static void run_all_ways(void (*script)(void))
{
    ServedOptions o = served_defaults();
    json_t *want = run(script, &o);
    o.cache = (CacheOptions){.on = 1, .policy = POLICY_FLOP, .alpha = -1, .keep_answers = 1};
    for (int way = 0; way < 3; way++) {
        o.plain = way == 1;
        o.cache.keep_answers = way != 2;
        json_t *got = run(script, &o);
        if (!json_equal(got, want)) {
            char *a = json_dumps(got, 0), *b = json_dumps(want, 0);
            fail_msg("%d: %s\nnot %s", way, a, b);
        }
        json_decref(got);
    }
    json_decref(want);
}

#define SCRIPT_TEST(script)                                                                        \
    static void test_##script(void **state)                                                        \
    {                                                                                              \
        (void)state;                                                                               \
        run_all_ways(script);                                                                      \
    }

SCRIPT_TEST(repeats)
SCRIPT_TEST(loop)
SCRIPT_TEST(loop_with_thinking)
SCRIPT_TEST(dropped)
SCRIPT_TEST(dropped_with_thinking)
SCRIPT_TEST(billing)
SCRIPT_TEST(salts)
SCRIPT_TEST(without)
SCRIPT_TEST(completions)
SCRIPT_TEST(returns)
SCRIPT_TEST(several)
SCRIPT_TEST(scores)
SCRIPT_TEST(streams)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_repeats),
        cmocka_unit_test(test_loop),
        cmocka_unit_test(test_loop_with_thinking),
        cmocka_unit_test(test_dropped),
        cmocka_unit_test(test_dropped_with_thinking),
        cmocka_unit_test(test_billing),
        cmocka_unit_test(test_salts),
        cmocka_unit_test(test_without),
        cmocka_unit_test(test_completions),
        cmocka_unit_test(test_several),
        cmocka_unit_test(test_returns),
        cmocka_unit_test(test_scores),
        cmocka_unit_test(test_streams),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
