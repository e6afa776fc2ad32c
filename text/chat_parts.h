/*
 * chat_parts.h: what chat_template.c and chat_tools.c share.
 *
 * Spans point into messages or into Message.content; nothing is copied that is only looked at.
 */
#ifndef OFFSHOOT_TEXT_CHAT_PARTS_H
#define OFFSHOOT_TEXT_CHAT_PARTS_H

#include "text/chat.h"

typedef struct {
    const char *s;
    size_t n;
} Span;

typedef enum { ROLE_SYSTEM, ROLE_USER, ROLE_ASSISTANT, ROLE_TOOL } Role;

typedef struct {
    const json_t *json;
    Role role;
    StrBuf content; /* parts joined, nothing trimmed */
} Message;

typedef struct {
    const ChatTemplate *t;
    Message *message;
    size_t n;
    long last_query; /* index of the last message that a person wrote, -1 if none */
    int add_vision_id, continue_final, n_images, n_videos;
    int thinks;               /* whether the answer begins with reasoning */
    int keeps_thinking;       /* whether earlier answers are shown with theirs */
    const char *instructions; /* how hard to think, or "" */
    size_t answer;     /* where its turn begins, behind its <|im_start|>; 0: no answer is to come */
    int answer_thinks; /* 1: it goes on from a <think>, or from one that is closed */
    StrBuf *out;
    ChatMarks *marks; /* or NULL */
    Error *err;
} Render;

/* Qwen3.5 and what came after it: contents trimmed, a <think> that a switch empties. */
static inline int chat_is_qwen35(const Render *r)
{
    return chat_is_of_qwen35(r->t->family);
}

static inline Span span_of(const json_t *string)
{
    return (Span){json_string_value(string), json_string_length(string)};
}

/* As Python's str.strip. */
Span chat_trim(Span text);

/* A message's content as the template shows it. */
Span chat_content(const Render *r, const Message *m);

/* Says that what was put since out->len was `from` is the client's. */
void chat_mark_client(const Render *r, size_t from);

/* Appends what a client wrote; as it is, as JSON. */
void chat_put(const Render *r, Span text);
void chat_put_json(const Render *r, const json_t *value);

/* Appends the system turn, with the tools; nothing where there is nothing to say. */
void chat_put_system(const Render *r, const json_t *tools);

/* Appends the calls of message i, whose text is content. -1 and *r->err if they are not such. */
int chat_put_calls(const Render *r, size_t i, Span content);

#endif
