/*
 * returned.h: whether answers come back in later prompts as they were generated.
 *
 * The state at an answer's end is of use to the prefix cache only when a later prompt has the same
 * tokens there. A client sends text: it may be cut into other tokens, or not be the same. The last
 * answers are remembered, each with a hash of its prompt, and a prompt that begins with one's
 * prompt is compared with it. For the server's thread; counts alone depend on it.
 */
#ifndef OFFSHOOT_SERVER_RETURNED_H
#define OFFSHOOT_SERVER_RETURNED_H

#include <stdint.h>

#include "text/tokenizer.h"

enum {
    MAX_REMEMBERED = 256,        /* answers */
    MAX_REMEMBERED_TOKENS = 512, /* of each, from its beginning */
};

typedef enum {
    RETURNED_SAME,    /* the same tokens */
    RETURNED_RECUT,   /* the same text in other tokens */
    RETURNED_CHANGED, /* something else */
    N_RETURNED,
    RETURNED_NONE = -1, /* no answer that is remembered */
} ReturnedHow;

typedef struct Returned Returned;

/* tok is borrowed. */
Returned *returned_open(const Tokenizer *tok);
void returned_close(Returned *r);

/* An answer that is likely to come back; without its end token, and not empty. */
void returned_add(Returned *r, uint64_t salt, const int32_t *prompt, int n_prompt,
                  const int32_t *answer, int n_answer);

/*
 * What became of the answer to the longest prompt that this one begins with and goes beyond; of
 * several answers to that one the best.
 */
ReturnedHow returned_look(const Returned *r, uint64_t salt, const int32_t *prompt, int n_prompt);

#endif
