/*
 * grammar.h: what the bytes of an answer may be: an automaton with a stack.
 *
 * Nodes are joined by edges over bytes. A call goes into another part and comes back to where it
 * left, so that a schema may refer to itself. Several ways may be open at a time; each is a thread,
 * a node and the calls above it; those that differ in their calls alone are one. Made once by
 * grammar_build.h, then constant: any number of answers share it. grammar_run.h walks it.
 */
#ifndef OFFSHOOT_TEXT_GRAMMAR_H
#define OFFSHOOT_TEXT_GRAMMAR_H

#include <stddef.h>
#include <stdint.h>

#include "text/dfa.h"

enum { MAX_GRAMMAR_LEVELS = 64 }; /* lists and objects in each other */

typedef enum {
    NODE_RETURN, /* a part is done; where nobody called it, the answer is */
    NODE_BYTES,  /* one byte, by its edges */
    NODE_NAME,   /* the same inside the name of a property (GrammarNames) */
    NODE_NAMES,  /* begins such a name: property lo or a later one may come */
    NODE_STRING, /* a JSON string behind its opening quote: lo to hi characters, then next */
    NODE_TEXT,   /* lo to hi characters of a text that automaton `index` accepts, then next */
    NODE_UNTIL,  /* any text up to and with literal `index`, without literal hi, then next */
    NODE_TOKEN,  /* the token lo, then next */
    NODE_FREE,   /* any tokens up to and with token lo, then next; hi: the answer may end there */
    NODE_CALL,   /* part `body`, then next */
    NODE_REPEAT, /* part `body`, so often that there are lo to hi with the `index` before, next */
    NODE_ANY_OF, /* one of its edges' nodes */
} GrammarNodeKind;

typedef struct {
    uint8_t lo, hi; /* bytes */
    uint32_t to;
} GrammarEdge;

typedef struct {
    uint8_t kind, nests; /* nests: a call into a list or an object */
    uint8_t height;      /* lists and objects in each other that it needs to come to its end */
    uint16_t n_edges;
    uint32_t first_edge; /* by rising byte */
    uint32_t next, body; /* body of NODE_TEXT: 1, its automaton is as grammar_text says */
    int32_t lo, hi;      /* hi -1: no bound. NODE_NAME: its leaves in GrammarNames.leaf */
    /* NODE_STRING: an automaton, -1: none, -2: a name, escapes as canonical JSON has them.
     * NODE_NAME: which names */
    int32_t index;
} GrammarNode;

/*
 * The names of an object's properties, which come in the schema's order, some left out: a name may
 * come when it is not before property k, which is where the object has got to, and no required one
 * lies between.
 */
typedef struct {
    int n;
    uint16_t *next_required; /* [n + 1]: the first required property that is not before; n: none */
    uint16_t *leaf;          /* [n]: properties in the order of the tree of their names */
    uint8_t *height;         /* [n]: of what is behind each name, as a node's */
    uint32_t other;          /* a call of a NODE_STRING for names that are not declared; 0: none */
} GrammarNames;

typedef struct {
    Dfa dfa;
    uint16_t *left; /* [n_states]: characters to the nearest end; UINT16_MAX: there is none */
    uint16_t *near; /* [n_states]: as grammar_near_states */
    int most_left;  /* the most that left has, but for UINT16_MAX */
} GrammarAutomaton;

typedef struct Grammar {
    uint64_t id; /* its own in this process */
    uint32_t start;
    GrammarNode *node; /* node 0: NODE_RETURN */
    uint32_t n_nodes;
    GrammarEdge *edge;
    uint32_t n_edges;
    GrammarNames *names;
    int n_names;
    GrammarAutomaton *automaton;
    int n_automata;
    char **literal;
    int n_literals;
    size_t bytes; /* that all this takes */
    int holders;  /* who share it; used by them alone */
} Grammar;

void grammar_free(Grammar *g);

#endif
