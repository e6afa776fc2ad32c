/*
 * pattern_parts.h: the steps from a pattern to its automaton, for text/pattern*.c alone.
 *
 * Text -> tree (pattern_parse.c) -> automaton that may be in many states at once (pattern_nfa.c)
 * -> deterministic automaton (pattern_dfa.c) -> the smallest such (pattern_minimise.c).
 */
#ifndef OFFSHOOT_TEXT_PATTERN_PARTS_H
#define OFFSHOOT_TEXT_PATTERN_PARTS_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "text/code_set.h"
#include "text/dfa.h"

/* ---- text to tree ---- */

typedef enum {
    PATTERN_SET,      /* one code point of a set; the empty set matches nothing */
    PATTERN_SEQUENCE, /* children one after the other; none: the empty string */
    PATTERN_CHOICE,   /* one of the children */
    PATTERN_REPEAT,   /* the child, min to max times */
    PATTERN_AT_START, /* ^ */
    PATTERN_AT_END,   /* $ */
} PatternKind;

enum { REPEAT_FOREVER = -1 }; /* a max */

typedef struct {
    PatternKind kind;
    int child; /* the first of them, the others by next; -1: none */
    int next;  /* the parent's next child; -1: none */
    int min, max;
    CodeSet set; /* normalised */
} PatternNode;

typedef struct {
    PatternNode *node;
    int n, cap, root;
} PatternTree;

/* Where the parser is. */
typedef struct {
    const char *text;
    size_t len, at;
    int depth;    /* groups that are open */
    int is_whole; /* what means something else in Python is an error (dfa.h) */
    PatternTree *tree;
    Error *err;
} PatternParser;

/* 0, or -1 and an Error; the tree is to be freed either way. */
int pattern_parse(PatternTree *tree, const char *text, size_t len, int is_whole, Error *err);
void pattern_tree_free(PatternTree *tree);

/* The tree with ^ before it and $ behind. */
void pattern_tree_anchor(PatternTree *tree);

/*
 * Reads the escape at p, in a class or not: 1 and its code point, or 0 when it is one of \d \w \s
 * and their negations, which are added to set. -1 and an Error for any other.
 */
int pattern_parse_escape(PatternParser *p, int in_class, CodeSet *set, uint32_t *code);

/* Reads the class at p. */
int pattern_parse_class(PatternParser *p, CodeSet *set);

/* ---- tree to NFA ---- */

typedef enum {
    NFA_BYTES, /* a byte of [lo, hi] leads to out; alt: the same from another node */
    NFA_SPLIT, /* goes on at out and at alt */
    NFA_AT_START,
    NFA_AT_END, /* goes on at out, at the start or the end of the string only */
    NFA_ACCEPT, /* the pattern has matched; out: what may follow it */
} NfaKind;

typedef struct {
    uint8_t kind, lo, hi;
    int out, alt; /* nodes; -1: none */
} NfaNode;

enum { NFA_MAX_NODES = 65536 };

typedef struct {
    NfaNode *node;
    int n, cap;
    int start, accept;
    int steps; /* taken to build it */
} Nfa;

/* 0, or -1 and ERR_LIMIT; the NFA is to be freed either way. */
int nfa_build(Nfa *nfa, const PatternTree *tree, Error *err);
void nfa_free(Nfa *nfa);

/* ---- NFA to DFA ---- */

/* Follows sets of nodes; d may have states that lead nowhere or are alike. */
int dfa_from_nfa(Dfa *d, const Nfa *nfa, Error *err);

/* Leaves the smallest automaton for the same strings. */
int dfa_minimise(Dfa *d, Error *err);

/* ---- of a DFA's strings, some ---- */

/* What else must hold of them, as an automaton over the classes of a Dfa's bytes. */
typedef struct DfaRule DfaRule;
struct DfaRule {
    int n_states;
    uint16_t start;
    uint16_t (*step)(const DfaRule *r, uint16_t state, int class); /* or DFA_DEAD */
    int (*ends)(const DfaRule *r, uint16_t state);
};

/* 0; or -1 and d is as it was: ERR_INPUT where no string is left, ERR_LIMIT and too_many. */
int dfa_keep(Dfa *d, const DfaRule *rule, const char *too_many, Error *err);

/* Gives bytes of one class classes of their own where kind differs. It accepts what it did. */
void dfa_tell_apart(Dfa *d, const uint8_t kind[256]);

#endif
