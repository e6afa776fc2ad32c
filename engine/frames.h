/*
 * frames.h: who holds which part of the serving memory.
 *
 * All of it is one array of equal frames. A frame holds one state slot or a run of KV pages, and
 * changes kind when it is empty, so the two kinds share one budget with no fixed ratio. Slot s is
 * frame s. A page has an id for as long as somebody holds it, and a place, which changes when a
 * frame is emptied: place p lies in frame p / pages_per_frame. Slots and pages are counted; what
 * nobody holds is free. Pages are taken from the fullest frame first. This file moves no bytes.
 *
 * Attention KV can be cut back to a shorter length; a recurrent state cannot. So each node of a
 * draft tree writes its own slot, and accepting a path is choosing a slot: no state is copied back.
 */
#ifndef OFFSHOOT_ENGINE_FRAMES_H
#define OFFSHOOT_ENGINE_FRAMES_H

#include <stdint.h>

typedef struct Frames Frames;

/*
 * max_slots: frames that may hold states at a time. All memory is taken here; every function below
 * but frames_copy takes a time of pages_per_frame and what it is asked for, however many frames
 * there are.
 */
Frames *frames_open(int n_frames, int pages_per_frame, int max_slots);
void frames_close(Frames *f);

/* Makes `to`, opened with the same numbers, what `from` is. */
void frames_copy(Frames *to, const Frames *from);

/* ---- states ---- */

/*
 * Claims up to n empty frames for states, indices into slot[], each with one holder; returns how
 * many. Too few mean a smaller tree, never an error. They hold old data; the caller writes a slot
 * before anyone reads it.
 */
int slots_claim(Frames *f, int n, int32_t *slot);

/* One more holder of a slot in use. */
void slots_hold(Frames *f, int32_t slot);

/* One holder fewer; the last one empties the frame. */
void slots_release(Frames *f, int32_t slot);

/*
 * Makes slot[winner] the main slot: drops the hold on *main_slot unless it is the winner, and on
 * the other n - 1 of slot[]. No device work; cannot fail. winner is -1 when the main slot itself,
 * written in place, stays.
 */
void slots_promote(Frames *f, int32_t *main_slot, const int32_t *slot, int n, int winner);

int slots_refs(const Frames *f, int32_t slot);
int slots_free_count(const Frames *f); /* what slots_claim would give now */
int slots_used(const Frames *f);

/* ---- pages ---- */

/* n pages, ids into page[], each with one holder: all of them, or none and -1. */
int pages_claim(Frames *f, int n, int32_t *page);
void pages_hold(Frames *f, int32_t page);
void pages_release(Frames *f, int32_t page);
int pages_refs(const Frames *f, int32_t page);
int32_t pages_place(const Frames *f, int32_t page);
int pages_free_count(const Frames *f); /* what pages_claim would give now */
int pages_used(const Frames *f);

/*
 * While fixed, counted, a page keeps its place: somebody outside reads or writes its bytes. Its
 * frame is not emptied meanwhile. To be undone before the last holder lets go.
 */
void pages_fix(Frames *f, int32_t page);
void pages_unfix(Frames *f, int32_t page);

/* ---- between the kinds ---- */

typedef struct PageMove {
    int32_t page, from, to; /* places */
} PageMove;

/*
 * Empties the frame with the fewest pages, of those with none fixed, by moving them into the gaps
 * of others, the fullest first: the moves are written to move[pages_per_frame], ids and counts
 * stay. They all leave one frame and enter others, so their order does not matter. Returns how many
 * moves, at least one, or -1: the gaps in frames of pages are fewer than a frame has places, or
 * every such frame has a page fixed.
 */
int frames_compact(Frames *f, PageMove *move);

int frames_count(const Frames *f);
int frames_empty(const Frames *f);
int frames_pages_per_frame(const Frames *f);

#endif
