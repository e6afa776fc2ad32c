/*
 * chat.h: messages to a prompt, by the template of the model's family.
 *
 * Hand-written equivalents of the published Jinja templates, chosen by model type and by markers in
 * the folder's chat_template.jinja. Nothing here executes a template: one that is not published
 * word for word is not known, and who opened it says so.
 */
#ifndef OFFSHOOT_TEXT_CHAT_H
#define OFFSHOOT_TEXT_CHAT_H

#include <jansson.h>

#include "base/error.h"
#include "base/strbuf.h"
#include "text/tokenizer.h"

typedef enum {
    CHAT_QWEN35,              /* XML tool calls, thinking on unless told otherwise (also 3.6) */
    CHAT_QWEN38,              /* the same, told how hard to think; earlier reasoning stays */
    CHAT_QWEN3_NEXT,          /* JSON tool calls, no thinking (Qwen3-Next-Instruct) */
    CHAT_QWEN3_NEXT_THINKING, /* the same with an opening <think> */
    CHAT_QWEN3_CODER          /* XML tools and tool calls, no thinking (Qwen3-Coder-Next) */
} ChatFamily;

/* Whether a call is <function=name> with a <parameter=name> each, or else a JSON object. */
static inline int chat_calls_are_xml(ChatFamily family)
{
    return family != CHAT_QWEN3_NEXT && family != CHAT_QWEN3_NEXT_THINKING;
}

/*
 * Qwen3.5 and what came after it: one system message, at the beginning, and contents in parts. The
 * other templates have a turn for each system message and take contents as strings alone.
 */
static inline int chat_is_of_qwen35(ChatFamily family)
{
    return family == CHAT_QWEN35 || family == CHAT_QWEN38;
}

typedef struct {
    ChatFamily family;
    int thinking_default;  /* what enable_thinking means when a request does not say */
    int scalars_as_json;   /* arguments that are not strings: true, not Python's True (Qwen3.6) */
    int can_keep_thinking; /* knows preserve_thinking, which CHAT_QWEN38 always does (Qwen3.6) */
    int always_thinks;     /* enable_thinking cannot be 0 (Qwen3.8-2.4T-A95B) */
    int known; /* 0: the template is no published one, or one of several; the caller warns */
} ChatTemplate;

/*
 * Chooses by markers in dir's chat_template.jinja (or else the chat_template of its
 * chat_template.json or tokenizer_config.json, of several the "default"), and where there are none
 * by config.json's model_type. Fails only when a file that is there cannot be read or has more than
 * 16 MiB.
 */
int chat_template_open(ChatTemplate *t, const char *dir, const char *model_type, Error *err);

/* Appends the template's text, of the first of these files that has one; or nothing. */
int chat_template_read(const char *dir, StrBuf *text, Error *err);

typedef struct {
    int add_generation_prompt;
    int enable_thinking;   /* 0, 1, or -1: the template's default */
    int preserve_thinking; /* earlier answers keep their reasoning: 0, 1, or -1: the same */
    const char *effort;    /* of reasoning, for a template that knows it; NULL: the same */
    int add_vision_id;     /* 1: images and videos are numbered ("Picture 1: "); CHAT_QWEN35 only */
    int continue_final; /* 1: the last message, an assistant's, is left open to be gone on with */
} ChatOptions;

/* Places in a rendered prompt, and what becomes of it. */
typedef struct {
    /* Bytes that the template will render again however the conversation goes on: up to and
     * including the "<|im_start|>" of the answer that is to come, for another message may follow
     * in its place; where an answer is gone on with, and no <think> of it may vanish, everything.
     */
    size_t n_stable;
    /* Bytes that another conversation may begin with as well: the system turn, up to and including
     * the "<|im_start|>" behind it; 0: there is none. */
    size_t n_system;
    /*
     * 1: after the next question the answer may be rendered without its reasoning, or the empty
     * one: the template drops it, or the client does not send it back.
     */
    int drops_thinking;
    /*
     * 1: the answer will be rendered otherwise than it is generated now, so that no later prompt
     * begins with it: it drops its thinking. 0 where a call may come, after which it stays: unless
     * what was sent of earlier answers shows that this client does not send reasoning back.
     */
    int answer_changes;
    /* What is not the template's: contents, names, arguments, tools. For tokenizer_encode_prompt.
     */
    TextSpan *client;
    int n_client, cap;
} ChatMarks;

/*
 * Appends the prompt to *out. messages: array of objects (role, content as string, null or parts,
 * tool_calls, reasoning_content); tools: array or NULL; a call's arguments: object, or that object
 * as a string (as in the OpenAI API). Errors (ERR_INPUT) are those of the template: no messages,
 * unknown role, system message not first, no user query, values of the wrong type, an unknown
 * effort, thinking switched off where it cannot be; continue_final without an assistant's message
 * at the end. Parts of a content are joined: as lines, where the template takes strings alone.
 * Qwen3-Next and Qwen3-Coder allow a later system message and need no user query, as
 * their templates do. On an error *out may hold a part of the prompt. *marks, unless NULL, is
 * filled (and is to be freed in any case).
 */
int chat_render(const ChatTemplate *t, const json_t *messages, const json_t *tools,
                const ChatOptions *options, StrBuf *out, ChatMarks *marks, Error *err);
void chat_marks_free(ChatMarks *marks);

#endif
