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
    exchange_add_header(ex, "Access-Control-Expose-Headers", "x-request-id, retry-after");
    if (exchange_method(ex) != METHOD_OPTIONS) return;
    exchange_add_header(ex, "Access-Control-Allow-Methods", "GET, POST, OPTIONS");
    if (asked) exchange_add_header(ex, "Access-Control-Allow-Headers", asked);
    exchange_add_header(ex, "Access-Control-Max-Age", "86400");
}
