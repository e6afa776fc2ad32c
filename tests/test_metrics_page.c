/*
 * test_metrics_page.c: the page of /metrics without a server, from counts that a small model does
 * not show; and that the tests' reader of pages refuses what it is there for.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "server/answer.h"
#include "tests/analyzer.h"
#include "tests/metrics_page.h"

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
    Page p;
    page_read(&p, good, strlen(good));
    assert_sample(&p, "a_total{k=v}", 3);
    assert_sample(&p, "h_bucket{le=1}", 1);
    assert_sample(&p, "h_count", 2);
    page_close(&p);
    for (size_t i = 0; i < sizeof faulty / sizeof *faulty; i++) {
        if (!page_is_refused(faulty[i])) fail_msg("the reader takes %s", faulty[i]);
    }
}

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
static Page print_page(const Metrics *m, const MetricsNow *now)
{
    StrBuf text = {0};
    Page p;
    metrics_print(m, now, &text);
    page_read(&p, strbuf_str(&text), text.len);
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
    assert_sample(&p, "vllm:request_success_total{finished_reason=error}", 1);
    assert_sample(&p, "vllm:request_success_total{finished_reason=stop}", 0);
    assert_sample(&p, "vllm:e2e_request_latency_seconds_count", 0);
    assert_sample(&p, "vllm:num_requests_running", 3);
    assert_sample(&p, "vllm:num_requests_waiting", 0);
    assert_sample(&p, "vllm:num_preemptions_total", 4);
    assert_sample(&p, "offshoot:http_unsent_bytes", 12);
    assert_sample(&p, "offshoot:startup_seconds{phase=weights}", 2.5);
    assert_sample(&p, "offshoot:build_info{version=0.1.0,device=cpu,quant=fp8}", 1);
    assert_sample(&p, "vllm:iteration_tokens_total_bucket{le=1}", 1);
    assert_sample(&p, "vllm:iteration_tokens_total_bucket{le=8}", 15);
    assert_sample(&p, "vllm:iteration_tokens_total_bucket{le=16}", 31);
    assert_sample(&p, "vllm:iteration_tokens_total_bucket{le=16384}", 32767);
    assert_sample(&p, "vllm:iteration_tokens_total_count", 65535);
    for (size_t i = 0; i < sizeof cache_families / sizeof *cache_families; i++)
        assert_null(json_object_get(p.type, cache_families[i]));
    assert_sample(
        &p, "vllm:cache_config_info{block_size=16,num_gpu_blocks=0,enable_prefix_caching=False}",
        1);
    page_close(&p);
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
        {"vllm:lora_requests_info{max_lora=0,waiting_lora_adapters=,running_lora_adapters=}", 0},
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
        assert_sample(&p, rows[i].name, rows[i].value);
    for (size_t i = 0; i < sizeof cache_families / sizeof *cache_families; i++)
        assert_non_null(json_object_get(p.type, cache_families[i]));
    for (int i = 0; i < N_TIER_FAMILIES; i++)
        assert_null(json_object_get(p.type, tier_families[i]));
    page_close(&p);
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
            assert_sample(&p, rows[i].name, rows[i].value);
        else
            assert_null(json_object_get(p.value, rows[i].name));
    }
    for (int i = 0; i < N_TIER_FAMILIES; i++)
        assert_int_equal(json_object_get(p.type, tier_families[i]) != NULL,
                         bits >= (i < N_TIER_FAMILIES - N_DISK_FAMILIES ? 1 : 2));
    page_close(&p);
    metrics_close(m);
}

static void test_tiers(void **state)
{
    (void)state;
    for (int bits = 1; bits < 4; bits++)
        check_tiers(bits);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reader),
        cmocka_unit_test(test_without_a_server),
        cmocka_unit_test(test_cache),
        cmocka_unit_test(test_tiers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
