/*
 * pyliteral.h: a value that a model wrote, as JSON or as Python prints it, made into JSON.
 *
 * Models trained on Python write {'a': True, 'b': (1, None)} where JSON was asked for. Both are
 * read by one grammar and written as pyjson_dump does. Digits are kept as they are: a number never
 * goes through a float.
 */
#ifndef OFFSHOOT_TEXT_PYLITERAL_H
#define OFFSHOOT_TEXT_PYLITERAL_H

#include <stddef.h>

#include "base/strbuf.h"

enum { MAX_LITERAL_DEPTH = 128 };

/*
 * Reads one object, list or tuple with nothing but blanks around it, and appends it to *out. With
 * json_only, JSON alone is understood. Returns -1, with *out as it was, for anything else. text is
 * valid UTF-8.
 */
int pyliteral_to_json(const char *text, size_t len, int json_only, StrBuf *out);

/* Length of the JSON number at the beginning of text[0..len), 0 for none. */
size_t json_number_len(const char *text, size_t len);

#endif
