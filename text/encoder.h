/*
 * encoder.h: making tokens of a long text a slice at a time.
 *
 * The same tokens as in one go, whatever the slices: what has begun goes on where it stopped, with
 * the normalised text kept, and a slice ends only where a piece ends that is merged on its own. So
 * a slice may be longer than it was asked to be, by a piece: 32 MiB of one letter are one piece.
 */
#ifndef OFFSHOOT_TEXT_ENCODER_H
#define OFFSHOOT_TEXT_ENCODER_H

#include "text/tokenizer.h"

typedef struct Encoder Encoder;

/*
 * Begins; see tokenizer_encode_prompt for the arguments, which all must stay. *out grows with each
 * slice. NULL and an Error for a text that is too long or not UTF-8: it is looked at as a whole.
 */
Encoder *encoder_open(const Tokenizer *tok, const char *text, size_t len, const TextSpan *plain,
                      int n_plain, TokenList *out, Error *err);

/*
 * Goes on for about *budget bytes, and takes off *budget what it has done, down to 0; a byte counts
 * once when it is searched for added tokens, when it is normalised and when it is merged. Any
 * budget but 0 gets on. 1: there is more; 0: done, -1: an Error; then it is over.
 */
int encoder_some(Encoder *e, size_t *budget, Error *err);

/*
 * To be asked before the first slice: how many tokens does every text begin with that goes on after
 * text[0..at)? All up to the last piece there, which may grow (blanks in a row are one piece then),
 * unless what follows makes an added token of the last bytes.
 */
void encoder_mark(Encoder *e, size_t at);

/* The answer, once encoder_some has given 0: of all tokens in *out. */
int encoder_stable(const Encoder *e);

/*
 * To be asked before the first slice as well: how many tokens are text[0..at), where an added token
 * ends there?
 */
void encoder_mark_turn(Encoder *e, size_t at);

/* The answer, once encoder_some has given 0; 0: none ends there. */
int encoder_turn(const Encoder *e);

/* At any time. NULL is fine. */
void encoder_close(Encoder *e);

#endif
