/*
 * encoding.h: the texts of a request on their way to tokens, a slice at a time (text/encoder.h).
 *
 * One after the other: encoding_text or encoding_chat begins one, encoding_some is called until it
 * gives 0, then comes the next.
 */
#ifndef OFFSHOOT_SERVER_ENCODING_H
#define OFFSHOOT_SERVER_ENCODING_H

#include "server/api_request.h"
#include "server/service.h"
#include "text/encoder.h"

typedef struct {
    Encoder *encoder; /* NULL: none has begun */
    const char *field;
    TextSpan all;    /* a text in which no added tokens are read */
    StrBuf chat;     /* a rendered chat, */
    ChatMarks marks; /* and what in it is the client's */
    int n_stable;    /* once it is done: tokens that a longer prompt begins with again, */
    int n_system;    /* and a chat's that another conversation does, or 0 */
} Encoding;          /* zero-initialised; stays where it is */

/* At any time. */
void encoding_free(Encoding *e);

/*
 * Begins to append the tokens of a text, which stays, to *ids, which too stays. 0, or -1 and an
 * error that names the field of the request, which is a constant.
 */
int encoding_text(Encoding *e, const Tokenizer *tok, const char *text, size_t len,
                  int parse_special, TokenList *ids, const char *field, ApiError *err);

/* The same for the prompt that a chat makes, in which what the client wrote makes no control
 * tokens. */
int encoding_chat(Encoding *e, const Service *service, const ApiRequest *api, TokenList *ids,
                  ApiError *err);

/* As encoder_some: 1: the budget is spent and there is more; 0: done; -1 and an error. */
int encoding_some(Encoding *e, size_t *budget, ApiError *err);

/* The prompt that a chat makes, appended to *text. *marks, unless NULL, is to be freed. */
int chat_prompt(const Service *service, const ApiRequest *api, StrBuf *text, ChatMarks *marks,
                ApiError *err);

#endif
