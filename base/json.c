/* json.c: see json.h. */
#include "base/json.h"

#include <math.h>
#include <string.h>

#include "base/file.h"

json_t *json_read_text(const char *text, size_t len, const char *path, Error *err)
{
    json_error_t je;
    json_t *root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &je);
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
        root = json_read_text((const char *)file.data, file.size, path, err);
    }
    mapped_file_close(&file);
    return root;
}

const json_t *json_field(const json_t *obj, const char *key)
{
    const json_t *v = json_object_get(obj, key);
    return v && !json_is_null(v) ? v : NULL;
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
    if (!json_is_integer(v))
        return error_set(err, ERR_INPUT, "%s: '%s' must be an integer", where, key);
    json_int_t i = json_integer_value(v);
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
