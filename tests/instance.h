/*
 * instance.h: whether a value is what a JSON schema asks for, for tests: the definition, as plainly
 * as it can be written down, of the keywords that the tests' schemas have.
 */
#ifndef OFFSHOOT_TESTS_INSTANCE_H
#define OFFSHOOT_TESTS_INSTANCE_H

#include <jansson.h>

/* A schema's text, with ' for "; the test ends where it is not JSON. */
json_t *schema_json(const char *text);

/* The keyword that value does not meet, or NULL. */
const char *instance_error(const json_t *root, const json_t *schema, const json_t *value);

#endif
