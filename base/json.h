/*
 * json.h: reading JSON files and fields with errors that name file and key.
 *
 * Built on jansson (which already refuses invalid UTF-8, NUL and nesting beyond 2,048 levels).
 */
#ifndef OFFSHOOT_BASE_JSON_H
#define OFFSHOOT_BASE_JSON_H

#include <jansson.h>

#include "base/error.h"

/*
 * Loads a file of at most max_bytes. NULL and an Error that names the file; else a new reference.
 */
json_t *json_read_file(const char *path, size_t max_bytes, Error *err);

/* The same of a text that came from path. */
json_t *json_read_text(const char *text, size_t len, const char *path, Error *err);

/* The value at key unless it is absent or null: NULL. */
const json_t *json_field(const json_t *obj, const char *key);

/*
 * Integer at key. Absent or null: *out = fallback, or an error when fallback < 0 is not allowed by
 * lo (that is, fallback < lo means "required"). A value outside [lo, hi] or of another type is an
 * error that names where and key.
 */
int json_get_int(const json_t *obj, const char *where, const char *key, long lo, long hi,
                 long fallback, int *out, Error *err);

/* Number at key, finite, within [lo, hi]; absent or null gives fallback. */
int json_get_num(const json_t *obj, const char *where, const char *key, double lo, double hi,
                 double fallback, double *out, Error *err);

/* Boolean at key; absent or null gives fallback. */
int json_get_bool(const json_t *obj, const char *where, const char *key, int fallback, int *out,
                  Error *err);

#endif
