/* base64.c: see base64.h. */
#include "base/base64.h"

#include <string.h>

static const char ALPHABET[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/* n bytes, 1 to 3, as four letters. */
static void encode_group(const unsigned char *in, size_t n, char out[4])
{
    unsigned bits = (unsigned)in[0] << 16;
    if (n > 1) bits |= (unsigned)in[1] << 8;
    if (n > 2) bits |= in[2];
    memset(out, '=', 4);
    for (size_t i = 0; i <= n; i++)
        out[i] = ALPHABET[bits >> (18 - 6 * i) & 63];
}

void base64_encode(const char *data, size_t len, StrBuf *out)
{
    for (size_t i = 0; i < len; i += 3) {
        char group[4];
        encode_group((const unsigned char *)data + i, len - i < 3 ? len - i : 3, group);
        strbuf_add(out, group, sizeof group);
    }
}

/* Up to two signs of padding at the end of a text. */
static size_t count_padding(const char *text, size_t len)
{
    size_t n = 0;
    while (n < 2 && n < len && text[len - 1 - n] == '=')
        n++;
    return n;
}

int base64_decode(const char *text, size_t len, StrBuf *out)
{
    size_t n_letters = len - count_padding(text, len);
    unsigned bits = 0;
    if (len % 4) return -1;
    for (size_t i = 0; i < n_letters; i++) {
        const char *at = text[i] ? strchr(ALPHABET, text[i]) : NULL;
        if (!at) return -1;
        bits = bits << 6 | (unsigned)(at - ALPHABET);
        if (i % 4 == 0) continue;
        char byte = (char)(bits >> (6 - 2 * (i % 4)) & 255);
        strbuf_add(out, &byte, 1);
    }
    return 0;
}
