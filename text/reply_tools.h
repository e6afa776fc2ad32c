/*
 * reply_tools.h: what a request's tools allow, as a table that parsers of the answer read.
 *
 * Made once of the "tools" array, constant afterwards, so two threads may read it at once. Schemas
 * come from outside: entries that make no sense are skipped, the walk through them is bounded in
 * depth and in steps, and a parameter whose types were not found out takes a string.
 */
#ifndef OFFSHOOT_TEXT_REPLY_TOOLS_H
#define OFFSHOOT_TEXT_REPLY_TOOLS_H

#include <jansson.h>
#include <stddef.h>

/*
 * JSON types that a schema allows, as a mask; 0: it says nothing. Strings of a list are no
 * TYPE_STRING beside other types: a text that is no value of those is a string anyway.
 */
enum {
    TYPE_STRING = 1,
    TYPE_INTEGER = 2,
    TYPE_NUMBER = 4, /* integers too */
    TYPE_BOOLEAN = 8,
    TYPE_NULL = 16,
    TYPE_OBJECT = 32,
    TYPE_ARRAY = 64,
};

enum {
    MAX_TYPES_DEPTH = 32,       /* references and unions looked through */
    MAX_SCHEMA_STEPS = 1 << 20, /* schemas looked at, over all tools */
};

typedef struct ReplyTools ReplyTools;

/* tools: a list of {"type": "function", "function": {"name", "parameters"}}; not kept. */
ReplyTools *reply_tools_open(const json_t *tools);
void reply_tools_close(ReplyTools *t);

/* Index of a declared function, or -1. */
int reply_tools_find(const ReplyTools *t, const char *name, size_t len);

/* Index of a declared parameter among the tool's, or -1; -1 for tool -1 too. */
int reply_tools_param(const ReplyTools *t, int tool, const char *name, size_t len);

/* Types of a parameter; 0 for index -1. */
unsigned reply_tools_types(const ReplyTools *t, int tool, int param);

/* The most parameters that any tool has. */
int reply_tools_max_params(const ReplyTools *t);

#endif
