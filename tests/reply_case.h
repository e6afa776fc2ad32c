/*
 * reply_case.h: outputs of a model with what they must become, and running them cut in any way.
 *
 * An output is text in which the bytes 1 to 4 stand for the four tags (macros below). What it
 * becomes is written as R(reasoning) C(content) F(function)A(arguments). with the full stop for a
 * whole call and ~ for one that was cut.
 */
#ifndef OFFSHOOT_TESTS_REPLY_CASE_H
#define OFFSHOOT_TESTS_REPLY_CASE_H

#include <stdint.h>

#include "base/strbuf.h"
#include "text/reply.h"

#define THINK    "\1"
#define ENDTHINK "\2"
#define CALL     "\3"
#define ENDCALL  "\4"

enum {
    IN_THINK = 1, /* the prompt ends in <think> */
    NO_TOOLS = 2,
    KEEP_THINK = 4, /* reasoning is not parsed */
    CUT_OFF = 8,    /* ended by max_tokens */
    ONE_CALL = 16,
};

typedef struct {
    const char *name;
    int flags;
    const char *output, *want;
} ReplyCase;

/* The tools of all cases. */
ReplyTools *case_tools(void);

ReplyOptions case_options(const ReplyCase *c, const ReplyTools *tools);

/*
 * Feeds output[0..len), a new token wherever cut[i] is set (before byte i), and writes what came
 * out to *got. Every complete call's arguments are checked to be one JSON object, and all text to
 * be UTF-8. Returns the reply for more questions.
 */
Reply *run_output(const ReplyOptions *o, const char *output, size_t len, const uint8_t *cut,
                  int stopped, StrBuf *got);

#endif
