/* utf8.c: see utf8.h. */
#include "text/utf8.h"

#include <string.h>

int utf8_step(const unsigned char *s, size_t n)
{
    unsigned char lead = s[0], lo = 0x80, hi = 0xBF;
    if (lead < 0x80) return 1;
    if (lead < 0xC2 || lead > 0xF4) return -1;
    /* Only the second byte has a narrower range: overlong forms, surrogates, past U+10FFFF. */
    if (lead == 0xE0) lo = 0xA0;
    if (lead == 0xED) hi = 0x9F;
    if (lead == 0xF0) lo = 0x90;
    if (lead == 0xF4) hi = 0x8F;
    int n_more = lead < 0xE0 ? 1 : lead < 0xF0 ? 2 : 3;
    for (int i = 1; i <= n_more; i++) {
        if ((size_t)i == n) return 0;
        if (s[i] < lo || s[i] > hi) return -i;
        lo = 0x80;
        hi = 0xBF;
    }
    return n_more + 1;
}

size_t utf8_check(const char *s, size_t n)
{
    size_t i = 0;
    while (i < n) {
        int k = utf8_step((const unsigned char *)s + i, n - i);
        if (k <= 0) return i;
        i += (size_t)k;
    }
    return n;
}

int utf8_push(unsigned char held[4], int *n_held, unsigned char byte, char out[8])
{
    int n_out = 0;
    held[(*n_held)++] = byte;
    while (*n_held) {
        int k = utf8_step(held, (size_t)*n_held);
        if (!k) break;
        if (k > 0) {
            memcpy(out + n_out, held, (size_t)k);
            n_out += k;
        } else {
            memcpy(out + n_out, "\xEF\xBF\xBD", 3);
            n_out += 3;
            k = -k;
        }
        *n_held -= k;
        memmove(held, held + k, (size_t)*n_held);
    }
    return n_out;
}

int utf8_decode(const char *s, int *len)
{
    const unsigned char *u = (const unsigned char *)s;
    if (u[0] < 0x80) {
        *len = 1;
        return u[0];
    }
    *len = u[0] < 0xE0 ? 2 : u[0] < 0xF0 ? 3 : 4;
    int c = u[0] & (0x7F >> *len);
    for (int i = 1; i < *len; i++)
        c = c << 6 | (u[i] & 0x3F);
    return c;
}

int utf8_put(uint32_t code, char out[4])
{
    static const unsigned char lead[] = {0, 0, 0xC0, 0xE0, 0xF0}; /* by length */
    int n = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (int i = n - 1; i > 0; i--, code >>= 6)
        out[i] = (char)(0x80 | (code & 0x3F));
    out[0] = (char)(lead[n] | code);
    return n;
}
