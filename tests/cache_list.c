/* cache_list.c: see cache_list.h. */
#include "tests/cache_list.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/analyzer.h"

/* ---- texts ---- */

static uint64_t mix(uint64_t h, uint64_t x)
{
    Rng r = rng_new(h * 31 + x + 2);
    return rng_next(&r) | 2; /* never POISON */
}

void text_append(Text *t, int32_t token)
{
    assert_true(t->n < MAX_LEN);
    t->token[t->n] = token;
    t->hash[t->n + 1] = mix(t->hash[t->n], (uint64_t)token);
    t->n++;
}

Text text_new(uint64_t salt)
{
    Text t = {.salt = salt};
    t.hash[0] = mix(99, salt);
    return t;
}

int text_common(const Text *a, const Text *b)
{
    int low = 0, high = a->n < b->n ? a->n : b->n;
    while (low < high) {
        int mid = (low + high + 1) / 2;
        if (a->hash[mid] == b->hash[mid])
            low = mid;
        else
            high = mid - 1;
    }
    return a->hash[0] == b->hash[0] ? low : 0;
}

/* ---- the trie that the list stands for ---- */

static Point *add_point(Trie *t, const Text *text, int n, int kept)
{
    for (int i = 0; i < t->n; i++)
        if (t->at[i].text->hash[t->at[i].n] == text->hash[n]) return &t->at[i];
    assert_true(t->n < MAX_POINTS);
    t->at[t->n] = (Point){.text = text, .n = n, .kept = kept};
    return &t->at[t->n++];
}

static int begins_with(const Point *p, const Point *q)
{
    return p->n >= q->n && p->text->hash[q->n] == q->text->hash[q->n];
}

static void trie_links(Trie *t)
{
    for (int i = 0; i < t->n; i++) {
        Point *p = &t->at[i], *parent = NULL;
        for (int j = 0; j < t->n; j++) {
            Point *q = &t->at[j];
            if (begins_with(q, p)) p->pins_here += q->pins;
            if (j != i && begins_with(p, q) && (!parent || q->n > parent->n)) parent = q;
        }
        p->start = parent ? parent->n : 0;
        if (parent) parent->children++;
    }
}

void list_trie(const World *w, Trie *t)
{
    t->n = 0;
    for (int i = 0; i < w->n_kept; i++)
        add_point(t, &w->kept[i].text, w->kept[i].text.n, i);
    for (int i = 0; i < MAX_SEQS; i++)
        if (w->seq[i].node > 0) add_point(t, &w->seq[i].text, w->seq[i].n_node, -1)->pins++;
    for (int i = 0, n = t->n; i < n; i++)
        for (int j = 0; j < i; j++) {
            int c = text_common(t->at[i].text, t->at[j].text);
            if (c > 0 && c < t->at[i].n && c < t->at[j].n) add_point(t, t->at[i].text, c, -1);
        }
    trie_links(t);
}

int list_cells(const Point *p)
{
    return pages_for(p->n) - p->start / PAGE_TOKENS;
}

/* ---- who must go ---- */

static int may_go(const Point *p)
{
    return p->kept >= 0 && (p->children == 1 || (!p->children && !p->pins_here));
}

static double flops(double n)
{
    return n * COST.per_token + n * n / 2 * COST.per_pair;
}

static double saved_per_page(const World *w, const Point *p)
{
    int pages = w->shape.per + (p->children ? 0 : list_cells(p));
    return (flops(p->n) - flops(p->start)) / pages;
}

static double recency(const World *w, const Point *p)
{
    double newest = 0;
    for (int i = 0; i < w->n_kept; i++)
        newest = fmax(newest, w->kept[i].used);
    for (int i = 0; i < MAX_SEQS; i++)
        if (w->seq[i].node > 0) newest = fmax(newest, w->seq[i].node_used);
    double age = newest - w->kept[p->kept].used;
    return age > 1e-3 ? 1 / age : 1e3;
}

static double scaled(double x, double least, double most)
{
    return most > least ? (x - least) / (most - least) : 0;
}

/* Worth of each point that may go. */
static void worths(const World *w, const Trie *t, double *worth)
{
    double r[MAX_POINTS] = {0}, s[MAX_POINTS] = {0}, least_r = INFINITY, most_r = 0,
           least_s = INFINITY;
    double most_s = 0;
    for (int i = 0; i < t->n; i++) {
        if (!may_go(&t->at[i])) continue;
        r[i] = recency(w, &t->at[i]);
        s[i] = saved_per_page(w, &t->at[i]);
        least_r = fmin(least_r, r[i]), most_r = fmax(most_r, r[i]);
        least_s = fmin(least_s, s[i]), most_s = fmax(most_s, s[i]);
    }
    for (int i = 0; i < t->n; i++) {
        worth[i] = 0;
        if (w->alpha > 0 && may_go(&t->at[i]))
            worth[i] = scaled(r[i], least_r, most_r) + w->alpha * scaled(s[i], least_s, most_s);
    }
}

int list_slot_holders(const World *w, int32_t slot)
{
    int n = 0;
    for (int i = 0; i < w->n_kept; i++)
        n += w->kept[i].slot == slot;
    for (int i = 0; i < MAX_SEQS; i++)
        n += (w->seq[i].slot == slot) + (w->seq[i].src == slot);
    return n;
}

/* The point that goes next, or NULL. In need at last the oldest that nobody else holds. */
static const Point *next_to_go(const World *w, const Trie *t, int in_need)
{
    double worth[MAX_POINTS];
    const Point *pick = NULL;
    worths(w, t, worth);
    for (int need = 0; need <= in_need && !pick; need++)
        for (int i = 0; i < t->n; i++) {
            const Point *p = &t->at[i];
            if (need ? p->kept < 0 || list_slot_holders(w, w->kept[p->kept].slot) > 1 : !may_go(p))
                continue;
            double gain = pick && !need ? worth[i] - worth[pick - t->at] : 0;
            if (!pick || gain < 0 ||
                (gain == 0 && w->kept[p->kept].touched < w->kept[pick->kept].touched))
                pick = p;
        }
    return pick;
}

void list_tell_used(World *w, const Text *t, int n, double used)
{
    for (int i = 0; i < MAX_SEQS; i++)
        if (w->seq[i].node > 0 && w->seq[i].text.hash[w->seq[i].n_node] == t->hash[n])
            w->seq[i].node_used = used;
}

void list_forget(World *w, int kept)
{
    list_tell_used(w, &w->kept[kept].text, w->kept[kept].text.n, w->kept[kept].used);
    w->kept[kept] = w->kept[--w->n_kept];
}

void list_follow(World *w, int in_need)
{
    static Trie t;
    CacheStats s = cache_stats(w->cache);
    while (w->evicted_states + w->evicted_nodes < s.evicted_states + s.evicted_nodes) {
        list_trie(w, &t);
        const Point *p = next_to_go(w, &t, in_need);
        if (!p) fail_msg("something went that nobody may let go");
        w->seen->went_in_need += !may_go(p);
        if (p->children || p->pins_here)
            w->evicted_states++, w->seen->evicted_states++;
        else
            w->evicted_nodes++, w->seen->evicted_nodes++;
        list_forget(w, p->kept);
    }
    assert_int_equal(w->evicted_states, s.evicted_states);
    assert_int_equal(w->evicted_nodes, s.evicted_nodes);
}

int list_nothing_can_go(const World *w, int in_need)
{
    static Trie t;
    list_trie(w, &t);
    return !next_to_go(w, &t, in_need);
}

int list_find(const World *w, const Text *t, int n)
{
    for (int i = 0; i < w->n_kept; i++)
        if (w->kept[i].text.n == n && w->kept[i].text.hash[n] == t->hash[n]) return i;
    return -1;
}
