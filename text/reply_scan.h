/*
 * reply_scan.h: what the tokens of an answer are: reasoning, content, or parts of tool calls.
 *
 * One machine, run by both threads over the same tokens: the engine's needs to know where visible
 * content is, the server's makes the reply of its events. All decisions of structure are made here.
 * Memory is taken when it is opened, none later. Text comes out as whole UTF-8 characters, bad
 * bytes replaced as Detokenizer does it. What is decided never depends on how the text was cut into
 * tokens; what cannot be decided yet is held back, and decided without the rest past a limit.
 *
 * A call is <tool_call><function=N><parameter=P>value</parameter></function></tool_call>, or
 * <tool_call>{"name": "N", "arguments": {...}}</tool_call>. The first character says which, so
 * there is nothing to choose by model. <think> and <tool_call> are told by their token ids: prose
 * that spells them changes nothing, except a <tool_call> at the start of a line before the
 * <function=N> of a declared N. Behind an empty line it may even be missing, as Qwen3-Coder forgets
 * it, if a parameter or </function> is next.
 */
#ifndef OFFSHOOT_TEXT_REPLY_SCAN_H
#define OFFSHOOT_TEXT_REPLY_SCAN_H

#include "text/call_json.h"
#include "text/reply_tools.h"
#include "text/tokenizer.h"

enum {
    MAX_SCAN_HELD = 1024,    /* bytes of text that may be markup and may not */
    MAX_CALL_JSON = 1 << 20, /* bytes of a JSON call before its name is known */
};

typedef enum { TAG_THINK_OPEN, TAG_THINK_CLOSE, TAG_CALL_OPEN, TAG_CALL_CLOSE } ScanTag;
enum { N_SCAN_TAGS = 4 };

/* The text of a tag. */
const char *scan_tag_text(ScanTag tag);

typedef enum {
    SCAN_REASONING,     /* text; a newline before </think> is part of it */
    SCAN_REASONING_END, /* </think> */
    SCAN_CONTENT,       /* text; white space before a call is part of it */
    SCAN_CALL,          /* text: the function's name */
    SCAN_PARAMETER,     /* text: its name; said twice when the model says it twice */
    SCAN_VALUE,         /* text */
    SCAN_VALUE_END,
    SCAN_CALL_JSON,   /* text: the function's name; SCAN_ARGUMENTS follow, no parameters */
    SCAN_ARGUMENTS,   /* text: a piece of a JSON object, verbatim */
    SCAN_CALL_END,    /* the call is whole */
    SCAN_CALL_CUT,    /* or it is not: the answer ended too early, or the JSON is broken */
    SCAN_CALL_CLOSED, /* </tool_call> after the end of a call */
} ScanEvent;

typedef struct {
    void *self;
    void (*event)(void *self, ScanEvent event, const char *text, size_t len);
} ScanSink;

typedef struct {
    const Tokenizer *tok;    /* for reply_scan_token alone; lent */
    const ReplyTools *tools; /* lent; NULL: no calls, their markup is content */
    int keep_special;        /* special tokens have text */
    int starts_in_think;     /* the prompt ends in <think> */
    int parse_reasoning;     /* 0: what is thought is content, tags included */
} ScanOptions;

/* Why text was not taken as it was meant. */
typedef enum { FALLBACK_NO_FUNCTION, FALLBACK_BAD_JSON, N_SCAN_FALLBACKS } ScanFallback;

typedef struct ReplyScan ReplyScan;

ReplyScan *reply_scan_open(const ScanOptions *options, ScanSink sink);
void reply_scan_close(ReplyScan *s);

/* A token: one of the two below, or nothing at all. */
void reply_scan_token(ReplyScan *s, int32_t token);
/* -1: it is no tag, as with no tools and no reasoning to look for. */
int reply_scan_tag_of(const ReplyScan *s, int32_t token);
void reply_scan_tag(ReplyScan *s, ScanTag tag);
void reply_scan_bytes(ReplyScan *s, const char *bytes, size_t len);

/*
 * The answer is over. stopped: by its own end (then what is open is closed), else it was cut off.
 * Nothing may follow.
 */
void reply_scan_end(ReplyScan *s, int stopped);

int reply_scan_in_think(const ReplyScan *s);

/* Some text is held back. */
int reply_scan_held(const ReplyScan *s);

/* How often markup was not as it should be and was understood anyway. */
int reply_scan_repairs(const ReplyScan *s);
int reply_scan_fallbacks(const ReplyScan *s, ScanFallback reason);

#endif
