/*
 * tree.h: a draft tree.
 *
 * Node 0 is the root: the last emitted token, not yet processed by the target. Every other node is
 * a guess at what follows its parent. Always true: parent[0] == -1 and 0 <= parent[i] < i; children
 * of one node have different tokens; value never rises from parent to child. tree_order makes the
 * order depth-first, best child first, so a chain is contiguous and the accepted path usually needs
 * no moves.
 */
#ifndef OFFSHOOT_SPEC_TREE_H
#define OFFSHOOT_SPEC_TREE_H

#include <stdint.h>

enum { MAX_TREE_NODES = 64 };

/* Who guessed a node; a bit each, as several may agree. */
enum {
    GUESS_HEAD = 1, /* a draft head; anybody who thinks about what comes */
    GUESS_COPY = 2, /* what the sequence said before */
    GUESS_BOTH = GUESS_HEAD | GUESS_COPY,
};

typedef struct {
    int n; /* nodes, root included; 1 is plain decoding */
    int32_t token[MAX_TREE_NODES];
    int32_t parent[MAX_TREE_NODES];
    int32_t depth[MAX_TREE_NODES]; /* root 0 */
    float value[MAX_TREE_NODES];   /* estimated chance that the node is accepted; root 1 */
    uint8_t from[MAX_TREE_NODES];  /* GUESS_ bits; root 0 */
} Tree;

/* A tree of the root alone. */
void tree_init(Tree *t, int32_t root_token);

/*
 * Adds a child, a head's guess, and returns its index; an existing child with this token is
 * returned as it is. -1 when the tree is full. value is cut to the parent's.
 */
int tree_add(Tree *t, int parent, int32_t token, float value);

/*
 * The same of a guess by `from`, a GUESS_ bit, which an existing child gets too, and the larger
 * value of both; what follows it is then worth as much more.
 */
int tree_join(Tree *t, int parent, int32_t token, float value, uint8_t from);

/* What a node has of its parent's value: its chance, the parent given. 0 where that is 0. */
static inline float tree_share(const Tree *t, int node)
{
    float above = t->value[t->parent[node]];
    return above > 0 ? t->value[node] / above : 0;
}

/* The child of node with this token, or -1. */
int tree_child(const Tree *t, int node, int32_t token);

/* Joins the nodes of `from` below the same root, each with its share of its parent, while t has
 * room.
 */
void tree_merge(Tree *t, const Tree *from);

/* Puts node i of `from`, another tree, at the end of t, below parent; returns its index. */
int tree_append(Tree *t, const Tree *from, int i, int parent);

/*
 * Keeps the max_nodes best nodes by value (ties: the earlier node) and puts them in depth-first
 * order, best child first (ties: the smaller token). As no value rises along a path, the best nodes
 * are a tree.
 */
void tree_order(Tree *t, int max_nodes);

/* Largest depth of a node. */
int tree_depth(const Tree *t);

/* 1 if all that the comment above promises holds and every token is in [0, n_vocab). */
int tree_valid(const Tree *t, int n_vocab);

#endif
