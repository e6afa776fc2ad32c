/*
 * tree_list.h: the trees that the steps of an answer verified, for the clients that ask for them.
 */
#ifndef OFFSHOOT_SERVER_TREE_LIST_H
#define OFFSHOOT_SERVER_TREE_LIST_H

#include <jansson.h>

#include "base/strbuf.h"
#include "engine/engine.h"

/* What a node was to its step. NODE_NEXT is none: the token that was chosen behind the kept path.
 */
typedef enum { NODE_DROPPED, NODE_KEPT, NODE_NEXT } NodeFate;

typedef struct {
    int32_t token; /* of NODE_NEXT: -1 when there was none to choose */
    int16_t parent, fate;
} TreeNode;

/* Trees one after another, each ended by its NODE_NEXT. */
typedef struct {
    TreeNode *node; /* [n] */
    int n, cap;
} TreeList;

void tree_list_add(TreeList *list, const StepTree *t);
void tree_list_clear(TreeList *list);
void tree_list_free(TreeList *list);

/*
 * Appends the trees as a list of objects {token, parent, kept, next}, with lists of an entry for
 * each node. text gives a token as JSON.
 */
void tree_list_write(const TreeList *list, json_t *(*text)(const void *ctx, int32_t token),
                     const void *ctx, StrBuf *out);

#endif
