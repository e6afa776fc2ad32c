/*
 * nfc.h: Unicode normalisation form C, in linear time.
 *
 * utf8proc knows the tables; the ordering of combining marks is done here, because utf8proc sorts
 * them by swapping neighbours and a hostile megabyte of marks would take it minutes.
 */
#ifndef OFFSHOOT_TEXT_NFC_H
#define OFFSHOOT_TEXT_NFC_H

#include <stddef.h>
#include <stdint.h>

#include "base/strbuf.h"

typedef struct {
    int32_t *cp, *sorted; /* code points; a run of marks in order */
    size_t cap, sorted_cap;
} NfcScratch; /* zero-initialised */

void nfc_scratch_free(NfcScratch *s);

/* 1 when the text is obviously in form C. */
int nfc_is_plain(const char *text, size_t len);

/*
 * The least n >= at_least, or len, such that text[0..n) and the rest can be brought into form C
 * each on its own: the form of the whole is then that of its parts. In a text that has no letter
 * before which a cut is known to be safe (ASCII, Chinese, Hangul, among others), that is len.
 */
size_t nfc_cut(const char *text, size_t len, size_t at_least);

/* Appends the form C of valid UTF-8 to *out. */
void nfc_append(NfcScratch *s, const char *text, size_t len, StrBuf *out);

#endif
