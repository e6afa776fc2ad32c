/* json.c: see json.h. */
#include "base/json.h"

#include <math.h>
#include <string.h>

#include "base/file.h"
#include "base/strbuf.h"

/* Bytes of the string that text begins with, its quotes included. */
static size_t string_bytes(const char *text, size_t len)
{
    size_t n = 1;
    while (n < len && text[n] != '"')
        n += text[n] == '\\' ? 2 : 1;
    return n < len ? n + 1 : len;
}

/* Bytes of NaN, Infinity or -Infinity, if text begins with one. */
static size_t not_finite_bytes(const char *text, size_t len)
{
    static const char *const words[] = {"NaN", "Infinity", "-Infinity"};
    for (int i = 0; i < 3; i++) {
        size_t n = strlen(words[i]);
        if (n <= len && !memcmp(text, words[i], n)) return n;
    }
    return 0;
}

/* Whether a number is written as an integer, and 64 bits do not hold it. */
static int is_beyond_64_bits(const char *number, size_t len)
{
    static const char *const limit[] = {"9223372036854775807", "9223372036854775808"};
    int is_negative = *number == '-';
    const char *digit = number + is_negative;
    size_t n = len - (size_t)is_negative, n_limit = strlen(limit[0]);
    for (size_t i = 0; i < n; i++)
        if (digit[i] < '0' || digit[i] > '9') return 0;
    return n > n_limit || (n == n_limit && memcmp(digit, limit[is_negative], n) > 0);
}

static size_t number_bytes(const char *text, size_t len)
{
    size_t n = 0;
    while (n < len && text[n] && strchr("0123456789+-.eE", text[n]))
        n++;
    return n;
}

/* Integers beyond 64 bits become reals, what is not finite null; lines stay where they are. */
static void widen(const char *text, size_t len, int not_finite, StrBuf *out)
{
    for (size_t at = 0, n; at < len; at += n) {
        const char *p = text + at;
        size_t left = len - at;
        n = not_finite ? not_finite_bytes(p, left) : 0;
        if (n) {
            strbuf_puts(out, "null");
            continue;
        }
        n = number_bytes(p, left);
        int is_long = n && is_beyond_64_bits(p, n);
        if (!n) n = *p == '"' ? string_bytes(p, left) : 1;
        strbuf_add(out, p, n);
        if (is_long) strbuf_puts(out, ".0");
    }
}

json_t *json_load_wide(const char *text, size_t len, size_t flags, int not_finite, json_error_t *je)
{
    json_t *root = json_loadb(text, len, flags, je);
    if (root || (!not_finite && json_error_code(je) != json_error_numeric_overflow)) return root;
    StrBuf wide = {0};
    widen(text, len, not_finite, &wide);
    root = json_loadb(strbuf_str(&wide), wide.len, flags, je);
    strbuf_free(&wide);
    return root;
}

json_t *json_read_text(const char *text, size_t len, size_t flags, const char *path, Error *err)
{
    json_error_t je;
    json_t *root = json_load_wide(text, len, flags, 1, &je);
    if (!root) error_set(err, ERR_FILE, "'%s' line %d: %s", path, je.line, je.text);
    return root;
}

json_t *json_read_file(const char *path, size_t max_bytes, Error *err)
{
    MappedFile file;
    if (mapped_file_open(&file, path, err)) return NULL;
    json_t *root = NULL;
    if (file.size > max_bytes) {
        error_set(err, ERR_LIMIT, "'%s' has %zu bytes, the limit is %zu", path, file.size,
                  max_bytes);
    } else {
        root = json_read_text((const char *)file.data, file.size, 0, path, err);
    }
    mapped_file_close(&file);
    return root;
}

const json_t *json_field(const json_t *obj, const char *key)
{
    const json_t *v = json_object_get(obj, key);
    return v && !json_is_null(v) ? v : NULL;
}

int json_whole(const json_t *v, json_int_t *out)
{
    double d = json_is_real(v) ? json_real_value(v) : 0.5;
    int fits = d >= -0x1p63 && d < 0x1p63 && !(d < floor(d)) && !(d > floor(d));
    *out = json_is_integer(v) ? json_integer_value(v) : fits ? (json_int_t)d : 0;
    return json_is_integer(v) || fits;
}

int json_get_int(const json_t *obj, const char *where, const char *key, long lo, long hi,
                 long fallback, int *out, Error *err)
{
    const json_t *v = json_field(obj, key);
    if (!v) {
        if (fallback < lo) return error_set(err, ERR_INPUT, "%s: '%s' is missing", where, key);
        *out = (int)fallback;
        return 0;
    }
    json_int_t i;
    double d = json_number_value(v);
    if (d >= 0x1p63 || d < -0x1p63)
        return error_set(err, ERR_INPUT, "%s: '%s' is %g, must be %ld to %ld", where, key, d, lo,
                         hi);
    if (!json_whole(v, &i))
        return error_set(err, ERR_INPUT, "%s: '%s' must be an integer", where, key);
    if (i < lo || i > hi)
        return error_set(err, ERR_INPUT, "%s: '%s' is %lld, must be %ld to %ld", where, key,
                         (long long)i, lo, hi);
    *out = (int)i;
    return 0;
}

int json_get_num(const json_t *obj, const char *where, const char *key, double lo, double hi,
                 double fallback, double *out, Error *err)
{
    const json_t *v = json_field(obj, key);
    *out = fallback;
    if (!v) return 0;
    if (!json_is_number(v))
        return error_set(err, ERR_INPUT, "%s: '%s' must be a number", where, key);
    double d = json_number_value(v);
    if (!isfinite(d) || d < lo || d > hi)
        return error_set(err, ERR_INPUT, "%s: '%s' is %g, must be %g to %g", where, key, d, lo, hi);
    *out = d;
    return 0;
}

int json_get_bool(const json_t *obj, const char *where, const char *key, int fallback, int *out,
                  Error *err)
{
    const json_t *v = json_field(obj, key);
    *out = fallback;
    if (!v) return 0;
    if (!json_is_boolean(v))
        return error_set(err, ERR_INPUT, "%s: '%s' must be true or false", where, key);
    *out = json_is_true(v);
    return 0;
}
