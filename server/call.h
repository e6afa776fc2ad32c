/*
 * call.h: one generating request, from its body to its last byte.
 *
 * A call has n_prompts times best_of answers. It outlives its client: when that is gone, the
 * answers are cancelled, and the call is freed when the engine has given back the last of them.
 */
#ifndef OFFSHOOT_SERVER_CALL_H
#define OFFSHOOT_SERVER_CALL_H

#include "server/encoding.h"
#include "server/id_set.h"
#include "server/items.h"
#include "server/responses_tools.h"
#include "server/server_state.h"
#include "server/stream.h"

/* What differs between the routes that generate. */
typedef struct {
    ApiKind kind;
    const char *id_prefix, *object, *chunk_object;
    int max_tokens;      /* of a request that does not say; -1: what the model's file says */
    int stream_probs;    /* log-probabilities that its streams keep to send them again, at most */
    const char *subject; /* of the length: "your prompt has"; NULL: as Anthropic's API says it */
    /* What a request gets that does not say; NULL: server_defaults with max_tokens. */
    ApiDefaults (*defaults)(const Server *s);
    /* The body of another API as a chat request: a new reference, or NULL and *err. NULL: is one.
     */
    json_t *(*translate)(const json_t *body, ApiError *err);
    /* In errors, of what was translated, which body is; or NULL. */
    const ApiFieldName *(*names)(const json_t *body);
    /*
     * Fills call->prompt[]: the tokens of each prompt, limit at most; n_stable[]; and what follows
     * from how the prompt ends. 1: the budget is spent, it is to be called again.
     */
    int (*tokenize)(Call *call, int limit, size_t *budget, ApiError *err);
    /* Makes of the request what its replies need, when all is read; or NULL. */
    int (*prepare)(Call *call, ApiError *err);
    /* What an answer begins with; or NULL. */
    void (*begin)(const Call *call, Answer *a);
    /* Writes a whole reply. */
    void (*reply)(Call *call, StrBuf *body);
    /* Writes the answer as an entry of a whole reply's choices, at this place; for choices_reply.
     */
    void (*choice)(const Call *call, const Answer *a, int index, StrBuf *out);
    /* Sends what a stream begins with, as soon as the request is accepted; or NULL. */
    void (*open)(Call *call);
    /* Sends what is new in an answer, in chunks. */
    void (*stream)(Call *call, Answer *a);
    /* Ends a stream whose answers are done; ends it with an error. */
    void (*end)(Call *call);
    void (*fail)(Call *call, int status, const char *code, const char *message);
} ApiFormat;

struct Call {
    Server *server;
    const ApiFormat *format;
    Stream stream; /* .ex is NULL when the client is gone or has its whole reply */
    ApiRequest api;
    char id[160];
    time_t created;
    double started_ms, first_token_ms; /* on the monotonic clock; 0: none yet */
    TokenList *prompt;                 /* [n_prompts] */
    int *n_stable;                     /* [n_prompts] as EngineRequest's; NULL: 0 */
    int n_system;                      /* as EngineRequest's, of a chat */
    int n_prompts;
    int n_encoded;          /* prompts that are done */
    Encoding encoding;      /* of the next one */
    TokenList predicted;    /* what its answers are likely to repeat: the first MAX_PREDICTED */
    int is_predicted;       /* that is tokens */
    int starts_in_think;    /* the prompt ends in <think> */
    int is_encoded;         /* all prompts are tokens */
    const Grammar *grammar; /* of its answers, or NULL */
    IdSet allowed_ids;      /* what their tokens must be of; there is one or a grammar */
    StructureAsk ask;       /* for it; .api is NULL until it is looked for */
    double grammar_s;       /* that it took to compile; 0: it was there */
    int answer_changes;     /* as ChatMarks's */
    ReplyTools *tools;      /* NULL: none that may be called */
    Answer *answers;        /* [n_answers], by index */
    int n_answers;
    int n_live;         /* answers not done */
    int n_open;         /* answers whose last chunk was not sent */
    int is_dirty;       /* in the server's list */
    int is_lent;        /* the worker has it: it must stay */
    atomic_int is_gone; /* its client is, for the worker: nobody needs the rest */
    double
        behind_ms; /* since when its reader is too slow and its answers are paused; 0: it is not */
    StrBuf chunk_head; /* what its chunks begin with; empty: none was sent */
    json_t *asked;     /* the body before it was translated, or NULL */
    ItemRow row;       /* of routes whose replies are items */
    StrBuf settings;   /* /v1/responses: what each response says of the request; */
    int wants_encrypted;
    StrBuf logprobs;    /* the entries of the row's last text, */
    int n_scored;       /* and how many tokens were looked at for them and those before */
    ResponsesTool tool; /* what the last call of the row is to the client, */
    CustomInput input;  /* and what it gets, if it is a custom tool */
    StrBuf whole;       /* its whole reply, while the worker writes it */
    char *body;         /* a large one, for the worker */
    size_t json_bytes;  /* for server_forget_json */
    const char *text;   /* the body */
    size_t text_len;
    ApiError error; /* what is wrong with it */
    int refused;
    Call *prev, *next, *next_dirty;
};

/* Reads the request and starts it, or replies with what is wrong. */
void call_begin(Server *s, Exchange *ex, const ApiFormat *format);

/* What ends it or slows it down: for exchange_watch and exchange_watch_flow; each second. */
void call_gone(void *owner);
void call_flow(void *owner, int behind);
void call_drop_slow(Server *s);

/*
 * Ends the calls of a request with an error; id: its X-Request-Id or its reply's id, NULL: all.
 * Returns how many; those that the worker has are not among them.
 */
int call_abort(Server *s, const char *id);

/* For dispatch_open: remembers that the answer's call has news. Then call_flush_all acts on it. */
void call_progress(void *server, Answer *a);
void call_flush_all(Server *s);

/* Frees a call whose answers the engine no longer has. */
void call_free(Call *call);

/* An ApiFormat's tokenize for chats. */
int call_tokenize_chat(Call *call, int limit, size_t *budget, ApiError *err);

/*
 * choices.c: an ApiFormat's reply, end and fail for replies that are choices; and a chunk with the
 * choice that is written in between: with the ids of the first prompt beside it if prompt, the last
 * of the answer if last.
 */
void choices_reply(Call *call, StrBuf *body);
void choices_end(Call *call);
void choices_fail(Call *call, int status, const char *code, const char *message);
StrBuf *choices_chunk_begin(Call *call);
void choices_chunk_end(Call *call, int prompt, int last);

/* A chunk that says how much of an answer's prompt is computed, in llama.cpp's form. */
void choices_progress(Call *call, Answer *a);

/* "model" of the reply: as asked for, or ours. */
const char *call_model(const Call *call);

/*
 * Tokens of its prompts, each counted once, and how many of them came from the prefix cache: of
 * several answers to a prompt the one that found least counts, as it made the others find more.
 * Known when all have begun.
 */
int call_n_prompt(const Call *call);
int call_n_cached(const Call *call);

/* Tokens of its answers. Every one counts: end tokens and cut stop strings too. */
int call_n_generated(const Call *call);

/* The objects that every reply has. */
void call_usage(const Call *call, StrBuf *out);
void call_timings(const Call *call, StrBuf *out);
void call_metrics(const Call *call, StrBuf *out);

/*
 * Further members, if the request wants them: of a choice the ids of its tokens from from_id on; of
 * a completion's choice, of a chat's reply or chunk the ids of the prompt.
 */
void call_add_ids(const Call *call, const Answer *a, int from_id, StrBuf *out);
void call_add_prompt_ids(const Call *call, const Answer *a, StrBuf *out);

/* The same for the trees of its steps. */
void call_add_trees(const Call *call, const Answer *a, StrBuf *out);

/* And of log-probabilities of the prompt's tokens: vLLM's list of null and {"id": {...}}. */
void call_add_prompt_logprobs(const Call *call, const Answer *a, StrBuf *out);

/* Why an answer stopped: its stop string, its stop id, or null. */
json_t *call_stop_reason(const Answer *a);

/* JSON has no NaN and no infinity: such a log-probability is -9999. */
double call_logprob(float logprob);

/* A token of p in the form of chats, with its k alternatives. */
void call_write_logprob(const Call *call, const TokenProbs *p, int i, StrBuf *out);

/* A token as a string of a reply: its text, bytes:\x.. when that is not UTF-8, or token_id:N. */
json_t *call_token_text(const Call *call, int32_t token);

#endif
