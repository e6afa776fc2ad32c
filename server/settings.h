/*
 * settings.h: what the user can set, in one struct and one table.
 */
#ifndef OFFSHOOT_SERVER_SETTINGS_H
#define OFFSHOOT_SERVER_SETTINGS_H

#include <stdint.h>

#include "base/options.h"
#include "server/limits.h"

/* Subcommands and the programs of `bench`, as bits of Option.commands. */
enum {
    COMMAND_SERVE = 1 << 0,
    COMMAND_CHAT = 1 << 1,
    COMMAND_CHECK = 1 << 2,
    BENCH_ACCEPT = 1 << 3,
    BENCH_AGENT = 1 << 4,
    BENCH_LOAD = 1 << 5,
    BENCH_SHARED_PREFIX = 1 << 6,
    BENCH_PREFIX = 1 << 7,
    BENCH_TURN = 1 << 8,
    BENCH_LATENCY = 1 << 9,
    BENCH_KERNELS = 1 << 10,
    COMMAND_QUANTIZE = 1 << 11, /* from here on: what runs no model */
    BENCH_MASKS = 1 << 12,
    COMMANDS_END = 1 << 13,
};

enum { MAX_TRIES = 101 }; /* --requests of bench turn and latency */

typedef struct {
    const char *model; /* a folder */
    const char *out;   /* another, which quantize writes */
    int quant;         /* index into QUANT_CHOICES; AUTO */
    int saved_quant;   /* index into SAVED_CHOICES: what quantize writes */
    int dummy_weights; /* index into DUMMY_CHOICES */
    const char *config;
    /* serving */
    const char *host;
    int port;
    int takeover;        /* the place of the server that has it, once we are ready */
    const char *api_key; /* one or more, separated by commas */
    const char *cors;    /* origins, separated by commas, or "*"; NULL: none */
    ServerLimits limits;
    int strict_model;        /* 1: requests for other names are refused */
    int messages_thinking;   /* auto, on, off: index; of a /v1/messages request that does not say */
    int default_max_tokens;  /* of a request that does not say; -1: the route decides */
    const char *served_name; /* --served-model-name; NULL: the folder's name */
    /* engine */
    int ctx_size, max_seqs, max_waiting, ubatch_size, threads; /* 0: by machine and model */
    int64_t memory;
    int kv_dtype;  /* index into KV_CHOICES */
    int act_dtype; /* index into ACT_CHOICES */
    /* prefix cache */
    int prefix_cache;      /* auto, on, off: index; auto: on, but for benches */
    int cache_policy;      /* index into CACHE_POLICY_CHOICES, in the order of engine/cache.h's */
    double cache_alpha;    /* NaN: tuned */
    int cache_answers;     /* states at the ends of answers too */
    const char *cache_dir; /* NULL: nothing on disk */
    int64_t disk_cache;    /* bytes there */
    int64_t host_cache;    /* bytes of host memory for what the cache lets go */
    int draft;             /* index into DRAFT_CHOICES */
    int draft_depth, draft_topk, draft_vocab, tree_nodes;
    int draft_quant; /* index into DRAFT_QUANT_CHOICES */
    int draft_auto; /* 1: the user has given none of depth, topk, nodes; these are their defaults */
    int state_mode; /* index into STATE_CHOICES */
    /* auto (the template's default), on, off: index; an index into EFFORT_CHOICES */
    int thinking, preserve_thinking, effort;
    /* sampling defaults; NaN or -1: the model's generation_config.json */
    double temperature, top_p, min_p;
    int top_k;
    int64_t seed;   /* -1: random */
    int max_tokens; /* -1: the model decides, or the context */
    /* chat */
    const char *system, *tools;
    int show_draft; /* 0 or 1 */
    int color;      /* auto, on, off: index */
    int raw;        /* the prompt is completed as it is, no chat template */
    /* bench */
    const char *prompts;
    int limit;                     /* prompts at most; 0: all */
    int json;                      /* the report as JSON */
    const char *url, *connections; /* bench load and others: another server; a list of numbers */
    int requests;                  /* per number of connections; 0: the bench's own number */
    int groups, group_prompts, system_tokens, question_tokens; /* bench shared-prefix */
    /* bench prefix: a file or a load, its knobs; a model's shape; lists; the plot's file */
    const char *trace, *load, *shape, *capacities, *policies, *alphas, *svg;
    int real; /* through a server with the model, not simulated */
    double flops_per_second;
    const char *contexts;        /* bench latency: prompt lengths, a list of numbers */
    double synthetic_acceptance; /* bench latency: acceptance length by lot; 0: real */
    int log_level;
    int device;          /* index into DEVICE_CHOICES */
    int cuda_graph, pdl; /* a GPU's runs of operations are recorded; its launches overlap */
    int wgmma;           /* its products of many rows go by warpgroups */
    const char *isa;     /* as backend_cpu_open takes it; NULL: the best there is */
} Settings;

#define DEVICE_CHOICES "auto|cuda|cpu"
enum { DEVICE_AUTO, DEVICE_CUDA, DEVICE_CPU };

#define QUANT_CHOICES "auto|none|fp8|q8|q4" /* AUTO, engine/quant_config.h's types */
#define SAVED_CHOICES "q8|q4"               /* the same, from QUANT_Q8 on */
#define DUMMY_CHOICES "none|bf16|fp8"       /* in the order of engine/dummy.h's types */

#define STATE_CHOICES "auto|slots|replay" /* in the order of engine/engine.h's modes */
#define KV_CHOICES    "f32|bf16"          /* in the order of kernels/attention.h's types */
#define ACT_CHOICES   "f32|bf16|fp8"      /* in the order of engine/model.h's types */

#define DRAFT_CHOICES "mtp|ngram|suffix|union|none"
enum { DRAFT_MTP, DRAFT_NGRAM, DRAFT_SUFFIX, DRAFT_UNION, DRAFT_NONE };
enum { AUTO, ON, OFF }; /* thinking, color, prefix_cache */

#define EFFORT_CHOICES "auto|low|medium|xhigh"

/* Fills *s with the defaults and parses for one command. Errors as options_parse. rest as there. */
int settings_parse(Settings *s, unsigned command, int argc, char **argv, const char **rest,
                   int *n_rest, Error *err);

/* Prints usage and options of one command. */
void settings_help(unsigned command, FILE *out);

#endif
