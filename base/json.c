/* json.c: see json.h. */
#include "base/json.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/strbuf.h"

enum { MAX_DIGITS = 4300 }; /* of an integer, as Python has it */

/* What begins a string that is digits: a byte that UTF-8 does not have. */
static const char DIGITS_MARK = '\xFF';

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
    if (!n || *digit == '0' || n > MAX_DIGITS) return 0;
    return n > n_limit || (n == n_limit && memcmp(digit, limit[is_negative], n) > 0);
}

static size_t number_bytes(const char *text, size_t len)
{
    size_t n = 0;
    while (n < len && text[n] && strchr("0123456789+-.eE", text[n]))
        n++;
    return n;
}

/* An integer as a real: of more than 308 digits the largest. */
static void put_real(const char *digits, size_t len, StrBuf *out)
{
    int is_negative = *digits == '-';
    if (len - (size_t)is_negative > DBL_MAX_10_EXP)
        strbuf_printf(out, "%s%.17g", is_negative ? "-" : "", DBL_MAX);
    else
        strbuf_printf(out, "%.*s.0", (int)len, digits);
}

/* What becomes of integers beyond 64 bits. */
typedef enum { TO_REALS, TO_STRINGS } Widened;

/* What is not finite becomes null; lines stay where they are. */
static void widen(const char *text, size_t len, int not_finite, Widened to, StrBuf *out)
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
        if (is_long && to == TO_REALS) {
            put_real(p, n, out);
            continue;
        }
        if (is_long) strbuf_puts(out, "\"");
        strbuf_add(out, p, n);
        if (is_long) strbuf_puts(out, "\"");
    }
}

static json_t *load_widened(const char *text, size_t len, size_t flags, int not_finite, Widened to,
                            json_error_t *je)
{
    StrBuf wide = {0};
    widen(text, len, not_finite, to, &wide);
    json_t *root = json_loadb(strbuf_str(&wide), wide.len, flags, je);
    strbuf_free(&wide);
    return root;
}

/* ---- integers with all their digits ---- */

static json_t *digits_of(const json_t *text)
{
    StrBuf marked = {0};
    strbuf_add(&marked, &DIGITS_MARK, 1);
    strbuf_add(&marked, json_string_value(text), json_string_length(text));
    json_t *digits = json_stringn_nocheck(marked.data, marked.len);
    strbuf_free(&marked);
    return digits;
}

/* Of the same text as reals and as strings: a value that is both becomes digits. */
static void put_digits(json_t *reals, const json_t *strings)
{
    const char *key;
    json_t *value;
    size_t i;
    json_object_foreach(reals, key, value)
    {
        const json_t *other = json_object_get(strings, key);
        if (json_is_real(value) && json_is_string(other))
            json_object_set_new(reals, key, digits_of(other));
        else
            put_digits(value, other);
    }
    json_array_foreach(reals, i, value)
    {
        const json_t *other = json_array_get(strings, i);
        if (json_is_real(value) && json_is_string(other))
            json_array_set_new(reals, i, digits_of(other));
        else
            put_digits(value, other);
    }
}

/* Integers beyond 64 bits are reals, unless they are to keep their digits. */
static json_t *load(const char *text, size_t len, size_t flags, int not_finite, int keeps_digits,
                    json_error_t *je)
{
    json_t *root = json_loadb(text, len, flags, je);
    if (root || (!not_finite && json_error_code(je) != json_error_numeric_overflow)) return root;
    root = load_widened(text, len, flags, not_finite, TO_REALS, je);
    if (!root || !keeps_digits) return root;
    json_t *strings = load_widened(text, len, flags, not_finite, TO_STRINGS, je);
    put_digits(root, strings);
    json_decref(strings);
    return root;
}

json_t *json_load_digits(const char *text, size_t len, size_t flags, json_error_t *je)
{
    return load(text, len, flags, 0, 1, je);
}

const char *json_digits(const json_t *v)
{
    const char *text = json_string_value(v);
    return text && *text == DIGITS_MARK ? text + 1 : NULL;
}

static json_t *real_of(const char *digits)
{
    double d = strtod(digits, NULL);
    return json_real(isfinite(d) ? d : copysign(DBL_MAX, d));
}

void json_round(json_t *v, int (*keeps)(const char *key, const json_t *value))
{
    const char *key;
    json_t *value;
    size_t i;
    json_object_foreach(v, key, value)
    {
        const char *digits = json_digits(value);
        if (digits)
            json_object_set_new(v, key, real_of(digits));
        else if (!keeps || !keeps(key, value))
            json_round(value, keeps);
    }
    json_array_foreach(v, i, value)
    {
        const char *digits = json_digits(value);
        if (digits)
            json_array_set_new(v, i, real_of(digits));
        else
            json_round(value, keeps);
    }
}

static int has_digits(const json_t *v)
{
    const char *key;
    json_t *value;
    size_t i;
    int found = json_digits(v) != NULL;
    json_object_foreach((json_t *)v, key, value)
    {
        if (found) break;
        found = has_digits(value);
    }
    json_array_foreach(v, i, value)
    {
        if (found) break;
        found = has_digits(value);
    }
    return found;
}

json_t *json_rounded(const json_t *v)
{
    if (!has_digits(v)) return json_incref((json_t *)v);
    json_t *copy = json_deep_copy(v);
    json_round(copy, NULL);
    return copy;
}

/* ---- files ---- */

static json_t *read_text(const char *text, size_t len, size_t flags, const char *path,
                         int keeps_digits, Error *err)
{
    static const char pointer[] = "version https://git-lfs";
    json_error_t je;
    json_t *root = load(text, len, flags, 1, keeps_digits, &je);
    if (root) return root;
    if (len >= sizeof pointer - 1 && !memcmp(text, pointer, sizeof pointer - 1))
        error_set(err, ERR_FILE, "'%s' is a pointer of Git LFS: 'git lfs pull' gets the file",
                  path);
    else
        error_set(err, ERR_FILE, "'%s' line %d: %s", path, je.line, je.text);
    return NULL;
}

static json_t *read_file(const char *path, size_t max_bytes, int keeps_digits, Error *err)
{
    MappedFile file;
    if (mapped_file_open_up_to(&file, path, max_bytes, err)) return NULL;
    json_t *root = read_text((const char *)file.data, file.size, 0, path, keeps_digits, err);
    mapped_file_close(&file);
    return root;
}

json_t *json_read_text(const char *text, size_t len, size_t flags, const char *path, Error *err)
{
    return read_text(text, len, flags, path, 0, err);
}

json_t *json_read_file(const char *path, size_t max_bytes, Error *err)
{
    return read_file(path, max_bytes, 0, err);
}

json_t *json_read_file_digits(const char *path, size_t max_bytes, Error *err)
{
    return read_file(path, max_bytes, 1, err);
}

/* ---- fields ---- */

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
