/*
 * call_json.h: a tool call written as {"name": "N", "arguments": {...}}, the keys in any order.
 *
 * Fed character by character, with fixed memory; it says when the name is known and which text
 * belongs to the arguments: their object verbatim, or unquoted when the model wrote it as a string.
 * Control characters in strings, which JSON does not take as they are, are escaped. Other keys, and
 * repeated ones, are read and dropped.
 */
#ifndef OFFSHOOT_TEXT_CALL_JSON_H
#define OFFSHOOT_TEXT_CALL_JSON_H

#include <stddef.h>
#include <stdint.h>

#include "text/json_scan.h"

/* Of functions and parameters, in bytes. */
enum { MAX_CALL_NAME = 256 };

typedef enum { FIELD_OTHER, FIELD_NAME, FIELD_ARGUMENTS, FIELD_ARGUMENTS_STRING } CallField;

typedef struct {
    JsonScan outer;
    JsonScan inner;    /* the arguments, when they are a string */
    CallField field;   /* whose value is read */
    int has_name;      /* name[0..name_len) is whole */
    int has_arguments; /* some of them were read */
    int quoted_empty;  /* the string holds nothing so far */
    char name[MAX_CALL_NAME];
    size_t name_len;
    char word[8 * MAX_CALL_NAME]; /* a key or the name as it is written */
    size_t word_len;              /* more than fits: too long to be any name */
    char escape[6];               /* of the string: a sequence that is not whole */
    int n_escape;
    uint32_t high_half; /* of a surrogate pair, 0: none */
} CallJson;

/* With the name known already, it is not looked for. */
void call_json_init(CallJson *c, int name_known);

/*
 * Takes one character text[0..len), len <= 4. Text of the arguments is written to out, its length
 * to *n_out. Returns JS_DONE with the last brace, JS_BAD for what is no call, else something
 * else. A call without arguments gives "{}".
 */
JsonState call_json_push(CallJson *c, const char *text, size_t len, char out[16], size_t *n_out);

#endif
