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
    StrBuf text;
} NfcScratch; /* zero-initialised */

void nfc_scratch_free(NfcScratch *s);

/* The form C of valid UTF-8: text itself when it is obviously so, else s->text. */
const char *nfc_apply(NfcScratch *s, const char *text, size_t len, size_t *out_len);

#endif
