/*
 * pyjson.h: JSON values as Python prints them, which is what the models saw in training. Integers
 * beyond 64 bits are those that kept their digits (base/json.h).
 */
#ifndef OFFSHOOT_TEXT_PYJSON_H
#define OFFSHOOT_TEXT_PYJSON_H

#include <jansson.h>

#include "base/strbuf.h"

/* json.dumps(value, ensure_ascii=False): ", " and ": ", key order kept, floats as repr. */
void pyjson_dump(const json_t *value, StrBuf *out);

/* Text as it stands between the quotes of a JSON string: non-ASCII raw. */
void pyjson_escape(const char *text, size_t len, StrBuf *out);

/* str(value): of a string its text, of a list or dict what repr gives. */
void pyjson_str(const json_t *value, StrBuf *out);

#endif
