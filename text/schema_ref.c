/*
 * schema_ref.c: what a $ref leads to: a JSON pointer (RFC 6901) as the fragment of a URI.
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "text/schema.h"

static int hex_digit(char c)
{
    return isdigit((unsigned char)c) ? c - '0' : tolower((unsigned char)c) - 'a' + 10;
}

/*
 * Bytes that a URI writes as %41. What is none stays as it is, as does %00, which no name has: of a
 * text that ends at it another name would be found.
 */
static void undo_percents(const char *fragment, char *out)
{
    for (; *fragment; out++) {
        int is_code = *fragment == '%' && isxdigit((unsigned char)fragment[1]) &&
                      isxdigit((unsigned char)fragment[2]);
        int byte = is_code ? 16 * hex_digit(fragment[1]) + hex_digit(fragment[2]) : 0;
        *out = (char)(byte ? byte : *fragment);
        fragment += byte ? 3 : 1;
    }
    *out = 0;
}

/* One step, its ~1 and ~0 undone. NULL: it leads nowhere. */
static const json_t *pointer_step(const json_t *at, const char *step, size_t len)
{
    char name[MAX_SCHEMA_REF + 1], *end;
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        int is_escape = step[i] == '~' && i + 1 < len && (step[i + 1] == '0' || step[i + 1] == '1');
        name[n++] = (char)(is_escape ? "~/"[step[i + 1] == '1'] : step[i]);
        i += (size_t)is_escape;
    }
    name[n] = 0;
    if (!json_is_array(at)) return json_object_get(at, name);
    unsigned long i = strtoul(name, &end, 10);
    return isdigit((unsigned char)*name) && !*end ? json_array_get(at, i) : NULL;
}

const json_t *schema_target(const json_t *root, const char *ref)
{
    char pointer[MAX_SCHEMA_REF + 1] = {0};
    const char *left = pointer;
    const json_t *at = root;
    if (strnlen(ref, MAX_SCHEMA_REF + 1) > MAX_SCHEMA_REF || *ref != '#') return NULL;
    undo_percents(ref + 1, pointer);
    while (at && *left == '/') {
        size_t len = strcspn(++left, "/");
        at = pointer_step(at, left, len);
        left += len;
    }
    return *left ? NULL : at;
}

const json_t *schema_resolve(const json_t *root, const json_t *schema)
{
    for (int i = 0; i < MAX_SCHEMA_DEPTH; i++) {
        const char *ref = json_string_value(json_object_get(schema, "$ref"));
        if (!ref) return schema;
        schema = schema_target(root, ref);
    }
    return NULL;
}
