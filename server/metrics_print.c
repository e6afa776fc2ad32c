/*
 * metrics_print.c: the text of GET /metrics; see metrics.h.
 *
 * A family's HELP, TYPE and samples come in one piece, once. Families of parts that are not running
 * are left out: those about drafts without a drafter (clients take their presence for speculation).
 */
#include "server/metrics_state.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "server/process_stats.h"

typedef struct {
    const Metrics *m;
    const MetricsNow *now;
    StrBuf *out;
} Printer;

/* ---- the form ---- */

static void family(const Printer *p, const char *name, const char *type, const char *help)
{
    strbuf_printf(p->out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* Counts are plain integers: some clients read nothing else. */
static void value(const Printer *p, double v)
{
    int whole = fabs(v) < 1e15 && v == floor(v);
    strbuf_printf(p->out, whole ? " %.0f\n" : " %.12g\n", v);
}

/* name + suffix with the labels of all our samples, and extra ones ("" or key="value",..). */
static void sample(const Printer *p, const char *name, const char *suffix, const char *extra,
                   double v)
{
    strbuf_puts(p->out, name);
    strbuf_puts(p->out, suffix);
    strbuf_puts(p->out, "{");
    strbuf_puts(p->out, p->m->labels);
    if (*extra) strbuf_puts(p->out, ",");
    strbuf_puts(p->out, extra);
    strbuf_puts(p->out, "}");
    value(p, v);
}

static void labelled(const Printer *p, const char *name, const char *key, const char *label,
                     double v)
{
    char extra[96];
    snprintf(extra, sizeof extra, "%s=\"%s\"", key, label);
    sample(p, name, "", extra, v);
}

static void counter(const Printer *p, const char *name, double v, const char *help)
{
    family(p, name, "counter", help);
    sample(p, name, "", "", v);
}

static void gauge(const Printer *p, const char *name, double v, const char *help)
{
    family(p, name, "gauge", help);
    sample(p, name, "", "", v);
}

/* extra: "" or labels that end with a comma. */
static void histogram(const Printer *p, const char *name, const char *help, const Buckets *b,
                      const Histogram *h, const char *extra)
{
    char labels[128];
    long sum = 0;
    family(p, name, "histogram", help);
    for (int i = 0; i <= b->n; i++) {
        sum += h->count[i];
        if (i < b->n)
            snprintf(labels, sizeof labels, "%sle=\"%g\"", extra, b->bound[i]);
        else
            snprintf(labels, sizeof labels, "%sle=\"+Inf\"", extra);
        sample(p, name, "_bucket", labels, (double)sum);
    }
    size_t n = strlen(extra);
    snprintf(labels, sizeof labels, "%.*s", n ? (int)n - 1 : 0, extra);
    sample(p, name, "_sum", labels, h->sum);
    sample(p, name, "_count", labels, (double)sum);
}

static void histogram_by_id(const Printer *p, HistogramId id, const char *extra)
{
    const HistogramFamily *f = &histogram_family[id];
    histogram(p, f->name, f->help, f->buckets, &p->m->histogram[id], extra);
}

/* ---- the engine ---- */

/*
 * What is neither free nor the cache's: that can go whenever somebody needs the room. Of what both
 * hold, the cache and a running sequence, nobody can tell more.
 */
static double in_use(int all, int n_free, long n_cached)
{
    double used = (double)all - n_free - (double)n_cached;
    return used > 0 ? used : 0;
}

static void print_pool(const Printer *p, const char *name, const char *help, int all, int n_free,
                       long n_cached)
{
    family(p, name, "gauge", help);
    labelled(p, name, "kind", "free", n_free);
    labelled(p, name, "kind", "used", in_use(all, n_free, n_cached));
    if (p->m->prefix_cache) labelled(p, name, "kind", "cached", (double)n_cached);
}

static void print_load(const Printer *p)
{
    const EngineStatus *e = &p->now->engine;
    int waiting = p->now->n_live - e->running;
    char config[96];
    gauge(p, "vllm:num_requests_running", e->running, "Sequences in the batch.");
    gauge(p, "vllm:num_requests_waiting", waiting > 0 ? waiting : 0,
          "Sequences that wait for a place in the batch.");
    gauge(p, "vllm:kv_cache_usage_perc",
          e->pages ? in_use(e->pages, e->pages_free, e->cache.pages) / e->pages : 0,
          "Part of the KV pages that is in use, 0 to 1; those of the prefix cache are not.");
    family(p, "vllm:cache_config_info", "gauge", "Tokens of a KV page, and how many pages fit.");
    snprintf(config, sizeof config,
             "block_size=\"%d\",num_gpu_blocks=\"%d\",enable_prefix_caching=\"%s\"", PAGE_TOKENS,
             e->pages, p->m->prefix_cache ? "True" : "False");
    sample(p, "vllm:cache_config_info", "", config, 1);
    /* Endpoint pickers of Kubernetes take a server without it for a broken one. */
    family(p, "vllm:lora_requests_info", "gauge", "Adapters: there are none.");
    sample(p, "vllm:lora_requests_info", "",
           "max_lora=\"0\",waiting_lora_adapters=\"\",running_lora_adapters=\"\"", 0);
    print_pool(p, "offshoot:kv_pages", "KV pages.", e->pages, e->pages_free, e->cache.pages);
    print_pool(p, "offshoot:state_slots", "Slots for the state of the recurrent layers.", e->slots,
               e->slots_free, e->cache.states);
    counter(p, "vllm:num_preemptions_total", (double)e->preemptions,
            "Sequences that gave up their place in the batch to others.");
}

/* vLLM's bounds are powers of two, without 2 and 4. */
static void print_step_sizes(const Printer *p)
{
    static const Buckets buckets = {
        13, {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384}};
    const StepTotals *t = &p->now->engine.totals;
    Histogram h = {.sum = (double)t->tokens};
    for (int i = 0; i < STEP_SIZES; i++)
        h.count[i < 3 ? i > 0 : i - 2] += t->by_tokens[i];
    histogram(p, "vllm:iteration_tokens_total",
              "Tokens of an engine step: prompt tokens read and tokens generated.", &buckets, &h,
              "");
}

static void print_steps(const Printer *p)
{
    static const char *const kinds[N_STEP_KINDS] = {[STEP_DECODE] = "decode",
                                                    [STEP_VERIFY] = "verify",
                                                    [STEP_PREFILL] = "prefill",
                                                    [STEP_MIXED] = "mixed"};
    const StepTotals *t = &p->now->engine.totals;
    family(p, "offshoot:steps_total", "counter",
           "Engine steps: of tokens alone, with drafts, of prompts alone, of both.");
    for (int i = 0; i < N_STEP_KINDS; i++)
        labelled(p, "offshoot:steps_total", "kind", kinds[i], (double)t->steps[i]);
    counter(p, "offshoot:verify_seconds_total", t->verify_ms / 1e3,
            "Time of passes that hold draft trees or single tokens.");
    counter(p, "offshoot:prefill_seconds_total", t->prefill_ms / 1e3,
            "Time of passes that hold prompt tokens alone.");
}

/* ---- requests ---- */

static void print_fallbacks(const Printer *p)
{
    static const char *const reasons[N_REPLY_FALLBACKS] = {[REPLY_NO_FUNCTION] = "no_function",
                                                           [REPLY_BAD_JSON] = "bad_json",
                                                           [REPLY_DUPLICATE_PARAMETER] =
                                                               "duplicate_parameter",
                                                           [REPLY_CALL_IN_THINK] = "call_in_think"};
    family(p, "offshoot:tool_parse_fallbacks_total", "counter",
           "Tool calls that were not written as they should be, by what was wrong.");
    for (int i = 0; i < N_REPLY_FALLBACKS; i++)
        labelled(p, "offshoot:tool_parse_fallbacks_total", "reason", reasons[i],
                 (double)p->m->fallbacks[i]);
}

static void print_tokens(const Printer *p)
{
    const Metrics *m = p->m;
    const CacheStats *c = &p->now->engine.cache;
    counter(p, "vllm:prompt_tokens_total", (double)m->prompt_tokens,
            "Prompt tokens of sequences whose prompt was read to its end.");
    counter(p, "vllm:generation_tokens_total", (double)m->generation_tokens, "Tokens generated.");
    counter(p, "vllm:prompt_tokens_cached_total", (double)m->cached_tokens,
            "Prompt tokens of ended sequences that the prefix cache spared.");
    counter(p, "vllm:prefix_cache_queries_total", (double)c->asked_tokens,
            "Prompt tokens looked up in the prefix cache.");
    counter(p, "vllm:prefix_cache_hits_total", (double)c->hit_tokens,
            "Prompt tokens found there, up to a state to go on from.");
}

/* ---- the prefix cache ---- */

static void print_cache_changes(const Printer *p)
{
    static const char kept[] = "offshoot:cache_states_kept_total",
                      refused[] = "offshoot:cache_states_refused_total",
                      evicted[] = "offshoot:cache_evictions_total";
    static const char *const places[N_KEPT] = {[KEPT_BRANCH] = "branch",
                                               [KEPT_PROMPT] = "prompt",
                                               [KEPT_ANSWER] = "answer",
                                               [KEPT_LOADED] = "loaded"};
    static const char *const reasons[N_REFUSED] = {[REFUSED_MEMORY] = "memory",
                                                   [REFUSED_NODES] = "nodes",
                                                   [REFUSED_KNOWN] = "known",
                                                   [REFUSED_LOST] = "lost",
                                                   [REFUSED_CHANGES] = "changes"};
    const CacheStats *c = &p->now->engine.cache;
    family(p, kept, "counter",
           "States kept: where prompts part and behind new system turns, at prompts' ends, at "
           "answers'.");
    for (int i = 0; i < N_KEPT; i++)
        labelled(p, kept, "kind", places[i], (double)c->kept[i]);
    family(p, refused, "counter", "States not kept, by why.");
    for (int i = 0; i < N_REFUSED; i++)
        labelled(p, refused, "reason", reasons[i], (double)c->refused[i]);
    family(p, evicted, "counter", "States that went alone, and nodes that went with their KV.");
    sample(p, evicted, "", "kind=\"state\",tier=\"device\"", (double)c->evicted_states);
    sample(p, evicted, "", "kind=\"kv\",tier=\"device\"", (double)c->evicted_nodes);
}

static void print_returned(const Printer *p)
{
    static const char name[] = "offshoot:answers_returned_total";
    static const char *const how[N_RETURNED] = {
        [RETURNED_SAME] = "same", [RETURNED_RECUT] = "recut", [RETURNED_CHANGED] = "changed"};
    family(p, name, "counter",
           "Answers in later prompts: in the same tokens, cut into others, with other text.");
    for (int i = 0; i < N_RETURNED; i++)
        labelled(p, name, "as", how[i], (double)p->m->returned[i]);
}

/* Of each tier that runs. */
static void print_by_tier(const Printer *p, const char *name, const char *type, const char *help,
                          double host, double disk)
{
    const EngineStatus *e = &p->now->engine;
    family(p, name, type, help);
    if (e->host_cache.max_bytes) labelled(p, name, "tier", "host", host);
    if (e->disk.on) labelled(p, name, "tier", "disk", disk);
}

static void print_tiers(const Printer *p)
{
    const EngineStatus *e = &p->now->engine;
    if (!e->host_cache.max_bytes && !e->disk.on) return;
    print_by_tier(p, "offshoot:cache_saves_total", "counter", "Prefixes put into a lower tier.",
                  (double)e->host_cache.saved, (double)e->disk.saved);
    print_by_tier(p, "offshoot:cache_restores_total", "counter", "Prefixes that came back from it.",
                  (double)e->host_cache.loaded, (double)e->disk.loaded);
    print_by_tier(p, "offshoot:cache_tier_bytes", "gauge", "Bytes that it holds.",
                  (double)e->host_cache.bytes, (double)e->disk.bytes);
    if (!e->disk.on) return;
    gauge(p, "offshoot:cache_disk_files", (double)e->disk.files, "Files of prefixes on disk.");
    gauge(p, "offshoot:cache_disk_saving", (double)e->disk.saving,
          "Prefixes on their way to disk.");
    counter(p, "offshoot:cache_disk_failures_total", (double)e->disk.failed,
            "Prefixes that could not be written, or were not what they should be when read.");
}

static void print_cache(const Printer *p)
{
    const CacheStats *c = &p->now->engine.cache;
    if (!p->m->prefix_cache) return;
    counter(p, "offshoot:cache_lookups_total", (double)c->lookups, "Prompts looked up.");
    counter(p, "offshoot:cache_hits_total", (double)c->hits, "Prompts of which a part was found.");
    counter(p, "offshoot:cache_matched_tokens_total", (double)c->matched_tokens,
            "Prompt tokens whose KV was there, whether or not a state was.");
    counter(p, "offshoot:cache_waits_total", (double)c->waits,
            "Prompts that waited for what another was just computing.");
    counter(p, "offshoot:cache_flops_saved_total", c->flops_saved,
            "Operations of the model that hits spared, by formula.");
    print_cache_changes(p);
    print_returned(p);
    print_tiers(p);
    gauge(p, "offshoot:cache_nodes", (double)c->nodes, "Places in the tree of prefixes.");
    gauge(p, "offshoot:cache_alpha", c->alpha,
          "Weight of saved operations beside age in what goes first.");
}

static void print_requests(const Printer *p)
{
    static const char *const reasons[N_REASONS] = {[REASON_STOP] = "stop",
                                                   [REASON_LENGTH] = "length",
                                                   [REASON_ABORT] = "abort",
                                                   [REASON_ERROR] = "error"};
    family(p, "vllm:request_success_total", "counter", "Finished sequences by how they ended.");
    for (int i = 0; i < N_REASONS; i++)
        labelled(p, "vllm:request_success_total", "finished_reason", reasons[i],
                 (double)p->m->ended[i]);
    for (int i = H_PROMPT_TOKENS; i <= H_GRAMMAR; i++)
        histogram_by_id(p, (HistogramId)i, "");
    print_fallbacks(p);
}

/* ---- drafts ---- */

static void print_drafts(const Printer *p)
{
    static const char per_pos[] = "vllm:spec_decode_num_accepted_tokens_per_pos_total";
    const Metrics *m = p->m;
    const EngineStatus *e = &p->now->engine;
    char text[64];
    if (!e->drafter) return;
    counter(p, "vllm:spec_decode_num_drafts_total", (double)m->drafts,
            "Verify steps of a sequence that held drafts.");
    counter(p, "vllm:spec_decode_num_draft_tokens_total", (double)m->draft_nodes,
            "Draft nodes verified; a tree counts all of its nodes.");
    counter(p, "vllm:spec_decode_num_accepted_tokens_total", (double)m->accepted,
            "Draft nodes accepted.");
    family(p, per_pos, "counter", "Verify steps whose accepted path reached this level.");
    for (int i = 0; i < e->draft_depth; i++) {
        snprintf(text, sizeof text, "%d", i);
        labelled(p, per_pos, "position", text, (double)m->accepted_at[i]);
    }
    snprintf(text, sizeof text, "drafter=\"%s\",", e->drafter);
    histogram_by_id(p, H_ACCEPTANCE, text);
    histogram_by_id(p, H_DRAFT_NODES, "");
    histogram_by_id(p, H_DRAFT_DEPTH, "");
    counter(p, "offshoot:draft_seconds_total", e->totals.draft_ms / 1e3,
            "Time that the drafter took.");
    counter(p, "offshoot:state_slots_promoted_total", (double)e->totals.promoted,
            "Draft nodes whose state became their sequence's.");
    counter(p, "offshoot:kv_rows_moved_total", (double)e->totals.kv_moves,
            "KV rows of accepted nodes that had to move.");
}

/* ---- the server and its process ---- */

static void print_http(const Printer *p)
{
    const Metrics *m = p->m;
    char labels[128];
    family(p, "offshoot:http_requests_total", "counter", "HTTP exchanges by route and status.");
    for (int i = 0; i < m->n_http; i++) {
        snprintf(labels, sizeof labels, "route=\"%s\",status=\"%d\"", m->http[i].route,
                 m->http[i].status);
        sample(p, "offshoot:http_requests_total", "", labels, (double)m->http[i].n);
    }
    gauge(p, "offshoot:http_connections", p->now->n_connections, "Open connections.");
    gauge(p, "offshoot:http_unsent_bytes", (double)p->now->n_unsent,
          "Bytes of streams that their readers have not taken.");
}

static void print_build(const Printer *p)
{
    const Metrics *m = p->m;
    family(p, "offshoot:startup_seconds", "gauge",
           "How long starting took: opening the model, and from the process to serving.");
    if (m->weights_s > 0) labelled(p, "offshoot:startup_seconds", "phase", "weights", m->weights_s);
    if (m->startup_s > 0) labelled(p, "offshoot:startup_seconds", "phase", "total", m->startup_s);
    family(p, "offshoot:build_info", "gauge", "What runs here.");
    sample(p, "offshoot:build_info", "", m->build, 1);
}

static void process_figure(const Printer *p, const char *name, const char *type, const char *help,
                           double v)
{
    family(p, name, type, help);
    strbuf_puts(p->out, name);
    value(p, v);
}

static void print_process(const Printer *p)
{
    ProcessStats s = process_stats();
    process_figure(p, "process_resident_memory_bytes", "gauge", "Resident memory.",
                   s.resident_bytes);
    process_figure(p, "process_cpu_seconds_total", "counter", "User and system time.", s.cpu_s);
    process_figure(p, "process_start_time_seconds", "gauge", "Start of the process, Unix time.",
                   p->m->process_started_s);
    process_figure(p, "process_open_fds", "gauge", "Open file descriptors.", s.open_fds);
}

void metrics_print(const Metrics *m, const MetricsNow *now, StrBuf *out)
{
    Printer p = {m, now, out};
    print_load(&p);
    print_tokens(&p);
    print_cache(&p);
    print_requests(&p);
    print_drafts(&p);
    print_step_sizes(&p);
    print_steps(&p);
    print_http(&p);
    print_build(&p);
    print_process(&p);
}
