/*
 * answer.h: one answer being made: the engine's request for it, and the text its tokens become.
 *
 * The engine side (request, and the watcher behind it) is lent to the engine's thread while the
 * answer is ANSWER_RUNNING: the server then only reads it. The text side is the server's alone.
 * Nothing is lost when a reader takes it late: text waits in reply's pieces, log-probabilities in
 * probs, ids in tokens.
 */
#ifndef OFFSHOOT_SERVER_ANSWER_H
#define OFFSHOOT_SERVER_ANSWER_H

#include "base/strbuf.h"
#include "server/api_request.h"
#include "server/metrics.h"
#include "server/tree_list.h"
#include "text/detokenizer.h"
#include "text/grammar_run.h"
#include "text/reply_watch.h"

/* Log-probabilities of tokens, in order. */
typedef struct {
    int k; /* alternatives per token */
    int n, cap;
    int32_t *token;     /* [n] */
    float *logprob;     /* [n], NaN: nothing predicts it */
    int *rank;          /* [n] 0: the most likely */
    int *offset;        /* [n] characters (code points) of the whole text before its first byte */
    int32_t *top_id;    /* [n][k], best first, -1 after the last */
    float *top_logprob; /* [n][k] */
    size_t *shown;      /* [n_shown] bytes of content up to what it became; 0: no content */
    int n_shown;        /* the others wait, in text that is not yet let out */
} TokenProbs;

/* Bounds the reasoning, and asks where the answer ends. Runs on the engine's thread. */
typedef struct {
    ReplyWatch *watch;
    Watcher inner;      /* over watch */
    int reasoning_left; /* tokens; -1: no bound */
} AnswerGate;

typedef enum {
    ANSWER_WAITING, /* for a place in the engine */
    ANSWER_RUNNING, /* the engine has it */
    ANSWER_DONE,
} AnswerState;

/* The parts of the model's text side that an answer needs; lent. */
typedef struct {
    const Tokenizer *tok;
    const int *eos; /* [n_eos] the model's end tokens */
    int n_eos;
    const ReplyTools *tools; /* NULL: no calls */
    int starts_in_think;     /* the prompt ends in <think> */
    const int32_t *forced;   /* [n_forced] what ends reasoning that grows too long */
    int n_forced;
} AnswerModel;

typedef struct Answer Answer;
struct Answer {
    void *owner; /* whoever is told about it */
    int index;   /* among the owner's answers */

    AnswerState state;
    EngineRequest request;
    AnswerGate gate;
    GrammarAnswer structure;  /* where request.constraint is set */
    uint64_t ticket, arrival; /* place in the line */
    Answer *next;             /* in the waiting line */
    int cancelled;
    int pause_wanted, pause_sent, pause_acked; /* pause_sent and not yet obeyed: wait for it */

    AnswerModel model;
    const ApiRequest *api;
    int n_computed;                  /* tokens of the prompt, where it has not been told; else 0 */
    StrBuf echo;                     /* the prompt's text, not yet taken */
    Reply *reply;                    /* what the tokens become; its pieces are not yet taken */
    Detokenizer detok, prompt_detok; /* to count characters */
    StrBuf scratch;
    int n_chars;      /* of the whole text so far, before any cut; of the prompt too with echo */
    int n_tokens;     /* generated */
    TokenList tokens; /* these */
    TokenProbs probs, prompt_probs; /* of the answer (with echo the prompt's first), not yet taken;
                                       of the prompt */
    double sum_logprob;             /* of the generated tokens, when somebody asks */
    TreeList trees;                 /* of its steps, not yet sent, when somebody asks */
    int n_ids_taken;                /* of tokens, in chunks that were sent */
    int opened, closed;             /* the first, the last chunk of its stream was sent */
    size_t content_len; /* what reply had let out when probs.shown was last added to: content, */
    int n_others;       /* and how often anything else */

    Error refused; /* ANSWER_DONE: why the engine did not make it; code ERR_NONE: it did */
    FinishReason finish;
    const char *stop_string; /* the one that ended it, or NULL */
    int stop_id;             /* the client's stop id that ended it, or -1 */
    RequestStats stats;      /* up to its last step; zeros before the first token */
    Meter meter;
};

/*
 * Makes an answer to prompt[0..n_prompt), which is lent until the answer is closed, as are api and
 * what model points to. choice tells the answers to one prompt apart. To be closed on failure too.
 */
int answer_open(Answer *a, const AnswerModel *model, const ApiRequest *api, const int32_t *prompt,
                int n_prompt, int choice, Error *err);
void answer_close(Answer *a);

/* With echo: the prompt's text, which the answer's text begins with. */
void answer_echo(Answer *a, const char *text, size_t len);

/* What the engine says. */
void answer_event(Answer *a, const Event *event);

/* Something is there that was not taken. */
int answer_has_text(const Answer *a);

/* Appends what is there of a kind, the echo before content. */
void answer_text(const Answer *a, ReplyKind kind, StrBuf *out);

/* All that is there was taken; all log-probabilities of the answer. */
void answer_take(Answer *a);
void answer_take_probs(Answer *a);

/* 1 for an end token or stop id: it belongs to the count, to the text only if that is asked for. */
int answer_is_end(const Answer *a, int32_t token);

/*
 * "stop", "length", "tool_calls" or "function_call"; NULL while it is made, and when it is not what
 * was asked for.
 */
const char *answer_finish_reason(const Answer *a);

#endif
