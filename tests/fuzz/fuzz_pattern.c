/*
 * fuzz_pattern.c: any bytes as a pattern of a JSON schema, and its automaton on any text.
 *
 * Input: the text, ended by a NUL, then the pattern, which so ends where the memory does; without a
 * NUL all of it is both.
 */
#include "tests/fuzz/fuzz.h"

#include <string.h>

#include "base/strbuf.h"
#include "tests/dfa_shape.h"
#include "text/utf8.h"

enum { MINIMAL_UP_TO = 32 }; /* states; the check takes n^3 */

static int compile(Dfa *d, const char *pattern, size_t len)
{
    Error err = {0};
    int rc = pattern_compile(d, pattern, len, &err);
    FUZZ_CHECK(!rc == !*err.msg);
    FUZZ_CHECK(!rc || (!d->next && !d->accepts && !d->n_states));
    FUZZ_CHECK(!rc || err.code == ERR_INPUT || err.code == ERR_LIMIT);
    return rc;
}

/* Whatever is accepted is UTF-8, and whatever lives may become it; what is dead stays dead. */
static void check_text(const Dfa *d, const char *text, size_t len)
{
    uint16_t state = 0;
    size_t n_valid = utf8_check(text, len);
    for (size_t i = 0; i < len; i++) {
        uint16_t next = dfa_step(d, state, (uint8_t)text[i]);
        FUZZ_CHECK(next == DFA_DEAD || (next < d->n_states && state != DFA_DEAD));
        state = next;
        if (state == DFA_DEAD) continue;
        if (d->accepts[state]) FUZZ_CHECK(i < n_valid);
        if (i >= n_valid)
            FUZZ_CHECK(!utf8_step((const unsigned char *)text + n_valid, i + 1 - n_valid));
    }
}

/* Twice the pattern as two choices is the same automaton, unless a limit is in the way. */
static void check_same_twice(const Dfa *d, const char *pattern, size_t len)
{
    StrBuf twice = {0};
    Dfa other;
    for (int i = 0; i < 2; i++) {
        strbuf_puts(&twice, i ? "|(?:" : "(?:");
        strbuf_add(&twice, pattern, len);
        strbuf_puts(&twice, ")");
    }
    if (!compile(&other, twice.data, twice.len)) {
        FUZZ_CHECK(dfa_equal(d, &other));
        dfa_free(&other);
    }
    strbuf_free(&twice);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    Dfa d;
    const char *text = (const char *)data, *end = size ? memchr(text, 0, size) : NULL;
    const char *pattern = end ? end + 1 : text;
    size_t len = size - (size_t)(pattern - text);
    if (compile(&d, pattern, len)) return 0;
    FUZZ_CHECK(!dfa_fault(&d, MINIMAL_UP_TO));
    check_text(&d, text, end ? (size_t)(end - text) : size);
    check_same_twice(&d, pattern, len);
    dfa_free(&d);
    return 0;
}
