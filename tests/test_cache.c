/*
 * test_cache.c: the prefix cache and the frames against a plain list of what was kept.
 *
 * Sequences live as engine/prefix.c has them: they find, pin, share, copy, claim, keep and let go;
 * but a row of KV is the hash of the tokens up to it, and so is a state. Memory is one array, as
 * the engine's is, so whoever writes where he should not is seen. The list (cache_list.h) tells who
 * has to go.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/cache_list.h"

#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
enum { OPERATIONS = 100000 };
#else
enum { OPERATIONS = 1000000 };
#endif

static const uint64_t SEED = 61;

/* ---- texts ---- */

static int min_int(int a, int b)
{
    return a < b ? a : b;
}

/* What was said before, up to some token, and then something else, or more, or nothing. */
static Text random_text(World *w)
{
    Rng *r = &w->rng;
    const Seq *s = &w->seq[rng_int(r, MAX_SEQS)];
    const Text *from = &w->history[rng_int(r, HISTORY)];
    if (s->runs && rng_int(r, 4) == 0) from = &s->text;
    Text t = text_new(rng_int(r, 10) ? from->salt : (uint64_t)rng_int(r, 2) * 7);
    int n = rng_int(r, 3) ? rng_int(r, from->n + 1) : from->n, most = MAX_LEN - 16 - n;
    if (rng_int(r, 12) == 0) n = 0;
    for (int i = 0; i < n && t.n < MAX_LEN - 16; i++)
        text_append(&t, from->token[i]);
    int more = most > 0 && rng_int(r, 3) ? rng_int(r, min_int(most, 60) + 1) : 0;
    for (int i = 0; i < more; i++)
        text_append(&t, rng_int(r, 2));
    if (!t.n) text_append(&t, 0);
    return t;
}

static void remember(World *w, const Text *t)
{
    w->history[w->next_history++ % HISTORY] = *t;
}

/* ---- memory ---- */

static uint64_t *row_at(World *w, int32_t page, int pos)
{
    return &w->bytes[pages_place(w->frames, page)][pos % PAGE_TOKENS];
}

static uint64_t *state_at(World *w, int32_t slot)
{
    return &w->bytes[(size_t)slot * (size_t)w->shape.per][0];
}

static void poison(World *w, int32_t place)
{
    for (int i = 0; i < PAGE_TOKENS; i++)
        w->bytes[place][i] = POISON;
}

static void page_moved(void *ctx, const PageMove *move)
{
    World *w = ctx;
    assert_int_equal(pages_place(w->frames, move->page), move->to);
    memcpy(w->bytes[move->to], w->bytes[move->from], sizeof w->bytes[0]);
    poison(w, move->from);
    w->seen->moves++;
}

/* States that are the cache's alone: any of them can make an empty frame. */
static int states_to_go(const World *w)
{
    int n = 0;
    for (int i = 0; i < w->n_kept; i++)
        n += list_slot_holders(w, w->kept[i].slot) == 1;
    return n;
}

static int claim_pages(World *w, int n, int32_t *page)
{
    int failed = cache_claim_pages(w->cache, n, page);
    list_follow(w, 1);
    if (failed) assert_true(pages_free_count(w->frames) + states_to_go(w) * w->shape.per < n);
    w->seen->no_pages += failed != 0;
    for (int i = 0; i < n && !failed; i++)
        poison(w, pages_place(w->frames, page[i]));
    return failed;
}

static int claim_slots(World *w, int n, int32_t *slot)
{
    int got = cache_claim_slots(w->cache, n, slot), left = slots_free_count(w->frames);
    list_follow(w, 1);
    if (got < n) assert_int_equal(left + states_to_go(w), 0);
    w->seen->no_slots += got < n;
    w->seen->at_max_slots += got < n && frames_empty(w->frames) > 0;
    for (int i = 0; i < got; i++)
        for (int k = 0; k < w->shape.per; k++)
            poison(w, slot[i] * w->shape.per + k);
    return got;
}

static void expect_rows(World *w, const Text *t, int n, const int32_t *page)
{
    for (int i = 0; i < n; i++)
        if (*row_at(w, page[i / PAGE_TOKENS], i) != t->hash[i + 1])
            fail_msg("row %d of %d is not this prefix's", i, n);
}

/* ---- finding ---- */

/* What is found is what the list has, and its bytes are the prefix's. */
static CacheHit find(World *w, const Text *t)
{
    CacheHit hit = cache_find(w->cache, t->salt, t->token, t->n);
    int best = -1, matched = 0;
    for (int i = 0; i < w->n_kept; i++) {
        int c = text_common(&w->kept[i].text, t), n = w->kept[i].text.n;
        if (c > matched) matched = c;
        if (c == n && (best < 0 || n > w->kept[best].text.n)) best = i;
    }
    for (int i = 0; i < MAX_SEQS; i++) {
        int c = w->seq[i].node > 0 ? min_int(text_common(&w->seq[i].text, t), w->seq[i].n_node) : 0;
        if (c > matched) matched = c;
    }
    assert_int_equal(hit.n, best < 0 ? 0 : w->kept[best].text.n);
    assert_int_equal(hit.node, best < 0 ? 0 : w->kept[best].node);
    assert_int_equal(hit.slot, best < 0 ? -1 : w->kept[best].slot);
    assert_int_equal(hit.matched, matched);
    assert_int_equal(hit.branch, matched - hit.n >= MIN_BRANCH ? matched : 0);
    if (hit.n) {
        int32_t page[MAX_SEQ_PAGES];
        cache_pages(w->cache, hit.node, hit.n, page);
        expect_rows(w, t, hit.n, page);
        if (*state_at(w, hit.slot) != t->hash[hit.n]) fail_msg("a state of other tokens");
    }
    w->seen->hits += hit.n > 0;
    w->seen->inside_page += hit.n % PAGE_TOKENS > 0;
    w->seen->branches += hit.branch > 0;
    return hit;
}

/* ---- a sequence's life ---- */

static void pin(World *w, Seq *s, int32_t node, int n)
{
    cache_pin(w->cache, node);
    if (s->node >= 0) cache_unpin(w->cache, s->node);
    s->node = node;
    s->n_node = n;
    s->node_used = 0;
}

static void release(World *w, Seq *s)
{
    if (s->slot >= 0) slots_release(w->frames, s->slot);
    if (s->src >= 0) slots_release(w->frames, s->src);
    for (int i = 0; i < s->n_pages; i++)
        pages_release(w->frames, s->page[i]);
    int32_t node = s->node;
    s->slot = s->src = s->node = -1;
    s->n_pages = s->runs = 0;
    cache_unpin(w->cache, node);
}

/* The pages of a hit: full ones are shared, one that is not is copied. */
static int share(World *w, Seq *s, const CacheHit *hit)
{
    int n = pages_for(hit->n), last = n - 1;
    int32_t shared, own;
    cache_pages(w->cache, hit->node, hit->n, s->page);
    for (int i = 0; i < n; i++)
        pages_hold(w->frames, s->page[i]);
    s->n_pages = n;
    if (hit->n % PAGE_TOKENS == 0) return 0;
    if (claim_pages(w, 1, &own)) return -1;
    shared = s->page[last];
    memcpy(row_at(w, own, 0), row_at(w, shared, 0), sizeof w->bytes[0]);
    pages_release(w->frames, shared);
    s->page[last] = own;
    return 0;
}

static int reserve(World *w, Seq *s, int n)
{
    int more = pages_for(n) - s->n_pages;
    if (more <= 0) return 0;
    if (claim_pages(w, more, s->page + s->n_pages)) return -1;
    s->n_pages += more;
    return 0;
}

static int take_slot(World *w, Seq *s, const CacheHit *hit)
{
    int32_t slot;
    if (claim_slots(w, 1, &slot)) {
        s->slot = slot;
        return 0;
    }
    if (hit->slot < 0 || slots_refs(w->frames, hit->slot) > 2) return -1;
    int kept = list_find(w, &s->text, hit->n);
    cache_drop_state(w->cache, hit->node);
    if (kept >= 0) list_forget(w, kept);
    if (slots_refs(w->frames, hit->slot) > 1) return -1; /* the claim had dropped it already */
    s->slot = s->src;
    s->src = -1;
    w->seen->dropped++;
    return 0;
}

static void touch(World *w, int kept)
{
    w->kept[kept].used = w->now;
    w->kept[kept].touched = ++w->n_touched;
}

static void begin(World *w, Seq *s, const CacheHit *hit)
{
    int kept = list_find(w, &s->text, hit->n);
    cache_use(w->cache, hit, s->text.n, w->now);
    if (kept >= 0) touch(w, kept);
    list_tell_used(w, &s->text, hit->n, w->now);
    s->runs = 1;
    s->n_past = hit->n;
    s->keep_at[0] = hit->branch;
    s->keep_at[1] = rng_int(&w->rng, s->text.n + 1);
    s->keep_answer = rng_int(&w->rng, 3) > 0;
    if (!hit->n) *state_at(w, s->slot) = s->text.hash[0];
}

static void admit(World *w, const Text *text)
{
    Seq *s = &w->seq[rng_int(&w->rng, MAX_SEQS)];
    if (s->runs) return;
    s->text = *text;
    CacheHit hit = find(w, text);
    pin(w, s, hit.node, hit.n);
    s->src = hit.slot;
    if (hit.slot >= 0) slots_hold(w->frames, hit.slot);
    int n = min_int(text->n + 1 + rng_int(&w->rng, 15), MAX_LEN);
    if (share(w, s, &hit) || reserve(w, s, n) || take_slot(w, s, &hit))
        release(w, s);
    else
        begin(w, s, &hit);
}

static void keep(World *w, Seq *s, CacheKept kind)
{
    CacheStats before = cache_stats(w->cache), after;
    int no_room = w->shape.policy == POLICY_NONE && !slots_free_count(w->frames);
    int32_t node = cache_keep(w->cache, s->text.salt, s->node, s->text.token, s->n_past, s->page,
                              s->slot, kind, w->now);
    list_follow(w, 0);
    after = cache_stats(w->cache);
    int kept = list_find(w, &s->text, s->n_past);
    if (w->shape.policy == POLICY_NONE)
        assert_int_equal(after.evicted_states + after.evicted_nodes,
                         before.evicted_states + before.evicted_nodes);
    if (node < 0) {
        CacheRefused why = no_room ? REFUSED_MEMORY : REFUSED_NODES;
        assert_int_equal(after.refused[why], before.refused[why] + 1);
        assert_true(no_room || w->shape.policy == POLICY_NONE || list_nothing_can_go(w, 0));
        w->seen->no_nodes += !no_room;
        w->seen->no_room += no_room;
        return;
    }
    assert_false(no_room);
    assert_int_equal(after.kept[kind], before.kept[kind] + (kept < 0));
    assert_int_equal(after.refused[REFUSED_KNOWN], before.refused[REFUSED_KNOWN] + (kept >= 0));
    w->seen->known += kept >= 0;
    if (kept < 0) {
        kept = w->n_kept++;
        w->kept[kept] = (Kept){.text = s->text, .slot = s->slot, .node = node};
        w->kept[kept].text.n = s->n_past;
    }
    assert_int_equal(node, w->kept[kept].node);
    touch(w, kept);
    pin(w, s, node, s->n_past);
}

static void keep_and_go_on(World *w, Seq *s, CacheKept kind)
{
    int32_t next;
    if (!claim_slots(w, 1, &next)) return;
    keep(w, s, kind);
    if (slots_refs(w->frames, s->slot) > 1) {
        s->src = s->slot;
        s->slot = next;
    } else {
        slots_release(w->frames, next);
    }
}

/* Rows up to n: the first reads the state where it is, all write the sequence's own slot. */
static void compute(World *w, Seq *s, int n)
{
    expect_rows(w, &s->text, s->n_past, s->page);
    if (*state_at(w, s->src >= 0 ? s->src : s->slot) != s->text.hash[s->n_past])
        fail_msg("the state is not that of %d tokens", s->n_past);
    for (int i = s->n_past; i < n; i++)
        *row_at(w, s->page[i / PAGE_TOKENS], i) = s->text.hash[i + 1];
    assert_int_equal(slots_refs(w->frames, s->slot), 1);
    *state_at(w, s->slot) = s->text.hash[n];
    s->n_past = n;
    if (s->src >= 0) slots_release(w->frames, s->src);
    s->src = -1;
}

static void finish(World *w, Seq *s)
{
    remember(w, &s->text);
    if (s->keep_answer && s->src < 0 && s->n_past) keep(w, s, KEPT_ANSWER);
    release(w, s);
}

/* It gives its memory up and begins again, if there is room. */
static void preempt(World *w, ptrdiff_t seq)
{
    Seq *s = &w->seq[seq];
    Text text = s->text;
    release(w, s);
    w->seen->preempted++;
    admit(w, &text);
}

static void step(World *w, Seq *s)
{
    int n = s->n_past + 1 + rng_int(&w->rng, 40);
    if (!s->runs) return;
    if (s->n_past == s->text.n) { /* it decodes: the last token gets its row, another follows */
        if (s->text.n == MAX_LEN || rng_int(&w->rng, 12) == 0) {
            finish(w, s);
            return;
        }
        text_append(&s->text, rng_int(&w->rng, 2));
    }
    if (reserve(w, s, s->text.n)) {
        const Seq *other = &w->seq[rng_int(&w->rng, MAX_SEQS)];
        preempt(w, other->runs ? other - w->seq : s - w->seq);
        return;
    }
    n = min_int(n, s->text.n);
    for (int i = 0; i < 2; i++)
        if (s->keep_at[i] > s->n_past) n = min_int(n, s->keep_at[i]);
    compute(w, s, n);
    if (n == s->keep_at[0] || n == s->keep_at[1])
        keep_and_go_on(w, s, n == s->keep_at[0] ? KEPT_BRANCH : KEPT_PROMPT);
}

/* ---- all of it ---- */

/* A frame has one kind, and what is held is held by somebody that the list or a sequence names. */
static void expect_owners(World *w, int n_cells)
{
    int live[MAX_FRAMES] = {0}, refs = 0, held[MAX_PLACES] = {0}, n_slots = 0;
    for (int i = 0; i < MAX_SEQS; i++)
        for (int k = 0; k < w->seq[i].n_pages; k++)
            held[w->seq[i].page[k]]++, n_cells++;
    for (int p = 0; p < w->shape.frames * w->shape.per; p++) {
        int n = pages_refs(w->frames, p);
        assert_true(n >= held[p]);
        refs += n;
        if (n) live[pages_place(w->frames, p) / w->shape.per]++;
    }
    assert_int_equal(refs, n_cells);
    for (int i = 0; i < w->shape.frames; i++) {
        int holders = list_slot_holders(w, i);
        assert_int_equal(slots_refs(w->frames, i), holders);
        assert_false(holders && live[i]);
        n_slots += holders > 0;
    }
    assert_int_equal(slots_used(w->frames), n_slots);
    assert_true(n_slots <= w->shape.max_slots);
}

static void check(World *w)
{
    static Trie t;
    int n_cells = 0;
    CacheStats s = cache_stats(w->cache);
    list_trie(w, &t);
    for (int i = 0; i < t.n; i++)
        n_cells += list_cells(&t.at[i]);
    assert_int_equal(s.states, w->n_kept);
    assert_int_equal(s.nodes, t.n);
    assert_int_equal(s.pages, n_cells);
    assert_true(s.nodes <= w->shape.max_nodes);
    expect_owners(w, n_cells);
    for (int i = 0; i < w->n_kept; i++)
        assert_int_equal(find(w, &w->kept[i].text).n, w->kept[i].text.n);
}

/* Goes on with a copy; what happens to the other does not matter to it. */
static void change_to_copy(World *w)
{
    Cache *from = w->cache;
    Frames *frames = w->frames;
    CacheStats a = cache_stats(from), b;
    cache_copy(w->spare, from, w->spare_frames);
    cache_set_alpha(w->spare, w->alpha);
    b = cache_stats(w->spare);
    assert_memory_equal(&a, &b, sizeof a);
    for (int n = rng_int(&w->rng, 4); n > 0 && cache_evict(from);)
        n--;
    w->cache = w->spare;
    w->frames = w->spare_frames;
    w->spare = from;
    w->spare_frames = frames;
    w->seen->copied++;
    check(w);
}

static void evict(World *w)
{
    int none = list_nothing_can_go(w, 1);
    assert_int_equal(cache_evict(w->cache), !none);
    list_follow(w, 1);
}

/* Who pins a node keeps its pages. */
static void clear(World *w)
{
    cache_clear(w->cache);
    while (w->n_kept)
        list_forget(w, 0);
    w->seen->cleared++;
    check(w);
}

static void draft(World *w)
{
    int32_t slot[MAX_FRAMES];
    int n = claim_slots(w, 1 + rng_int(&w->rng, 4), slot);
    while (n > 0)
        slots_release(w->frames, slot[--n]);
}

/* Nobody holds anything: all frames are empty. */
static void drain(World *w)
{
    for (int i = 0; i < MAX_SEQS; i++)
        if (w->seq[i].runs) release(w, &w->seq[i]);
    check(w);
    while (cache_evict(w->cache))
        list_follow(w, 1);
    assert_int_equal(w->n_kept, 0);
    check(w);
    assert_int_equal(frames_empty(w->frames), w->shape.frames);
    assert_int_equal(cache_stats(w->cache).nodes, 0);
    assert_int_equal(cache_stats(w->cache).pages, 0);
}

static void operate(World *w)
{
    Seq *s = &w->seq[rng_int(&w->rng, MAX_SEQS)];
    int what = rng_int(&w->rng, 1000);
    Text t;
    w->now += rng_int(&w->rng, 4) * 0.125;
    if (what < 250) {
        t = random_text(w);
        admit(w, &t);
    } else if (what < 800) {
        step(w, s);
    } else if (what < 860) {
        t = random_text(w);
        t.n = rng_int(&w->rng, t.n + 1);
        find(w, &t);
    } else if (what < 880) {
        if (s->runs) release(w, s); /* cancelled */
    } else if (what < 900) {
        if (s->runs) preempt(w, s - w->seq);
    } else if (what < 920) {
        draft(w);
    } else if (what < 940) {
        evict(w);
    } else if (what < 942) {
        change_to_copy(w);
    } else if (what < 943) {
        w->alpha = w->shape.policy == POLICY_FLOP ? rng_int(&w->rng, 8) * 0.25 : 0;
        cache_set_alpha(w->cache, w->alpha);
    } else if (what == 943 && rng_int(&w->rng, 4) == 0) {
        drain(w);
    } else if (what == 944 && rng_int(&w->rng, 4) == 0) {
        clear(w);
    }
}

static void open_world(World *w, const Shape *shape, Seen *seen)
{
    CacheOptions o = {.on = 1, .policy = shape->policy, .alpha = shape->alpha};
    *w = (World){.shape = *shape, .rng = rng_new(SEED), .alpha = shape->alpha, .seen = seen};
    assert_true(shape->frames <= MAX_FRAMES && shape->frames * shape->per <= MAX_PLACES);
    w->frames = frames_open(shape->frames, shape->per, shape->max_slots);
    w->spare_frames = frames_open(shape->frames, shape->per, shape->max_slots);
    w->cache = cache_open(&o, w->frames, shape->max_nodes, &COST);
    w->spare = cache_open(&o, w->spare_frames, shape->max_nodes, &COST);
    cache_on_move(w->cache, page_moved, w);
    cache_on_move(w->spare, page_moved, w);
    for (int i = 0; i < MAX_SEQS; i++)
        w->seq[i].slot = w->seq[i].src = w->seq[i].node = -1;
    for (int i = 0; i < HISTORY; i++)
        w->history[i] = text_new(i % 2 ? 7 : 0);
}

static void close_world(World *w)
{
    drain(w);
    cache_close(w->cache);
    cache_close(w->spare);
    frames_close(w->frames);
    frames_close(w->spare_frames);
}

static const Shape shapes[] = {
    {40, 2, 40, 100, POLICY_LRU, 0},  {20, 4, 20, 100, POLICY_FLOP, 0.7},
    {26, 3, 26, 100, POLICY_FLOP, 3}, {26, 3, 5, 100, POLICY_FLOP, 0.2}, /* few slots */
    {26, 3, 26, 9, POLICY_LRU, 0},    {26, 3, 26, 9, POLICY_NONE, 0},    /* few nodes */
    {40, 1, 40, 100, POLICY_FLOP, 0}, {7, 3, 7, 100, POLICY_FLOP, 1},    /* one or two fit */
    {20, 4, 20, 100, POLICY_NONE, 0}, {2, 40, 2, 100, POLICY_LRU, 0},    /* one state, at most */
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static void test_random_operations(void **state)
{
    (void)state;
    static World w;
    Seen seen = {0};
    for (int i = 0; i < N_SHAPES; i++) {
        open_world(&w, &shapes[i], &seen);
        for (int k = 0; k < OPERATIONS / N_SHAPES; k++) {
            operate(&w);
            if (k % 64 == 0) check(&w);
        }
        close_world(&w);
    }
    const int *count = (const int *)&seen;
    for (size_t i = 0; i < sizeof seen / sizeof *count; i++)
        if (count[i] < OPERATIONS / 10000) fail_msg("seen too seldom: %zu, %d times", i, count[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_operations),
    };
    printf("seed %llu\n", (unsigned long long)SEED);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
