/* radix.c: see radix.h. Children are found by a hash of parent and first token. */
#include "engine/radix.h"

#include <assert.h>
#include <string.h>

#include "base/mem.h"

static const Node UNLINKED = {.parent = -1,
                              .first_child = -1,
                              .next = -1,
                              .prev = -1,
                              .hash_next = -1,
                              .first_cell = -1,
                              .last_cell = -1,
                              .slot = -1,
                              .older = -1,
                              .newer = -1};

static uint32_t bucket_of(const Radix *r, int32_t parent, uint64_t salt, int32_t token)
{
    uint64_t h = (uint64_t)(uint32_t)parent << 32 | (uint32_t)token;
    h = (h ^ (parent == RADIX_ROOT ? salt : 0)) * 0x9E3779B97F4A7C15u;
    h ^= h >> 32;
    return (uint32_t)h & (r->n_buckets - 1);
}

static int32_t token_at(const Radix *r, int32_t cell, int pos)
{
    return r->tokens[cell].at[pos % PAGE_TOKENS];
}

static int32_t first_token(const Radix *r, int32_t node)
{
    return token_at(r, r->node[node].first_cell, r->node[node].start);
}

static void start_lists(Radix *r)
{
    for (int i = 1; i < r->max_nodes; i++) {
        r->node[i].parent = -1;
        r->node[i].next = i + 1 < r->max_nodes ? i + 1 : -1;
    }
    for (int i = 0; i < r->max_cells; i++)
        r->cell[i].next = i + 1 < r->max_cells ? i + 1 : -1;
    for (uint32_t i = 0; i < r->n_buckets; i++)
        r->hash[i] = -1;
    r->free_node = r->max_nodes > 1 ? 1 : -1;
    r->free_cell = r->max_cells > 0 ? 0 : -1;
    r->n_free_cells = r->max_cells;
}

void radix_open(Radix *r, int max_nodes, int max_cells)
{
    assert(max_nodes >= 1 && max_cells >= 0);
    *r = (Radix){.max_nodes = max_nodes, .max_cells = max_cells, .oldest = -1, .newest = -1};
    for (r->n_buckets = 16; r->n_buckets < (uint32_t)max_nodes; r->n_buckets *= 2)
        ;
    r->node = mem_alloc((size_t)max_nodes, sizeof *r->node);
    r->cell = mem_alloc((size_t)max_cells, sizeof *r->cell);
    r->tokens = mem_alloc((size_t)max_cells, sizeof *r->tokens);
    r->hash = mem_alloc(r->n_buckets, sizeof *r->hash);
    start_lists(r);
    r->node[RADIX_ROOT] = UNLINKED;
}

void radix_close(Radix *r)
{
    mem_free(r->node);
    mem_free(r->cell);
    mem_free(r->tokens);
    mem_free(r->hash);
    *r = (Radix){0};
}

void radix_copy(Radix *to, const Radix *from)
{
    Radix own = *to;
    assert(to->max_nodes == from->max_nodes && to->max_cells == from->max_cells);
    memcpy(own.node, from->node, (size_t)from->max_nodes * sizeof *own.node);
    memcpy(own.cell, from->cell, (size_t)from->max_cells * sizeof *own.cell);
    memcpy(own.tokens, from->tokens, (size_t)from->max_cells * sizeof *own.tokens);
    memcpy(own.hash, from->hash, from->n_buckets * sizeof *own.hash);
    *to = *from;
    to->node = own.node;
    to->cell = own.cell;
    to->tokens = own.tokens;
    to->hash = own.hash;
}

/* ---- children, by age and by first token ---- */

static void hash_in(Radix *r, int32_t node)
{
    Node *n = &r->node[node];
    uint32_t b = bucket_of(r, n->parent, n->salt, first_token(r, node));
    n->hash_next = r->hash[b];
    r->hash[b] = node;
}

static void hash_out(Radix *r, int32_t node)
{
    const Node *n = &r->node[node];
    int32_t *at = &r->hash[bucket_of(r, n->parent, n->salt, first_token(r, node))];
    while (*at != node)
        at = &r->node[*at].hash_next;
    *at = n->hash_next;
}

/* Node's edge is in place, its parent set: it becomes one of the parent's children. */
static void link_child(Radix *r, int32_t node)
{
    Node *n = &r->node[node], *p = &r->node[n->parent];
    n->prev = -1;
    n->next = p->first_child;
    if (n->next >= 0) r->node[n->next].prev = node;
    p->first_child = node;
    p->n_children++;
    hash_in(r, node);
}

static void unlink_child(Radix *r, int32_t node)
{
    Node *n = &r->node[node], *p = &r->node[n->parent];
    hash_out(r, node);
    if (n->next >= 0) r->node[n->next].prev = n->prev;
    if (n->prev >= 0)
        r->node[n->prev].next = n->next;
    else
        p->first_child = n->next;
    p->n_children--;
}

static int32_t find_child(const Radix *r, int32_t parent, uint64_t salt, int32_t token)
{
    int32_t i = r->hash[bucket_of(r, parent, salt, token)];
    for (; i >= 0; i = r->node[i].hash_next)
        if (r->node[i].parent == parent && first_token(r, i) == token &&
            (parent != RADIX_ROOT || r->node[i].salt == salt))
            return i;
    return -1;
}

static void age_out(Radix *r, int32_t node)
{
    const Node *n = &r->node[node];
    *(n->older >= 0 ? &r->node[n->older].newer : &r->oldest) = n->newer;
    *(n->newer >= 0 ? &r->node[n->newer].older : &r->newest) = n->older;
}

static void age_in(Radix *r, int32_t node, int32_t after)
{
    Node *n = &r->node[node];
    n->older = after;
    n->newer = after >= 0 ? r->node[after].newer : r->oldest;
    *(n->older >= 0 ? &r->node[n->older].newer : &r->oldest) = node;
    *(n->newer >= 0 ? &r->node[n->newer].older : &r->newest) = node;
}

void radix_touch(Radix *r, int32_t node, double now)
{
    if (node == RADIX_ROOT) return;
    age_out(r, node);
    age_in(r, node, r->newest);
    r->node[node].used = now;
}

/* ---- nodes and cells ---- */

static int32_t take_node(Radix *r)
{
    int32_t i = r->free_node;
    assert(i >= 0);
    r->free_node = r->node[i].next;
    r->n_nodes++;
    r->node[i] = UNLINKED;
    return i;
}

static void free_node(Radix *r, int32_t i)
{
    r->node[i].parent = -1;
    r->node[i].next = r->free_node;
    r->free_node = i;
    r->n_nodes--;
}

static int32_t take_cell(Radix *r)
{
    int32_t i = r->free_cell;
    assert(i >= 0);
    r->free_cell = r->cell[i].next;
    r->n_free_cells--;
    return i;
}

/* n cells that hang together; they are taken again in the same order, one beside the other. */
static void free_cells(Radix *r, int32_t first, int32_t last, int n)
{
    r->cell[last].next = r->free_cell;
    r->free_cell = first;
    r->n_free_cells += n;
}

static void append_cell(Radix *r, Node *n, int32_t cell)
{
    r->cell[cell].next = -1;
    if (n->last_cell >= 0)
        r->cell[n->last_cell].next = cell;
    else
        n->first_cell = cell;
    n->last_cell = cell;
    n->n_cells++;
}

int radix_cells_for(int start, int end)
{
    return pages_for(end) - start / PAGE_TOKENS;
}

/* ---- the tree ---- */

/* The position up to which token[0..n) agrees with node's edge, at least its start. */
static int agree(const Radix *r, int32_t node, const int32_t *token, int n)
{
    const Node *e = &r->node[node];
    int pos = e->start, end = n < e->end ? n : e->end;
    for (int32_t c = e->first_cell; pos < end; c = r->cell[c].next) {
        int first = pos / PAGE_TOKENS * PAGE_TOKENS, stop = first + PAGE_TOKENS;
        /* of a whole cell the earlier tokens agree too, or we would not be here */
        if (stop <= end && !memcmp(&r->tokens[c], token + first, sizeof r->tokens[c])) {
            pos = stop;
            continue;
        }
        for (stop = stop < end ? stop : end; pos < stop; pos++)
            if (token_at(r, c, pos) != token[pos]) return pos;
    }
    return pos;
}

int radix_step(const Radix *r, uint64_t salt, const int32_t *token, int n, RadixWalk *w)
{
    if (w->child >= 0 || w->n == n) return 0;
    int32_t child = find_child(r, w->node, salt, token[w->n]);
    if (child < 0) return 0;
    w->n = agree(r, child, token, n);
    if (w->n < r->node[child].end) {
        w->child = child;
        return 0;
    }
    w->node = child;
    return 1;
}

int32_t radix_split(Radix *r, int32_t node, int n, int32_t *shared)
{
    int32_t upper = take_node(r);
    Node *u = &r->node[upper], *low = &r->node[node];
    assert(low->start < n && n < low->end);
    unlink_child(r, node);
    u->parent = low->parent;
    u->start = low->start;
    u->end = low->start = n;
    u->salt = low->salt;
    u->used = low->used;
    u->pins_here = low->pins_here;
    for (int left = n / PAGE_TOKENS - u->start / PAGE_TOKENS; left > 0; left--) {
        int32_t c = low->first_cell;
        low->first_cell = r->cell[c].next;
        low->n_cells--;
        append_cell(r, u, c);
    }
    *shared = -1;
    if (n % PAGE_TOKENS) {
        int32_t c = take_cell(r);
        r->cell[c] = r->cell[low->first_cell];
        r->tokens[c] = r->tokens[low->first_cell];
        *shared = r->cell[c].page;
        append_cell(r, u, c);
    }
    age_in(r, upper, low->older);
    low->parent = upper;
    link_child(r, upper);
    link_child(r, node);
    return upper;
}

int32_t radix_add(Radix *r, uint64_t salt, int32_t parent, const int32_t *token, int n,
                  const int32_t *page)
{
    int32_t leaf = take_node(r);
    Node *l = &r->node[leaf];
    l->parent = parent;
    l->start = r->node[parent].end;
    l->end = n;
    l->salt = salt;
    assert(l->start < n);
    for (int b = l->start / PAGE_TOKENS; b * PAGE_TOKENS < n; b++) {
        int32_t c = take_cell(r);
        int count = n - b * PAGE_TOKENS < PAGE_TOKENS ? n - b * PAGE_TOKENS : PAGE_TOKENS;
        memcpy(r->tokens[c].at, token + (size_t)b * PAGE_TOKENS, (size_t)count * sizeof *token);
        r->cell[c].page = page[b];
        append_cell(r, l, c);
    }
    link_child(r, leaf);
    age_in(r, leaf, r->newest);
    return leaf;
}

void radix_join(Radix *r, int32_t node, int32_t *shared)
{
    Node *u = &r->node[node], *low = &r->node[u->first_child];
    int32_t child = u->first_child;
    assert(node != RADIX_ROOT && u->n_children == 1 && !u->pins);
    unlink_child(r, child);
    unlink_child(r, node);
    *shared = -1;
    int own = u->end / PAGE_TOKENS - u->start / PAGE_TOKENS; /* cells that child has not */
    int32_t c = u->first_cell, last = -1;
    for (int i = 0; i < own; i++) {
        last = c;
        c = r->cell[c].next;
    }
    if (c >= 0) { /* both have a page; the child's holds all rows */
        *shared = r->cell[c].page;
        free_cells(r, c, c, 1);
    }
    if (last >= 0) {
        r->cell[last].next = low->first_cell;
        low->first_cell = u->first_cell;
        low->n_cells += own;
    }
    low->start = u->start;
    low->parent = u->parent;
    age_out(r, node);
    free_node(r, node);
    link_child(r, child);
}

void radix_remove(Radix *r, int32_t leaf)
{
    Node *l = &r->node[leaf];
    assert(leaf != RADIX_ROOT && !l->n_children && !l->pins_here);
    unlink_child(r, leaf);
    age_out(r, leaf);
    free_cells(r, l->first_cell, l->last_cell, l->n_cells);
    free_node(r, leaf);
}
