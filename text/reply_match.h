/*
 * reply_match.h: what the markup of tool calls looks like, for reply_scan.c alone.
 *
 * Pure functions over a stretch of text. Each says what the text begins with, or that more text is
 * needed to say it. A longer stretch never changes an answer other than MATCH_MORE.
 */
#ifndef OFFSHOOT_TEXT_REPLY_MATCH_H
#define OFFSHOOT_TEXT_REPLY_MATCH_H

#include <stddef.h>

typedef enum {
    LOOK_ENDS,  /* nothing follows the stretch: a tag or the end of the answer is next */
    LOOK_GROWS, /* more text may follow */
    LOOK_CUT,   /* text follows, but it is not waited for */
} LookEnd;

typedef struct {
    const char *text;
    size_t n;
    size_t at; /* read so far; after a match: what was matched */
    LookEnd end;
} Look;

typedef enum {
    MATCH_NOT,
    MATCH_MORE,
    MATCH_BLANKS,
    MATCH_FUNCTION,     /* <function=NAME>; in_args and after_call: the first part of it */
    MATCH_JSON,         /* an object begins, at is its brace */
    MATCH_PARAMETER,    /* <parameter=NAME> */
    MATCH_END_VALUE,    /* </parameter> that ends a value, and the blanks after it */
    MATCH_TAIL,         /* nothing but closers and blanks until the end */
    MATCH_END_FUNCTION, /* </function> */
    MATCH_END_CALL,     /* </tool_call> */
} Match;

int is_blank(char c);

/* <tool_call>, which may be missing unless whole is set, then FUNCTION with its name, or JSON. */
Match match_call(Look *look, int whole, Look *name);

/* FUNCTION with its name, if there is a parameter or its end behind it: nobody talks like that. */
Match match_bare_call(Look *look, Look *name);

/* Between parameters: BLANKS, PARAMETER with its name, FUNCTION, END_FUNCTION, END_CALL. */
Match match_in_args(Look *look, Look *name);

/*
 * In a value, at a blank or '<': END_VALUE, TAIL, or PARAMETER with its name at the start of a line
 * (line_start: the text itself is at one). The first *n_blanks bytes are blanks.
 */
Match match_in_value(Look *look, int line_start, size_t *n_blanks, Look *name);

/* After a call: END_CALL with the blanks before it; BLANKS up to a FUNCTION or up to the end. */
Match match_after_call(Look *look);

#endif
