/*
 * radix.h: a radix tree over token ids; for engine/cache.c alone.
 *
 * A node stands for a prefix: the tokens of the edges from the root to it. Its edge holds tokens
 * [start, end) in cells, one for each page that they touch; the first cell of an edge that starts
 * inside a page holds that page's earlier tokens too, and its page their rows. So the pages of a
 * prefix are those of the deepest edge for each page. Cells hold page ids; counting who holds a
 * page is the caller's.
 */
#ifndef OFFSHOOT_ENGINE_RADIX_H
#define OFFSHOOT_ENGINE_RADIX_H

#include <stdint.h>

#include "engine/cache.h"

enum { RADIX_ROOT = 0 };

typedef struct {
    int32_t page, next; /* next cell of the edge, or -1 */
} Cell;

typedef struct {
    int32_t at[PAGE_TOKENS]; /* by position: a cache line, apart from who only wants pages */
} CellTokens;

typedef struct {
    int32_t parent; /* -1: the root, or not in use */
    int32_t first_child, next, prev;
    int32_t hash_next;
    int n_children;
    int start, end;
    int32_t first_cell, last_cell;
    int n_cells;
    int32_t slot;  /* the state after its last token, or -1 */
    int pins;      /* on it */
    int pins_here; /* on it and on all nodes below */
    double used;   /* seconds */
    uint64_t salt;
    int32_t older, newer; /* by use, of all but the root; -1 at the ends */
} Node;

typedef struct {
    int max_nodes, max_cells;
    Node *node;         /* [max_nodes], 0 is the root */
    Cell *cell;         /* [max_cells] */
    CellTokens *tokens; /* [max_cells] */
    int32_t *hash;      /* [n_buckets] first child in a bucket, or -1 */
    uint32_t n_buckets;
    int32_t free_node, free_cell; /* lists by next, -1: none */
    int n_nodes, n_free_cells;    /* n_nodes without the root */
    int32_t oldest, newest;
} Radix;

void radix_open(Radix *r, int max_nodes, int max_cells);
void radix_close(Radix *r);

/* Makes `to`, opened alike, the same tree as `from`. */
void radix_copy(Radix *to, const Radix *from);

/* How far tokens go. */
typedef struct {
    int32_t node;  /* the deepest whose edge they go to the end of */
    int32_t child; /* below it, the one that they go into but not through, or -1 */
    int n;         /* tokens that agree */
} RadixWalk;

/* One edge further on the way of token[0..n), from w; 0: there is none, or it parts inside. */
int radix_step(const Radix *r, uint64_t salt, const int32_t *token, int n, RadixWalk *w);

/*
 * Makes a node of the first n - start tokens of node's edge, start < n < end, between it and its
 * parent; returns it. Where n lies inside a page both edges have it: *shared is its id, else -1.
 * Takes a node and at most a cell, which must be free.
 */
int32_t radix_split(Radix *r, int32_t node, int n, int32_t *shared);

/*
 * A leaf below parent for token[end of parent..n), in page[], one for each page of token[0..n).
 * Takes a node and the cells of radix_cells_for.
 */
int32_t radix_add(Radix *r, uint64_t salt, int32_t parent, const int32_t *token, int n,
                  const int32_t *page);
int radix_cells_for(int start, int end);

/* Joins node's edge with that of its only child, which stays; *shared is a page given up, or -1. */
void radix_join(Radix *r, int32_t node, int32_t *shared);

/* Takes a leaf out. Its pages are still in its cells until then. */
void radix_remove(Radix *r, int32_t leaf);

void radix_touch(Radix *r, int32_t node, double now);

#endif
