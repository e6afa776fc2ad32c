/*
 * base64.h: bytes as text (RFC 4648, the standard alphabet, with padding).
 */
#ifndef OFFSHOOT_BASE_BASE64_H
#define OFFSHOOT_BASE_BASE64_H

#include "base/strbuf.h"

/* Appends the text of data. */
void base64_encode(const char *data, size_t len, StrBuf *out);

/* Appends the bytes that a text stands for. -1 for any other text; what out then holds is open. */
int base64_decode(const char *text, size_t len, StrBuf *out);

#endif
