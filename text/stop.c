/*
 * stop.c: see stop.h.
 *
 * Matcher and cutter run the same automaton (Knuth-Morris-Pratt, one per stop string) over the same
 * bytes, so they stop at the same one.
 */
#include "text/stop.h"

#include <assert.h>
#include <string.h>

#include "base/mem.h"
#include "text/utf8.h"

typedef struct {
    char bytes[MAX_STOP_BYTES];
    uint16_t border[MAX_STOP_BYTES + 1]; /* longest proper border of the first i bytes */
    int len, seen;                       /* seen: how many bytes of it the text ends with */
} Needle;

typedef struct {
    Needle *needle;
    int n;
} Needles;

static void needle_init(Needle *nd, const char *string)
{
    nd->len = (int)strlen(string);
    memcpy(nd->bytes, string, (size_t)nd->len);
    for (int i = 1, k = 0; i < nd->len; i++) {
        while (k && nd->bytes[i] != nd->bytes[k])
            k = nd->border[k];
        if (nd->bytes[i] == nd->bytes[k]) k++;
        nd->border[i + 1] = (uint16_t)k;
    }
}

static void needles_init(Needles *set, const char *const *strings, int n)
{
    set->n = n;
    set->needle = mem_alloc((size_t)n, sizeof *set->needle);
    for (int i = 0; i < n; i++)
        needle_init(&set->needle[i], strings[i]);
}

/* Takes one byte. Returns the longest stop string that ends with it, NULL for none. */
static const Needle *needles_push(Needles *set, char byte)
{
    const Needle *longest = NULL;
    for (int i = 0; i < set->n; i++) {
        Needle *nd = &set->needle[i];
        while (nd->seen && nd->bytes[nd->seen] != byte)
            nd->seen = nd->border[nd->seen];
        if (nd->bytes[nd->seen] == byte) nd->seen++;
        if (nd->seen < nd->len) continue;
        if (!longest || nd->len > longest->len) longest = nd;
        nd->seen = nd->border[nd->len];
    }
    return longest;
}

/*
 * How many of the last bytes may be the beginning of a stop string. *held is set to these bytes:
 * they are that string's first, so nobody needs to keep the text itself.
 */
static size_t needles_held(const Needles *set, const char **held)
{
    int longest = 0;
    *held = "";
    for (int i = 0; i < set->n; i++) {
        if (set->needle[i].seen <= longest) continue;
        longest = set->needle[i].seen;
        *held = set->needle[i].bytes;
    }
    return (size_t)longest;
}

static void needles_restart(Needles *set)
{
    for (int i = 0; i < set->n; i++)
        set->needle[i].seen = 0;
}

struct StopMatcher {
    Needles set;
    int stopped;
};

static int check_strings(const char *const *strings, int n, Error *err)
{
    if (n < 0 || n > MAX_STOP_STRINGS)
        return error_set(err, ERR_LIMIT, "%d stop strings, the limit is %d", n, MAX_STOP_STRINGS);
    for (int i = 0; i < n; i++) {
        size_t len = strlen(strings[i]);
        if (!len) return error_set(err, ERR_INPUT, "stop string %d is empty", i);
        if (len > MAX_STOP_BYTES)
            return error_set(err, ERR_LIMIT, "stop string %d has %zu bytes, the limit is %d", i,
                             len, MAX_STOP_BYTES);
        if (utf8_check(strings[i], len) < len)
            return error_set(err, ERR_INPUT, "stop string %d is not valid UTF-8", i);
    }
    return 0;
}

StopMatcher *stop_matcher_open(const char *const *strings, int n, Error *err)
{
    if (check_strings(strings, n, err)) return NULL;
    StopMatcher *m = mem_alloc(1, sizeof *m);
    needles_init(&m->set, strings, n);
    return m;
}

void stop_matcher_close(StopMatcher *m)
{
    if (!m) return;
    mem_free(m->set.needle);
    mem_free(m);
}

int stop_matcher_text(StopMatcher *m, const char *text, size_t len)
{
    for (size_t i = 0; i < len && !m->stopped; i++)
        m->stopped = needles_push(&m->set, text[i]) != NULL;
    return m->stopped;
}

void stop_matcher_break(StopMatcher *m)
{
    needles_restart(&m->set);
}

int stop_matcher_held(const StopMatcher *m)
{
    const char *held;
    return needles_held(&m->set, &held) > 0;
}

struct StopCutter {
    Needles set;
    const Needle *met; /* the stop string that ended the text */
    int done;          /* nothing is let out any more */
};

StopCutter *stop_cutter_open(const char *const *strings, int n)
{
    assert(!check_strings(strings, n, NULL));
    StopCutter *c = mem_alloc(1, sizeof *c);
    needles_init(&c->set, strings, n);
    return c;
}

void stop_cutter_close(StopCutter *c)
{
    if (!c) return;
    mem_free(c->set.needle);
    mem_free(c);
}

int stop_cutter_push(StopCutter *c, const char *text, size_t len, int include_stop, StrBuf *out)
{
    const char *held, *unused;
    size_t n_held = needles_held(&c->set, &held), n_used = 0;
    if (c->done) return 1;
    while (n_used < len && !c->met)
        c->met = needles_push(&c->set, text[n_used++]);

    size_t n_keep = needles_held(&c->set, &unused);
    if (c->met) n_keep = include_stop ? 0 : (size_t)c->met->len;
    assert(n_keep <= n_held + n_used);
    size_t n_send = n_held + n_used - n_keep;
    size_t n_from_held = n_send < n_held ? n_send : n_held;
    strbuf_add(out, held, n_from_held);
    strbuf_add(out, text, n_send - n_from_held);
    c->done = c->met != NULL;
    return c->done;
}

void stop_cutter_break(StopCutter *c, StrBuf *out)
{
    const char *held;
    size_t n_held = needles_held(&c->set, &held);
    if (c->done) return;
    strbuf_add(out, held, n_held);
    needles_restart(&c->set);
}

int stop_cutter_met(const StopCutter *c)
{
    return c->met ? (int)(c->met - c->set.needle) : -1;
}
