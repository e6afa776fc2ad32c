/* access.c: see access.h. */
#include "server/access.h"

#include <string.h>

/* The next entry of a list, without blanks around it; NULL at its end. */
static const char *next_entry(const char **list, size_t *len)
{
    if (!*list) return NULL;
    const char *entry = *list + strspn(*list, " ");
    size_t n = strcspn(entry, ",");
    *list = entry[n] ? entry + n + 1 : NULL;
    while (n && entry[n - 1] == ' ')
        n--;
    *len = n;
    return entry;
}

/* Characters at text that are of the set. */
static size_t n_of(const char *text, size_t len, const char *set)
{
    size_t n = 0;
    while (n < len && text[n] && strchr(set, text[n]))
        n++;
    return n;
}

/* Whether an entry is an origin as browsers send it: scheme://host[:port], or null. */
static int is_like_origin(const char *entry, size_t len)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ",
                      digits[] = "0123456789";
    if (len == 4 && !memcmp(entry, "null", 4)) return 1;
    const char *host = memmem(entry, len, "://", 3), *end = entry + len;
    if (!host || !n_of(entry, 1, letters)) return 0;
    host += 3;
    const char *colon = memrchr(host, ':', (size_t)(end - host));
    if (colon && n_of(colon + 1, (size_t)(end - colon - 1), digits) == (size_t)(end - colon - 1)) {
        if (colon + 1 == end) return 0;
        end = colon;
    }
    size_t n = (size_t)(end - host);
    for (size_t i = 0; i < n; i++)
        if (strchr(" /?#@\\\"'*", host[i])) return 0;
    return n > 0 && (*host == '[' || !memchr(host, ':', n));
}

int access_check(const char *keys, const char *origins, Error *err)
{
    const char *entry;
    size_t n;
    while (next_entry(&keys, &n))
        if (!n) return error_set(err, ERR_INPUT, "--api-key has an empty key");
    if (!origins || !*origins || !strcmp(origins, "*")) return 0;
    while ((entry = next_entry(&origins, &n)) != NULL)
        if (!is_like_origin(entry, n))
            return error_set(err, ERR_INPUT,
                             "--cors has '%.*s', must be '*' or scheme://host[:port],...",
                             n < 60 ? (int)n : 60, entry);
    return 0;
}

/*
 * Takes as long for a wrong key as for the right one: time must not tell how much of it is right.
 */
static int same_key(const char *given, const char *key, size_t n)
{
    size_t n_given = strlen(given);
    unsigned different = !n || n != n_given;
    for (size_t i = 0; i < n_given; i++)
        different |= (unsigned char)given[i] ^ (unsigned char)(n ? key[i % n] : 0);
    return !different;
}

/* All keys are looked at, whichever fits. */
static int is_key(const char *given, const char *keys)
{
    const char *key;
    size_t n;
    int found = 0;
    while ((key = next_entry(&keys, &n)) != NULL)
        found |= same_key(given, key, n);
    return found;
}

int access_has_key(const char *keys, const Exchange *ex)
{
    if (!keys || !*keys) return 1;
    const char *bearer = exchange_header(ex, "Authorization");
    const char *bare = exchange_header(ex, "x-api-key");
    if (bare && is_key(bare, keys)) return 1;
    if (!bearer || strncasecmp(bearer, "Bearer ", 7) != 0) return 0;
    return is_key(bearer + 7 + strspn(bearer + 7, " "), keys);
}

static int is_origin(const char *origin, const char *origins)
{
    const char *entry;
    size_t n;
    while ((entry = next_entry(&origins, &n)) != NULL)
        if (strlen(origin) == n && !strncmp(entry, origin, n)) return 1;
    return 0;
}

void access_add_cors(const char *origins, Exchange *ex)
{
    if (!origins || !*origins) return;
    const char *origin = exchange_header(ex, "Origin");
    const char *asked = exchange_header(ex, "Access-Control-Request-Headers");
    int all = !strcmp(origins, "*");
    exchange_add_header(ex, "Vary", "Origin");
    if (!origin || (!all && !is_origin(origin, origins))) return;
    exchange_add_header(ex, "Access-Control-Allow-Origin", all ? "*" : origin);
    exchange_add_header(ex, "Access-Control-Expose-Headers",
                        "x-request-id, request-id, retry-after, x-should-retry");
    if (exchange_method(ex) != METHOD_OPTIONS) return;
    exchange_add_header(ex, "Access-Control-Allow-Methods", "GET, POST, OPTIONS");
    if (asked) exchange_add_header(ex, "Access-Control-Allow-Headers", asked);
    exchange_add_header(ex, "Access-Control-Max-Age", "86400");
}
