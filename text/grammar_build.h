/*
 * grammar_build.h: makes a Grammar, node by node, from the end to the beginning: a node knows what
 * follows it.
 */
#ifndef OFFSHOOT_TEXT_GRAMMAR_BUILD_H
#define OFFSHOOT_TEXT_GRAMMAR_BUILD_H

#include "base/error.h"
#include "text/grammar.h"

enum {
    MAX_GRAMMAR_NODES = 1 << 17,
    MAX_GRAMMAR_AUTOMATON_STATES = 16384,
    MAX_GRAMMAR_WAYS = 1024, /* of grammar_any_of */
};

typedef struct {
    Grammar *g;
    uint32_t cap_nodes, cap_edges;
    int n_states;     /* of all automata */
    int is_full;      /* a limit was met: nodes are 0 from then on */
    uint32_t *string; /* by their hash, nodes of strings, which all that are alike share; 0: free */
    int n_strings;
} GrammarBuilder;

void grammar_build_begin(GrammarBuilder *b);

/* The grammar that starts with node start, or NULL and ERR_LIMIT or ERR_INPUT. Ends the building.
 */
Grammar *grammar_build_end(GrammarBuilder *b, uint32_t start, Error *err);

/* Fills the nodes' heights; grammar_build_end does. */
void grammar_measure(Grammar *g);

/* Instead of grammar_build_end. */
void grammar_build_drop(GrammarBuilder *b);

/* Each adds a node and returns it. */
uint32_t grammar_node(GrammarBuilder *b, GrammarNode node);
uint32_t grammar_bytes(GrammarBuilder *b, const GrammarEdge *edge, int n);
uint32_t grammar_range(GrammarBuilder *b, uint8_t lo, uint8_t hi, uint32_t next);
uint32_t grammar_literal(GrammarBuilder *b, const char *text, size_t len, uint32_t next);
uint32_t grammar_call(GrammarBuilder *b, uint32_t body, uint32_t next);
uint32_t grammar_any_of(GrammarBuilder *b, const uint32_t *node, int n);
uint32_t grammar_repeat(GrammarBuilder *b, uint32_t body, int before, int lo, int hi,
                        uint32_t next);

/* Characters lo to hi (-1: any number) of a JSON string, without its opening quote; a call. */
uint32_t grammar_string(GrammarBuilder *b, int automaton, int lo, int hi, uint32_t next);

/*
 * Characters lo to hi (-1: any number) of a text that the automaton accepts. is_open: behind a
 * letter it takes whatever has no '<' and no control character; that is for speed alone.
 */
uint32_t grammar_text(GrammarBuilder *b, int automaton, int lo, int hi, int is_open, uint32_t next);

/*
 * Any text that ends at its first literal. never: what may not come in it, NULL: nothing; its first
 * byte stands before the text. Both begin with '<', never behind its first byte.
 */
uint32_t grammar_until(GrammarBuilder *b, const char *literal, const char *never, uint32_t next);

/* Takes the automaton, also on failure: its index, or -1 and ERR_LIMIT. */
int grammar_automaton(GrammarBuilder *b, Dfa *dfa, Error *err);

/* Texts that a pattern matches as a whole. 0 and an Error of pattern_compile_whole's, or the above.
 */
uint32_t grammar_pattern(GrammarBuilder *b, const char *pattern, size_t len, Error *err);

/* One of n texts, each with the node after it. Sorts them. Of equal texts one counts. */
typedef struct {
    const char *text;
    size_t len;
    uint32_t next;
    int property; /* for grammar_names */
} GrammarWord;
uint32_t grammar_words(GrammarBuilder *b, GrammarWord *word, int n);

/*
 * The names of n properties, each text with what ends it; required[n]. other: as in GrammarNames.
 * To be begun by grammar_name_from.
 */
uint32_t grammar_names(GrammarBuilder *b, GrammarWord *word, int n, const uint8_t *required,
                       uint32_t other);

/* A name of property k or a later one. */
uint32_t grammar_name_from(GrammarBuilder *b, uint32_t names, int k);

#endif
