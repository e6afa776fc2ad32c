/* nfc.c: see nfc.h. */
#include "text/nfc.h"

#include <assert.h>
#include <string.h>
#include <utf8proc.h>

#include "base/mem.h"
#include "text/utf8.h"

/* No canonical decomposition is longer than 4 code points. */
enum { MAX_DECOMPOSED = 4, SHORT_RUN = 16, N_CLASSES = 256 };

static const utf8proc_option_t NFC_OPTIONS = UTF8PROC_STABLE | UTF8PROC_COMPOSE;

void nfc_scratch_free(NfcScratch *s)
{
    mem_free(s->cp);
    mem_free(s->sorted);
    *s = (NfcScratch){0};
}

/*
 * Code points below U+0300 neither decompose in form C nor combine; their lead byte is below 0xCC.
 */
int nfc_is_plain(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)text[i] >= 0xCC) return 0;
    return 1;
}

/*
 * Characters that combine with nothing before them: no marks (all are of class 0, as are their
 * decompositions), no vowels and finals of Hangul, none that stand second in any composition.
 */
static int starts_anew(int32_t c)
{
    return c < 0x300 || (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0xAC00 && c <= 0xD7A3) ||
           (c >= 0x1F300 && c <= 0x1F64F);
}

size_t nfc_cut(const char *text, size_t len, size_t at_least)
{
    size_t i = at_least;
    while (i < len && utf8_is_tail((unsigned char)text[i]))
        i++; /* not within a character */
    while (i < len) {
        int n;
        if (starts_anew(utf8_decode(text + i, &n))) return i;
        i += (size_t)n;
    }
    return len;
}

static size_t decompose(NfcScratch *s, const char *text, size_t len)
{
    size_t n = 0;
    for (size_t i = 0; i < len;) {
        if (s->cap < n + MAX_DECOMPOSED) {
            s->cap = s->cap ? 2 * s->cap : 256;
            s->cp = mem_realloc(s->cp, s->cap, sizeof *s->cp);
        }
        int k, last_boundclass = 0;
        int c = utf8_decode(text + i, &k);
        utf8proc_ssize_t m =
            utf8proc_decompose_char(c, s->cp + n, MAX_DECOMPOSED, NFC_OPTIONS, &last_boundclass);
        assert(m > 0);
        assert(m <= MAX_DECOMPOSED);
        n += (size_t)m;
        i += (size_t)k;
    }
    return n;
}

static int class_of(int32_t cp)
{
    return utf8proc_get_property(cp)->combining_class;
}

static void sort_short(int32_t *cp, size_t n)
{
    for (size_t i = 1; i < n; i++) {
        int32_t moving = cp[i];
        size_t j = i;
        for (; j && class_of(cp[j - 1]) > class_of(moving); j--)
            cp[j] = cp[j - 1];
        cp[j] = moving;
    }
}

static void sort_long(NfcScratch *s, int32_t *cp, size_t n)
{
    size_t start[N_CLASSES + 1] = {0};
    if (s->sorted_cap < n) {
        s->sorted_cap = n;
        s->sorted = mem_realloc(s->sorted, n, sizeof *s->sorted);
    }
    for (size_t i = 0; i < n; i++)
        start[(class_of(cp[i]) & 255) + 1]++;
    for (int c = 0; c < N_CLASSES; c++)
        start[c + 1] += start[c];
    for (size_t i = 0; i < n; i++)
        s->sorted[start[class_of(cp[i]) & 255]++] = cp[i];
    memcpy(cp, s->sorted, n * sizeof *cp);
}

/* Canonical order: each run of combining marks by class, stable. */
static void sort_marks(NfcScratch *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        size_t end = i;
        while (end < n && class_of(s->cp[end]))
            end++;
        if (end - i > SHORT_RUN)
            sort_long(s, s->cp + i, end - i);
        else if (end - i > 1)
            sort_short(s->cp + i, end - i);
        i = end + 1;
    }
}

void nfc_append(NfcScratch *s, const char *text, size_t len, StrBuf *out)
{
    if (nfc_is_plain(text, len)) {
        strbuf_add(out, text, len);
        return;
    }
    size_t n = decompose(s, text, len);
    sort_marks(s, n);
    utf8proc_ssize_t m = utf8proc_normalize_utf32(s->cp, (utf8proc_ssize_t)n, NFC_OPTIONS);
    assert(m >= 0);
    for (utf8proc_ssize_t i = 0; i < m; i++) {
        unsigned char utf8[4];
        utf8proc_ssize_t k = utf8proc_encode_char(s->cp[i], utf8);
        strbuf_add(out, (const char *)utf8, (size_t)k);
    }
}
