/*
 * responses_tools.h: the tools of a /v1/responses request.
 *
 * Three kinds reach the model, all as functions: functions; custom tools, which get a text and no
 * JSON, as functions with the one parameter "input"; and those within a namespace, under both names
 * joined. Their calls go back under the names and in the kind that the client knows. What runs at
 * OpenAI's (web search and such) is skipped.
 */
#ifndef OFFSHOOT_SERVER_RESPONSES_TOOLS_H
#define OFFSHOOT_SERVER_RESPONSES_TOOLS_H

#include "base/strbuf.h"
#include "server/api_request.h"

/* Adds tools and tool_choice to a chat request. 0, or -1 and *err. */
int responses_add_tools(const json_t *body, json_t *chat, ApiError *err);

/* The name that the model knows a tool by, appended; ns: its namespace, or NULL. */
void responses_flat_name(const json_t *ns, const json_t *name, StrBuf *out);

typedef struct {
    const char *name, *ns; /* lent by the body; ns may be NULL */
    int is_custom;
} ResponsesTool;

/* The tool of the body that the model calls so; 0 when there is none. */
int responses_find_tool(const json_t *body, const char *flat, ResponsesTool *tool);

/*
 * The text that a custom tool is called with, taken out of {"input": "..."} while that comes. Where
 * the arguments are anything else, they are the text themselves.
 */
typedef struct {
    int n_matched; /* of what comes before the text */
    enum { INPUT_BEFORE, INPUT_TEXT, INPUT_ESCAPE, INPUT_UNIT, INPUT_AFTER, INPUT_OTHER } state;
    unsigned unit, high; /* of \uXXXX: what there is of it; the first half of a pair before it */
    int n_digits;
    StrBuf text;
} CustomInput; /* zero-initialised */

void custom_input_begin(CustomInput *c);
void custom_input_add(CustomInput *c, const char *json, size_t len);
void custom_input_end(CustomInput *c, const StrBuf *arguments);
void custom_input_free(CustomInput *c);

#endif
