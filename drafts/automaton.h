/*
 * automaton.h: a suffix automaton over tokens, built one by one.
 *
 * Each state stands for all sequences of tokens that occur at the same places of the text; an edge
 * leads from a sequence to that with one token more. So the longest end of the text that occurred
 * before, and what followed it how often, are at hand at any time.
 * Source: Blumer et al., "The smallest automaton recognizing the subwords of a text", 1985; its use
 * for drafts, SAM decoding, arXiv 2411.10666.
 */
#ifndef OFFSHOOT_DRAFTS_AUTOMATON_H
#define OFFSHOOT_DRAFTS_AUTOMATON_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    int32_t len;   /* of its longest sequence */
    int32_t link;  /* the state of the longest end of its sequences that occurs elsewhere; or -1 */
    int32_t count; /* places where they occur: about, where many ends of the text are alike */
    int32_t edge;  /* its first, -1: none */
} AutomatonState;

typedef struct {
    int32_t from, token, to;
    int32_t next;  /* of the same state, older; or -1 */
    int32_t chain; /* of the same hash; or -1 */
} AutomatonEdge;

/* State 0 is the empty sequence's. */
typedef struct {
    AutomatonState *state; /* [2 max_tokens] */
    AutomatonEdge *edge;   /* [3 max_tokens] */
    int32_t *head;         /* [n_heads], of chains */
    size_t n_heads;
    uint64_t hash_factor; /* odd, random */
    int hash_shift;
    int max_tokens, n_tokens, n_states, n_edges;
    int32_t last; /* the whole text's */
} Automaton;

/* Takes memory for texts of up to max_tokens >= 1, about 110 bytes each; touches none of it. */
void automaton_open(Automaton *a, int max_tokens);
void automaton_close(Automaton *a);

/* The empty text. */
void automaton_clear(Automaton *a);

/* The text goes on; n_tokens < max_tokens. Amortised constant time. */
void automaton_add(Automaton *a, int32_t token);

/*
 * The state of the longest end of the text that occurred before, of which that is the longest
 * sequence; 0: none did.
 */
int32_t automaton_match(const Automaton *a);

#endif
