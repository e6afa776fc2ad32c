/*
 * test_frames.c: frames against a plain book of who owns which place, and the edges one by one.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/mem.h"
#include "engine/frames.h"
#include "tests/near.h"

enum { MAX_FRAMES = 16, MAX_PLACES = 64, OPERATIONS = 1000000, FREE = -1 };

static const uint64_t SEED = 6;

/* ---- the book ---- */

typedef struct {
    int frames, per, max_slots;
} Shape;

/* How often what is rare happened. */
typedef struct {
    int pages_refused, slots_short, at_max_slots, emptied, not_emptied, fixed_passed_over;
} Seen;

/* Who holds what, counted apart from the frames. Contents: a stamp stands for a page's bytes. */
typedef struct {
    Frames *f, *spare;
    Rng rng;
    Shape shape;
    int places;
    int slot_refs[MAX_FRAMES];
    int refs[MAX_PLACES], fixes[MAX_PLACES], place[MAX_PLACES]; /* of a page */
    int owner[MAX_PLACES];                                      /* of a place: a page, or FREE */
    long stamp[MAX_PLACES];                                     /* what a page's holders wrote */
    long bytes[MAX_PLACES];                                     /* what a place holds */
    long last_stamp;
    Seen seen;
} Book;

static Book book_open(Shape shape, uint64_t seed)
{
    Book b = {.f = frames_open(shape.frames, shape.per, shape.max_slots),
              .spare = frames_open(shape.frames, shape.per, shape.max_slots),
              .rng = rng_new(seed),
              .shape = shape,
              .places = shape.frames * shape.per};
    for (int p = 0; p < b.places; p++)
        b.owner[p] = FREE;
    return b;
}

static int live_in(const Book *b, int frame)
{
    int n = 0;
    for (int p = frame * b->shape.per; p < (frame + 1) * b->shape.per; p++)
        n += b->owner[p] != FREE;
    return n;
}

static int fixed_in(const Book *b, int frame)
{
    int n = 0;
    for (int p = frame * b->shape.per; p < (frame + 1) * b->shape.per; p++)
        n += b->owner[p] != FREE && b->fixes[b->owner[p]] > 0;
    return n;
}

/* Every frame has one kind, the counts are the sums, every page is where and what it was. */
static void check(const Book *b)
{
    int n_empty = 0, n_states = 0, n_pages = 0, n_free_places = 0;
    for (int i = 0; i < b->shape.frames; i++) {
        int live = live_in(b, i), is_state = b->slot_refs[i] > 0;
        assert_false(is_state && live > 0);
        assert_int_equal(slots_refs(b->f, i), b->slot_refs[i]);
        n_empty += !is_state && live == 0;
        n_states += is_state;
        n_pages += live;
        if (!is_state) n_free_places += b->shape.per - live;
    }
    int allowed = b->shape.max_slots - n_states;
    assert_int_equal(frames_empty(b->f), n_empty);
    assert_int_equal(slots_used(b->f), n_states);
    assert_int_equal(slots_free_count(b->f), allowed < n_empty ? allowed : n_empty);
    assert_int_equal(pages_used(b->f), n_pages);
    assert_int_equal(pages_free_count(b->f), n_free_places);
    for (int p = 0; p < b->places; p++) {
        assert_int_equal(pages_refs(b->f, p), b->refs[p]);
        if (!b->refs[p]) continue;
        assert_int_equal(pages_place(b->f, p), b->place[p]);
        assert_int_equal(b->owner[b->place[p]], p);
        assert_int_equal(b->bytes[b->place[p]], b->stamp[p]);
        n_pages--;
    }
    assert_int_equal(n_pages, 0);
}

/* An index with count[i] > 0, or -1. */
static int any(Book *b, const int *count, int n)
{
    int from = rng_int(&b->rng, n);
    for (int i = 0; i < n; i++)
        if (count[(from + i) % n] > 0) return (from + i) % n;
    return -1;
}

/* ---- operations on both ---- */

static int claim_slots(Book *b, int n, int32_t *slot)
{
    int fits = slots_free_count(b->f), got = slots_claim(b->f, n, slot);
    assert_int_equal(got, n < fits ? n : fits);
    for (int i = 0; i < got; i++) {
        assert_true(slot[i] >= 0 && slot[i] < b->shape.frames);
        assert_int_equal(b->slot_refs[slot[i]], 0);
        assert_int_equal(live_in(b, slot[i]), 0);
        b->slot_refs[slot[i]] = 1;
    }
    b->seen.slots_short += got < n;
    b->seen.at_max_slots += got < n && frames_empty(b->f) > 0;
    return got;
}

/* As a step does: a main slot, draft slots, one winner (-1: the main slot stays). */
static void claim_and_promote(Book *b)
{
    int32_t main_slot, slot[MAX_FRAMES];
    if (claim_slots(b, 1, &main_slot) < 1) return;
    int n = claim_slots(b, rng_int(&b->rng, b->shape.frames), slot);
    int winner = rng_int(&b->rng, n + 1) - 1;
    int32_t expected = winner < 0 ? main_slot : slot[winner];
    if (rng_int(&b->rng, 4) == 0) { /* a cache holds the old state */
        slots_hold(b->f, main_slot);
        b->slot_refs[main_slot]++;
    }
    if (winner >= 0) b->slot_refs[main_slot]--;
    for (int i = 0; i < n; i++)
        if (i != winner) b->slot_refs[slot[i]]--;
    slots_promote(b->f, &main_slot, slot, n, winner);
    assert_int_equal(main_slot, expected);
}

static void hold_or_release_slot(Book *b, int change)
{
    int s = any(b, b->slot_refs, b->shape.frames);
    if (s < 0) return;
    if (change > 0)
        slots_hold(b->f, s);
    else
        slots_release(b->f, s);
    b->slot_refs[s] += change;
}

/* Pages of the fullest frame that has room; 0: of an empty one. */
static int fullest_with_room(const Book *b)
{
    int most = 0;
    for (int i = 0; i < b->shape.frames; i++) {
        int live = live_in(b, i);
        if (live < b->shape.per && live > most) most = live;
    }
    return most;
}

static void settle(Book *b, int page, int place)
{
    assert_true(place >= 0 && place < b->places);
    assert_int_equal(b->owner[place], FREE);
    assert_int_equal(b->slot_refs[place / b->shape.per], 0);
    assert_int_equal(live_in(b, place / b->shape.per), fullest_with_room(b));
    b->owner[place] = page;
    b->place[page] = place;
}

static void claim_pages(Book *b, int n)
{
    int32_t page[MAX_PLACES + 1];
    memset(page, 0xff, sizeof page);
    int fits = n <= pages_free_count(b->f);
    assert_int_equal(pages_claim(b->f, n, page), fits ? 0 : -1);
    b->seen.pages_refused += !fits;
    for (int i = 0; i < (fits ? n : 0); i++) {
        int p = page[i];
        assert_true(p >= 0 && p < b->places);
        assert_int_equal(b->refs[p], 0);
        settle(b, p, pages_place(b->f, p));
        b->refs[p] = 1;
        b->stamp[p] = b->bytes[b->place[p]] = ++b->last_stamp;
    }
    assert_int_equal(page[fits ? n : 0], -1); /* no more than that was written */
}

static void hold_page(Book *b)
{
    int p = any(b, b->refs, b->places);
    if (p < 0) return;
    pages_hold(b->f, p);
    b->refs[p]++;
}

static void unfix_page(Book *b, int p)
{
    if (p < 0) return;
    pages_unfix(b->f, p);
    b->fixes[p]--;
}

static void release_page(Book *b, int p)
{
    if (p < 0) return;
    while (b->refs[p] == 1 && b->fixes[p] > 0)
        unfix_page(b, p);
    pages_release(b->f, p);
    if (--b->refs[p] > 0) return;
    b->owner[b->place[p]] = FREE;
    b->bytes[b->place[p]] = 0;
}

static void fix_page(Book *b)
{
    int p = any(b, b->refs, b->places);
    if (p < 0) return;
    pages_fix(b->f, p);
    b->fixes[p]++;
}

/* The fewest pages of a frame of pages; with_fixed: of all, else of those with no page fixed. 0. */
static int fewest(const Book *b, int with_fixed)
{
    int least = 0;
    for (int i = 0; i < b->shape.frames; i++) {
        int live = live_in(b, i);
        if (live == 0 || (!with_fixed && fixed_in(b, i) > 0)) continue;
        if (least == 0 || live < least) least = live;
    }
    return least;
}

static void compact(Book *b)
{
    PageMove move[MAX_PLACES];
    int room = 0, least = fewest(b, 0);
    for (int i = 0; i < b->shape.frames; i++)
        if (live_in(b, i) > 0) room += b->shape.per - live_in(b, i);
    int n_empty = frames_empty(b->f), n = frames_compact(b->f, move);
    if (least == 0 || room < b->shape.per) {
        assert_int_equal(n, -1);
        b->seen.not_emptied++;
        return;
    }
    assert_int_equal(n, least);
    assert_int_equal(frames_empty(b->f), n_empty + 1);
    int victim = move[0].from / b->shape.per;
    assert_int_equal(live_in(b, victim), least);
    assert_int_equal(fixed_in(b, victim), 0);
    for (int i = 0; i < n; i++) { /* first out, so that the fullest of the others can be told */
        assert_int_equal(move[i].from / b->shape.per, victim);
        assert_int_equal(b->owner[move[i].from], move[i].page);
        b->owner[move[i].from] = FREE;
    }
    for (int i = 0; i < n; i++) {
        assert_int_not_equal(move[i].to / b->shape.per, victim);
        settle(b, move[i].page, move[i].to);
        b->bytes[move[i].to] = b->bytes[move[i].from];
        b->bytes[move[i].from] = 0;
    }
    b->seen.emptied++;
    b->seen.fixed_passed_over += fewest(b, 1) < least;
}

/* Goes on with a copy; what was copied is overwritten next time. */
static void change_to_copy(Book *b)
{
    Frames *from = b->f;
    frames_copy(b->spare, from);
    b->f = b->spare;
    b->spare = from;
}

static void operate(Book *b, int draining)
{
    int32_t slot[MAX_FRAMES];
    switch (rng_int(&b->rng, draining ? 20 : 11)) {
    case 0:
        claim_slots(b, rng_int(&b->rng, b->shape.frames + 1), slot);
        break;
    case 1:
        claim_and_promote(b);
        break;
    case 2:
        hold_or_release_slot(b, 1);
        break;
    case 3:
        claim_pages(b, rng_int(&b->rng, b->places + 1));
        break;
    case 4:
        claim_pages(b, rng_int(&b->rng, b->shape.per + 1));
        break;
    case 5:
        hold_page(b);
        break;
    case 6:
        fix_page(b);
        break;
    case 7:
        if (rng_int(&b->rng, 4) == 0) unfix_page(b, any(b, b->fixes, b->places));
        break;
    case 8:
        compact(b);
        break;
    default:
        if (rng_int(&b->rng, 3))
            release_page(b, any(b, b->refs, b->places));
        else
            hold_or_release_slot(b, -1);
    }
}

/* Lets go of everything: nothing has leaked. */
static void book_close(Book *b)
{
    for (int p = 0; p < b->places; p++)
        while (b->refs[p] > 0)
            release_page(b, p);
    for (int s = 0; s < b->shape.frames; s++)
        while (b->slot_refs[s]-- > 0)
            slots_release(b->f, s);
    assert_int_equal(frames_empty(b->f), b->shape.frames);
    assert_int_equal(pages_free_count(b->f), b->places);
    assert_int_equal(pages_used(b->f), 0);
    assert_int_equal(slots_used(b->f), 0);
    int32_t page[MAX_PLACES];
    assert_int_equal(pages_claim(b->f, b->places, page), 0);
    frames_close(b->f);
    frames_close(b->spare);
}

static void run(Shape shape, int n, Seen *seen)
{
    Book b = book_open(shape, SEED + (uint64_t)shape.per);
    b.seen = *seen;
    unsigned long taken = mem_count();
    for (int i = 0; i < n; i++) {
        operate(&b, i / 500 % 2);
        check(&b);
        if (i % 997 == 0) change_to_copy(&b);
    }
    assert_int_equal(mem_count(), taken); /* no memory but at open */
    *seen = b.seen;
    book_close(&b);
}

static void test_random_operations(void **state)
{
    (void)state;
    static const Shape shapes[] = {{1, 1, 1},   {1, 6, 1}, {7, 1, 4},
                                   {12, 4, 12}, {8, 7, 5}, {16, 4, 3}};
    enum { N_SHAPES = sizeof shapes / sizeof *shapes };
    Seen seen = {0};
    for (int i = 0; i < N_SHAPES; i++)
        run(shapes[i], OPERATIONS / N_SHAPES, &seen);
    enum { OFTEN = OPERATIONS / 4000 };
    assert_true(seen.pages_refused > OFTEN);
    assert_true(seen.slots_short > OFTEN);
    assert_true(seen.at_max_slots > OFTEN);
    assert_true(seen.emptied > OFTEN);
    assert_true(seen.not_emptied > OFTEN);
    assert_true(seen.fixed_passed_over > OFTEN);
}

/* ---- edges ---- */

/*
 * Frames of `per` places of which frame i holds live[i] pages; page[] tells them by place. What is
 * not live was released.
 */
static Frames *frames_with(int n, int per, const int *live, int32_t *page)
{
    Frames *f = frames_open(n, per, n);
    int32_t all[MAX_PLACES];
    assert_int_equal(pages_claim(f, n * per, all), 0);
    for (int i = 0; i < n * per; i++)
        page[pages_place(f, all[i])] = all[i];
    for (int i = 0; i < n * per; i++)
        if (i % per >= live[i / per]) pages_release(f, page[i]);
    return f;
}

static void test_one_frame_of_one_page(void **state)
{
    (void)state;
    Frames *f = frames_open(1, 1, 1);
    int32_t slot[2], page[2];
    PageMove move[1];
    assert_int_equal(frames_count(f), 1);
    assert_int_equal(frames_pages_per_frame(f), 1);
    assert_int_equal(slots_claim(f, 2, slot), 1);
    assert_int_equal(pages_free_count(f), 0);
    assert_int_equal(pages_claim(f, 1, page), -1);
    assert_int_equal(pages_claim(f, 0, page), 0);
    slots_release(f, slot[0]);
    assert_int_equal(pages_claim(f, 2, page), -1);
    assert_int_equal(pages_claim(f, 1, page), 0);
    assert_int_equal(slots_free_count(f), 0);
    assert_int_equal(slots_claim(f, 1, slot), 0);
    assert_int_equal(frames_compact(f, move), -1);
    pages_release(f, page[0]);
    assert_int_equal(slots_free_count(f), 1);
    assert_int_equal(frames_compact(f, move), -1);
    frames_close(f);
}

/* The winner at each place, the main slot, and the frames afterwards: exactly one slot is held. */
static void test_promote_each_winner(void **state)
{
    (void)state;
    enum { N = 5 };
    for (int n = 0; n <= N; n++)
        for (int winner = -1; winner < n; winner++) {
            Frames *f = frames_open(N + 1, 1, N + 1);
            int32_t old, slot[N];
            assert_int_equal(slots_claim(f, 1, &old), 1);
            assert_int_equal(slots_claim(f, n, slot), n);
            int32_t main_slot = old;
            slots_promote(f, &main_slot, slot, n, winner);
            assert_int_equal(main_slot, winner < 0 ? old : slot[winner]);
            for (int s = 0; s <= N; s++)
                assert_int_equal(slots_refs(f, s), s == main_slot);
            assert_int_equal(slots_free_count(f), N);
            frames_close(f);
        }
}

/* A state that a cache or a second sequence holds survives the promotion of another. */
static void test_a_held_main_slot_survives(void **state)
{
    (void)state;
    Frames *f = frames_open(2, 1, 2);
    int32_t old, next, none;
    assert_int_equal(slots_claim(f, 1, &old), 1);
    slots_hold(f, old);
    assert_int_equal(slots_claim(f, 5, &next), 1);
    assert_int_equal(slots_claim(f, 1, &none), 0); /* full: no error, no slot */
    int32_t main_slot = old;
    slots_promote(f, &main_slot, &next, 1, 0);
    assert_int_equal(main_slot, next);
    assert_int_equal(slots_refs(f, old), 1);
    assert_int_equal(slots_free_count(f), 0);
    slots_release(f, old);
    assert_int_equal(slots_free_count(f), 1);
    frames_close(f);
}

/* Beyond max_slots empty frames are for pages alone. */
static void test_max_slots(void **state)
{
    (void)state;
    Frames *f = frames_open(4, 2, 2);
    int32_t slot[4], page[4];
    assert_int_equal(slots_free_count(f), 2);
    assert_int_equal(slots_claim(f, 4, slot), 2);
    assert_int_equal(slots_free_count(f), 0);
    assert_int_equal(frames_empty(f), 2);
    assert_int_equal(pages_free_count(f), 4);
    assert_int_equal(pages_claim(f, 4, page), 0);
    slots_release(f, slot[0]);
    assert_int_equal(slots_free_count(f), 1);
    slots_release(f, slot[1]);
    for (int i = 0; i < 4; i++)
        pages_release(f, page[i]);
    assert_int_equal(frames_empty(f), 4);
    assert_int_equal(slots_free_count(f), 2);
    frames_close(f);
}

static void test_a_frame_used_last_comes_first(void **state)
{
    (void)state;
    Frames *f = frames_open(4, 2, 4);
    int32_t slot[4], page[1], again;
    assert_int_equal(slots_claim(f, 4, slot), 4);
    slots_release(f, slot[1]);
    slots_release(f, slot[3]);
    assert_int_equal(pages_claim(f, 1, page), 0);
    assert_int_equal(pages_place(f, page[0]) / 2, slot[3]);
    pages_release(f, page[0]);
    assert_int_equal(slots_claim(f, 1, &again), 1);
    assert_int_equal(again, slot[3]);
    frames_close(f);
}

static void test_compact_with_exactly_enough_gaps(void **state)
{
    (void)state;
    const int live[] = {3, 2, 3};
    int32_t page[12];
    PageMove move[4];
    Frames *f = frames_with(3, 4, live, page);
    assert_int_equal(frames_compact(f, move), 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(move[i].page, page[4 + i]);
        assert_int_equal(move[i].from, 4 + i);
        assert_true(move[i].to == 3 || move[i].to == 11);
        assert_int_equal(pages_place(f, move[i].page), move[i].to);
    }
    assert_int_not_equal(move[0].to, move[1].to);
    assert_int_equal(frames_empty(f), 1);
    assert_int_equal(frames_compact(f, move), -1); /* two full frames and an empty one */
    frames_close(f);
}

static void test_compact_short_of_one_gap(void **state)
{
    (void)state;
    const int live[] = {3, 2, 4, 0};
    int32_t page[16];
    PageMove move[4];
    Frames *f = frames_with(4, 4, live, page);
    assert_int_equal(pages_free_count(f), 3 + 4); /* an empty frame's places are no gaps */
    assert_int_equal(frames_compact(f, move), -1);
    for (int i = 0; i < 12; i++)
        if (i % 4 < live[i / 4]) assert_int_equal(pages_place(f, page[i]), i);
    pages_release(f, page[8]);
    assert_int_equal(frames_compact(f, move), 2);
    frames_close(f);
}

/* Many frames take part: the fullest is filled first. */
static void test_compact_fills_the_fullest_first(void **state)
{
    (void)state;
    const int live[] = {4, 4, 2, 3};
    int32_t page[20];
    PageMove move[5];
    Frames *f = frames_with(4, 5, live, page);
    assert_int_equal(frames_compact(f, move), 2);
    assert_true(move[0].to / 5 != 3 && move[1].to / 5 != 3);
    assert_int_not_equal(move[0].to / 5, move[1].to / 5);
    assert_int_equal(frames_compact(f, move), -1);
    frames_close(f);
}

static void test_one_page_a_frame_is_never_moved(void **state)
{
    (void)state;
    const int live[] = {1, 0, 1};
    int32_t page[3];
    PageMove move[1];
    Frames *f = frames_with(3, 1, live, page);
    assert_int_equal(frames_compact(f, move), -1);
    assert_int_equal(frames_empty(f), 1);
    frames_close(f);
}

/* A fixed page stays, its frame's gaps are filled all the same. */
static void test_fixed_pages_stay(void **state)
{
    (void)state;
    const int live[] = {1, 2, 3};
    int32_t page[12];
    PageMove move[4];
    Frames *f = frames_with(3, 4, live, page);
    pages_fix(f, page[0]);
    pages_fix(f, page[0]);
    pages_fix(f, page[4]);
    pages_fix(f, page[8]);
    assert_int_equal(frames_compact(f, move), -1); /* one in every frame */
    pages_unfix(f, page[4]);
    pages_unfix(f, page[0]);
    assert_int_equal(frames_compact(f, move), 2); /* frame 0 is still fixed, once */
    assert_int_equal(move[0].from / 4, 1);
    assert_int_equal(move[0].to, 11); /* the frame of three has one gap */
    assert_int_equal(move[1].to / 4, 0);
    assert_int_equal(pages_place(f, page[0]), 0);
    frames_close(f);
}

/* A fix is not a hold, and a held page is not fixed. */
static void test_holders_and_fixes_are_apart(void **state)
{
    (void)state;
    const int live[] = {1, 1};
    int32_t page[4];
    PageMove move[2];
    Frames *f = frames_with(2, 2, live, page);
    pages_hold(f, page[0]);
    pages_fix(f, page[2]);
    assert_int_equal(pages_refs(f, page[0]), 2);
    assert_int_equal(pages_refs(f, page[2]), 1);
    assert_int_equal(frames_compact(f, move), 1);
    assert_int_equal(move[0].page, page[0]);
    assert_int_equal(pages_refs(f, page[0]), 2);
    pages_release(f, page[0]);
    assert_int_equal(pages_used(f), 2);
    frames_close(f);
}

/* A copy does what the other would have done, and neither touches the other. */
static void test_copy(void **state)
{
    (void)state;
    const int live[] = {2, 1, 0, 3};
    int32_t page[12], a[9], b[9];
    Frames *f = frames_with(4, 3, live, page), *g = frames_open(4, 3, 4);
    assert_int_equal(slots_claim(g, 2, a), 2); /* to be overwritten */
    frames_copy(g, f);
    assert_int_equal(pages_used(g), 6);
    pages_release(g, page[0]);
    pages_release(g, page[1]);
    pages_release(g, page[3]);
    assert_int_equal(frames_empty(g), 3);
    assert_int_equal(frames_empty(f), 1);
    assert_int_equal(pages_refs(f, page[3]), 1);
    pages_release(f, page[0]);
    pages_release(f, page[1]);
    pages_release(f, page[3]);
    assert_int_equal(pages_claim(f, 9, a), 0);
    assert_int_equal(pages_claim(g, 9, b), 0);
    assert_memory_equal(a, b, sizeof a);
    for (int i = 0; i < 9; i++)
        assert_int_equal(pages_place(f, a[i]), pages_place(g, b[i]));
    frames_close(f);
    frames_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_operations),
        cmocka_unit_test(test_one_frame_of_one_page),
        cmocka_unit_test(test_promote_each_winner),
        cmocka_unit_test(test_a_held_main_slot_survives),
        cmocka_unit_test(test_max_slots),
        cmocka_unit_test(test_a_frame_used_last_comes_first),
        cmocka_unit_test(test_compact_with_exactly_enough_gaps),
        cmocka_unit_test(test_compact_short_of_one_gap),
        cmocka_unit_test(test_compact_fills_the_fullest_first),
        cmocka_unit_test(test_one_page_a_frame_is_never_moved),
        cmocka_unit_test(test_fixed_pages_stay),
        cmocka_unit_test(test_holders_and_fixes_are_apart),
        cmocka_unit_test(test_copy),
    };
    printf("seed %llu\n", (unsigned long long)SEED);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
