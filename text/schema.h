/*
 * schema.h: JSON schemas as grammars.
 *
 * What follows: objects have their properties in the schema's order, optional ones may be left out,
 * others come last; between the parts of a text there is at most one blank, or a newline and up to
 * 32 blanks. Integers have at most 18 digits, so that every client can read them; numbers within
 * bounds are written without an exponent, in no more digits than a double tells apart.
 */
#ifndef OFFSHOOT_TEXT_SCHEMA_H
#define OFFSHOOT_TEXT_SCHEMA_H

#include <jansson.h>

#include "text/grammar_build.h"

enum {
    MAX_SCHEMA_NODES = 20000,
    MAX_SCHEMA_DEPTH = 64,
    MAX_SCHEMA_ENUM = 4096, /* values in one list */
    MAX_SCHEMA_NAME = 512,  /* bytes of a property's name */
    MAX_SCHEMA_REF = 2048,  /* bytes of a $ref that is followed */
    MAX_SCHEMA_MS = 500,    /* of a thread's time; patterns take it */
};

typedef struct SchemaCompiler SchemaCompiler;

/* Parts of one grammar, which is b's, of any number of schemas. */
SchemaCompiler *schema_begin(GrammarBuilder *b);
void schema_end(SchemaCompiler *c);

/*
 * The part that is a value of this schema, which may refer to root ("#/$defs/..."), to be called.
 * strict: keywords that cannot be followed are errors, not passed over. where: what errors call the
 * schema ("response_format.json_schema.schema"). 0 and an Error that begins with the place:
 * ERR_INPUT or ERR_LIMIT.
 */
uint32_t schema_value(SchemaCompiler *c, const json_t *root, const json_t *schema, int strict,
                      const char *where, Error *err);

/* As schema_value, of those values of root that are objects. */
uint32_t schema_object_value(SchemaCompiler *c, const json_t *root, int strict, const char *where,
                             Error *err);

/* How a value stands as a text, which is what is read back as these types of reply_tools.h. */
typedef struct {
    unsigned types;
    const char *const *never; /* up to two that it cannot hold, behind the newline in front of it */
    int n_never;              /* each begins with '<' or a newline */
} SchemaText;

#define SCHEMA_ANY_TEXT UINT32_MAX

/*
 * As schema_value, of texts that are read back as values of the schema. SCHEMA_ANY_TEXT: any text
 * will do.
 */
uint32_t schema_text(SchemaCompiler *c, const json_t *root, const json_t *schema, int strict,
                     const SchemaText *as, const char *where, Error *err);

/* The part that is any value, any object. */
uint32_t schema_any(SchemaCompiler *c);
uint32_t schema_any_object(SchemaCompiler *c);

/* What a schema is of that does not say: what its keywords are for; NULL: of anything. */
const char *schema_implied_type(const json_t *schema);

/* A keyword of schema that nothing follows; NULL: there is none. */
const char *schema_not_followed_keyword(const json_t *schema);

/* One that says nothing since it is not what it must be ("a list"); NULL: there is none. */
const char *schema_malformed_keyword(const json_t *schema, const char **must_be_what);

/* What a $ref leads to; NULL: nowhere. */
const json_t *schema_target(const json_t *root, const char *ref);

/* The schema that a $ref of root leads to, as often as it does; schema itself without one, or NULL.
 */
const json_t *schema_resolve(const json_t *root, const json_t *schema);

#endif
