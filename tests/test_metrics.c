/*
 * test_metrics.c: GET /metrics: its form, by a strict reader of the text format, and its figures,
 * which known requests determine.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "server/answer.h"
#include "tests/analyzer.h"
#include "tests/served.h"

#define COMPLETIONS "/v1/completions"
#define ENDLESS                                                                                    \
    "{\"prompt\": \"Hello\", \"max_tokens\": 8000, \"ignore_eos\": true, \"stream\": true}"

/* ---- a reader of the text format ---- */

typedef struct {
    json_t *value;     /* sample as printed, our two labels left out -> number */
    json_t *type;      /* family -> type */
    char family[128];  /* whose samples are being read */
    char model[128];   /* value of model_name in the last sample, unescaped */
    char series[512];  /* the last bucket's labels without le */
    double le, bucket; /* its bound and value; le NaN: there was none */
    double infinite;   /* value of the +Inf bucket that was read last */
    const char *line;
} Page;

static jmp_buf refused; /* where a bad page leads to, while may_refuse */
static int may_refuse;

static void bad(const Page *p, const char *why)
{
    if (may_refuse) longjmp(refused, 1);
    fail_msg("%s: %.*s", why, (int)strcspn(p->line, "\n"), p->line);
}

static size_t name_length(const char *text, int colon)
{
    size_t n = 0;
    if (isdigit((unsigned char)*text)) return 0;
    while (isalnum((unsigned char)text[n]) || text[n] == '_' || (colon && text[n] == ':'))
        n++;
    return n;
}

/* A quoted label value; out gets it without escapes. Returns the byte after the closing quote. */
static const char *read_label(const Page *p, const char *at, char *out, size_t size)
{
    size_t n = 0;
    if (*at++ != '"') bad(p, "no quote");
    for (; *at != '"'; at++) {
        char c = *at;
        if (c == '\n' || !c) bad(p, "a label does not end");
        if (c == '\\') {
            c = *++at;
            if (c != '\\' && c != '"' && c != 'n') bad(p, "unknown escape");
            if (c == 'n') c = '\n';
        }
        if (n + 1 < size) out[n++] = c;
    }
    out[n] = 0;
    return at + 1;
}

/* Labels but our two and le go to rest; le's value to le ("" when absent). */
static const char *read_labels(Page *p, const char *at, char *rest, size_t size, char *le)
{
    size_t used = 0;
    char seen[512] = ",", value[256];
    rest[0] = le[0] = p->model[0] = 0;
    while (*at != '}') {
        size_t n = name_length(at, 0);
        const char *name = at;
        char mark[80];
        if (!n || n > 60 || at[n] != '=') bad(p, "bad label name");
        snprintf(mark, sizeof mark, ",%.*s,", (int)n, name);
        if (strstr(seen, mark)) bad(p, "a label twice");
        snprintf(seen + strlen(seen), sizeof seen - strlen(seen), "%s", mark + 1);
        at = read_label(p, at + n + 1, value, sizeof value);
        if (!strcmp(mark, ",model_name,"))
            snprintf(p->model, sizeof p->model, "%.127s", value);
        else if (!strcmp(mark, ",le,"))
            snprintf(le, 32, "%.31s", value);
        else if (strcmp(mark, ",engine,") != 0)
            used += (size_t)snprintf(rest + used, size - used, "%s%.*s=%s", used ? "," : "", (int)n,
                                     name, value);
        assert_true(used < size);
        if (*at == ',')
            at++;
        else if (*at != '}')
            bad(p, "labels are not parted by commas");
    }
    if (!strstr(seen, ",model_name,engine,")) bad(p, "our labels are missing");
    return at + 1;
}

static void read_bucket(Page *p, const char *series, const char *le, double value)
{
    double bound = strcmp(le, "+Inf") ? strtod(le, NULL) : INFINITY;
    int same = !isnan(p->le) && !strcmp(series, p->series);
    if (!*le) bad(p, "a bucket without le");
    if (same && (bound <= p->le || value < p->bucket)) bad(p, "buckets must rise");
    if (!same && !isnan(p->le)) bad(p, "a series without +Inf");
    p->le = isinf(bound) ? NAN : bound;
    p->bucket = p->infinite = value;
    snprintf(p->series, sizeof p->series, "%.500s", series);
}

/* The family's own name, or for a histogram one of three suffixes. */
static void check_member(Page *p, const char *name, const char *series, const char *le,
                         double value)
{
    const char *type = json_string_value(json_object_get(p->type, p->family));
    size_t n = strlen(p->family);
    if (!type || strncmp(name, p->family, n) != 0) bad(p, "a sample outside of its family");
    const char *suffix = name + n;
    int histogram = !strcmp(type, "histogram");
    if (histogram ? !*suffix : *suffix) bad(p, "a sample outside of its family");
    if (!strcmp(type, "counter") && value < 0) bad(p, "a negative counter");
    if (!histogram) return;
    if (!strcmp(suffix, "_bucket")) {
        read_bucket(p, series, le, value);
        return;
    }
    if (!isnan(p->le) || *le) bad(p, "+Inf is missing");
    if (strcmp(suffix, "_count") != 0 && strcmp(suffix, "_sum") != 0) bad(p, "unknown suffix");
    if (strcmp(series, p->series) != 0) bad(p, "another series");
    if (!strcmp(suffix, "_count") && value != p->infinite) bad(p, "+Inf is not the count");
}

static void read_sample(Page *p)
{
    char name[128], rest[300] = "", le[32] = "", key[512];
    size_t n = name_length(p->line, 1);
    const char *at = p->line + n;
    char *end;
    if (!n || n >= sizeof name) bad(p, "bad name");
    snprintf(name, sizeof name, "%.*s", (int)n, p->line);
    if ((*at == '{') == !strncmp(name, "process_", 8)) bad(p, "only a process has no labels");
    if (*at == '{') at = read_labels(p, at + 1, rest, sizeof rest, le);
    if (*at != ' ') bad(p, "no blank before the value");
    double value = strtod(at + 1, &end);
    if (end == at + 1 || *end != '\n') bad(p, "no number");
    int draft_count = !strncmp(name, "vllm:spec_decode", 16);
    if (draft_count && strspn(at + 1, "0123456789") != (size_t)(end - at - 1))
        bad(p, "not a plain integer");
    check_member(p, name, rest, le, value);
    int has_labels = *rest || *le;
    snprintf(key, sizeof key, "%s%s%s%s%s%s%s", name, has_labels ? "{" : "", rest,
             *rest && *le ? "," : "", *le ? "le=" : "", le, has_labels ? "}" : "");
    if (json_object_get(p->value, key)) bad(p, "the same sample twice");
    json_object_set_new(p->value, key, json_real(value));
}

/* HELP and TYPE, in this order, begin a family; there is no other comment. */
static const char *read_family(Page *p)
{
    char type[16] = "", name[128] = "";
    if (!isnan(p->le)) bad(p, "+Inf is missing before");
    if (sscanf(p->line, "# HELP %127s", p->family) != 1) bad(p, "neither HELP nor a sample");
    if (name_length(p->family, 1) != strlen(p->family)) bad(p, "bad name");
    if (p->line[strlen("# HELP ") + strlen(p->family)] != ' ') bad(p, "no help");
    if (json_object_get(p->type, p->family)) bad(p, "a family twice");
    p->line = strchr(p->line, '\n') + 1;
    if (sscanf(p->line, "# TYPE %127s %15s", name, type) != 2 || strcmp(name, p->family) != 0)
        bad(p, "no TYPE after HELP");
    if (strcmp(type, "counter") != 0 && strcmp(type, "gauge") != 0 &&
        strcmp(type, "histogram") != 0)
        bad(p, "unknown type");
    size_t n = strlen(name);
    if (!strcmp(type, "counter") && (n < 6 || strcmp(name + n - 6, "_total") != 0))
        bad(p, "a counter's name ends in _total");
    json_object_set_new(p->type, name, json_string(type));
    return p->line;
}

static void read_page(Page *p, const char *text, size_t len)
{
    *p = (Page){.value = json_object(), .type = json_object(), .le = NAN};
    p->line = text;
    if (!len || text[len - 1] != '\n' || strlen(text) != len) bad(p, "the page does not end");
    for (; *p->line; p->line = strchr(p->line, '\n') + 1) {
        if (*p->line == '#')
            p->line = read_family(p);
        else
            read_sample(p);
    }
    if (!isnan(p->le)) bad(p, "+Inf is missing at the end");
}

static void close_page(Page *p)
{
    json_decref(p->value);
    json_decref(p->type);
}

static Page scrape(const Served *s)
{
    HttpReply r = http_exchange(s->port, "GET", "/metrics", "", "");
    assert_int_equal(r.status, 200);
    assert_string_equal(http_header(&r, "Content-Type"),
                        "text/plain; version=0.0.4; charset=utf-8");
    Page p;
    read_page(&p, strbuf_str(&r.body), r.body.len);
    http_reply_free(&r);
    return p;
}

static double get(const Page *p, const char *key)
{
    const json_t *v = json_object_get(p->value, key);
    if (!v) fail_msg("there is no %s", key);
    return json_real_value(v);
}

static void assert_is(const Page *p, const char *key, double value)
{
    double v = get(p, key);
    if (v != value) fail_msg("%s is %g, not %g", key, v, value);
}

/* Of what may only rise nothing has fallen or gone. */
static void assert_risen(const Page *before, const Page *after)
{
    const char *family, *key;
    json_t *type, *value;
    json_object_foreach(before->type, family, type)
    {
        if (!strcmp(json_string_value(type), "gauge")) continue;
        json_object_foreach(before->value, key, value)
        {
            if (strncmp(key, family, strlen(family)) != 0) continue;
            if (get(after, key) < json_real_value(value))
                fail_msg("%s fell from %g to %g", key, json_real_value(value), get(after, key));
        }
    }
}

#define L       "model_name=\"m\",engine=\"0\""
#define COUNTER "# HELP a_total x\n# TYPE a_total counter\n"
#define HIST    "# HELP h x\n# TYPE h histogram\n"

/* The reader reads what is right, and refuses each of the faults that it is there for. */
static void test_reader(void **state)
{
    (void)state;
    static const char good[] =
        COUNTER "a_total{model_name=\"m\\\\\\\"\\n\",engine=\"0\",k=\"v\"} 3\n" HIST "h_bucket{" L
                ",le=\"1\"} 1\nh_bucket{" L ",le=\"+Inf\"} 2\nh_sum{" L "} 7.5\n"
                "h_count{" L "} 2\n";
    static const char *const faulty[] = {
        "a_total{" L "} 3\n",
        "# TYPE a_total counter\na_total{" L "} 3\n",
        "# HELP a_total x\na_total{" L "} 3\n",
        "# HELP a x\n# TYPE a counter\na{" L "} 3\n",
        COUNTER "a_total{" L "} 3\n" COUNTER,
        COUNTER "a_total{" L "} 3\na_total{" L "} 4\n",
        COUNTER "b_total{" L "} 3\n",
        COUNTER "a_total{" L "} -1\n",
        COUNTER "a_total{" L "} x\n",
        COUNTER "a_total{" L "} 3 \n",
        COUNTER "a_total 3\n",
        COUNTER "a_total{engine=\"0\"} 3\n",
        COUNTER "a_total{" L ",k=\"1\",k=\"2\"} 3\n",
        COUNTER "a_total{" L ",k=\"\n\"} 3\n",
        COUNTER "a_total{" L ",k=\"\\t\"} 3\n",
        COUNTER "a_total{" L " k=\"1\"} 3\n",
        HIST "h{" L "} 3\n",
        HIST "h_bucket{" L ",le=\"1\"} 1\nh_sum{" L "} 1\n",
        HIST "h_bucket{" L ",le=\"1\"} 3\nh_bucket{" L ",le=\"+Inf\"} 2\n",
        HIST "h_bucket{" L ",le=\"2\"} 1\nh_bucket{" L ",le=\"1\"} 2\n",
        HIST "h_bucket{" L ",le=\"+Inf\"} 2\nh_count{" L "} 3\n",
        HIST "h_bucket{" L ",le=\"1\"} 2\n" COUNTER,
        "# HELP vllm:spec_decode_x_total x\n# TYPE vllm:spec_decode_x_total counter\n"
        "vllm:spec_decode_x_total{" L "} 1.5\n",
    };
    static Page p; /* setjmp spares what is static */
    read_page(&p, good, strlen(good));
    assert_is(&p, "a_total{k=v}", 3);
    assert_is(&p, "h_bucket{le=1}", 1);
    assert_is(&p, "h_count", 2);
    close_page(&p);
    for (size_t i = 0; i < sizeof faulty / sizeof *faulty; i++) {
        may_refuse = 1;
        if (!setjmp(refused)) {
            read_page(&p, faulty[i], strlen(faulty[i]));
            may_refuse = 0;
        }
        if (!may_refuse) fail_msg("the reader takes %s", faulty[i]);
        may_refuse = 0;
        close_page(&p);
    }
}

/* ---- the page of a server ---- */

static const struct {
    const char *name, *type;
} families[] = {
    {"vllm:num_requests_running", "gauge"},
    {"vllm:num_requests_waiting", "gauge"},
    {"vllm:kv_cache_usage_perc", "gauge"},
    {"vllm:cache_config_info", "gauge"},
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
static const char *const cache_families[] = {
    "offshoot:cache_lookups_total",
    "offshoot:cache_hits_total",
    "offshoot:cache_matched_tokens_total",
    "offshoot:cache_waits_total",
    "offshoot:cache_flops_saved_total",
    "offshoot:cache_states_kept_total",
    "offshoot:cache_states_refused_total",
    "offshoot:cache_evictions_total",
    "offshoot:cache_nodes",
    "offshoot:cache_alpha",
    "offshoot:answers_returned_total",
};
static const char *const tier_families[] = {
    "offshoot:cache_saves_total", "offshoot:cache_restores_total",
    "offshoot:cache_tier_bytes",  "offshoot:cache_disk_files",
    "offshoot:cache_disk_saving", "offshoot:cache_disk_failures_total",
};
enum { N_TIER_FAMILIES = 6, N_DISK_FAMILIES = 3 };

/* Before any request, without a key, with and without a drafter. */
static void test_families(void **state)
{
    (void)state;
    for (int plain = 0; plain < 2; plain++) {
        ServedOptions o = served_defaults();
        o.api_key = "secret";
        o.plain = plain;
        Served *s = served_start(&o);
        Page p = scrape(s);
        for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
            const char *type = json_string_value(json_object_get(p.type, families[i].name));
            if (!type) fail_msg("%s is missing", families[i].name);
            assert_string_equal(type, families[i].type);
        }
        for (size_t i = 0; i < sizeof draft_families / sizeof *draft_families; i++)
            if ((json_object_get(p.type, draft_families[i]) == NULL) != plain)
                fail_msg("%s: drafter %d", draft_families[i], !plain);
        assert_is(&p, "vllm:num_requests_running", 0);
        assert_is(&p, "vllm:num_requests_waiting", 0);
        assert_is(&p, "vllm:kv_cache_usage_perc", 0);
        assert_is(&p, "vllm:request_success_total{finished_reason=abort}", 0);
        assert_is(&p, "vllm:request_params_n_bucket{le=20}", 0);
        assert_is(&p, "vllm:inter_token_latency_seconds_bucket{le=0.0005}", 0);
        assert_is(&p, "vllm:iteration_tokens_total_bucket{le=16384}", 0);
        assert_is(&p, "vllm:request_prompt_tokens_bucket{le=200000}", 0);
        assert_is(&p, "offshoot:build_info{version=0.1.0,device=cpu,quant=none}", 1);
        assert_true(get(&p, "process_resident_memory_bytes") > 1e6);
        assert_true(get(&p, "process_open_fds") >= 6);
        double age = (double)time(NULL) - get(&p, "process_start_time_seconds");
        assert_true(age > -1 && age < 86400);
        if (!plain) {
            static const char per_pos[] = "vllm:spec_decode_num_accepted_tokens_per_pos_total";
            char key[96];
            for (int i = 0; i < 4; i++) {
                snprintf(key, sizeof key, "%s{position=%d}", per_pos, i);
                assert_int_equal(json_object_get(p.value, key) != NULL, i < 3);
            }
            assert_is(&p, "offshoot:acceptance_length_bucket{drafter=mtp,le=17}", 0);
        }
        close_page(&p);
        assert_int_equal(served_stop(s), 0);
    }
}

typedef struct {
    double prompt, generated, drafted, accepted, stop, length;
    int answers;
} Sums;

static double number(const json_t *reply, const char *path)
{
    return json_number_value(served_at(reply, path));
}

/* Adds what a reply says of itself. n: answers to each prompt. */
static void add_reply(Sums *sums, const json_t *reply, int n)
{
    const json_t *choices = json_object_get(reply, "choices");
    sums->prompt += n * number(reply, "usage.prompt_tokens");
    sums->generated += number(reply, "usage.completion_tokens");
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
        steps += get(p, key);
    }
    for (int i = 0; i < 3; i++) {
        char key[96];
        snprintf(key, sizeof key, "vllm:spec_decode_num_accepted_tokens_per_pos_total{position=%d}",
                 i);
        per_pos += get(p, key);
    }
    double verified = get(p, "offshoot:acceptance_length_count{drafter=mtp}");
    double lengths = get(p, "offshoot:acceptance_length_sum{drafter=mtp}");
    double accepted = get(p, "vllm:spec_decode_num_accepted_tokens_total");
    double generated = get(p, "vllm:generation_tokens_total");
    assert_is(p, "vllm:iteration_tokens_total_count", steps);
    assert_true(per_pos == accepted && lengths - verified == accepted);
    assert_is(p, "offshoot:draft_nodes_sum", get(p, "vllm:spec_decode_num_draft_tokens_total"));
    assert_is(p, "offshoot:draft_nodes_count", verified);
    assert_is(p, "offshoot:draft_depth_count", verified);
    assert_is(p, "vllm:inter_token_latency_seconds_count", verified);
    assert_is(p, "vllm:time_to_first_token_seconds_count", generated - lengths);
    assert_is(p, "vllm:spec_decode_num_drafts_total",
              verified - get(p, "offshoot:draft_nodes_bucket{le=0}"));
}

/* Known requests, whole and streamed, one and several answers: the page is the sum of the replies.
 */
static void test_counts(void **state)
{
    (void)state;
    static const struct {
        const char *body;
        int n;
    } asks[] = {
        {"{\"prompt\": \"I want to find\", \"max_tokens\": 40, \"temperature\": 0}", 1},
        {"{\"prompt\": \"Hello\", \"max_tokens\": 30, \"ignore_eos\": true, \"temperature\": 0}",
         1},
        {"{\"prompt\": \"Hello\", \"max_tokens\": 9, \"n\": 3, \"seed\": 4}", 3},
        {"{\"prompt\": [\"One\", \"Two\"], \"max_tokens\": 1}", 1},
        {"{\"prompt\": \"Hello you\", \"max_tokens\": 0, \"echo\": true}", 1},
        {"{\"prompt\": \"Hello\", \"max_tokens\": 12, \"speculative.n_max\": 0}", 1},
    };
    Served *s = served_start(NULL);
    Sums sums = {0};
    Page before = scrape(s);
    for (size_t i = 0; i < sizeof asks / sizeof *asks; i++) {
        json_t *reply = served_post(s, COMPLETIONS, asks[i].body, 200);
        add_reply(&sums, reply, asks[i].n);
        json_decref(reply);
    }
    json_t *events = served_events(s, COMPLETIONS,
                                   "{\"prompt\": \"I want\", \"max_tokens\": 20, \"stream\": true, "
                                   "\"stream_options\": {\"include_usage\": true}}");
    add_reply(&sums, json_array_get(events, json_array_size(events) - 1), 1);
    const json_t *last = json_array_get(events, json_array_size(events) - 2);
    const char *why = json_string_value(served_at(last, "choices.0.finish_reason"));
    assert_non_null(why);
    sums.answers++;
    *(strcmp(why, "stop") ? &sums.length : &sums.stop) += 1;
    json_decref(events);

    Page p = scrape(s);
    assert_true(sums.drafted > sums.accepted && sums.accepted > 0 && sums.length > 4);
    assert_is(&p, "vllm:prompt_tokens_total", sums.prompt);
    assert_is(&p, "vllm:generation_tokens_total", sums.generated);
    assert_is(&p, "vllm:spec_decode_num_draft_tokens_total", sums.drafted);
    assert_is(&p, "vllm:spec_decode_num_accepted_tokens_total", sums.accepted);
    assert_is(&p, "vllm:request_success_total{finished_reason=stop}", sums.stop);
    assert_is(&p, "vllm:request_success_total{finished_reason=length}", sums.length);
    assert_is(&p, "vllm:request_success_total{finished_reason=abort}", 0);
    assert_is(&p, "vllm:request_success_total{finished_reason=error}", 0);
    assert_is(&p, "vllm:request_prompt_tokens_sum", sums.prompt);
    assert_is(&p, "vllm:request_prompt_tokens_count", sums.answers);
    assert_is(&p, "vllm:request_generation_tokens_sum", sums.generated);
    assert_is(&p, "vllm:e2e_request_latency_seconds_count", sums.answers);
    assert_is(&p, "vllm:request_queue_time_seconds_count", sums.answers);
    assert_is(&p, "vllm:request_params_max_tokens_sum", 40 + 30 + 3 * 9 + 2 * 1 + 0 + 12 + 20);
    assert_is(&p, "vllm:request_params_n_count", 7);
    assert_is(&p, "vllm:request_params_n_sum", 9);
    assert_is(&p, "vllm:request_params_n_bucket{le=2}", 6);
    assert_is(&p, "vllm:time_to_first_token_seconds_count", sums.answers - 1);
    assert_is(&p, "vllm:iteration_tokens_total_sum", sums.prompt + sums.generated);
    assert_is(&p, "vllm:num_requests_running", 0);
    assert_is(&p, "vllm:num_requests_waiting", 0);
    assert_true(get(&p, "offshoot:steps_total{kind=verify}") > 0);
    assert_true(get(&p, "offshoot:steps_total{kind=decode}") > 0);
    assert_true(get(&p, "offshoot:verify_seconds_total") > 0);
    assert_true(get(&p, "offshoot:draft_seconds_total") > 0);
    assert_true(get(&p, "offshoot:prefill_seconds_total") > 0);
    assert_true(get(&p, "offshoot:state_slots_promoted_total") > 0);
    check_identities(&p);
    assert_risen(&before, &p);
    close_page(&before);
    close_page(&p);
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
    exchange(s, "POST", "/", "{}");
    exchange(s, "OPTIONS", "/nowhere", "");
    exchange(s, "GET", "/v1/models/", "");
    exchange(s, "GET", "/v1/models/demo", "");
    exchange(s, "GET", "/v1/models/other", "");
    exchange(s, "POST", COMPLETIONS, "{");
    exchange(s, "POST", COMPLETIONS, "{\"prompt\": \"Hello\", \"max_tokens\": 2}");
    exchange(s, "POST", COMPLETIONS,
             "{\"prompt\": \"Hello\", \"max_tokens\": 2, \"stream\": true}");
    Page first = scrape(s), p = scrape(s);
    assert_is(&p, "offshoot:http_requests_total{route=/health,status=200}", 4);
    assert_is(&p, "offshoot:http_requests_total{route=/health,status=405}", 1);
    assert_is(&p, "offshoot:http_requests_total{route=other,status=404}", 3);
    assert_is(&p, "offshoot:http_requests_total{route=other,status=204}", 1);
    assert_is(&p, "offshoot:http_requests_total{route=/v1/models,status=200}", 1);
    assert_is(&p, "offshoot:http_requests_total{route=/v1/models/,status=200}", 1);
    assert_is(&p, "offshoot:http_requests_total{route=/v1/models/,status=404}", 1);
    assert_is(&p, "offshoot:http_requests_total{route=/v1/completions,status=400}", 1);
    assert_is(&p, "offshoot:http_requests_total{route=/v1/completions,status=200}", 2);
    assert_is(&p, "offshoot:http_requests_total{route=/metrics,status=200}", 1);
    assert_is(&p, "vllm:request_params_n_count", 2);
    assert_risen(&first, &p);
    close_page(&first);
    close_page(&p);
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
    Page before = scrape(s);
    assert_is(&before, "vllm:num_requests_running", 1);
    assert_is(&before, "vllm:num_requests_waiting", 2);
    assert_true(get(&before, "vllm:kv_cache_usage_perc") > 0);
    assert_true(get(&before, "vllm:kv_cache_usage_perc") <= 1);
    assert_true(get(&before, "offshoot:kv_pages{kind=used}") > 0);
    assert_true(get(&before, "offshoot:state_slots{kind=used}") > 0);
    assert_true(get(&before, "vllm:generation_tokens_total") > 0);
    assert_is(&before, "vllm:request_params_n_count", 3);
    for (int i = 0; i < 10; i++) {
        Page p = scrape(s);
        assert_risen(&before, &p);
        close_page(&before);
        before = p;
        usleep(3000);
    }
    for (int i = 0; i < 3; i++)
        close(fd[i]);
    served_wait_idle(s);
    Page p = scrape(s);
    assert_risen(&before, &p);
    assert_is(&p, "vllm:num_requests_running", 0);
    assert_is(&p, "vllm:num_requests_waiting", 0);
    assert_is(&p, "vllm:kv_cache_usage_perc", 0);
    assert_is(&p, "offshoot:kv_pages{kind=used}", 0);
    assert_is(&p, "offshoot:state_slots{kind=used}", 0);
    assert_is(&p, "vllm:request_success_total{finished_reason=abort}", 3);
    assert_is(&p, "vllm:request_success_total{finished_reason=length}", 0);
    assert_is(&p, "offshoot:http_requests_total{route=/v1/completions,status=499}", 3);
    close_page(&before);
    close_page(&p);
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
    Page p = scrape(s);
    assert_is(&p, "vllm:request_success_total{finished_reason=error}", 1);
    assert_is(&p, "vllm:request_success_total{finished_reason=stop}", 0);
    assert_is(&p, "vllm:request_params_n_count", 1);
    assert_is(&p, "vllm:generation_tokens_total", 0);
    assert_is(&p, "vllm:prompt_tokens_total", 0);
    assert_is(&p, "offshoot:http_requests_total{route=/v1/completions,status=500}", 1);
    close_page(&p);
    assert_int_equal(served_stop(s), 0);
    served_break_model(0);
}

static Page print_page(const Metrics *m, const MetricsNow *now)
{
    StrBuf text = {0};
    Page p;
    metrics_print(m, now, &text);
    read_page(&p, strbuf_str(&text), text.len);
    strbuf_free(&text);
    return p;
}

/* What a small model on a quiet server does not show: refusals, large steps, an engine ahead of us.
 */
static void test_without_a_server(void **state)
{
    (void)state;
    Metrics *m = metrics_open(&(MetricsInfo){"demo", "cpu", "fp8", 2.5, 0});
    MetricsNow now = {.n_live = 2, .n_unsent = 12, .engine = {.running = 3, .preemptions = 4}};
    for (int i = 0; i < STEP_SIZES; i++)
        now.engine.totals.by_tokens[i] = 1L << i;
    Answer refusal = {.refused = {.code = ERR_LIMIT}}, uncounted = {.finish = FINISH_STOP};
    metrics_start(m, &refusal, 1);
    metrics_done(&refusal);
    metrics_done(&uncounted);
    Page p = print_page(m, &now);
    assert_is(&p, "vllm:request_success_total{finished_reason=error}", 1);
    assert_is(&p, "vllm:request_success_total{finished_reason=stop}", 0);
    assert_is(&p, "vllm:e2e_request_latency_seconds_count", 0);
    assert_is(&p, "vllm:num_requests_running", 3);
    assert_is(&p, "vllm:num_requests_waiting", 0);
    assert_is(&p, "vllm:num_preemptions_total", 4);
    assert_is(&p, "offshoot:http_unsent_bytes", 12);
    assert_is(&p, "offshoot:startup_seconds{phase=weights}", 2.5);
    assert_is(&p, "offshoot:build_info{version=0.1.0,device=cpu,quant=fp8}", 1);
    assert_is(&p, "vllm:iteration_tokens_total_bucket{le=1}", 1);
    assert_is(&p, "vllm:iteration_tokens_total_bucket{le=8}", 15);
    assert_is(&p, "vllm:iteration_tokens_total_bucket{le=16}", 31);
    assert_is(&p, "vllm:iteration_tokens_total_bucket{le=16384}", 32767);
    assert_is(&p, "vllm:iteration_tokens_total_count", 65535);
    for (size_t i = 0; i < sizeof cache_families / sizeof *cache_families; i++)
        assert_null(json_object_get(p.type, cache_families[i]));
    assert_is(&p,
              "vllm:cache_config_info{block_size=16,num_gpu_blocks=0,enable_prefix_caching=False}",
              1);
    close_page(&p);
    metrics_close(m);
}

/* The engine's counts of its cache, each in its place; what sequences found, as they end. */
static void test_cache(void **state)
{
    (void)state;
    Metrics *m = metrics_open(&(MetricsInfo){"demo", "cpu", "none", 0, 1});
    MetricsNow now = {.engine = {.slots = 40,
                                 .slots_free = 10,
                                 .pages = 40,
                                 .pages_free = 20,
                                 .cache = {.lookups = 1,
                                           .hits = 2,
                                           .asked_tokens = 3,
                                           .hit_tokens = 4,
                                           .matched_tokens = 5,
                                           .kept = {6, 7, 8},
                                           .refused = {9, 10, 11, 12, 13},
                                           .evicted_states = 14,
                                           .evicted_nodes = 15,
                                           .waits = 16,
                                           .nodes = 17,
                                           .states = 18,
                                           .pages = 19,
                                           .flops_saved = 20,
                                           .alpha = 0.25}}};
    static const struct {
        const char *name;
        double value;
    } rows[] = {
        {"offshoot:cache_lookups_total", 1},
        {"offshoot:cache_hits_total", 2},
        {"vllm:prefix_cache_queries_total", 3},
        {"vllm:prefix_cache_hits_total", 4},
        {"offshoot:cache_matched_tokens_total", 5},
        {"offshoot:cache_states_kept_total{kind=branch}", 6},
        {"offshoot:cache_states_kept_total{kind=prompt}", 7},
        {"offshoot:cache_states_kept_total{kind=answer}", 8},
        {"offshoot:cache_states_refused_total{reason=memory}", 9},
        {"offshoot:cache_states_refused_total{reason=nodes}", 10},
        {"offshoot:cache_states_refused_total{reason=known}", 11},
        {"offshoot:cache_states_refused_total{reason=lost}", 12},
        {"offshoot:cache_states_refused_total{reason=changes}", 13},
        {"offshoot:cache_evictions_total{kind=state,tier=device}", 14},
        {"offshoot:cache_evictions_total{kind=kv,tier=device}", 15},
        {"offshoot:cache_waits_total", 16},
        {"offshoot:cache_nodes", 17},
        {"offshoot:state_slots{kind=free}", 10},
        {"offshoot:state_slots{kind=used}", 12},
        {"offshoot:state_slots{kind=cached}", 18},
        {"offshoot:kv_pages{kind=free}", 20},
        {"offshoot:kv_pages{kind=used}", 1},
        {"offshoot:kv_pages{kind=cached}", 19},
        {"vllm:kv_cache_usage_perc", 0.025},
        {"offshoot:cache_flops_saved_total", 20},
        {"offshoot:cache_alpha", 0.25},
        {"offshoot:answers_returned_total{as=same}", 1},
        {"offshoot:answers_returned_total{as=recut}", 2},
        {"offshoot:answers_returned_total{as=changed}", 3},
        {"vllm:prompt_tokens_cached_total", 30},
        {"vllm:cache_config_info{block_size=16,num_gpu_blocks=40,enable_prefix_caching=True}", 1},
    };
    for (int i = 0; i < 6; i++)
        metrics_returned(m, i < 3 ? RETURNED_CHANGED : i < 5 ? RETURNED_RECUT : RETURNED_SAME);
    metrics_returned(m, RETURNED_NONE);
    for (int i = 0; i < 2; i++) {
        Answer a = {.finish = i ? FINISH_CANCELLED : FINISH_STOP,
                    .stats = {.n_cached = 10 + 10 * i}};
        metrics_start(m, &a, 1);
        metrics_done(&a);
    }
    Page p = print_page(m, &now);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_is(&p, rows[i].name, rows[i].value);
    for (size_t i = 0; i < sizeof cache_families / sizeof *cache_families; i++)
        assert_non_null(json_object_get(p.type, cache_families[i]));
    for (int i = 0; i < N_TIER_FAMILIES; i++)
        assert_null(json_object_get(p.type, tier_families[i]));
    close_page(&p);
    metrics_close(m);
}

/* Lower tiers: only those that run are told of. bits: 1: host memory, 2: disk. */
static void check_tiers(int bits)
{
    Metrics *m = metrics_open(&(MetricsInfo){"demo", "cpu", "none", 0, 1});
    MetricsNow now = {.engine = {.host_cache = {1, 2, 3, bits & 1 ? 4 : 0},
                                 .disk = {bits >> 1, 5, 6, 7, 8, 9, 10}}};
    static const struct {
        const char *name;
        int tier;
        double value;
    } rows[] = {
        {"offshoot:cache_saves_total{tier=host}", 1, 1},
        {"offshoot:cache_restores_total{tier=host}", 1, 2},
        {"offshoot:cache_tier_bytes{tier=host}", 1, 3},
        {"offshoot:cache_disk_saving", 2, 5},
        {"offshoot:cache_saves_total{tier=disk}", 2, 6},
        {"offshoot:cache_restores_total{tier=disk}", 2, 7},
        {"offshoot:cache_disk_failures_total", 2, 8},
        {"offshoot:cache_disk_files", 2, 9},
        {"offshoot:cache_tier_bytes{tier=disk}", 2, 10},
    };
    Page p = print_page(m, &now);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (rows[i].tier & bits)
            assert_is(&p, rows[i].name, rows[i].value);
        else
            assert_null(json_object_get(p.value, rows[i].name));
    }
    for (int i = 0; i < N_TIER_FAMILIES; i++)
        assert_int_equal(json_object_get(p.type, tier_families[i]) != NULL,
                         bits >= (i < N_TIER_FAMILIES - N_DISK_FAMILIES ? 1 : 2));
    close_page(&p);
    metrics_close(m);
}

static void test_tiers(void **state)
{
    (void)state;
    for (int bits = 1; bits < 4; bits++)
        check_tiers(bits);
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
    read_page(&all, r.body.data, r.body.len);
    char rest[64], le[32];
    read_labels(&p, strchr(name, '{') + 1, rest, sizeof rest, le);
    assert_string_equal(p.model, o.model_name);
    assert_string_equal(rest, "");
    close_page(&all);
    http_reply_free(&r);
    assert_int_equal(served_stop(s), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reader),
        cmocka_unit_test(test_families),
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_http),
        cmocka_unit_test(test_gauges_and_aborts),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_without_a_server),
        cmocka_unit_test(test_cache),
        cmocka_unit_test(test_tiers),
        cmocka_unit_test(test_escaped_name),
    };
    return cmocka_run_group_tests(tests, served_open_model, served_close_model);
}
