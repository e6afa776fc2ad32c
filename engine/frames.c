/*
 * frames.c: see frames.h.
 *
 * A frame with slot holders holds a state, one with live pages holds KV, one with neither is on the
 * stack of empty frames; nothing else says its kind. KV frames hang in lists by their number of
 * live pages, apart by whether one of these is fixed, so that the fullest frame with room and the
 * emptiest that may be emptied are found by a walk over the counts, never over the frames. All
 * arrays lie in one block: a copy is one memcpy.
 */
#include "engine/frames.h"

#include <assert.h>
#include <limits.h>
#include <stddef.h>
#include <string.h>

#include "base/mem.h"

enum { NONE = -1 };

typedef struct {
    int n_empty, n_states, n_kv, n_pages; /* frames of each kind; live pages */
} Counts;

struct Frames {
    int n, per_frame, max_slots;
    Counts now;

    /* [n] */
    int32_t *empty; /* a stack: the frame used last is warm in cache */
    int32_t *slot_refs;
    int32_t *n_live;  /* pages */
    int32_t *n_fixed; /* of these */
    int32_t *prev, *next;

    int32_t *head; /* [2][per_frame + 1], lists of KV frames: [one is fixed][live pages] */

    /* [n * per_frame] */
    int32_t *page_at; /* of a place: its page, or NONE */
    int32_t *gap;     /* a stack of free places for each frame */
    int32_t *place;   /* of a page */
    int32_t *page_refs;
    int32_t *fixes;
    int32_t *free_page; /* a stack of ids */

    size_t n_words;
    int32_t block[]; /* what the arrays above point into */
};

static int32_t *carve(Frames *f, size_t n)
{
    int32_t *part = f->block + f->n_words;
    f->n_words += n;
    return part;
}

static void carve_all(Frames *f, size_t n, size_t n_places)
{
    f->empty = carve(f, n);
    f->slot_refs = carve(f, n);
    f->n_live = carve(f, n);
    f->n_fixed = carve(f, n);
    f->prev = carve(f, n);
    f->next = carve(f, n);
    f->head = carve(f, 2 * ((size_t)f->per_frame + 1));
    f->page_at = carve(f, n_places);
    f->gap = carve(f, n_places);
    f->place = carve(f, n_places);
    f->page_refs = carve(f, n_places);
    f->fixes = carve(f, n_places);
    f->free_page = carve(f, n_places);
}

Frames *frames_open(int n_frames, int pages_per_frame, int max_slots)
{
    assert(n_frames > 0 && pages_per_frame > 0 && max_slots >= 0);
    assert(n_frames <= INT_MAX / pages_per_frame);
    size_t n = (size_t)n_frames, per = (size_t)pages_per_frame;
    size_t n_words = 6 * n + 2 * (per + 1) + 6 * n * per;
    Frames *f = mem_alloc(1, sizeof *f + n_words * sizeof *f->block);
    f->n = n_frames, f->per_frame = pages_per_frame, f->max_slots = max_slots;
    carve_all(f, n, n * per);
    assert(f->n_words == n_words);
    for (int i = n_frames - 1; i >= 0; i--)
        f->empty[f->now.n_empty++] = i;
    for (size_t i = 0; i < 2 * (per + 1); i++)
        f->head[i] = NONE;
    int32_t n_places = n_frames * pages_per_frame;
    for (int32_t p = 0; p < n_places; p++) {
        int32_t first = p / pages_per_frame * pages_per_frame;
        f->page_at[p] = NONE;
        f->gap[p] = first + pages_per_frame - 1 - (p - first);
        f->free_page[p] = n_places - 1 - p;
    }
    return f;
}

void frames_close(Frames *f)
{
    mem_free(f);
}

void frames_copy(Frames *to, const Frames *from)
{
    assert(to->n == from->n && to->per_frame == from->per_frame);
    assert(to->max_slots == from->max_slots);
    to->now = from->now;
    memcpy(to->block, from->block, from->n_words * sizeof *from->block);
}

/* ---- states ---- */

int slots_claim(Frames *f, int n, int32_t *slot)
{
    int got = 0;
    while (got < n && slots_free_count(f) > 0) {
        int32_t s = f->empty[--f->now.n_empty];
        assert(f->slot_refs[s] == 0);
        assert(f->n_live[s] == 0);
        f->slot_refs[s] = 1;
        f->now.n_states++;
        slot[got++] = s;
    }
    return got;
}

void slots_hold(Frames *f, int32_t slot)
{
    assert(slot >= 0 && slot < f->n);
    assert(f->slot_refs[slot] > 0);
    f->slot_refs[slot]++;
}

void slots_release(Frames *f, int32_t slot)
{
    assert(slot >= 0 && slot < f->n);
    assert(f->slot_refs[slot] > 0);
    if (--f->slot_refs[slot] > 0) return;
    f->now.n_states--;
    f->empty[f->now.n_empty++] = slot;
}

void slots_promote(Frames *f, int32_t *main_slot, const int32_t *slot, int n, int winner)
{
    assert(winner >= -1 && winner < n);
    if (winner >= 0) {
        slots_release(f, *main_slot);
        *main_slot = slot[winner];
    }
    for (int i = 0; i < n; i++)
        if (i != winner) slots_release(f, slot[i]);
}

int slots_refs(const Frames *f, int32_t slot)
{
    assert(slot >= 0 && slot < f->n);
    return f->slot_refs[slot];
}

int slots_free_count(const Frames *f)
{
    int allowed = f->max_slots - f->now.n_states;
    return f->now.n_empty < allowed ? f->now.n_empty : allowed;
}

int slots_used(const Frames *f)
{
    return f->now.n_states;
}

/* ---- lists of KV frames ---- */

static int32_t *list_of(const Frames *f, int32_t frame)
{
    return f->head + (f->n_fixed[frame] > 0) * (f->per_frame + 1) + f->n_live[frame];
}

static void link_frame(Frames *f, int32_t frame)
{
    int32_t *head = list_of(f, frame);
    f->prev[frame] = NONE;
    f->next[frame] = *head;
    if (*head != NONE) f->prev[*head] = frame;
    *head = frame;
}

static void unlink_frame(Frames *f, int32_t frame)
{
    int32_t prev = f->prev[frame], next = f->next[frame];
    if (prev != NONE)
        f->next[prev] = next;
    else
        *list_of(f, frame) = next;
    if (next != NONE) f->prev[next] = prev;
}

/* A KV frame with n live pages, n at most *n and the largest there is; NONE when there is none. */
static int32_t fullest(const Frames *f, int *n)
{
    for (; *n > 0; --*n)
        for (int fixed = 1; fixed >= 0; fixed--) {
            int32_t frame = f->head[fixed * (f->per_frame + 1) + *n];
            if (frame != NONE) return frame;
        }
    return NONE;
}

/* The KV frame with the fewest pages of those that have none fixed. */
static int32_t emptiest(const Frames *f)
{
    for (int n = 1; n <= f->per_frame; n++)
        if (f->head[n] != NONE) return f->head[n];
    return NONE;
}

static int kv_room(const Frames *f)
{
    return f->now.n_kv * f->per_frame - f->now.n_pages;
}

/* ---- pages ---- */

static void put_page(Frames *f, int32_t page, int32_t frame)
{
    int n_gaps = f->per_frame - f->n_live[frame]++;
    assert(n_gaps > 0);
    int32_t place = f->gap[frame * f->per_frame + n_gaps - 1];
    assert(f->page_at[place] == NONE);
    f->page_at[place] = page;
    f->place[page] = place;
}

/* Takes a page from its place. */
static void lift_page(Frames *f, int32_t page)
{
    int32_t place = f->place[page], frame = place / f->per_frame;
    int n_gaps = f->per_frame - f->n_live[frame]--;
    assert(f->page_at[place] == page);
    f->page_at[place] = NONE;
    f->gap[frame * f->per_frame + n_gaps] = place;
}

int pages_claim(Frames *f, int n, int32_t *page)
{
    if (n > pages_free_count(f)) return -1;
    int got = 0, most = f->per_frame - 1;
    while (got < n) {
        int32_t frame = fullest(f, &most);
        if (frame != NONE) {
            unlink_frame(f, frame);
        } else {
            frame = f->empty[--f->now.n_empty];
            assert(f->slot_refs[frame] == 0);
            f->now.n_kv++;
        }
        while (got < n && f->n_live[frame] < f->per_frame) {
            int32_t p = f->free_page[f->n * f->per_frame - ++f->now.n_pages];
            assert(f->page_refs[p] == 0);
            f->page_refs[p] = 1;
            put_page(f, p, frame);
            page[got++] = p;
        }
        link_frame(f, frame);
    }
    return 0;
}

static void assert_live(const Frames *f, int32_t page)
{
    assert(page >= 0 && page < f->n * f->per_frame);
    assert(f->page_refs[page] > 0);
}

void pages_hold(Frames *f, int32_t page)
{
    assert_live(f, page);
    f->page_refs[page]++;
}

void pages_release(Frames *f, int32_t page)
{
    assert_live(f, page);
    if (--f->page_refs[page] > 0) return;
    assert(f->fixes[page] == 0);
    int32_t frame = f->place[page] / f->per_frame;
    unlink_frame(f, frame);
    lift_page(f, page);
    f->free_page[f->n * f->per_frame - f->now.n_pages--] = page;
    if (f->n_live[frame] > 0) {
        link_frame(f, frame);
    } else {
        f->now.n_kv--;
        f->empty[f->now.n_empty++] = frame;
    }
}

/* One fixed page more or fewer in a frame: it may change lists. */
static void count_fixed(Frames *f, int32_t frame, int change)
{
    unlink_frame(f, frame);
    f->n_fixed[frame] += change;
    link_frame(f, frame);
}

void pages_fix(Frames *f, int32_t page)
{
    assert_live(f, page);
    if (f->fixes[page]++ == 0) count_fixed(f, f->place[page] / f->per_frame, 1);
}

void pages_unfix(Frames *f, int32_t page)
{
    assert_live(f, page);
    assert(f->fixes[page] > 0);
    if (--f->fixes[page] == 0) count_fixed(f, f->place[page] / f->per_frame, -1);
}

int pages_refs(const Frames *f, int32_t page)
{
    assert(page >= 0 && page < f->n * f->per_frame);
    return f->page_refs[page];
}

int32_t pages_place(const Frames *f, int32_t page)
{
    assert_live(f, page);
    return f->place[page];
}

int pages_free_count(const Frames *f)
{
    return kv_room(f) + f->now.n_empty * f->per_frame;
}

int pages_used(const Frames *f)
{
    return f->now.n_pages;
}

/* ---- between the kinds ---- */

/* Gaps that hold all of a frame's pages and the gaps in the frame itself make a frame together. */
int frames_compact(Frames *f, PageMove *move)
{
    int32_t from = emptiest(f);
    if (from == NONE || kv_room(f) < f->per_frame) return -1;
    unlink_frame(f, from);
    f->now.n_kv--;
    int n = 0, most = f->per_frame - 1;
    int32_t at = from * f->per_frame;
    while (f->n_live[from] > 0) {
        int32_t to = fullest(f, &most);
        assert(to != NONE);
        unlink_frame(f, to);
        for (; f->n_live[from] > 0 && f->n_live[to] < f->per_frame; at++) {
            int32_t page = f->page_at[at];
            if (page == NONE) continue;
            lift_page(f, page);
            put_page(f, page, to);
            move[n++] = (PageMove){.page = page, .from = at, .to = f->place[page]};
        }
        link_frame(f, to);
    }
    f->empty[f->now.n_empty++] = from;
    return n;
}

int frames_count(const Frames *f)
{
    return f->n;
}

int frames_empty(const Frames *f)
{
    return f->now.n_empty;
}

int frames_pages_per_frame(const Frames *f)
{
    return f->per_frame;
}
