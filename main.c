/*
 * main.c: subcommands, and what is opened for them in which order.
 *
 * backend -> model and, beside it, tokenizer -> template -> drafter -> engine; close_all goes the
 * other way and takes an App that is opened only in part. Nothing else in the program wires parts
 * together.
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/available.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/hub_folder.h"
#include "base/log.h"
#include "base/lost_file.h"
#include "base/mem.h"
#include "base/thread.h"
#include "base/version.h"
#include "bench/bench.h"
#include "bench/check.h"
#include "drafts/mtp.h"
#include "drafts/ngram.h"
#include "drafts/suffix.h"
#include "drafts/union.h"
#include "engine/engine.h"
#include "engine/model.h"
#include "kernels/backend.h"
#include "server/access.h"
#include "server/api_request.h"
#include "server/service.h"
#include "server/settings.h"
#include "spec/accept.h"
#include "text/utf8.h"

enum { GPU_CHUNK_ROWS = 2048 }; /* as many as fill the machine */

typedef struct {
    Settings settings;
    char *folder;         /* the model's; settings.model, once it is found */
    const char *hub_name; /* what the user named it where that is no folder */
    unsigned command;
    const char **words; /* what is no option: a prompt, a bench's name */
    int n_words;

    Backend *backend;
    QuantConfig file; /* what the weights in the model's folder are */
    Model *model;
    Tokenizer *tok;
    uint64_t *allowed; /* bit set of the ids that the tokenizer has */
    Drafter drafter;   /* .self is NULL when there is none */
    Engine *engine;
    char *name;
    Service service;
} App;

/* ---- opening ---- */

/* With `optional`, a GPU that is not there is no error, and one that cannot be used is a warning.
 */
static int open_gpu(App *a, int optional, Error *err)
{
    Error why = {0};
    const Settings *s = &a->settings;
    unsigned leave_out = (s->cuda_graph ? 0 : CUDA_NO_GRAPH) | (s->pdl ? 0 : CUDA_NO_OVERLAP) |
                         (s->wgmma ? 0 : CUDA_NO_WGMMA);
    a->backend = backend_cuda_open(leave_out, &why);
    if (a->backend) return 0;
    if (!optional) return error_set(err, why.code, "%s", why.msg);
    if (why.code == ERR_DEVICE) log_warn("gpu_not_used device=cpu reason=\"%s\"", why.msg);
    return 0;
}

static int open_backend(App *a, Error *err)
{
    /* The vocabulary bounds the backend's scratch, so the config is read before the model is. */
    ModelConfig config;
    GenerationDefaults generation;
    const Settings *set = &a->settings;
    if (config_load(&config, &generation, set->model, err)) return -1;
    a->file = config.file;
    if (set->device != DEVICE_CPU && open_gpu(a, set->device == DEVICE_AUTO, err)) return -1;
    if (a->backend) return 0;
    int n_threads = set->threads ? set->threads : cpus_available();
    a->backend = backend_cpu_open(n_threads, set->isa, config.n_vocab, err);
    return a->backend ? 0 : -1;
}

/*
 * If nothing is said, weights stay as they are; but on a CPU those that another tool has packed
 * into integers become integers again, and what is not packed with them.
 */
static QuantType weights_quant(const App *a)
{
    const Settings *set = &a->settings;
    if (set->quant != AUTO) return (QuantType)(set->quant - 1);
    int may_be_int = a->backend->is_host && !set->dummy_weights && a->file.is_packed;
    return may_be_int ? QUANT_INT : QUANT_NONE;
}

/* If nothing is said, on a CPU half the bits of the model: that halves what drafts read. */
static QuantType draft_quant(const App *a)
{
    static const QuantType half[N_QUANT_TYPES] = {QUANT_Q8, QUANT_Q8, QUANT_Q4, QUANT_Q4, QUANT_Q4};
    const Settings *set = &a->settings;
    int has_head = set->draft == DRAFT_MTP || set->draft == DRAFT_UNION;
    if (set->draft_quant != AUTO) return (QuantType)(set->draft_quant - 1);
    if (!a->backend->is_host || !has_head) return QUANT_NONE;
    QuantType quant = weights_quant(a);
    return half[quant ? quant : a->file.is];
}

static int open_model(App *a, Error *err)
{
    const Settings *set = &a->settings;
    ModelOptions options = {.quant = weights_quant(a),
                            .draft_quant = draft_quant(a),
                            .act = (ActType)set->act_dtype,
                            .dummy = (DummyType)set->dummy_weights};
    if (options.dummy)
        log_warn("dummy_weights model=%s: weights are random, answers and acceptance are noise",
                 set->model);
    if (set->quant == AUTO && options.quant)
        log_info(
            "weights_packed become=%s: of 4 bits where they have no more, else of 8, and others "
            "with them; --quant none makes BF16 of them",
            quant_name(options.quant));
    double begun = clock_ms() / 1e3;
    a->model = model_open(set->model, &options, a->backend, err);
    a->service.weights_s = clock_ms() / 1e3 - begun;
    return a->model ? 0 : -1;
}

static int open_tokenizer(App *a, Error *err)
{
    char *path = path_join(a->settings.model, "tokenizer.json");
    a->tok = tokenizer_open(path, err);
    mem_free(path);
    a->service.tok = a->tok;
    return a->tok ? 0 : -1;
}

typedef struct {
    App *app;
    Error err;
    int failed;
} TokenizerThread;

static void *open_tokenizer_aside(void *arg)
{
    TokenizerThread *t = arg;
    t->failed = open_tokenizer(t->app, &t->err);
    return NULL;
}

/* A padded vocabulary has ids without text: legal in prompts, never chosen. */
static void find_allowed(App *a)
{
    int n_vocab = a->model->config.n_vocab;
    a->allowed = mem_alloc(((size_t)n_vocab + 63) / 64, sizeof *a->allowed);
    for (int id = 0; id < n_vocab; id++)
        if (tokenizer_has(a->tok, id)) a->allowed[id / 64] |= UINT64_C(1) << (id % 64);
}

/* Both at once: a large vocabulary takes a core as long as weights take the disk or the others. */
static int open_model_and_tokenizer(App *a, Error *err)
{
    TokenizerThread tok = {.app = a};
    pthread_t thread;
    int aside = !thread_start(&thread, open_tokenizer_aside, &tok, "tokenizer", NULL);
    int failed = open_model(a, err);
    if (aside)
        pthread_join(thread, NULL);
    else
        open_tokenizer_aside(&tok);
    if (failed) return -1;
    if (tok.failed) {
        *err = tok.err;
        return -1;
    }
    find_allowed(a);
    return 0;
}

/*
 * The tokenizer's own end of a turn counts, too: config.json names <|endoftext|> alone, and not
 * every folder has a generation_config.json.
 */
static int add_eos(App *a, Error *err)
{
    ModelConfig *c = &a->model->config;
    const char *eos = a->service.tok_config.eos;
    int32_t id = eos ? tokenizer_added_id(a->tok, eos) : -1;
    return id < 0 || id >= c->n_vocab ? 0 : config_add_eos(c, id, "tokenizer_config.json", err);
}

/* Of a tokenizer and a model that do not belong together, or of what the files leave out. */
static void warn_of_tokens(const App *a)
{
    const ModelConfig *c = &a->model->config;
    const char *dir = a->settings.model;
    int n_outside = 0, n_ends = 0;
    for (int id = c->n_vocab; id < tokenizer_size(a->tok); id++)
        n_outside += tokenizer_has(a->tok, id);
    for (int i = 0; i < c->n_eos; i++)
        n_ends += tokenizer_has(a->tok, c->eos[i]); /* others are never chosen */
    if (n_outside)
        log_warn("tokens_outside model=%s: prompts with any of %d tokens of its tokenizer, which "
                 "are no ids of its %d, are refused",
                 dir, n_outside, c->n_vocab);
    if (c->n_eos_outside)
        log_warn("eos_outside model=%s: %d end tokens are no ids of its %d and never come", dir,
                 c->n_eos_outside, c->n_vocab);
    if (!n_ends)
        log_warn("eos_none model=%s: no token of its tokenizer is named as one that ends an answer",
                 dir);
}

static int open_template(App *a, Error *err)
{
    const char *dir = a->settings.model;
    if (chat_template_open(&a->service.tmpl, dir, a->model->config.model_type, err) ||
        tokenizer_config_open(&a->service.tok_config, dir, err) || add_eos(a, err))
        return -1;
    warn_of_tokens(a);
    if (!a->service.tmpl.known)
        log_warn("template_unknown model=%s: prompts follow the family's usual template", dir);
    if (a->service.tmpl.always_thinks && a->settings.thinking == OFF)
        return error_set(err, ERR_INPUT, "--thinking off: this model cannot but think");
    return 0;
}

/* A new drafter is one new file in drafts/ and one line here. */
static int open_drafter(App *a, Error *err)
{
    if (a->settings.draft == DRAFT_NONE || a->settings.tree_nodes == 1) return 0;
    int kind = a->settings.draft, wants_head = kind == DRAFT_MTP || kind == DRAFT_UNION;
    if (wants_head && !a->model->has_mtp) {
        const char *left = kind == DRAFT_MTP ? "decoding is plain" : "drafts are copies alone";
        log_warn("draft_none model=%s: it has no MTP head, %s", a->settings.model, left);
        if (kind == DRAFT_MTP) return 0;
        kind = DRAFT_SUFFIX;
    }
    if (kind == DRAFT_UNION) return union_drafter_open(a->model, &a->drafter, err);
    if (kind == DRAFT_MTP) return mtp_drafter_open(a->model, &a->drafter, err);
    (kind == DRAFT_NGRAM ? ngram_drafter_open : suffix_drafter_open)(&a->drafter);
    return 0;
}

/* Added tokens have the highest ids, and answers with tool calls are full of them. */
static DraftVocab draft_vocab(const App *a)
{
    DraftVocab v = {.n_first = a->settings.draft_vocab};
    v.always = tokenizer_added(a->tok, &v.n_always);
    return v;
}

/* Off for a bench that asks the same twice: it would measure the cache. */
static int wants_cache(const App *a)
{
    int choice = a->settings.prefix_cache;
    return choice == AUTO ? a->command == COMMAND_SERVE || a->command == COMMAND_CHAT
                          : choice == ON;
}

static CacheOptions cache_options(const Settings *set)
{
    return (CacheOptions){.on = set->prefix_cache == ON,
                          .policy = (CachePolicy)set->cache_policy,
                          .alpha = isnan(set->cache_alpha) ? -1 : set->cache_alpha,
                          .keep_answers = set->cache_answers};
}

/*
 * The rate by which drafts of the levels that are set give the length that is asked for; of three,
 * where the engine chooses from up to MAX_LEVELS. Copies alone have no levels that they always
 * reach.
 */
static int set_synthetic(const Settings *set, EngineOptions *o, Error *err)
{
    int levels = engine_draft_levels(o);
    if (set->synthetic_acceptance <= 0) return 0;
    if (set->synthetic_acceptance > levels + 1)
        return error_set(err, ERR_INPUT,
                         "--synthetic-acceptance is %g, drafts of %d levels give %d at most",
                         set->synthetic_acceptance, levels, levels + 1);
    if (o->drafter && !o->drafter->uses_head)
        return error_set(err, ERR_INPUT,
                         "--synthetic-acceptance needs a draft head's drafts, not copies alone "
                         "(--draft %s)",
                         o->drafter->name);
    o->synthetic = (float)synthetic_rate(set->synthetic_acceptance, levels);
    return 0;
}

/* With its drafter. */
static int open_engine(App *a, Error *err)
{
    Settings *set = &a->settings;
    int one = a->command == COMMAND_CHAT; /* a conversation is one sequence */
    if (open_drafter(a, err)) return -1;
    EngineOptions options = engine_defaults();
    options.max_seqs = one ? 1 : set->max_seqs;
    options.max_waiting = one ? 1 : set->max_waiting;
    options.ctx_size = set->ctx_size;
    options.memory = set->memory;
    options.kv_type = (KvType)set->kv_dtype;
    if (set->ubatch_size)
        options.chunk_rows = set->ubatch_size;
    else if (!a->backend->is_host)
        options.chunk_rows = GPU_CHUNK_ROWS;
    options.tree_nodes = a->drafter.self ? set->tree_nodes : 1;
    options.draft_depth = set->draft_depth;
    options.draft_topk = set->draft_topk;
    options.draft_auto = set->draft_auto;
    options.state_mode = (StateMode)set->state_mode;
    options.draft_vocab = draft_vocab(a);
    set->prefix_cache = wants_cache(a) ? ON : OFF; /* the rest need not guess */
    if (set->prefix_cache == OFF && (set->cache_dir || set->host_cache))
        log_warn("prefix_cache_off: --cache-dir and --host-cache keep nothing");
    options.cache = cache_options(set);
    options.cache_dir = set->cache_dir;
    options.disk_cache = set->disk_cache;
    options.host_cache = set->host_cache;
    options.allowed = a->allowed;
    options.drafter = a->drafter.self ? &a->drafter : NULL;
    if (set_synthetic(set, &options, err)) return -1;
    a->engine = engine_open(a->model, &options, err);
    if (!a->engine) return -1;
    a->service.engine = a->engine;
    if (a->command == COMMAND_SERVE || set->log_level == LOG_LEVEL_DEBUG)
        engine_print_memory(a->engine, stderr);
    return 0;
}

/* The last part of the model's folder, or its name on the Hub, unless the user gave it another; it
 * says so where it is a dummy. */
static char *served_name(const App *a)
{
    const Settings *set = &a->settings;
    if (set->served_name) return mem_strdup(set->served_name);
    char *resolved = a->hub_name ? NULL : realpath(set->model, NULL);
    const char *path = resolved ? resolved : set->model;
    const char *slash = strrchr(path, '/');
    const char *part = a->hub_name ? a->hub_name : slash && slash[1] ? slash + 1 : path;
    const char *note = set->dummy_weights ? " (dummy weights)" : "";
    size_t size = strlen(part) + strlen(note) + 1;
    char *name = mem_alloc(size, 1);
    snprintf(name, size, "%s%s", part, note);
    free(resolved);
    return name;
}

/* Replies are JSON, and requests name the model. */
static int is_fit_name(const char *name)
{
    size_t n = strlen(name);
    return n > 0 && n <= MAX_MODEL_NAME && utf8_check(name, n) == n;
}

/* A folder's name need not be fit. */
static void name_model(App *a)
{
    a->name = served_name(a);
    if (is_fit_name(a->name)) return;
    mem_free(a->name);
    a->name = mem_strdup("model");
}

static int find_model(App *a, Error *err)
{
    const char *name = a->settings.model;
    int of_hub;
    if (!name || !*name)
        return error_set(err, ERR_INPUT, "which model? give its folder: --model DIR");
    if (a->folder) return 0;
    a->folder = hub_folder(name, &of_hub, err);
    if (!a->folder) return -1;
    if (of_hub) a->hub_name = name;
    a->settings.model = a->folder;
    return 0;
}

/* All but the engine and its drafter. */
static int open_parts(App *a, Error *err)
{
    if (find_model(a, err)) return -1;
    if (open_backend(a, err) || open_model_and_tokenizer(a, err) || open_template(a, err))
        return -1;
    name_model(a);
    a->service.settings = &a->settings;
    a->service.generation = a->model->generation;
    a->service.model_name = a->name;
    a->service.device = a->backend->name;
    return 0;
}

static void close_engine(App *a)
{
    if (a->engine) engine_close(a->engine);
    if (a->drafter.self) a->drafter.close(a->drafter.self);
    a->engine = NULL;
    a->drafter = (Drafter){0};
}

static int open_all(App *a, Error *err)
{
    return open_parts(a, err) || open_engine(a, err) ? -1 : 0;
}

/* With the model that is loaded; what was open before is closed. */
static int open_engine_anew(void *ctx, const Settings *set, Service *s, Error *err)
{
    App *a = ctx;
    close_engine(a);
    a->settings = *set;
    if (open_engine(a, err)) return -1;
    *s = a->service;
    return 0;
}

static void close_all(App *a)
{
    mem_free(a->name);
    mem_free(a->folder);
    tokenizer_config_close(&a->service.tok_config);
    close_engine(a);
    mem_free(a->allowed);
    if (a->tok) tokenizer_close(a->tok);
    if (a->model) model_close(a->model);
    if (a->backend) a->backend->close(a->backend);
}

/* ---- the subcommands ---- */

static int too_many_words(const App *a, int most, Error *err)
{
    if (a->n_words <= most) return 0;
    const char *hint = !a->settings.model           ? "a model is named by --model"
                       : a->command == COMMAND_CHAT ? "a prompt of several words needs quotes"
                                                    : "options are --name";
    return error_set(err, ERR_INPUT, "unexpected word '%.60s'; %s", a->words[most], hint);
}

static int load_service(void *ctx, Service *service, Error *err)
{
    App *a = ctx;
    if (open_all(a, err)) return -1;
    *service = a->service;
    return 0;
}

/* A variable that the shell does not know must not leave the server open, or shut for all. */
static int check_access(const Settings *set, Error *err)
{
    if (set->api_key && !*set->api_key)
        return error_set(err, ERR_INPUT, "--api-key is '', must hold a key");
    if (set->served_name && !is_fit_name(set->served_name))
        return error_set(err, ERR_INPUT,
                         "--served-model-name is '%.40s', must be 1 to %d bytes of UTF-8",
                         set->served_name, MAX_MODEL_NAME);
    return access_check(set->api_key, set->cors, err);
}

static int run_serve(App *a, Error *err)
{
    ServiceLoader loader = {load_service, a};
    if (too_many_words(a, 0, err) || find_model(a, err) || check_access(&a->settings, err))
        return -1;
    int rc = serve_run(&a->settings, &loader, err);
    if (rc == SERVE_LEFT_LOADING) _exit(0); /* nothing can be closed under the loader */
    return rc;
}

/* A text that is completed as it is has no place for what a template would say. */
static int check_raw(const Settings *set, Error *err)
{
    const struct {
        const char *name;
        int is_given;
    } options[] = {{"system", set->system != NULL},
                   {"tools", set->tools != NULL},
                   {"thinking", set->thinking != AUTO},
                   {"preserve-thinking", set->preserve_thinking != AUTO},
                   {"reasoning-effort", set->effort != AUTO}};
    for (size_t i = 0; set->raw && i < sizeof options / sizeof *options; i++)
        if (options[i].is_given)
            return error_set(err, ERR_INPUT,
                             "--raw takes no --%s: the prompt is completed as it is",
                             options[i].name);
    return 0;
}

static int run_chat(App *a, Error *err)
{
    if (too_many_words(a, 1, err) || check_raw(&a->settings, err) || open_all(a, err)) return -1;
    return chat_run(&a->service, a->n_words ? a->words[0] : NULL, err);
}

/* The benches: `offshoot bench NAME`. */
static const struct {
    const char *name;
    unsigned command;
    int (*run)(const Service *s, Error *err);
    /* or this; prefix has both, and --real chooses */
    int (*run_engines)(const Service *s, const EngineOpener *opener, Error *err);
    const char *help;
} benches[] = {
    {"accept", BENCH_ACCEPT, bench_accept_run, NULL,
     "drafts: how many are accepted, what they gain"},
    {"agent", BENCH_AGENT, NULL, bench_agent_run,
     "agent loops, prefix cache and drafts off and on"},
    {"load", BENCH_LOAD, bench_load_run, NULL, "many connections: right answers, memory, time"},
    {"shared-prefix", BENCH_SHARED_PREFIX, NULL, bench_shared_prefix_run,
     "prompts that share a long beginning"},
    {"prefix", BENCH_PREFIX, bench_prefix_run, bench_prefix_real_run,
     "the prefix cache on a trace, simulated or real"},
    {"turn", BENCH_TURN, NULL, bench_turn_run, "one turn behind a long prefix, cached or not"},
    {"latency", BENCH_LATENCY, bench_latency_run, NULL,
     "one request at a time, plain and with drafts"},
    {"kernels", BENCH_KERNELS, bench_kernels_run, NULL,
     "a pass over 1 to 64 rows and its operations"},
    {"masks", BENCH_MASKS, bench_masks_run, NULL, "which tokens a grammar lets through, and when"},
};
enum { N_BENCHES = sizeof benches / sizeof benches[0] };

static int run_bench(App *a, Error *err)
{
    int i = 0;
    while (benches[i].command != a->command)
        i++;
    Settings *set = &a->settings;
    EngineOpener opener = {open_engine_anew, a};
    int opens_engines = benches[i].run_engines && (!benches[i].run || set->real);
    int failed = 0;
    if (too_many_words(a, 0, err)) return -1;
    if (a->command == BENCH_ACCEPT)
        set->draft_auto = 0; /* it asks how good drafts are, not whether they pay */
    a->service.settings = set;
    if (a->command == BENCH_PREFIX && !set->real) /* computes nothing */
        failed = set->model && (find_model(a, err) || open_tokenizer(a, err));
    else if (a->command == BENCH_MASKS)
        failed = find_model(a, err) || open_tokenizer(a, err);
    else if (!set->url)
        failed = opens_engines ? open_parts(a, err) : open_all(a, err);
    if (failed) return -1;
    return opens_engines ? benches[i].run_engines(&a->service, &opener, err)
                         : benches[i].run(&a->service, err);
}

static int run_check(App *a, Error *err)
{
    const Settings *set = &a->settings;
    if (too_many_words(a, 0, err) || find_model(a, err)) return -1;
    if (open_backend(a, err) || open_model_and_tokenizer(a, err)) return -1;
    CheckSetup setup = {.model = a->model,
                        .tok = a->tok,
                        .allowed = a->allowed,
                        .draft_vocab = draft_vocab(a),
                        .max_tokens = set->max_tokens,
                        .limit = set->limit,
                        .memory = set->memory,
                        .ctx_size = set->ctx_size,
                        .kv_type = (KvType)set->kv_dtype,
                        .json = set->json};
    return check_run(&setup, stdout, err);
}

static int run_quantize(App *a, Error *err)
{
    Settings *set = &a->settings;
    int64_t bytes;
    set->device = DEVICE_CPU;
    if (too_many_words(a, 0, err) || find_model(a, err)) return -1;
    if (!set->out) return error_set(err, ERR_INPUT, "where to? give a folder: --out DIR");
    if (open_backend(a, err)) return -1;
    double begun = clock_ms();
    QuantType quant = (QuantType)(QUANT_Q8 + set->saved_quant);
    if (model_save_quantised(set->model, set->out, quant, a->backend, &bytes, err)) return -1;
    printf("%s: %.1f MiB of weights in %.1f s\n", set->out, (double)bytes / (1 << 20),
           (clock_ms() - begun) / 1e3);
    return 0;
}

static const struct {
    const char *name;
    unsigned command; /* 0: its programs have one each */
    int (*run)(App *a, Error *err);
    const char *help;
} commands[] = {
    {"serve", COMMAND_SERVE, run_serve, "answer over HTTP, in the OpenAI style"},
    {"chat", COMMAND_CHAT, run_chat, "answer one prompt, or talk in the terminal"},
    {"bench", 0, run_bench, "measure acceptance and speed"},
    {"check", COMMAND_CHECK, run_check, "prove that speculation and company change no token"},
    {"quantize", COMMAND_QUANTIZE, run_quantize,
     "write a model's folder with 8-bit or 4-bit weights"},
};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

static int command_index(const char *name)
{
    for (int i = 0; i < N_COMMANDS; i++)
        if (!strcmp(name, commands[i].name)) return i;
    return -1;
}

#ifdef __clang__
static const char COMPILER[] = __VERSION__; /* it says its name there */
#else
static const char COMPILER[] = "gcc " __VERSION__;
#endif

static void print_commands(FILE *out)
{
    fprintf(out, "usage: offshoot COMMAND [options]\n");
    for (int i = 0; i < N_COMMANDS; i++)
        fprintf(out, "  %-8s %s\n", commands[i].name, commands[i].help);
    fprintf(out, "  version  version, compiler, instruction sets\n"
                 "  help     this, or the options of a command: offshoot help chat\n");
}

/* What the words behind a command's name ask for; moves past the name of a bench. 0: none. */
static unsigned take_program(int i, int *argc, char ***argv)
{
    if (commands[i].command) return commands[i].command;
    for (int b = 0; *argc && b < N_BENCHES; b++) {
        if (strcmp(**argv, benches[b].name) != 0) continue;
        --*argc, ++*argv;
        return benches[b].command;
    }
    return 0;
}

static void print_help(unsigned command, FILE *out)
{
    if (command) {
        settings_help(command, out);
        return;
    }
    fprintf(out, "usage: offshoot bench NAME [options]\n");
    for (int b = 0; b < N_BENCHES; b++)
        fprintf(out, "  %-14s %s\n", benches[b].name, benches[b].help);
    fprintf(out, "options of one: offshoot bench NAME --help\n");
}

static void print_version(void)
{
    Error err = {0};
    Backend *cpu = backend_cpu_open(1, NULL, 1, &err);
    printf("offshoot %s\n", OFFSHOOT_VERSION);
    printf("compiler: %s\n", COMPILER);
    printf("cpu kernels: %s\n", cpu ? cpu->isa : err.msg);
    if (cpu) cpu->close(cpu);
    err = (Error){0};
    Backend *gpu = backend_cuda_open(0, &err);
    printf("gpu kernels: %s\n", gpu ? gpu->isa : err.msg);
    if (!gpu) return;
    printf("gpu library: %s\n", gpu->library);
    printf("gpu wgmma: %s\n", gpu->wgmma);
    gpu->close(gpu);
}

/* ---- the door ---- */

/* 1 if --help or -h is among the options. */
static int asks_for_help(int argc, char **argv)
{
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) return 1;
    return 0;
}

static int help(int argc, char **argv, Error *err)
{
    int i = argc ? command_index(argv[0]) : -1;
    int is_plain = argc && (!strcmp(argv[0], "version") || !strcmp(argv[0], "help"));
    if (argc && i < 0 && !is_plain)
        return error_set(err, ERR_INPUT, "no command '%.40s' to help with", argv[0]);
    if (i < 0) {
        print_commands(stdout);
        return 0;
    }
    argc--, argv++;
    unsigned program = take_program(i, &argc, &argv);
    if (!program && argc)
        return error_set(err, ERR_INPUT, "no bench '%.40s' to help with", argv[0]);
    print_help(program, stdout);
    return 0;
}

static int run_command(int i, int argc, char **argv, Error *err)
{
    App app = {.command = take_program(i, &argc, &argv)};
    if (asks_for_help(argc, argv)) {
        print_help(app.command, stdout);
        return 0;
    }
    if (!app.command)
        return error_set(err, ERR_INPUT,
                         "which bench? its name comes first, see 'offshoot help bench'");
    app.words = mem_alloc((size_t)argc + 1, sizeof *app.words);
    int rc = settings_parse(&app.settings, app.command, argc, argv, app.words, &app.n_words, err);
    if (!rc) {
        log_set_level((LogLevel)app.settings.log_level);
        if (app.command != COMMAND_SERVE) rc = thread_widen_first(err);
        if (!rc) rc = commands[i].run(&app, err);
    }
    close_all(&app);
    mem_free(app.words);
    options_free();
    return rc;
}

/*
 * A file that is opened must not become the output or the log because that was closed: in its place
 * goes what can be neither read nor written.
 */
static void reserve_standard_files(void)
{
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0) open("/dev/null", fd ? O_RDONLY : O_WRONLY);
}

int main(int argc, char **argv)
{
    reserve_standard_files();
    signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is an error value, as a full disk is */
    Error err = {0};
    const char *name = argc > 1 ? argv[1] : "";
    int i = command_index(name), rc = 0;
    lost_file_ends_process(error_exit_status(ERR_FILE));
    if (i >= 0)
        rc = run_command(i, argc - 2, argv + 2, &err);
    else if (!strcmp(name, "version") || !strcmp(name, "--version"))
        print_version();
    else if (!strcmp(name, "help") || !strcmp(name, "--help") || !strcmp(name, "-h"))
        rc = help(argc - 2, argv + 2, &err);
    else if (!*name)
        rc = error_set(&err, ERR_INPUT, "which command? see 'offshoot help'");
    else
        rc = error_set(&err, ERR_INPUT, "unknown command '%.40s'; see 'offshoot help'", name);
    if (!rc && (fflush(stdout) || ferror(stdout)))
        rc = error_set(&err, ERR_FILE, "cannot write the output: %s", strerror(errno));
    if (rc) fprintf(stderr, "offshoot: %s\n", err.msg);
    return rc ? error_exit_status(err.code) : 0;
}
