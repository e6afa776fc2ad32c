/*
 * dfa.h: deterministic automata over bytes, and the patterns of JSON schemas compiled to them.
 *
 * An automaton reads the UTF-8 bytes of a string, one by one, from state 0. It accepts valid UTF-8
 * only. It is minimal, and every state that it names can still reach an accepting one: a state
 * that is not DFA_DEAD means that the string can still become a match.
 */
#ifndef OFFSHOOT_TEXT_DFA_H
#define OFFSHOOT_TEXT_DFA_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum {
    DFA_DEAD = 0xffff, /* nothing can match any more */
    DFA_MAX_STATES = 4096,
    PATTERN_MAX_BYTES = 4096,
    PATTERN_MAX_REPEAT = 256, /* n of {m,n} */
    PATTERN_MAX_NESTING = 64, /* groups in groups */
};

typedef struct {
    int n_states, n_classes;
    uint8_t class_of[256]; /* bytes of one class are never told apart */
    uint16_t *next;        /* [n_states][n_classes], a state or DFA_DEAD */
    uint8_t *accepts;      /* [n_states], 1 if the string may end here */
} Dfa;

/* The state after one more byte; DFA_DEAD stays dead. */
static inline uint16_t dfa_step(const Dfa *d, uint16_t state, uint8_t byte)
{
    if (state == DFA_DEAD) return DFA_DEAD;
    return d->next[(size_t)state * (size_t)d->n_classes + d->class_of[byte]];
}

/*
 * Compiles a pattern as JSON schemas have them: ECMA-262 over code points, unanchored. It has
 * literals, escapes, classes, \d \w in ASCII, \s, '.', groups, '|', repeats, ^ and $; repeats that
 * are lazy mean the same as others. A '-' beside \d, \w or \s in a class, and a ']', '}' or '{'
 * that closes or begins nothing, are themselves, as browsers take them. (?P<name>, \A, \Z, \z and
 * an escaped space are what Python and Rust mean by them.
 *
 * 0, and the caller frees d; or -1 and d is empty: ERR_INPUT for what is wrong or not supported,
 * with its byte offset ("dangling quantifier at 3"), and for a pattern that no string matches;
 * ERR_LIMIT past a limit. Time and memory are bounded whatever the pattern is.
 */
int pattern_compile(Dfa *d, const char *pattern, size_t len, Error *err);

/*
 * The same of whole strings, as if it stood between ^(?: and )$. Such patterns are mostly written
 * for Python: {,n} and a ']' that begins a class mean something else there, and are errors.
 */
int pattern_compile_whole(Dfa *d, const char *pattern, size_t len, Error *err);

/*
 * Leaves of d's strings those of at least so many characters (code points), least > 0. 0; or -1 and
 * d is as it was: ERR_INPUT where there are none, ERR_LIMIT where that takes too many states.
 */
int dfa_at_least(Dfa *d, int least, Error *err);

/* Leaves of d's strings those of other, too. Errors as dfa_at_least. */
int dfa_both(Dfa *d, const Dfa *other, Error *err);

/* What strings may not hold. \xff, which is in no string, may stand in before and in literals. */
typedef struct {
    const char *before; /* what stands in front of each string */
    const char *const *literal;
    int n; /* of some 20 bytes each, at most 4 */
} DfaNever;

/* Leaves of d's strings those without the literals. Errors as dfa_at_least. */
int dfa_without(Dfa *d, const DfaNever *never, Error *err);

enum { N_FORMATS = 16 };

/*
 * The pattern of a JSON schema's format, one of N_FORMATS, anchored: date-time, date, time,
 * duration (RFC 3339), uuid and those of one version, ipv4, ipv6, hostname and email. NULL for
 * others.
 */
const char *format_pattern(const char *name);

/* The most characters of a text of that format that the pattern does not count; -1: any number. */
int format_longest(const char *name);

/* Frees the tables; d is empty afterwards. An empty one (all zero) is fine. */
void dfa_free(Dfa *d);

/* Memory that d holds. */
size_t dfa_bytes(const Dfa *d);

#endif
