/*
 * translate.h: bodies of other APIs, made into the chat requests that api_request_read takes.
 *
 * Pure: JSON in, JSON or ApiError out. What both APIs call alike (temperature, stream, and any
 * field that a chat request knows) is passed on; what would change the reply's form (n, logprobs as
 * chats ask for them) is not. Checked is only what the chat's own reader could not name to the
 * client, with the names given here.
 */
#ifndef OFFSHOOT_SERVER_TRANSLATE_H
#define OFFSHOOT_SERVER_TRANSLATE_H

#include "base/strbuf.h"
#include "server/api_request.h"

/* A new reference; NULL and *err. max_tokens may be missing: count_tokens goes without. */
json_t *anthropic_to_chat(const json_t *body, ApiError *err);
/* What a body calls its fields; some have an older name, too. */
const ApiFieldName *anthropic_names(const json_t *body);

json_t *responses_to_chat(const json_t *body, ApiError *err);
const ApiFieldName *responses_names(const json_t *body);
/* 1 when a request's include has this word. */
int responses_include(const json_t *body, const char *word);

/* ---- shared by the two ---- */

/* The body without these fields, which end with NULL, and those that change a reply's form. */
json_t *translate_copy(const json_t *body, const char *const *without);

/* chat's max_tokens from this key of the body, at least lo; absent: none. */
int translate_length(const json_t *body, const char *key, long lo, json_t *chat, ApiError *err);

/* What an object calls its type, or "". */
const char *translate_type(const json_t *object);

/* A field's word, or "". */
const char *translate_text(const json_t *object, const char *key);

/* Appends a string; of anything else nothing. */
void translate_add(StrBuf *out, const json_t *string);

/*
 * Appends what clients send back as it is: a thinking block's signature, reasoning's
 * encrypted_content; within it the reasoning, for those that have none of it to send back, unless
 * it is NULL. translate_add_signed appends what it finds there; in anybody else's nothing.
 */
void translate_sign(const StrBuf *reasoning, StrBuf *out);
void translate_add_signed(StrBuf *out, const json_t *signature);

/* {"type": "text", "text": text}, as a part of content; takes the reference. */
json_t *translate_part(json_t *text);

/*
 * A call of an assistant's message: its name and arguments, whose references it takes. id: of any
 * type, or NULL; translate_result is the message with what came of it, and takes content's.
 */
json_t *translate_call(json_t *id, json_t *name, json_t *arguments);
json_t *translate_result(json_t *id, json_t *content);

/* A tool of a chat request. strict: true only if it was asked for. */
json_t *translate_tool(const json_t *name, const json_t *description, const json_t *parameters,
                       const json_t *strict);

/* A message; takes content's reference, which may be NULL: none. */
json_t *translate_message(const char *role, json_t *content);

/* What stands for an image that cannot be shown. */
#define IMAGE_OMITTED "[image omitted]"

#endif
