/*
 * json_out.h: JSON as we send it: one line, UTF-8, safe for clients that read line by line.
 */
#ifndef OFFSHOOT_SERVER_JSON_OUT_H
#define OFFSHOOT_SERVER_JSON_OUT_H

#include <jansson.h>

#include "base/strbuf.h"

/*
 * Appends value without blanks. U+0085, U+2028 and U+2029 are escaped: Python splits lines there.
 * Numbers have 9 digits, which identify a float.
 */
void json_print(const json_t *value, StrBuf *out);

/* A string; bytes that are not UTF-8 become U+FFFD. */
json_t *json_text(const char *text);
json_t *json_text_n(const char *text, size_t len);

#endif
