/*
 * json_scan.h: is this one JSON object? Told byte by byte, with fixed memory.
 *
 * A strict pushdown machine (RFC 8259): it says on which byte the object ends, and on which byte it
 * can no longer become one. It keeps nothing of the text. Bytes inside strings need not be UTF-8.
 */
#ifndef OFFSHOOT_TEXT_JSON_SCAN_H
#define OFFSHOOT_TEXT_JSON_SCAN_H

#include <stdint.h>

enum { MAX_SCANNED_DEPTH = 512 };

typedef enum {
    JS_START, /* blanks before the object */
    JS_FIRST_KEY,
    JS_KEY,
    JS_COLON,
    JS_FIRST_VALUE, /* of an array */
    JS_VALUE,
    JS_NEXT, /* a comma or the end of what is open */
    JS_STRING,
    JS_ESCAPE,
    JS_HEX,
    JS_WORD,
    JS_MINUS,
    JS_ZERO,
    JS_DIGITS,
    JS_POINT,
    JS_DECIMALS,
    JS_EXPONENT,
    JS_EXPONENT_SIGN,
    JS_EXPONENT_DIGITS,
    JS_DONE,
    JS_BAD,
} JsonState;

typedef struct {
    JsonState state;
    int depth;                               /* objects and arrays that are open */
    int in_key;                              /* the string being read is a key */
    int n_hex;                               /* digits of \u still to come */
    const char *word;                        /* what is left of true, false or null */
    uint8_t is_array[MAX_SCANNED_DEPTH / 8]; /* one bit per open container */
} JsonScan;

void json_scan_init(JsonScan *s);

/*
 * Takes a byte and returns the new state: JS_DONE with the object's last byte, JS_BAD as soon
 * as no continuation is an object (bytes after its end included). Both are kept for ever.
 */
JsonState json_scan_push(JsonScan *s, char byte);

/* 1 inside a string: any further text may belong to it. */
int json_scan_in_string(const JsonScan *s);

#endif
