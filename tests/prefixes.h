/*
 * prefixes.h: prompts that share beginnings, with pages and states that are functions of their
 * tokens: whatever a tier gives back can be checked without keeping a copy.
 */
#ifndef OFFSHOOT_TESTS_PREFIXES_H
#define OFFSHOOT_TESTS_PREFIXES_H

#include <stddef.h>
#include <stdint.h>

enum {
    PREFIX_MAX = 128, /* tokens */
    PREFIX_PAGES = PREFIX_MAX / 16,
    PREFIX_PAGE_BYTES = 104,
    PREFIX_STATE_BYTES = 328,
};

typedef struct {
    uint64_t salt;
    int n;
    int32_t token[PREFIX_MAX];
} Prefix;

/* One of few trees: two of them often share some tokens, and blocks. */
Prefix prefix_random(unsigned *seed, int min_tokens);

int prefix_pages(const Prefix *p);
int prefix_begins(const Prefix *p, const Prefix *with, int n); /* share salt and n tokens */

/* Memory for a prefix's pages and state, for a save or a load. */
typedef struct {
    unsigned char bytes[PREFIX_PAGES][PREFIX_PAGE_BYTES], state[PREFIX_STATE_BYTES];
    void *page[PREFIX_PAGES]; /* each page's memory */
} PrefixBytes;

/* What belongs to the first n tokens. */
void prefix_fill(const Prefix *p, int n, PrefixBytes *b);

/* Memory that holds something else. */
void prefix_clear(PrefixBytes *b);

/* Fails the test unless b holds what belongs to the first n tokens, from page first on. */
void prefix_check(const Prefix *p, int n, int first, const PrefixBytes *b);
int prefix_matches(const Prefix *p, int n, int first, const PrefixBytes *b);

#endif
