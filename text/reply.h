/*
 * reply.h: an answer's tokens, made into what is sent: reasoning, content, tool calls.
 *
 * Reply runs where text is made; ReplyWatch (reply_watch.h) runs the same scan on the engine's
 * thread and ends the answer at the same token. Whole replies and streams are made of the same
 * pieces: joined, they do not depend on how the text was cut into tokens.
 */
#ifndef OFFSHOOT_TEXT_REPLY_H
#define OFFSHOOT_TEXT_REPLY_H

#include "text/reply_scan.h"

typedef struct {
    ScanOptions scan;
    int single_call;         /* the answer ends after its first call */
    const char *const *stop; /* as stop_matcher_open takes them; copied */
    int n_stop;
    int include_stop;
    int n_unwatched; /* first tokens in which stop strings mean nothing */
} ReplyOptions;

typedef enum {
    REPLY_REASONING,
    REPLY_CONTENT,
    REPLY_CALL_START, /* text: the function's name */
    REPLY_ARGUMENTS,  /* text: a piece of the call's arguments, which join to one JSON object */
    REPLY_CALL_END,
    REPLY_CALL_CUT, /* or the call ends here, its arguments are not whole */
} ReplyKind;

typedef struct {
    ReplyKind kind;
    int call; /* index of the call, -1: not of one */
    const char *text;
    size_t len;
} ReplyPiece;

/* What had to be read otherwise than it was written. */
typedef enum {
    REPLY_NO_FUNCTION,         /* <tool_call> without a call: content */
    REPLY_BAD_JSON,            /* a call in broken JSON: content, or cut */
    REPLY_DUPLICATE_PARAMETER, /* the first one counts */
    REPLY_CALL_IN_THINK,       /* calls from a think block that nothing followed */
    N_REPLY_FALLBACKS
} ReplyFallback;

typedef struct Reply Reply;

/* options->scan's tables are lent until the reply is closed. */
Reply *reply_open(const ReplyOptions *options);
void reply_close(Reply *r);

/*
 * The next kept token: by its id, or as the tag or bytes that it is (no bytes: it has no text). Who
 * wants no end token or stop id shown does not hand it in. Once reply_ended says 1, all further
 * text is ignored.
 */
void reply_token(Reply *r, int32_t token);
void reply_tag(Reply *r, ScanTag tag);
void reply_bytes(Reply *r, const char *bytes, size_t len);

/* The answer is over. stopped: by an end token, a stop id or the watcher; else it was cut off. */
void reply_end(Reply *r, int stopped);

/* A stop string was met or the only call was made: the watcher ends the answer here. Or reply_end.
 */
int reply_ended(const Reply *r);

/* The stop string that was met, index into options->stop; -1: none. */
int reply_stop_string(const Reply *r);

/* What was let out since the last reply_clear; neighbours of one kind are one piece. */
int reply_n_pieces(const Reply *r);
ReplyPiece reply_piece(const Reply *r, int i);
void reply_clear(Reply *r);

/* Bytes of content that were let out so far; how often anything else came, or a call's end tag. */
size_t reply_content_len(const Reply *r);
int reply_n_others(const Reply *r);

int reply_n_calls(const Reply *r);

/* Tokens before and including </think>; all of them while there was none. 0 without thinking. */
int reply_n_reasoning_tokens(const Reply *r);

int reply_n_fallbacks(const Reply *r, ReplyFallback reason);

#endif
