/* prefixes.c: see prefixes.h. */
#include "tests/prefixes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

Prefix prefix_random(unsigned *seed, int min_tokens)
{
    Prefix p = {.salt = (uint64_t)(rand_r(seed) % 4 == 0)};
    p.n = min_tokens + rand_r(seed) % (PREFIX_MAX - min_tokens + 1);
    if (rand_r(seed) % 3 == 0) p.n = p.n / 16 * 16;
    if (p.n < min_tokens) p.n = min_tokens;
    /* Few places where the tokens part, in blocks and inside them. */
    for (int i = 0; i < p.n; i++)
        p.token[i] = 100 + (i % 11 == 5 && rand_r(seed) % 8 == 0) +
                     2 * (i % 16 == 0 && rand_r(seed) % 6 == 0);
    return p;
}

int prefix_pages(const Prefix *p)
{
    return (p->n + 15) / 16;
}

int prefix_begins(const Prefix *p, const Prefix *with, int n)
{
    return p->salt == with->salt && p->n >= n && with->n >= n &&
           !memcmp(p->token, with->token, (size_t)n * sizeof *p->token);
}

/* Bytes that depend on the salt, all tokens up to n, and what they are for. */
static void fill(const Prefix *p, int n, uint64_t what, unsigned char *to, size_t bytes)
{
    uint64_t h = 0xcbf29ce484222325u ^ p->salt * 31 ^ what;
    for (int i = 0; i < n; i++)
        h = (h ^ (uint64_t)p->token[i]) * 0x100000001b3u;
    for (size_t i = 0; i < bytes; i++) {
        h ^= h << 13;
        h ^= h >> 7;
        h ^= h << 17;
        to[i] = (unsigned char)(h >> 24);
    }
}

/* A partial page is another than the full one. */
static void fill_page(const Prefix *p, int n, int page, unsigned char *to)
{
    fill(p, page * 16 + 16 < n ? page * 16 + 16 : n, 1, to, PREFIX_PAGE_BYTES);
}

void prefix_fill(const Prefix *p, int n, PrefixBytes *b)
{
    for (int i = 0; i < PREFIX_PAGES; i++) {
        b->page[i] = b->bytes[i];
        if (i * 16 < n) fill_page(p, n, i, b->bytes[i]);
    }
    fill(p, n, 2, b->state, sizeof b->state);
}

void prefix_clear(PrefixBytes *b)
{
    memset(b, 0x5a, sizeof *b);
    for (int i = 0; i < PREFIX_PAGES; i++)
        b->page[i] = b->bytes[i];
}

int prefix_matches(const Prefix *p, int n, int first, const PrefixBytes *b)
{
    PrefixBytes want;
    prefix_fill(p, n, &want);
    for (int i = first; i * 16 < n; i++)
        if (memcmp(want.bytes[i], b->bytes[i], PREFIX_PAGE_BYTES)) return 0;
    return !memcmp(want.state, b->state, sizeof want.state);
}

void prefix_check(const Prefix *p, int n, int first, const PrefixBytes *b)
{
    if (!prefix_matches(p, n, first, b))
        fail_msg("bytes of %d tokens (from page %d) are not what was saved", n, first);
}
