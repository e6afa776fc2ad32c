/*
 * settings.c: see settings.h. To add an option: a field there, a row here.
 */
#include "server/settings.h"

#include <limits.h>
#include <math.h>

#include "base/log.h"
#include "engine/engine.h"

enum {
    SERVE = COMMAND_SERVE,
    CHAT = COMMAND_CHAT,
    CHECK = COMMAND_CHECK,
    ACCEPT = BENCH_ACCEPT,
    AGENT = BENCH_AGENT,
    LOAD = BENCH_LOAD,
    SHARED = BENCH_SHARED_PREFIX,
    PREFIX = BENCH_PREFIX,
    TURN = BENCH_TURN,
    LATENCY = BENCH_LATENCY,
    KERNELS = BENCH_KERNELS,

    QUANTIZE = COMMAND_QUANTIZE,
    MASKS = BENCH_MASKS,

    ALL = QUANTIZE - 1, /* that run the model */
    EVERY = ALL | QUANTIZE,
    TALKS = SERVE | CHAT,
    ASKS = AGENT | LOAD | SHARED, /* a server, ours or the one at --url */
    DRAFTS = TALKS | ASKS | ACCEPT | PREFIX | LATENCY,
    DRAWS = ACCEPT | AGENT | LOAD | TURN | LATENCY,  /* benches that sample */
    CACHES = TALKS | ASKS | ACCEPT | TURN | LATENCY, /* prefix has --policy, --capacity */
};

static const double MAX_ALPHA = 1e6, MAX_BYTES = 1e18, MAX_SEED = 9e18, MAX_LIMIT = 1 << 30,
                    MAX_SECONDS = 86400;

enum { NOT_GIVEN = -1 };

static const Settings DEFAULTS = {
    .host = "127.0.0.1",
    .port = 8080,
    .limits = DEFAULT_SERVER_LIMITS,
    .max_seqs = 8,
    .max_waiting = 64,
    .draft = DRAFT_MTP,
    .draft_depth = NOT_GIVEN,
    .draft_topk = NOT_GIVEN,
    .draft_vocab = 32768,
    .tree_nodes = NOT_GIVEN,
    .trace = "chat",
    .flops_per_second = 1e14,
    .cache_alpha = NAN,
    .disk_cache = INT64_C(8) << 30,
    .cache_answers = 1,
    .cuda_graph = 1,
    .pdl = 1,
    .wgmma = 1,
    .temperature = NAN,
    .top_p = NAN,
    .min_p = NAN,
    .top_k = -1,
    .seed = -1,
    .max_tokens = -1,
    .default_max_tokens = -1,
    .groups = 50,
    .group_prompts = 10,
    .system_tokens = 10240,
    .question_tokens = 256,
    .thinking = AUTO,
    .color = AUTO,
    .log_level = LOG_LEVEL_INFO,
};

typedef struct {
    Option row[160];
} OptionTable;

/* The table over the fields of *s. */
static OptionTable option_table(Settings *s)
{
    HttpLimits *http = &s->limits.http;
    /* clang-format off */
    return (OptionTable){{
    {"model", OPTION_STRING, &s->model, 0, 0, 0, "DIR", "a folder, or OWNER/NAME that hf download brought", EVERY},
    {"model", OPTION_STRING, &s->model, 0, 0, 0, "DIR", "folder with tokenizer.json", MASKS},
    {"out", OPTION_STRING, &s->out, 0, 0, 0, "DIR", "the same with --quant's weights; holds none yet", QUANTIZE},
    {"quant", OPTION_CHOICE, &s->quant, 0, 0, QUANT_CHOICES, "TYPE", "fp8; on a CPU q8, q4: when loading (default auto)", ALL},
    {"quant", OPTION_CHOICE, &s->saved_quant, 0, 0, SAVED_CHOICES, "TYPE", "q8 or q4: 8 or 4.6 bits a weight (default q8)", QUANTIZE},
    {"dummy-weights", OPTION_CHOICE, &s->dummy_weights, 0, 0, DUMMY_CHOICES, "TYPE", "bf16, fp8: random, no weight files", ALL},
    {"config", OPTION_STRING, &s->config, 0, 0, 0, "FILE", "options from a file, 'name = value' a line", EVERY | MASKS},

    {"host", OPTION_STRING, &s->host, 0, 0, 0, "ADDRESS", "at; --port N (default 127.0.0.1, 8080); --takeover", SERVE},
    {"port", OPTION_INT, &s->port, 0, 65535, 0, "N", 0, SERVE},
    {"takeover", OPTION_SWITCH, &s->takeover, 0, 0, 0, 0, 0, SERVE},
    {"api-key", OPTION_STRING, &s->api_key, 0, 0, 0, "KEYS", "k1,k2: requests must carry one (default none)", SERVE},
    {"cors", OPTION_STRING, &s->cors, 0, 0, 0, "ORIGINS", "pages that may ask: o1,o2 or '*' (default none)", SERVE},
    {"served-model-name", OPTION_STRING, &s->served_name, 0, 0, 0, "NAME", "in the API; --strict-model: 404 for other names", SERVE},
    {"strict-model", OPTION_SWITCH, &s->strict_model, 0, 0, 0, 0, 0, SERVE},
    {"messages-thinking", OPTION_CHOICE, &s->messages_thinking, 0, 0, "auto|on|off", "on|off", "on /v1/messages unless asked (default off)", SERVE},
    {"default-max-tokens", OPTION_INT, &s->default_max_tokens, -1, INT_MAX, 0, "N", "of a request that does not say (default by route)", SERVE},
    {"max-connections", OPTION_INT, &http->max_connections, 1, 1e6, 0, "N", "open at a time; more wait", SERVE},
    {"max-line-bytes", OPTION_BYTES, &http->line_bytes, 64, MAX_LIMIT, 0, "BYTES", 0, SERVE},
    {"max-header-bytes", OPTION_BYTES, &http->header_bytes, 256, MAX_LIMIT, 0, "BYTES", "headers; --max-line-bytes (default 32768, 8192)", SERVE},
    {"max-body-bytes", OPTION_BYTES, &http->body_bytes, 1, MAX_LIMIT, 0, "BYTES", "body of a request", SERVE},
    {"max-unsent-bytes", OPTION_BYTES, &http->unsent_bytes, 1, MAX_LIMIT, 0, "BYTES", "then a slow reader waits", SERVE},
    {"request-timeout", OPTION_INT, &http->request_timeout_s, 1, MAX_SECONDS, 0, "SECONDS", "for a request to come in", SERVE},
    {"idle-timeout", OPTION_INT, &http->idle_timeout_s, 1, MAX_SECONDS, 0, "SECONDS", "between requests; --write-timeout (default 75, 60)", SERVE},
    {"write-timeout", OPTION_INT, &http->write_timeout_s, 1, MAX_SECONDS, 0, "SECONDS", 0, SERVE},
    {"drain-timeout", OPTION_INT, &s->limits.drain_s, 0, MAX_SECONDS, 0, "SECONDS", "after SIGTERM; --sse-keepalive (default 30, 10)", SERVE},
    {"sse-keepalive", OPTION_INT, &s->limits.keepalive_s, 0, MAX_SECONDS, 0, "SECONDS", 0, SERVE},

    {"prompts", OPTION_STRING, &s->prompts, 0, 0, 0, "FILE", "a JSON object a line (default bench/prompts/small.jsonl)", ACCEPT | LOAD},
    {"prompts", OPTION_STRING, &s->prompts, 0, 0, 0, "FILE", "loops, one a line (default bench/prompts/agent.jsonl)", AGENT},
    {"limit", OPTION_INT, &s->limit, 0, 1e6, 0, "N", "lines of the file at most (default all)", ACCEPT | AGENT | LOAD},
    {"limit", OPTION_INT, &s->limit, 0, 1e6, 0, "N", "requests of the trace at most (default all)", PREFIX},
    {"limit", OPTION_INT, &s->limit, 0, 1e6, 0, "N", "questions at most (default all)", CHECK},
    {"json", OPTION_SWITCH, &s->json, 0, 0, 0, 0, "print the report as JSON", (ALL & ~(TALKS | KERNELS)) | MASKS},
    {"url", OPTION_STRING, &s->url, 0, 0, 0, "URL", "a running server, asked as --model if that is given", AGENT | SHARED},
    {"url", OPTION_STRING, &s->url, 0, 0, 0, "URL", "a running server of ours", LOAD},
    {"api-key", OPTION_STRING, &s->api_key, 0, 0, 0, "KEY", "for requests to it (default none)", ASKS},
    {"connections", OPTION_STRING, &s->connections, 0, 0, 0, "LIST", "one after another (default 1,8,64,512)", LOAD},
    {"connections", OPTION_STRING, &s->connections, 0, 0, 0, "N", "requests at a time (default 5)", SHARED},
    {"requests", OPTION_INT, &s->requests, 1, MAX_TRIES, 0, "N", "tries, up to 101 (default 5)", TURN | LATENCY},
    {"requests", OPTION_INT, &s->requests, 1, 1e7, 0, "N", "for each number of connections (default 500, and 2 a connection)", LOAD},
    {"groups", OPTION_INT, &s->groups, 1, 1e6, 0, "N", "of prompts", SHARED},
    {"group-prompts", OPTION_INT, &s->group_prompts, 1, 1e6, 0, "N", "prompts of a group", SHARED},
    {"system-tokens", OPTION_INT, &s->system_tokens, 1, 1e7, 0, "N", "that a group's prompts share", SHARED},
    {"question-tokens", OPTION_INT, &s->question_tokens, 1, 1e7, 0, "N", "of a prompt's own", SHARED},
    {"question-tokens", OPTION_INT, &s->question_tokens, 1, 1e7, 0, "N", "new tokens behind the prefix", TURN},
    {"contexts", OPTION_STRING, &s->contexts, 0, 0, 0, "LIST", "lengths of prompts in tokens (default 512)", LATENCY},
    {"contexts", OPTION_STRING, &s->contexts, 0, 0, 0, "LIST", "lengths of prefixes in tokens (default 4096)", TURN},
    {"contexts", OPTION_STRING, &s->contexts, 0, 0, 0, "N", "tokens before the pass (default 512)", KERNELS},
    {"synthetic-acceptance", OPTION_NUMBER, &s->synthetic_acceptance, 1, MAX_TREE_NODES, 0, "X", "acceptance length, by lot (default off)", LATENCY},

    {"trace", OPTION_STRING, &s->trace, 0, 0, 0, "FILE", "a file, - or a load that is made: chat, agent", PREFIX},
    {"load", OPTION_STRING, &s->load, 0, 0, 0, "KNOBS", "of a load that is made: sessions=400,rate=1,... (bench/README.md)", PREFIX},
    {"shape", OPTION_STRING, &s->shape, 0, 0, 0, "DIR", "a model's folder, or 7b-hybrid; simulated only (default: the model's, or 7b-hybrid)", PREFIX},
    {"capacity", OPTION_STRING, &s->capacities, 0, 0, 0, "LIST", "memories: 2G,8G (default: shares of what the trace takes)", PREFIX},
    {"policy", OPTION_STRING, &s->policies, 0, 0, 0, "LIST", "default none,lru,flop; simulated block32,block528 too", PREFIX},
    {"alpha", OPTION_STRING, &s->alphas, 0, 0, 0, "LIST", "of flop (default 0.5,1,2,tune; real: 1,tune)", PREFIX},
    {"flops-per-second", OPTION_NUMBER, &s->flops_per_second, 1, 1e20, 0, "X", "of the simulated machine", PREFIX},
    {"svg", OPTION_STRING, &s->svg, 0, 0, 0, "FILE", "hit rates as a picture", PREFIX},
    {"real", OPTION_SWITCH, &s->real, 0, 0, 0, 0, "through servers that run --model; else simulated", PREFIX},
    {"connections", OPTION_STRING, &s->connections, 0, 0, 0, "N", "requests at a time (default 1)", PREFIX},

    {"system", OPTION_STRING, &s->system, 0, 0, 0, "TEXT", "system message", CHAT},
    {"tools", OPTION_STRING, &s->tools, 0, 0, 0, "FILE", "JSON array of functions the model may call", CHAT},
    {"raw", OPTION_SWITCH, &s->raw, 0, 0, 0, 0, "complete the prompt as it is, no template", CHAT},
    {"show-draft", OPTION_SWITCH, &s->show_draft, 0, 0, 0, 0, "accepted draft tokens in green", CHAT},
    {"color", OPTION_CHOICE, &s->color, 0, 0, "auto|on|off", 0, "auto: on a terminal", CHAT},
    {"max-tokens", OPTION_INT, &s->max_tokens, -1, INT_MAX, 0, "N", "longest answer (default: the model's, or the context's end)", CHAT},
    {"max-tokens", OPTION_INT, &s->max_tokens, 1, INT_MAX, 0, "N", "longest answer (default 128)", ACCEPT},
    {"max-tokens", OPTION_INT, &s->max_tokens, 1, INT_MAX, 0, "N", "longest answer (default 96)", AGENT},
    {"max-tokens", OPTION_INT, &s->max_tokens, 1, INT_MAX, 0, "N", "of each answer (default 128)", SHARED},
    {"max-tokens", OPTION_INT, &s->max_tokens, 2, INT_MAX, 0, "N", "of each answer (default 128)", LATENCY},
    {"max-tokens", OPTION_INT, &s->max_tokens, 1, INT_MAX, 0, "N", "longest answer (default 48)", CHECK},

    {"thinking", OPTION_CHOICE, &s->thinking, 0, 0, "auto|on|off", 0, "auto: the template's default", TALKS | ACCEPT | LOAD},
    {"thinking", OPTION_CHOICE, &s->thinking, 0, 0, "auto|on|off", 0, "auto: off", AGENT},
    {"reasoning-effort", OPTION_CHOICE, &s->effort, 0, 0, EFFORT_CHOICES, "EFFORT", "low to xhigh; --preserve-thinking (default auto)", TALKS},
    {"preserve-thinking", OPTION_CHOICE, &s->preserve_thinking, 0, 0, "auto|on|off", "on|off", 0, TALKS},
    {"temperature", OPTION_NUMBER, &s->temperature, 0, 100, 0, "X", "0 is greedy (default: the model's, or 1)", TALKS | ACCEPT | TURN | LATENCY},
    {"temperature", OPTION_NUMBER, &s->temperature, 0, 100, 0, "X", "0 is greedy (default 0)", AGENT},
    {"top-p", OPTION_NUMBER, &s->top_p, 0, 1, 0, "X", "1 is off; --min-p: 0 is off (default: the model's)", TALKS | DRAWS},
    {"min-p", OPTION_NUMBER, &s->min_p, 0, 1, 0, "X", 0, TALKS | DRAWS},
    {"top-k", OPTION_INT, &s->top_k, 0, INT_MAX, 0, "N", "0: off (default model's); --seed N, -1: random", TALKS},
    {"top-k", OPTION_INT, &s->top_k, 0, INT_MAX, 0, "N", "0: off (default: the model's)", DRAWS},
    {"seed", OPTION_INT64, &s->seed, -1, MAX_SEED, 0, "N", 0, TALKS},
    {"seed", OPTION_INT64, &s->seed, -1, MAX_SEED, 0, "N", "of draws by lot (default 1)", ACCEPT | AGENT | SHARED | MASKS},

    {"draft", OPTION_CHOICE, &s->draft, 0, 0, DRAFT_CHOICES, "KIND", "mtp, ngram, suffix, union, none", DRAFTS | TURN},
    {"tree-nodes", OPTION_INT, &s->tree_nodes, 1, MAX_TREE_NODES, 0, "N", "rows verified per step, root too (default auto)", DRAFTS & ~ACCEPT},
    {"tree-nodes", OPTION_INT, &s->tree_nodes, 1, MAX_TREE_NODES, 0, "N", "rows verified per step, root too (default 4)", ACCEPT},
    {"draft-depth", OPTION_INT, &s->draft_depth, 0, MAX_TREE_NODES - 1, 0, "N", "levels; --draft-topk: guesses each (default auto)", DRAFTS & ~ACCEPT},
    {"draft-depth", OPTION_INT, &s->draft_depth, 0, MAX_TREE_NODES - 1, 0, "N", "levels; --draft-topk: guesses each (default 3, 1)", ACCEPT},
    {"draft-topk", OPTION_INT, &s->draft_topk, 1, MAX_TREE_NODES - 1, 0, "N", 0, DRAFTS},
    {"draft-vocab", OPTION_INT, &s->draft_vocab, 0, INT_MAX, 0, "N", "ids; 0: all; --draft-quant (default 32768, auto)", DRAFTS | CHECK},
    {"draft-quant", OPTION_CHOICE, &s->draft_quant, 0, 0, QUANT_CHOICES, "TYPE", 0, DRAFTS | CHECK},
    {"state-mode", OPTION_CHOICE, &s->state_mode, 0, 0, STATE_CHOICES, "MODE", "slots or replay: drafts' states", DRAFTS | KERNELS},

    {"ctx-size", OPTION_INT, &s->ctx_size, 0, INT_MAX, 0, "N", "longest sequence in tokens (default: the model's)", ALL & ~CHECK},
    {"ctx-size", OPTION_INT, &s->ctx_size, 0, INT_MAX, 0, "N", "longest sequence in tokens (default 512 + an answer)", CHECK},
    {"memory", OPTION_BYTES, &s->memory, 0, MAX_BYTES, 0, "BYTES", "states, KV (default: 1/4 of free, to 4G; GPU 95 %)", ALL & ~PREFIX},
    {"prefix-cache", OPTION_CHOICE, &s->prefix_cache, 0, 0, "auto|on|off", "on|off", "of prompts; --cache-answers: answers (default on)", TALKS},
    {"prefix-cache", OPTION_CHOICE, &s->prefix_cache, 0, 0, "auto|on|off", "on|off", "of prompts (default off)", ACCEPT | LOAD | LATENCY},
    {"prefix-cache", OPTION_CHOICE, &s->prefix_cache, 0, 0, "auto|on|off", "on|off", "one of them alone (default: both in turn)", AGENT | SHARED},
    {"cache-policy", OPTION_CHOICE, &s->cache_policy, 0, 0, CACHE_POLICY_CHOICES, "P", "or lru, none; --cache-alpha X (default flop, auto)", CACHES},
    {"cache-alpha", OPTION_NUMBER, &s->cache_alpha, 0, MAX_ALPHA, "auto", "X", 0, CACHES},
    {"cache-answers", OPTION_SWITCH, &s->cache_answers, 0, 0, 0, 0, 0, TALKS},
    {"cache-answers", OPTION_SWITCH, &s->cache_answers, 0, 0, 0, "on|off", "states at the ends of answers too", (CACHES | PREFIX) & ~TALKS},
    {"cache-dir", OPTION_STRING, &s->cache_dir, 0, 0, 0, "DIR", "--disk-cache, --host-cache BYTES (default 8G, 0)", CACHES | PREFIX},
    {"disk-cache", OPTION_BYTES, &s->disk_cache, 0, MAX_BYTES, 0, "BYTES", 0, CACHES | PREFIX},
    {"host-cache", OPTION_BYTES, &s->host_cache, 0, MAX_BYTES, 0, "BYTES", 0, CACHES | PREFIX},
    {"kv-dtype", OPTION_CHOICE, &s->kv_dtype, 0, 0, KV_CHOICES, 0, "K and V; --act-dtype: x of products", ALL},
    {"act-dtype", OPTION_CHOICE, &s->act_dtype, 0, 0, ACT_CHOICES, 0, 0, ALL},
    {"max-seqs", OPTION_INT, &s->max_seqs, 1, MAX_SEQS, 0, "N", "sequences that run at once", SERVE | LOAD | SHARED | PREFIX},
    {"max-waiting", OPTION_INT, &s->max_waiting, 1, 1e6, 0, "N", "requests that wait before 429 is sent", SERVE | LOAD | SHARED | PREFIX},
    {"ubatch-size", OPTION_INT, &s->ubatch_size, 0, 65536, 0, "N", "prompt rows per pass (default 256; on a GPU 2048)", ALL & ~(CHECK | KERNELS)},
    {"device", OPTION_CHOICE, &s->device, 0, 0, DEVICE_CHOICES, 0, "--cuda-graph, --pdl, --wgmma (default auto, on)", ALL},
    {"cuda-graph", OPTION_SWITCH, &s->cuda_graph, 0, 0, 0, 0, 0, ALL},
    {"pdl", OPTION_SWITCH, &s->pdl, 0, 0, 0, 0, 0, ALL},
    {"wgmma", OPTION_SWITCH, &s->wgmma, 0, 0, 0, 0, 0, ALL},
    {"threads", OPTION_INT, &s->threads, 0, 1024, 0, "N", "default all; --isa amx, vnni, avx512, ..., plain", EVERY},
    {"isa", OPTION_STRING, &s->isa, 0, 0, 0, "NAME", 0, EVERY},
    {"log-level", OPTION_CHOICE, &s->log_level, 0, 0, "error|warn|info|debug", "LEVEL", "error, warn, info or debug", EVERY | MASKS},

    /* vLLM's */
    OPTION_OF_OTHERS("max-model-len", "ctx-size"),
    OPTION_OF_OTHERS("max-num-seqs", "max-seqs"),
    OPTION_OF_OTHERS("max-num-batched-tokens", "ubatch-size"),
    OPTION_OF_OTHERS("gpu-memory-utilization", "memory"),
    OPTION_OF_OTHERS("quantization", "quant"),
    OPTION_OF_OTHERS("kv-cache-dtype", "kv-dtype"),
    OPTION_OF_OTHERS("enable-prefix-caching", "prefix-cache"),
    OPTION_OF_OTHERS("no-enable-prefix-caching", "prefix-cache"),
    OPTION_OF_OTHERS("speculative-config", "draft"),
    OPTION_OF_OTHERS("allowed-origins", "cors"),
    OPTION_OF_OTHERS("load-format", "dummy-weights"),
    /* SGLang's */
    OPTION_OF_OTHERS("model-path", "model"),
    OPTION_OF_OTHERS("context-length", "ctx-size"),
    OPTION_OF_OTHERS("max-running-requests", "max-seqs"),
    OPTION_OF_OTHERS("max-queued-requests", "max-waiting"),
    OPTION_OF_OTHERS("chunked-prefill-size", "ubatch-size"),
    OPTION_OF_OTHERS("mem-fraction-static", "memory"),
    OPTION_OF_OTHERS("disable-radix-cache", "prefix-cache"),
    OPTION_OF_OTHERS("speculative-algorithm", "draft"),
    OPTION_OF_OTHERS("speculative-num-steps", "draft-depth"),
    OPTION_OF_OTHERS("speculative-eagle-topk", "draft-topk"),
    OPTION_OF_OTHERS("speculative-num-draft-tokens", "tree-nodes"),
    /* llama.cpp's */
    OPTION_OF_OTHERS("hf-repo", "model"),
    OPTION_OF_OTHERS("alias", "served-model-name"),
    OPTION_OF_OTHERS("parallel", "max-seqs"),
    OPTION_OF_OTHERS("batch-size", "ubatch-size"),
    OPTION_OF_OTHERS("cache-type-k", "kv-dtype"),
    OPTION_OF_OTHERS("cache-type-v", "kv-dtype"),
    OPTION_OF_OTHERS("cache-ram", "host-cache"),
    OPTION_OF_OTHERS("gpu-layers", "device"),
    OPTION_OF_OTHERS("n-gpu-layers", "device"),
    OPTION_OF_OTHERS("draft-max", "draft-depth"),
    OPTION_OF_OTHERS("spec-type", "draft"),
    OPTION_OF_OTHERS("spec-draft-n-max", "draft-depth"),
    OPTION_OF_OTHERS("temp", "temperature"),
    {0},
    }};
    /* clang-format on */
}

/* How many that fill so many nodes, the root beside them, in so many levels. */
static int guesses_to_fill(int nodes, int levels)
{
    return nodes - 1 > levels && levels ? (nodes - 2) / levels + 1 : 1;
}

/*
 * One that is given fixes the shape of drafts: the others are those of a chain of three, or, where
 * more levels, guesses or nodes are asked for than it has, what these take.
 */
static void complete_shape(Settings *s)
{
    enum { LEVELS = 3 };
    s->draft_auto =
        s->draft_depth == NOT_GIVEN && s->draft_topk == NOT_GIVEN && s->tree_nodes == NOT_GIVEN;
    if (s->draft_depth == NOT_GIVEN) s->draft_depth = LEVELS;
    if (s->draft_topk == NOT_GIVEN) s->draft_topk = guesses_to_fill(s->tree_nodes, s->draft_depth);
    if (s->tree_nodes == NOT_GIVEN) {
        int most = s->draft_depth > s->draft_topk ? s->draft_depth : s->draft_topk;
        s->tree_nodes = (most > LEVELS ? most : LEVELS) + 1;
    }
}

int settings_parse(Settings *s, unsigned command, int argc, char **argv, const char **rest,
                   int *n_rest, Error *err)
{
    *s = DEFAULTS;
    OptionTable table = option_table(s);
    if (options_parse(table.row, command, argc, argv, rest, n_rest, err)) return -1;
    complete_shape(s);
    return 0;
}

static const struct {
    unsigned command;
    const char *words;
} usages[] = {
    {COMMAND_SERVE, "serve --model DIR [options]"},
    {COMMAND_CHAT, "chat --model DIR [options] [PROMPT]"},
    {COMMAND_CHECK, "check --model DIR [options]"},
    {COMMAND_QUANTIZE, "quantize --model DIR --out DIR [options]"},
    {BENCH_ACCEPT, "bench accept --model DIR [options]"},
    {BENCH_AGENT, "bench agent --model DIR [options]"},
    {BENCH_LOAD, "bench load --model DIR [options]"},
    {BENCH_SHARED_PREFIX, "bench shared-prefix --model DIR [options]"},
    {BENCH_PREFIX, "bench prefix [options]"},
    {BENCH_TURN, "bench turn --model DIR [options]"},
    {BENCH_LATENCY, "bench latency --model DIR [options]"},
    {BENCH_KERNELS, "bench kernels --model DIR [options]"},
    {BENCH_MASKS, "bench masks --model DIR [options]"},
};
enum { N_USAGES = sizeof usages / sizeof usages[0] };
void settings_help(unsigned command, FILE *out)
{
    Settings s = DEFAULTS;
    OptionTable table = option_table(&s);
    for (int i = 0; i < N_USAGES; i++)
        if (usages[i].command == command) fprintf(out, "usage: offshoot %s\n", usages[i].words);
    options_help(table.row, command, out);
}
