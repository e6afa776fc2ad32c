/*
 * call.h: one generating request, from its body to its last byte.
 *
 * A call has n_prompts times n answers. It outlives its client: when that is gone, the answers are
 * cancelled, and the call is freed when the engine has given back the last of them.
 */
#ifndef OFFSHOOT_SERVER_CALL_H
#define OFFSHOOT_SERVER_CALL_H

#include "server/server_state.h"
#include "server/stream.h"

/* What differs between the completion routes. */
typedef struct {
    ApiKind kind;
    const char *id_prefix, *object, *chunk_object;
    int max_tokens;      /* of a request that does not say; -1: to the context's end */
    const char *subject; /* of the length: "your prompt has" */
    /* Fills call->prompt[]: the tokens of each prompt. */
    int (*tokenize)(Call *call, ApiError *err);
    /* What an answer begins with; or NULL. */
    void (*begin)(const Call *call, Answer *a);
    /* The answer as an entry of a whole reply's choices. */
    json_t *(*choice)(const Call *call, const Answer *a);
    /* Sends what is new in an answer, with call_chunk. */
    void (*stream)(Call *call, Answer *a);
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
    int n_prompts;
    Answer *answers; /* [n_answers], by index */
    int n_answers;
    int n_live;   /* answers not done */
    int n_open;   /* answers whose last chunk was not sent */
    int is_dirty; /* in the server's list */
    Call *prev, *next, *next_dirty;
};

/* Reads the request and starts it, or replies with what is wrong. */
void call_begin(Server *s, Exchange *ex, const ApiFormat *format);

/* For dispatch_open: remembers that the answer's call has news. Then call_flush_all acts on it. */
void call_progress(void *server, Answer *a);
void call_flush_all(Server *s);

/* Frees a call whose answers the engine no longer has. */
void call_free(Call *call);

/* Sends one chunk with this choice (whose reference it takes); the last of the answer if last. */
void call_chunk(Call *call, json_t *choice, int last);

/* The objects that every reply has. */
json_t *call_usage(const Call *call);
json_t *call_timings(const Call *call);

/* Why an answer stopped: its stop string, its stop id, or null. */
json_t *call_stop_reason(const Answer *a);

/* JSON has no NaN and no infinity: such a log-probability is -9999. */
json_t *call_logprob(float logprob);

/* A token as a string of a reply: its text, or bytes:\x.. when that is not UTF-8. */
json_t *call_token_text(const Call *call, int32_t token);

#endif
