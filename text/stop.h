/*
 * stop.h: stop strings, looked for in text that comes piece by piece.
 *
 * StopMatcher runs on the engine thread, for ReplyWatch (it never allocates after
 * stop_matcher_open), and says where an answer ends; StopCutter runs where text is made, for Reply,
 * and cuts the text before the stop string, holding back what may be the beginning of one. Both are
 * given the same text, so they agree.
 */
#ifndef OFFSHOOT_TEXT_STOP_H
#define OFFSHOOT_TEXT_STOP_H

#include "base/error.h"
#include "base/strbuf.h"

enum { MAX_STOP_STRINGS = 16, MAX_STOP_BYTES = 1024 };

typedef struct StopMatcher StopMatcher;

/* n strings, 1..MAX_STOP_BYTES bytes each, copied. NULL and an Error for anything else. */
StopMatcher *stop_matcher_open(const char *const *strings, int n, Error *err);
void stop_matcher_close(StopMatcher *m);

/* The next piece of text. Returns 1 once a string was met. */
int stop_matcher_text(StopMatcher *m, const char *text, size_t len);

/* What comes next does not continue what came before. */
void stop_matcher_break(StopMatcher *m);

/* The text ends with what may be the beginning of a stop string. */
int stop_matcher_held(const StopMatcher *m);

typedef struct StopCutter StopCutter;

/* Strings that stop_matcher_open accepted, copied. */
StopCutter *stop_cutter_open(const char *const *strings, int n);
void stop_cutter_close(StopCutter *c);

/*
 * Takes the next piece of text, appends what may be sent to *out. Returns 1 once a stop string was
 * met: text before it was appended, the rest is dropped for good; include_stop keeps the string
 * itself.
 */
int stop_cutter_push(StopCutter *c, const char *text, size_t len, int include_stop, StrBuf *out);

/* As stop_matcher_break, and at the end of an answer: appends what was held back. */
void stop_cutter_break(StopCutter *c, StrBuf *out);

/* Index of the string that was met, -1 for none; the longest of those that end together. */
int stop_cutter_met(const StopCutter *c);

#endif
