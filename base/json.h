/*
 * json.h: reading JSON files and fields with errors that name file and key.
 *
 * Built on jansson (which already refuses invalid UTF-8, NUL and nesting beyond 2,048 levels).
 * Files are taken as Python's json writes and reads them, which made most of them: of a key that is
 * given twice the last value counts, NaN and Infinity are null, and an integer beyond 64 bits
 * (transformers' 1e30 for a length that nobody set) is a real: the largest, if it has more than 308
 * digits. As Python has it, an integer of more than 4,300 digits is none.
 */
#ifndef OFFSHOOT_BASE_JSON_H
#define OFFSHOOT_BASE_JSON_H

#include <jansson.h>

#include "base/error.h"

/*
 * json_loadb, but an integer beyond 64 bits, which JSON does not bound, keeps its digits:
 * json_digits has them. To everything else it is a string, so where it is not only printed it is to
 * be rounded.
 */
json_t *json_load_digits(const char *text, size_t len, size_t flags, json_error_t *je);

/* The digits and the sign of an integer beyond 64 bits that kept them; NULL: v is another value. */
const char *json_digits(const json_t *v);

/* Makes reals of those in the object or array v, but not where keeps, unless NULL, says so. */
void json_round(json_t *v, int (*keeps)(const char *key, const json_t *value));

/* v, an object, array or NULL, with reals in their place: a new reference. */
json_t *json_rounded(const json_t *v);

/*
 * Loads a file of at most max_bytes. NULL and an Error that names the file; else a new reference.
 */
json_t *json_read_file(const char *path, size_t max_bytes, Error *err);
json_t *json_read_file_digits(const char *path, size_t max_bytes, Error *err);

/* The same of a text that came from path; flags are jansson's. */
json_t *json_read_text(const char *text, size_t len, size_t flags, const char *path, Error *err);

/* The value at key unless it is absent or null: NULL. */
const json_t *json_field(const json_t *obj, const char *key);

/* 1 and *out for an integer, also for one written as 16.0 or 1e3: JSON has one kind of number. */
int json_whole(const json_t *v, json_int_t *out);

/*
 * Integer at key, as json_whole has it. Absent or null: *out = fallback; one below lo makes that an
 * error, the key required. A value outside [lo, hi] or of another type is an error that names where
 * and key.
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
