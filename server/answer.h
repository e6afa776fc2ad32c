/*
 * answer.h: one answer being made: the engine's request for it, and the text its tokens become.
 *
 * The engine side (request, and the watcher behind it) is lent to the engine's thread while the
 * answer is ANSWER_RUNNING: the server then only reads it. The text side is the server's alone.
 * Neither text nor log-probabilities are lost when a reader takes them late: they wait in text and
 * probs. A parser of reasoning and tool calls belongs between the two sides, in answer_token.
 */
#ifndef OFFSHOOT_SERVER_ANSWER_H
#define OFFSHOOT_SERVER_ANSWER_H

#include "base/strbuf.h"
#include "server/api_request.h"
#include "text/detokenizer.h"
#include "text/stop.h"

/* Log-probabilities of tokens, in order. */
typedef struct {
    int k; /* alternatives per token */
    int n, cap;
    int32_t *token;     /* [n] */
    float *logprob;     /* [n], NaN: nothing predicts it */
    int *offset;        /* [n] characters (code points) of the whole text before its first byte */
    int32_t *top_id;    /* [n][k], best first, -1 after the last */
    float *top_logprob; /* [n][k] */
} TokenProbs;

/* Stop strings, but not within the first min_tokens tokens. Runs on the engine's thread. */
typedef struct {
    StopMatcher *matcher;
    int n_unwatched;
} StopGate;

typedef enum {
    ANSWER_WAITING, /* for a place in the engine */
    ANSWER_RUNNING, /* the engine has it */
    ANSWER_DONE,
} AnswerState;

/* The parts of the model's text side that an answer needs. */
typedef struct {
    const Tokenizer *tok;
    const int *eos; /* [n_eos] the model's end tokens */
    int n_eos;
} AnswerModel;

typedef struct Answer Answer;
struct Answer {
    void *owner; /* whoever is told about it */
    int index;   /* among the owner's answers */

    AnswerState state;
    EngineRequest request;
    StopGate gate;
    uint64_t ticket; /* place in the line */
    Answer *next;    /* in the waiting line */
    int cancelled;
    int pause_wanted, pause_sent, pause_acked; /* pause_sent and not yet obeyed: wait for it */

    AnswerModel model;
    const ApiRequest *api;
    Detokenizer detok, prompt_detok;
    StopCutter *cutter; /* NULL: no stop strings */
    int n_uncut;        /* tokens that the cutter still does not see */
    StrBuf text;        /* let out, not yet taken */
    StrBuf piece;       /* scratch: what one token completes */
    StrBuf raw;         /* all that went into the cutter, to tell which string stopped it */
    size_t n_cut_out;   /* bytes that came out of it */
    int n_chars;        /* of the whole text so far, before any cut; of the prompt too with echo */
    int n_tokens;       /* generated */
    TokenProbs probs;
    int n_probs_taken;  /* of these, in chunks that were sent */
    int opened, closed; /* the first, the last chunk of its stream was sent */

    Error refused; /* ANSWER_DONE: why the engine did not make it; code ERR_NONE: it did */
    FinishReason finish;
    const char *stop_string; /* the one that ended it, or NULL */
    int stop_id;             /* the client's stop id that ended it, or -1 */
    RequestStats stats;
};

/*
 * Makes an answer to prompt[0..n_prompt), which is lent until the answer is closed, as is api.
 * choice tells the n answers to one prompt apart. To be closed on failure too.
 */
int answer_open(Answer *a, const AnswerModel *model, const ApiRequest *api, const int32_t *prompt,
                int n_prompt, int choice, Error *err);
void answer_close(Answer *a);

/* With echo: the prompt's text, which the answer's text begins with. */
void answer_echo(Answer *a, const char *text, size_t len);

/* What the engine says. */
void answer_event(Answer *a, const Event *event);

/* 1 for an end token or stop id: it belongs to the count, not to the text. */
int answer_is_end(const Answer *a, int32_t token);

/* "stop" or "length"; NULL while the answer is made, and when it is not what was asked for. */
const char *answer_finish_reason(const Answer *a);

#endif
