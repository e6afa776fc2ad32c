/*
 * test_metrics.c: GET /metrics of a server: its form, and its figures, which known requests
 * determine.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/analyzer.h"
#include "tests/checkpoint.h"
#include "tests/metrics_page.h"

#define COMPLETIONS "/v1/completions"
#define ENDLESS                                                                                    \
    "{\"prompt\": \"Hello\", \"max_tokens\": 8000, \"ignore_eos\": true, \"stream\": true}"

static const struct {
    const char *name, *type;
} families[] = {
    {"vllm:num_requests_running", "gauge"},
    {"vllm:num_requests_waiting", "gauge"},
    {"vllm:kv_cache_usage_perc", "gauge"},
    {"vllm:cache_config_info", "gauge"},
    {"vllm:lora_requests_info", "gauge"},
    {"vllm:num_preemptions_total", "counter"},
    {"vllm:prompt_tokens_total", "counter"},
    {"vllm:generation_tokens_total", "counter"},
    {"vllm:prompt_tokens_cached_total", "counter"},
    {"vllm:prefix_cache_queries_total", "counter"},
    {"vllm:prefix_cache_hits_total", "counter"},
    {"vllm:request_success_total", "counter"},
    {"vllm:request_prompt_tokens", "histogram"},
    {"vllm:request_generation_tokens", "histogram"},
    {"vllm:request_params_max_tokens", "histogram"},
    {"vllm:request_params_n", "histogram"},
    {"vllm:request_max_num_generation_tokens", "histogram"},
    {"vllm:iteration_tokens_total", "histogram"},
    {"vllm:time_to_first_token_seconds", "histogram"},
    {"vllm:inter_token_latency_seconds", "histogram"},
    {"vllm:request_time_per_output_token_seconds", "histogram"},
    {"vllm:e2e_request_latency_seconds", "histogram"},
    {"vllm:request_queue_time_seconds", "histogram"},
    {"vllm:request_prefill_time_seconds", "histogram"},
    {"vllm:request_decode_time_seconds", "histogram"},
    {"vllm:request_inference_time_seconds", "histogram"},
    {"offshoot:steps_total", "counter"},
    {"offshoot:verify_seconds_total", "counter"},
    {"offshoot:prefill_seconds_total", "counter"},
    {"offshoot:http_requests_total", "counter"},
    {"offshoot:http_unsent_bytes", "gauge"},
    {"offshoot:startup_seconds", "gauge"},
    {"offshoot:build_info", "gauge"},
    {"process_resident_memory_bytes", "gauge"},
    {"process_cpu_seconds_total", "counter"},
    {"process_start_time_seconds", "gauge"},
    {"process_open_fds", "gauge"},
};
static const char *const draft_families[] = {
    "vllm:spec_decode_num_drafts_total",
    "vllm:spec_decode_num_draft_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_per_pos_total",
    "offshoot:acceptance_length",
    "offshoot:draft_nodes",
    "offshoot:draft_depth",
    "offshoot:draft_seconds_total",
    "offshoot:state_slots_promoted_total",
    "offshoot:kv_rows_moved_total",
};
static void test_families(void **state)
{
    (void)state;
    for (int plain = 0; plain < 2; plain++) {
        ServedOptions o = served_defaults();
        o.api_key = "secret";
        o.plain = plain;
        Served *s = served_start(&o);
        Page p = page_scrape(s);
        for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
            const char *type = json_string_value(json_object_get(p.type, families[i].name));
            if (!type) fail_msg("%s is missing", families[i].name);
            assert_string_equal(type, families[i].type);
        }
        for (size_t i = 0; i < sizeof draft_families / sizeof *draft_families; i++)
            if ((json_object_get(p.type, draft_families[i]) == NULL) != plain)
                fail_msg("%s: drafter %d", draft_families[i], !plain);
        assert_sample(&p, "vllm:num_requests_running", 0);
        assert_sample(&p, "vllm:num_requests_waiting", 0);
        assert_sample(&p, "vllm:kv_cache_usage_perc", 0);
        assert_sample(&p, "vllm:request_success_total{finished_reason=abort}", 0);
        assert_sample(&p, "vllm:request_params_n_bucket{le=20}", 0);
        assert_sample(&p, "vllm:inter_token_latency_seconds_bucket{le=0.0005}", 0);
        assert_sample(&p, "vllm:iteration_tokens_total_bucket{le=16384}", 0);
        assert_sample(&p, "vllm:request_prompt_tokens_bucket{le=200000}", 0);
        assert_sample(&p, "offshoot:build_info{version=0.1.0,device=cpu,quant=none}", 1);
        assert_true(page_get(&p, "process_resident_memory_bytes") > 1e6);
        assert_true(page_get(&p, "process_open_fds") >= 6);
        double age = (double)time(NULL) - page_get(&p, "process_start_time_seconds");
        assert_true(age > -1 && age < 86400);
        if (!plain) {
            static const char per_pos[] = "vllm:spec_decode_num_accepted_tokens_per_pos_total";
            char key[96];
            for (int i = 0; i < 4; i++) {
                snprintf(key, sizeof key, "%s{position=%d}", per_pos, i);
                assert_int_equal(json_object_get(p.value, key) != NULL, i < 3);
            }
            assert_sample(&p, "offshoot:acceptance_length_bucket{drafter=mtp,le=17}", 0);
        }
        page_close(&p);
        assert_int_equal(served_stop(s), 0);
    }
}

typedef struct {
    double prompt, generated, longest, drafted, accepted, stop, length;
    int answers;
} Sums;

static double number(const json_t *reply, const char *path)
{
    return json_number_value(served_at(reply, path));
}

static double longest(const json_t *choices)
{
    size_t n, most = 0;
    for (size_t i = 0; i < json_array_size(choices); i++) {
        n = json_array_size(served_at(json_array_get(choices, i), "token_ids"));
        if (n > most) most = n;
    }
    return (double)most;
}

/* Adds what a reply says of itself. n: answers to each prompt. */
static void add_reply(Sums *sums, const json_t *reply, int n)
{
    const json_t *choices = json_object_get(reply, "choices");
    sums->prompt += n * number(reply, "usage.prompt_tokens");
    sums->generated += number(reply, "usage.completion_tokens");
    sums->longest += longest(choices);
    sums->drafted += number(reply, "timings.draft_n");
    sums->accepted += number(reply, "timings.draft_n_accepted");
    for (size_t i = 0; i < json_array_size(choices); i++) {
        const char *why = json_string_value(served_at(json_array_get(choices, i), "finish_reason"));
        assert_non_null(why);
        sums->answers++;
        sums->stop += !strcmp(why, "stop");
        sums->length += !strcmp(why, "length");
    }
}

/* What holds between the figures whatever was asked. */
static void check_identities(const Page *p)
{
    double per_pos = 0, steps = 0;
    static const char *const kinds[] = {"decode", "verify", "prefill", "mixed"};
    for (int i = 0; i < 4; i++) {
        char key[96];
        snprintf(key, sizeof key, "offshoot:steps_total{kind=%s}", kinds[i]);
        steps += page_get(p, key);
    }
    for (int i = 0; i < 3; i++) {
        char key[96];
        snprintf(key, sizeof key, "vllm:spec_decode_num_accepted_tokens_per_pos_total{position=%d}",
                 i);
        per_pos += page_get(p, key);
    }
    double verified = page_get(p, "offshoot:acceptance_length_count{drafter=mtp}");
    double lengths = page_get(p, "offshoot:acceptance_length_sum{drafter=mtp}");
    double accepted = page_get(p, "vllm:spec_decode_num_accepted_tokens_total");
    double generated = page_get(p, "vllm:generation_tokens_total");
    assert_sample(p, "vllm:iteration_tokens_total_count", steps);
    assert_true(per_pos == accepted && lengths - verified == accepted);
    assert_sample(p, "offshoot:draft_nodes_sum",
                  page_get(p, "vllm:spec_decode_num_draft_tokens_total"));
    assert_sample(p, "offshoot:draft_nodes_count", verified);
    assert_sample(p, "offshoot:draft_depth_count", verified);
    assert_sample(p, "vllm:inter_token_latency_seconds_count", verified);
    assert_sample(p, "vllm:time_to_first_token_seconds_count", generated - lengths);
    assert_sample(p, "vllm:spec_decode_num_drafts_total",
                  verified - page_get(p, "offshoot:draft_nodes_bucket{le=0}"));
}

#define ASK "{\"return_token_ids\": true, "

/* Known requests, whole and streamed, one and several answers: the page is the sum of the replies.
 */
static void test_counts(void **state)
{
    (void)state;
    static const struct {
        const char *body;
        int n;
    } asks[] = {
        {ASK "\"prompt\": \"I want to find\", \"max_tokens\": 40, \"temperature\": 0}", 1},
        {ASK "\"prompt\": \"Hello\", \"max_tokens\": 30, \"ignore_eos\": true, \"temperature\": 0}",
         1},
        {ASK "\"prompt\": \"Hello\", \"max_tokens\": 9, \"n\": 3, \"seed\": 4}", 3},
        {ASK "\"prompt\": [\"One\", \"Two\"], \"max_tokens\": 1}", 1},
        {ASK "\"prompt\": \"Hello you\", \"max_tokens\": 0, \"echo\": true}", 1},
        {ASK "\"prompt\": \"Hello\", \"max_tokens\": 12, \"speculative.n_max\": 0}", 1},
    };
    Served *s = served_start(NULL);
    Sums sums = {0};
    Page before = page_scrape(s);
    for (size_t i = 0; i < sizeof asks / sizeof *asks; i++) {
        json_t *reply = served_post(s, COMPLETIONS, asks[i].body, 200);
        add_reply(&sums, reply, asks[i].n);
        json_decref(reply);
    }
    json_t *events = served_events(s, COMPLETIONS,
                                   "{\"prompt\": \"I want\", \"max_tokens\": 20, \"stream\": true, "
                                   "\"stream_options\": {\"include_usage\": true}}");
    const json_t *usage = json_array_get(events, json_array_size(events) - 1);
    add_reply(&sums, usage, 1);
    sums.longest += number(usage, "usage.completion_tokens");
    const json_t *last = json_array_get(events, json_array_size(events) - 2);
    const char *why = json_string_value(served_at(last, "choices.0.finish_reason"));
    assert_non_null(why);
    sums.answers++;
    *(strcmp(why, "stop") ? &sums.length : &sums.stop) += 1;
    json_decref(events);

    Page p = page_scrape(s);
    assert_true(sums.drafted > sums.accepted && sums.accepted > 0 && sums.length > 4);
    assert_sample(&p, "vllm:prompt_tokens_total", sums.prompt);
    assert_sample(&p, "vllm:generation_tokens_total", sums.generated);
    assert_sample(&p, "vllm:spec_decode_num_draft_tokens_total", sums.drafted);
    assert_sample(&p, "vllm:spec_decode_num_accepted_tokens_total", sums.accepted);
    assert_sample(&p, "vllm:request_success_total{finished_reason=stop}", sums.stop);
    assert_sample(&p, "vllm:request_success_total{finished_reason=length}", sums.length);
    assert_sample(&p, "vllm:request_success_total{finished_reason=abort}", 0);
    assert_sample(&p, "vllm:request_success_total{finished_reason=error}", 0);
    assert_sample(&p, "vllm:request_prompt_tokens_sum", sums.prompt);
    assert_sample(&p, "vllm:request_prompt_tokens_count", sums.answers);
    assert_sample(&p, "vllm:request_generation_tokens_sum", sums.generated);
    assert_sample(&p, "vllm:e2e_request_latency_seconds_count", sums.answers);
    assert_sample(&p, "vllm:request_queue_time_seconds_count", sums.answers);
    assert_sample(&p, "vllm:request_params_max_tokens_sum", 40 + 30 + 3 * 9 + 2 * 1 + 0 + 12 + 20);
    assert_sample(&p, "vllm:request_params_n_count", 7);
    assert_sample(&p, "vllm:request_params_n_sum", 9);
    assert_sample(&p, "vllm:request_params_n_bucket{le=2}", 6);
    assert_sample(&p, "vllm:request_max_num_generation_tokens_count", 7);
    assert_sample(&p, "vllm:request_max_num_generation_tokens_sum", sums.longest);
    assert_sample(&p, "vllm:time_to_first_token_seconds_count", sums.answers - 1);
    assert_sample(&p, "vllm:iteration_tokens_total_sum", sums.prompt + sums.generated);
    assert_sample(&p, "vllm:num_requests_running", 0);
    assert_sample(&p, "vllm:num_requests_waiting", 0);
    assert_true(page_get(&p, "offshoot:steps_total{kind=verify}") > 0);
    assert_true(page_get(&p, "offshoot:steps_total{kind=decode}") > 0);
    assert_true(page_get(&p, "offshoot:verify_seconds_total") > 0);
    assert_true(page_get(&p, "offshoot:draft_seconds_total") > 0);
    assert_true(page_get(&p, "offshoot:prefill_seconds_total") > 0);
    assert_true(page_get(&p, "offshoot:state_slots_promoted_total") > 0);
    check_identities(&p);
    assert_risen(&before, &p);
    page_close(&before);
    page_close(&p);
    assert_int_equal(served_stop(s), 0);
}

static void exchange(const Served *s, const char *method, const char *path, const char *body)
{
    HttpReply r = http_exchange(s->port, method, path, "", body);
    http_reply_free(&r);
}

/* Routes are those of our table, so that nobody can invent one. */
static void test_http(void **state)
{
    (void)state;
    Served *s = served_start(NULL);
    for (int i = 0; i < 3; i++)
        exchange(s, "GET", "/health", "");
    exchange(s, "HEAD", "/health", "");
    exchange(s, "POST", "/health", "{}");
    exchange(s, "GET", "/nowhere", "");
    exchange(s, "GET", "/else\"where", "");
    exchange(s, "POST", "/nowhere", "{}");
    exchange(s, "OPTIONS", "/nowhere", "");
    exchange(s, "GET", "/v1/models/", "");
    exchange(s, "GET", "/v1/models/demo", "");
    exchange(s, "GET", "/v1/models/other", "");
    exchange(s, "POST", COMPLETIONS, "{");
    exchange(s, "POST", COMPLETIONS, "{\"prompt\": \"Hello\", \"max_tokens\": 2}");
    exchange(s, "POST", COMPLETIONS,
             "{\"prompt\": \"Hello\", \"max_tokens\": 2, \"stream\": true}");
    Page first = page_scrape(s), p = page_scrape(s);
    assert_sample(&p, "offshoot:http_requests_total{route=/health,status=200}", 4);
    assert_sample(&p, "offshoot:http_requests_total{route=/health,status=405}", 1);
    assert_sample(&p, "offshoot:http_requests_total{route=other,status=404}", 3);
    assert_sample(&p, "offshoot:http_requests_total{route=other,status=204}", 1);
    assert_sample(&p, "offshoot:http_requests_total{route=/v1/models,status=200}", 1);
    assert_sample(&p, "offshoot:http_requests_total{route=/v1/models/,status=200}", 1);
    assert_sample(&p, "offshoot:http_requests_total{route=/v1/models/,status=404}", 1);
    assert_sample(&p, "offshoot:http_requests_total{route=/v1/completions,status=400}", 1);
    assert_sample(&p, "offshoot:http_requests_total{route=/v1/completions,status=200}", 2);
    assert_sample(&p, "offshoot:http_requests_total{route=/metrics,status=200}", 1);
    assert_sample(&p, "vllm:request_params_n_count", 2);
    assert_risen(&first, &p);
    page_close(&first);
    page_close(&p);
    assert_int_equal(served_stop(s), 0);
}

/* Reads some of a stream, so that it is certain to run. */
static int begin_stream(const Served *s)
{
    char buf[400];
    int fd = http_connect(s->port);
    http_send(fd, "POST", COMPLETIONS, "", ENDLESS);
    for (size_t n = 0; n < sizeof buf;) {
        ssize_t got = read(fd, buf, sizeof buf - n);
        assert_true(got > 0);
        n += (size_t)got;
    }
    return fd;
}

/* Streams that run and wait, then vanish: the gauges see them come and go, the counters only rise.
 */
static void test_gauges_and_aborts(void **state)
{
    (void)state;
    ServedOptions o = served_defaults();
    o.max_seqs = 1;
    Served *s = served_start(&o);
    int fd[3];
    fd[0] = begin_stream(s);
    for (int i = 1; i < 3; i++) {
        fd[i] = http_connect(s->port);
        http_send(fd[i], "POST", COMPLETIONS, "", ENDLESS);
    }
    while (server_n_live(s->server) < 3)
        usleep(1000);
    Page before = page_scrape(s);
    assert_sample(&before, "vllm:num_requests_running", 1);
    assert_sample(&before, "vllm:num_requests_waiting", 2);
    assert_true(page_get(&before, "vllm:kv_cache_usage_perc") > 0);
    assert_true(page_get(&before, "vllm:kv_cache_usage_perc") <= 1);
    assert_true(page_get(&before, "offshoot:kv_pages{kind=used}") > 0);
    assert_true(page_get(&before, "offshoot:state_slots{kind=used}") > 0);
    assert_true(page_get(&before, "vllm:generation_tokens_total") > 0);
    assert_sample(&before, "vllm:request_params_n_count", 3);
    for (int i = 0; i < 10; i++) {
        Page p = page_scrape(s);
        assert_risen(&before, &p);
        page_close(&before);
        before = p;
        usleep(3000);
    }
    for (int i = 0; i < 3; i++)
        close(fd[i]);
    served_wait_idle(s);
    Page p = page_scrape(s);
    assert_risen(&before, &p);
    assert_sample(&p, "vllm:num_requests_running", 0);
    assert_sample(&p, "vllm:num_requests_waiting", 0);
    assert_sample(&p, "vllm:kv_cache_usage_perc", 0);
    assert_sample(&p, "offshoot:kv_pages{kind=used}", 0);
    assert_sample(&p, "offshoot:state_slots{kind=used}", 0);
    assert_sample(&p, "vllm:request_success_total{finished_reason=abort}", 3);
    assert_sample(&p, "vllm:request_success_total{finished_reason=length}", 0);
    assert_sample(&p, "offshoot:http_requests_total{route=/v1/completions,status=499}", 3);
    page_close(&before);
    page_close(&p);
    assert_int_equal(served_stop(s), 0);
}

/* An answer that cannot be made, and requests that never were admitted. */
static void test_errors(void **state)
{
    (void)state;
    served_break_model(1);
    Served *s = served_start(NULL);
    json_t *reply = served_post(s, COMPLETIONS, "{\"prompt\": \"Hello\"}", 500);
    json_decref(reply);
    reply = served_post(s, COMPLETIONS, "{\"prompt\": \"\"}", 400);
    json_decref(reply);
    Page p = page_scrape(s);
    assert_sample(&p, "vllm:request_success_total{finished_reason=error}", 1);
    assert_sample(&p, "vllm:request_success_total{finished_reason=stop}", 0);
    assert_sample(&p, "vllm:request_params_n_count", 1);
    assert_sample(&p, "vllm:generation_tokens_total", 0);
    assert_sample(&p, "vllm:prompt_tokens_total", 0);
    assert_sample(&p, "offshoot:http_requests_total{route=/v1/completions,status=500}", 1);
    page_close(&p);
    assert_int_equal(served_stop(s), 0);
    served_break_model(0);
}

/* The one name that comes from outside, the served model's, stays one label. */
static void test_escaped_name(void **state)
{
    (void)state;
    ServedOptions o = served_defaults();
    o.model_name = "a\"b\\c\nd{}, \xc3\xa9";
    Served *s = served_start(&o);
    HttpReply r = http_exchange(s->port, "GET", "/metrics", "", "");
    const char *name = strstr(r.body.data, "\nvllm:num_requests_running{");
    assert_non_null(name);
    Page all, p = {.line = name + 1};
    page_read(&all, r.body.data, r.body.len);
    char rest[64], le[32];
    page_read_labels(&p, strchr(name, '{') + 1, rest, sizeof rest, le);
    assert_string_equal(p.model, o.model_name);
    assert_string_equal(rest, "");
    page_close(&all);
    http_reply_free(&r);
    assert_int_equal(served_stop(s), 0);
}

/* What goes to disk is said to be there once it is, with nothing more asked meanwhile. */
static void test_saved_while_idle(void **state)
{
    (void)state;
    static const char body[] = "{\"prompt\": \"one two three four five six seven eight nine ten "
                               "eleven twelve thirteen fourteen fifteen\", \"max_tokens\": 2}";
    ServedOptions o = served_defaults();
    o.cache = (CacheOptions){.on = 1, .policy = POLICY_LRU, .keep_answers = 1};
    o.cache_dir = scratch_dir("metrics");
    Served *s = served_start(&o);
    double saved = 0, saving = 1;
    json_decref(served_post(s, COMPLETIONS, body, 200));
    for (int i = 0; i < 1000 && (saving > 0 || saved < 1); i++) {
        usleep(10000);
        Page p = page_scrape(s);
        saving = page_get(&p, "offshoot:cache_disk_saving");
        saved = page_get(&p, "offshoot:cache_saves_total{tier=disk}");
        page_close(&p);
    }
    assert_true(saved > 0);
    assert_true(saving == 0);
    assert_int_equal(served_stop(s), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_families),
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_http),
        cmocka_unit_test(test_gauges_and_aborts),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_escaped_name),
        cmocka_unit_test(test_saved_while_idle),
    };
    return cmocka_run_group_tests(tests, served_open_model, served_close_model);
}
