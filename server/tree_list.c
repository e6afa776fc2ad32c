/* tree_list.c: see tree_list.h. */
#include "server/tree_list.h"

#include "base/mem.h"
#include "server/json_out.h"

static void add(TreeList *list, TreeNode node)
{
    if (list->n == list->cap) {
        list->cap = list->cap ? 2 * list->cap : 64;
        list->node = mem_realloc(list->node, (size_t)list->cap, sizeof *list->node);
    }
    list->node[list->n++] = node;
}

void tree_list_add(TreeList *list, const StepTree *t)
{
    for (int i = 0; i < t->n; i++)
        add(list, (TreeNode){.token = t->token[i],
                             .parent = (int16_t)t->parent[i],
                             .fate = t->kept[i] ? NODE_KEPT : NODE_DROPPED});
    add(list, (TreeNode){.token = t->next, .fate = NODE_NEXT});
}

void tree_list_clear(TreeList *list)
{
    list->n = 0;
}

void tree_list_free(TreeList *list)
{
    mem_free(list->node);
}

void tree_list_write(const TreeList *list, json_t *(*text)(const void *ctx, int32_t token),
                     const void *ctx, StrBuf *out)
{
    strbuf_puts(out, "[");
    for (int i = 0; i < list->n; i++) {
        json_t *token = json_array(), *parent = json_array(), *kept = json_array();
        if (i) strbuf_puts(out, ",");
        for (; list->node[i].fate != NODE_NEXT; i++) {
            const TreeNode *node = &list->node[i];
            json_array_append_new(token, text(ctx, node->token));
            json_array_append_new(parent, json_integer(node->parent));
            json_array_append_new(kept, json_integer(node->fate));
        }
        int32_t next = list->node[i].token;
        json_write(out, "{s:o, s:o, s:o, s:o}", "token", token, "parent", parent, "kept", kept,
                   "next", next < 0 ? json_null() : text(ctx, next));
    }
    strbuf_puts(out, "]");
}
