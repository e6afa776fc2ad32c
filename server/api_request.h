/*
 * api_request.h: the body of a completion or chat request, read and checked once, here.
 *
 * Pure: JSON in, ApiRequest or ApiError out. A field that is null counts as absent, one that we do
 * not know is ignored, one of the wrong type or out of range is an error that names it.
 */
#ifndef OFFSHOOT_SERVER_API_REQUEST_H
#define OFFSHOOT_SERVER_API_REQUEST_H

#include "base/error.h"
#include "base/json.h"
#include "engine/engine.h"
#include "text/chat.h"
#include "text/stop.h"
#include "text/tokenizer.h"

enum {
    MAX_PROMPTS = 512,          /* in one request */
    MAX_N = 128,                /* answers to each */
    MAX_ANSWERS = 1024,         /* prompts times n */
    MAX_PROMPT_PROBS = 1 << 18, /* prompt tokens times answers to each times alternatives */
    MAX_ANSWER_PROBS = 1 << 20, /* tokens of all answers times alternatives, kept to be sent */
    MAX_STREAM_PROBS = 1 << 16, /* the same in a stream that sends them once more at its end */
    MAX_JSON_DEPTH = 128,
    MAX_JSON_LISTS = 1 << 18, /* lists and objects in a body */
    MAX_JSON_VALUES = 1 << 22,
    MAX_TOOLS = 512,
    MAX_TOOL_NAME = 128,
    MAX_MODEL_NAME = 256, /* every chunk of a stream repeats it */
    MAX_CACHE_SALT = 1024,
    MAX_TEMPLATE_KWARGS = 64,
};

/* What is wrong with a request, as its error object will say it. */
typedef struct {
    Error error;
    const char *code; /* or NULL */
    char param[64];   /* the field, or "" */
} ApiError;

/* Fills *e; always returns -1. param: or NULL. */
int api_error(ApiError *e, ErrorCode code, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* Where in a list of the request we are, for errors: "messages[3].content". */
typedef struct {
    char name[48];
    ApiError *err;
} ApiPlace;

ApiPlace api_place(const char *list, size_t i, const char *field, ApiError *err);

/* An error that names the place and says what is wrong with it; always returns -1. */
int api_refuse(ApiPlace p, const char *what);

/* Names the field for an error that somebody else put in e->error; always returns -1. */
int api_in_field(ApiError *e, const char *param);

/* What the API of a client calls a field of a chat request; .x: a part of any. */
typedef struct {
    const char *chat, *theirs;
} ApiFieldName;

/*
 * Puts the client's name in the error's param and where the message begins with the chat's. names
 * ends with NULL; of two that fit the first counts.
 */
void api_rename(ApiError *e, const ApiFieldName *names);

typedef enum { API_COMPLETION, API_CHAT } ApiKind;

/* A prompt as it was given: text that is still to be tokenised, or ids. */
typedef struct {
    const char *text; /* NULL: ids; lent by the body */
    size_t len;
    TokenList ids;
} ApiPrompt;

/* Where the model's reasoning goes. */
typedef enum {
    REASONING_SEPARATE,   /* reasoning_content */
    REASONING_IN_CONTENT, /* content, with its tags */
    REASONING_HIDDEN,     /* nowhere */
} ReasoningMode;

/* What an answer must look like. */
typedef enum {
    STRUCTURE_FREE,
    STRUCTURE_OBJECT,  /* any JSON object */
    STRUCTURE_SCHEMA,  /* a value of a JSON schema */
    STRUCTURE_CHOICE,  /* one of a list of texts */
    STRUCTURE_PATTERN, /* a text that matches a pattern as a whole */
} StructureKind;

typedef struct {
    StructureKind kind;
    const json_t *value; /* the schema, the list, the pattern; lent by the request */
    int strict;          /* of a schema: what cannot be followed is an error */
    const char *field;   /* where value is, for errors */
    const char *param;   /* the request's field */
} ApiStructure;

/* What JSON texts cost to parse. */
typedef struct {
    size_t n_bytes;
    int depth; /* the deepest level */
    int n_values, n_lists, n_strings, n_members;
} JsonCost;

typedef struct {
    ApiKind kind;
    json_t *body;      /* owned; lends strings and lists */
    const char *model; /* as asked for, or NULL */
    const char *id;    /* its own, lent by the body; or NULL */

    ApiPrompt *prompts; /* API_COMPLETION */
    int n_prompts;
    json_t *messages, *tools; /* API_CHAT: owned, normalised; tools may be NULL */
    json_t *prompt_tools;     /* the same with all digits of their numbers, for the prompt alone */
    JsonCost texts;           /* of JSON in strings: arguments of the calls in messages, schema */
    ChatFamily family;        /* of the template */
    ChatOptions chat;         /* its effort is lent by the body or the settings */
    int parse_calls;          /* 0: tool calls stay text (tool_choice none, no tools) */
    int parallel_calls;       /* 0: an answer ends after its first call */
    int old_calls;            /* 1: asked by functions: a message has one function_call */
    json_t *forced;           /* tools of which one must be called; NULL: none. Owned */
    json_t *allowed_tools;    /* tools that may be called, none of which must; NULL: all. Owned */
    int names_tool;           /* 1: the request names the one */
    int strict_tools;         /* 1: one at least is strict */
    ApiStructure structure;
    json_t *schema; /* structure's; owned, or NULL */
    ReasoningMode reasoning;
    int thinking_budget; /* tokens of reasoning at most; -1: no bound */

    int n;       /* choices of the reply to each prompt */
    int best_of; /* answers made for each, the n best are the choices */
    int max_tokens, min_tokens;
    int asks_length; /* max_tokens is the client's, not of ApiDefaults */
    SampleParams params;
    int n_logprobs;        /* -1: none */
    int n_prompt_logprobs; /* -1: none */
    int draft_max;         /* -1: as the engine is set */
    int ignore_eos, echo, include_stop, skip_special;
    int stream, include_usage, continuous_usage;
    /* in the reply: the ids, under vLLM's names, llama.cpp's; ids instead of texts; timings */
    int return_token_ids, return_tokens, tokens_as_ids, timings_per_token;
    int return_trees;    /* ours: what each step verified */
    int return_progress; /* llama.cpp's: how much of the prompt is computed; in a stream */
    int service_tier;    /* 1: it was sent and is answered */
    int cache_prompt;    /* 0: the prefix cache is neither asked nor fed */
    uint64_t cache_salt; /* of the string that was sent; 0: none */

    const char *stop[MAX_STOP_STRINGS]; /* lent by the body */
    int n_stop;
    int32_t stop_id[MAX_STOP_IDS];
    int n_stop_ids;
    int32_t *bias_id; /* [n_bias] */
    float *bias;
    int n_bias;
    TokenList allowed_ids; /* what the answer's tokens must be of; none: anything */
    StrBuf predicted;      /* what the answer is likely to repeat */
} ApiRequest;

/* What a request gets that does not say. */
typedef struct {
    SampleParams sampling;
    int max_tokens; /* -1: to the context's end */
    ChatFamily family;
    ChatOptions chat;
    int n_vocab;
    int may_be_empty; /* a chat's max_tokens may be 0: it only fills the prefix cache */
} ApiDefaults;

/*
 * Parses JSON that came from outside: an object within the limits above. NULL and *err. Integers
 * beyond 64 bits keep their digits in arguments of calls and parameters of tools, which the prompt
 * shows; elsewhere they are reals. *bytes, unless bytes is NULL: what it takes of memory, about.
 */
json_t *api_parse_body(const char *text, size_t len, size_t *bytes, ApiError *err);

/*
 * The same for one of several texts, whose integers keep their digits everywhere: the limits are
 * for all, and *spent is what they cost so far.
 */
json_t *api_parse_one(JsonCost *spent, const char *text, size_t len, ApiError *err);

/* What such JSON takes of memory, about. */
size_t api_json_bytes(const JsonCost *cost);

/* Reads body, whose reference it takes, also on failure. To be freed in both cases. */
int api_request_read(ApiRequest *r, ApiKind kind, json_t *body, const ApiDefaults *defaults,
                     ApiError *err);
void api_request_free(ApiRequest *r);

/*
 * The parts that other routes share. api_read_chat fills what chat_render takes; api_read_ids
 * appends a list of ids, each in [0, n_vocab).
 */
int api_read_chat(ApiRequest *r, const json_t *body, const ApiDefaults *defaults, ApiError *err);
int api_read_ids(const json_t *list, const char *param, int n_vocab, TokenList *ids, ApiError *err);

/*
 * What we cannot do yet and would change the answer or add to the reply. Neglecting it silently
 * would be worse than saying so; values that ask for nothing pass.
 */
int api_refuse_unsupported(const json_t *body, ApiError *err);

/* A string that is to be compared; NULL where v is none or holds a NUL. */
const char *api_word(const json_t *v);

/* 1 for a value that asks for something; absent, false, "", [] and {} do not. */
int api_asks(const json_t *v);

/*
 * A boolean or integer field; absent: *out stays. hi of INT_MAX is no bound: more counts as that.
 */
int api_read_bool(const json_t *body, const char *key, int *out, ApiError *err);
int api_read_int(const json_t *body, const char *key, long lo, long hi, int *out, ApiError *err);

/*
 * api_messages.c: bytes to drop from the beginning of a system text: the line in which Claude Code
 * tells of itself, whose figures change with every request, so that no prompt would begin as the
 * one before. Its HTTP-like name is all that it has of a header.
 */
size_t api_billing_line(const char *text, size_t len);

/*
 * result_order.c: in which order a chat's messages are to be read: [i] is the place of the one that
 * comes i-th. To be freed.
 */
size_t *api_message_order(const json_t *messages);

/* api_fields.c: sampling, lengths, stops, biases, what the reply holds. */
int api_read_fields(ApiRequest *r, const json_t *body, int n_vocab, ApiError *err);

/* api_structure.c: response_format and its like; after the tools. */
int api_read_structure(ApiRequest *r, const json_t *body, ApiError *err);

/* 1 if an answer needs a grammar. */
int api_has_grammar(const ApiRequest *r);

/* api_tools.c: tools and tool_choice, under their old names too. */
int api_read_tools(ApiRequest *r, const json_t *body, ApiError *err);

#endif
