/*
 * utf8.h: UTF-8, as strict as Python: no overlong forms, no surrogates, nothing past U+10FFFF.
 */
#ifndef OFFSHOOT_TEXT_UTF8_H
#define OFFSHOOT_TEXT_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* 1 for a byte of a character that is not its first. */
static inline int utf8_is_tail(unsigned char byte)
{
    return (byte & 0xC0) == 0x80;
}

/*
 * Looks at the first character of s[0..n), n > 0. Returns its length in bytes; 0 when s is a proper
 * prefix of a valid character; -k when its first k bytes are a maximal subpart that no further byte
 * can make valid (Unicode 15, section 3.9: what one U+FFFD replaces).
 */
int utf8_step(const unsigned char *s, size_t n);

/* Offset of the first byte that is not part of a whole valid character; n when all are. */
size_t utf8_check(const char *s, size_t n);

/*
 * Feeds one byte to a decoder whose state is the unfinished character held[0..*n_held). Writes what
 * is now decided (a character, U+FFFD for what can no longer become one) and returns its length.
 */
int utf8_push(unsigned char held[4], int *n_held, unsigned char byte, char out[8]);

/*
 * Code point of the valid character that starts at s; *len is its length in bytes.
 */
int utf8_decode(const char *s, int *len);

/* Writes a code point (no surrogate) and returns its length in bytes. */
int utf8_put(uint32_t code, char out[4]);

#endif
