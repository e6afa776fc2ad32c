/*
 * schema_parts.h: what the files of the schema compiler share; for text/schema*.c and
 * call_grammar.c alone.
 */
#ifndef OFFSHOOT_TEXT_SCHEMA_PARTS_H
#define OFFSHOOT_TEXT_SCHEMA_PARTS_H

#include "base/strbuf.h"
#include "text/schema.h"

typedef struct {
    const json_t *of, *rest;
    int form; /* 0: JSON; or which of the texts, whose parts differ */
    uint32_t part;
} SchemaRef;

enum { N_RANGES = 16, N_CHECKED = 8, MAX_BOUND_PART = 32 };

/* A pattern that was needed, as for fixed values, and may be again. */
typedef struct {
    const char *pattern; /* the same text, not an equal one */
    Dfa dfa;
} SchemaPattern;

/* A bound of numbers in decimal, whole.part, without zeros at either end. */
typedef struct {
    char whole[20], part[MAX_BOUND_PART];
    int n_whole, n_part;
    int is_none, is_negative;
    int is_open; /* the bound itself is out */
    int is_cut;  /* there are digits behind part */
} SchemaBound;

typedef struct {
    SchemaBound lo, hi;
    int is_whole;
    double multiple; /* multipleOf, or 0 */
    uint32_t part;
} SchemaRange;

enum { MULTIPLE_PARTS = 9, MULTIPLE_STATES = 512 };

/* A state of the digits read so far: where one more leads, and the first one behind the point. */
typedef struct {
    int may_end, digit[10], part[10];
} MultipleState;

/* What makes a multiple of a number; state 0 is before the first digit. */
typedef struct {
    int n_parts; /* digits behind the point, at most */
    int n_states;
    MultipleState state[MULTIPLE_STATES];
} SchemaMultiple;

struct SchemaCompiler {
    GrammarBuilder *b;
    const json_t *root;
    int strict, depth, n_nodes;
    double began_ms; /* of the thread's own time */
    StrBuf path;     /* where we are */
    Error *err;
    int failed;
    int level;       /* lists and objects around this value */
    int empty_level; /* it failed because no value of this level can be; -1: for other reasons */
    /* parts that are made once; 0: not yet */
    uint32_t blank, number, any, any_object, text;
    SchemaRef *ref;
    int n_refs;
    json_t *made; /* schemas that were merged of others: kept until the end */
    struct {
        const char *pattern;
        int automaton;
    } format[N_FORMATS];
    int n_formats;
    SchemaPattern checked[N_CHECKED];
    unsigned n_checked;
    SchemaRange range[N_RANGES]; /* those that were made first */
    int n_ranges;
    uint32_t digits[MAX_BOUND_PART + 1]; /* up to so many, any */
    struct {
        const SchemaText *as; /* values stand as such texts; NULL: as JSON */
        int form;             /* of the texts so far */
        int n_found;          /* ways to write a value */
        int is_any;           /* any text will do */
        int has_null, has_string;
        int any[2][2]; /* automata of strings + 1: not like objects, not like lists */
    } texts;
};

/* A value of schema, in this step of the path; returns 0 when it failed. */
uint32_t schema_part(SchemaCompiler *c, const json_t *schema);

/* The same, one step further; index -1: none. */
uint32_t schema_part_at(SchemaCompiler *c, const json_t *schema, const char *step, int index);

/* Says what is wrong here, once, as printf does; returns 0. */
uint32_t schema_fail(SchemaCompiler *c, ErrorCode code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* The same where no value can be of the schema: another way may be left. */
uint32_t schema_empty(SchemaCompiler *c, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Says what is wrong with a keyword here, where what is not followed is an error. */
void schema_not_followed(SchemaCompiler *c, const char *keyword, ErrorCode code, const char *fmt,
                         ...) __attribute__((format(printf, 4, 5)));

/* Steps of the path: where it was, for schema_leave. */
size_t schema_enter(SchemaCompiler *c, const char *step, const char *name);
void schema_leave(SchemaCompiler *c, size_t before);

/* A node that is known before what it leads to. */
uint32_t schema_forward(SchemaCompiler *c);
void schema_set_forward(SchemaCompiler *c, uint32_t node, uint32_t to);

/* A value of one of JSON's types, in JSON. */
uint32_t schema_type(SchemaCompiler *c, const json_t *schema, const char *type);

/* 1 if a keyword says what values may be; others describe them. */
int schema_is_constraint(const char *key, const json_t *value);

/* What may stand between two parts, then next. */
uint32_t schema_blank(SchemaCompiler *c, uint32_t next);

/* A node that nothing comes out of. */
uint32_t schema_no_way(SchemaCompiler *c);

/* A part with lists or objects in it: counts towards the nesting. */
uint32_t schema_nested(SchemaCompiler *c, uint32_t body);

/* ways[n] to go on, n >= 1. */
uint32_t schema_ways(SchemaCompiler *c, const uint32_t *way, int n);

/* schema_value.c */
uint32_t schema_string(SchemaCompiler *c, const json_t *schema);
uint32_t schema_word(SchemaCompiler *c, const char *word);
uint32_t schema_const(SchemaCompiler *c, const json_t *value);
uint32_t schema_enum(SchemaCompiler *c, const json_t *values);

/*
 * Compiles a pattern, and how many characters there must be at least, to an automaton of the
 * grammar; -1: it is not followed, or that is an error.
 */
int schema_pattern(SchemaCompiler *c, const char *pattern, size_t len, int least);

/*
 * What a schema says of a string: its automaton, -1: none, which knows of the fewest characters;
 * and how many there are.
 */
int schema_characters(SchemaCompiler *c, const json_t *schema, int *lo, int *hi);

/* Characters of the shortest string that an automaton takes; UINT16_MAX: there is none. */
int schema_shortest(const SchemaCompiler *c, int automaton);

/* schema_text.c: while values stand as texts */
uint32_t schema_text_any(SchemaCompiler *c);
uint32_t schema_text_null(SchemaCompiler *c);
uint32_t schema_text_values(SchemaCompiler *c, const json_t *values);
uint32_t schema_text_type(SchemaCompiler *c, const json_t *schema, const char *type);
int schema_text_leave_out(const SchemaCompiler *c, Dfa *d, Error *err); /* as dfa_without */

/* schema_number.c */
uint32_t schema_integer(SchemaCompiler *c, const json_t *schema);
uint32_t schema_number(SchemaCompiler *c, const json_t *schema);
uint32_t schema_any_number(SchemaCompiler *c);

/* schema_multiple.c: 0, or -1 where value is no multipleOf that we follow. is_whole: no point. */
int schema_multiple(const json_t *value, int is_whole, SchemaMultiple *out);

/* 1 if value is a multiple of a number, 0 if not; -1: that is not to be told. */
int schema_is_multiple(const json_t *value, const json_t *of);

/* The number whose multiples are those of both, a new reference; NULL: it is not to be had. */
json_t *schema_common_multiple(const json_t *a, const json_t *b);

/* The shortest text that is this number again, 1.1, not 1.1000000000000001; to be freed. */
char *schema_number_text(const json_t *value);

/* schema_object.c */
uint32_t schema_object(SchemaCompiler *c, const json_t *schema);
uint32_t schema_array(SchemaCompiler *c, const json_t *schema);

/*
 * schema_merge.c: both at once: a new reference, or NULL where they contradict each other. *lost: a
 * keyword of both of which only a's is followed; as it was where there is none.
 */
json_t *schema_merge(const json_t *a, const json_t *b, const char **lost);

/* json_equal, but 1 is 1.0. */
int schema_same_value(const json_t *a, const json_t *b);

/* schema_check.c: 1 if a fixed value is of schema; 0: it is not, or that is not to be told. */
int schema_has(SchemaCompiler *c, const json_t *schema, const json_t *value);
void schema_check_end(SchemaCompiler *c);

/* The automaton of a pattern, which is kept for the next time; NULL: it is not followed. */
const Dfa *schema_kept_pattern(SchemaCompiler *c, const char *pattern);

/* -1, and it failed: a keyword is not followed or malformed, or a $ref leads nowhere, where that
 * matters. */
int schema_check_keywords(SchemaCompiler *c, const json_t *schema);
int schema_ref_nowhere(SchemaCompiler *c, const char *ref);

/* 1, and it failed, when compiling has taken too long. */
int schema_is_late(SchemaCompiler *c);

/* 1 if value is of this type ("integer", ...). */
int schema_has_type(const json_t *value, const char *type);

/* A bound in [0, max] by its key; dflt where it is absent, or is another one and passed over. */
int schema_bound(SchemaCompiler *c, const json_t *schema, const char *key, int max, int dflt);

/* A text as canonical JSON writes it inside quotes. */
void schema_escape(const char *text, size_t len, StrBuf *out);

#endif
