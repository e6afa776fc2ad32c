/*
 * grammar_walk.h: threads through a grammar; for grammar_run.c and its mask alone.
 */
#ifndef OFFSHOOT_TEXT_GRAMMAR_WALK_H
#define OFFSHOOT_TEXT_GRAMMAR_WALK_H

#include "text/grammar.h"

enum {
    MAX_GRAMMAR_THREADS = 2048,
    MAX_GRAMMAR_FRAMES = 65536,  /* of a sequence */
    MAX_TOKEN_FRAMES = 16384,    /* that one token may make, whatever others have made */
    MAX_GRAMMAR_STEPS = 3 << 20, /* of threads, for one mask or one token */
};

/*
 * A call that has not come back. Frame 0 is nobody. Node 0: two frames as one, parent and other; a
 * part that both have called is walked once and comes back to both.
 */
typedef struct {
    uint32_t node, parent, other;
    uint16_t count; /* NODE_REPEAT: how many there are */
    uint16_t level;
    uint64_t hash; /* of all this, with what is above */
} GrammarFrame;

typedef struct {
    uint32_t node, frame;
    uint16_t at;    /* of an automaton, a literal, or the property that a name may be from on */
    uint16_t count; /* characters of a bounded string; of the literal that may not come */
    uint32_t sub;   /* inside an escape or a character of a string; see grammar_walk.c */
} GrammarThread;

/*
 * Where an answer is. No thread: it can not be there. No two threads differ in their frame alone.
 * is_cut: a limit was met, and more ways may be open than these; nothing can be said of it.
 */
typedef struct {
    int n, is_cut;
    GrammarThread thread[MAX_GRAMMAR_THREADS];
} GrammarState;

/* By which threads of the state that is made are found again. */
typedef struct GrammarFinder GrammarFinder;

GrammarFinder *grammar_finder_open(void);
void grammar_finder_close(GrammarFinder *f);

/* Where the end of a string leads that many have called: found once for all tokens that end it. */
typedef struct {
    uint32_t frame; /* 0: none yet */
    GrammarState state;
} GrammarReturn;

/* A run's frames: those of states, and above them what is tried. */
typedef struct {
    const Grammar *g;
    GrammarFrame *frame; /* [MAX_GRAMMAR_FRAMES] */
    uint32_t n_frames, most;
    GrammarFinder *finder;
    uint64_t n_steps, most_steps;
    GrammarReturn *end; /* NULL, or of frames below n_kept, which stay; its own are from most on */
    uint32_t n_kept;
} GrammarWalk;

/* out: the same as s, of which only what is used is copied. */
void grammar_copy(GrammarState *out, const GrammarState *s);

/* out: the threads that begin at node, called by nobody. */
void grammar_begin(GrammarWalk *w, uint32_t node, GrammarState *out);

/* out: where `from` gets by a byte. They differ. */
void grammar_byte(GrammarWalk *w, const GrammarState *from, uint8_t byte, GrammarState *out);

/* out: where `from` gets by a token that is no text, or that a NODE_FREE may have. */
void grammar_token(GrammarWalk *w, const GrammarState *from, int32_t token, GrammarState *out);

/* 1: the answer may end here. */
int grammar_may_end(const Grammar *g, const GrammarState *s);

/*
 * Characters that a plain string may go on by, -1: any number; 0: no such string is open.
 * are_texts: the same of texts (grammar_text), by characters other than '<'.
 */
int grammar_plain_room(const Grammar *g, const GrammarState *s, int are_texts);

/* 1: any bytes but '<' may follow, in a text that goes up to a literal. */
int grammar_is_free_text(const Grammar *g, const GrammarState *s);

#endif
