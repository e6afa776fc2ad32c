/*
 * json_out.h: JSON as we send it: one line, UTF-8, safe for clients that read line by line.
 */
#ifndef OFFSHOOT_SERVER_JSON_OUT_H
#define OFFSHOOT_SERVER_JSON_OUT_H

#include <jansson.h>

#include "base/strbuf.h"

/*
 * Appends value without blanks. U+0085, U+2028 and U+2029 are escaped: Python splits lines there.
 * Reals have 9 digits, or as many more as bring them back: what a client sent may be among them.
 */
void json_print(const json_t *value, StrBuf *out);

/*
 * Appends what format says, as json_pack and json_print would together, but makes no values on the
 * way. In format a letter stands for an argument; blanks are left out, all else is printed as it
 * is:
 *
 *     s    const char *, a key or a value; s? may be NULL: null
 *     t    const char * and size_t: text as json_text_n takes it
 *     i I  int, json_int_t
 *     f    double, in 9 digits, which identify a float
 *     n    null, without an argument
 *     o    json_t *, whose reference it takes
 */
void json_write(StrBuf *out, const char *format, ...);

/* The shortest decimal that reads back as value: what a client said, without the float's noise. */
double json_shortest(float value);

/* A string; bytes that are not UTF-8 become U+FFFD. */
json_t *json_text(const char *text);
json_t *json_text_n(const char *text, size_t len);

#endif
