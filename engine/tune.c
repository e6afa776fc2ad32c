/* tune.c: see tune.h. */
#include "engine/tune.h"

#include <assert.h>
#include <string.h>

#include "base/mem.h"
#include "base/queue.h"
#include "base/thread.h"
#include "engine/frames.h"

enum {
    WINDOW_TIMES = 5, /* requests before the first eviction, a window */
    MIN_WINDOW = 20,
    N_ALPHAS = 21, /* 0, 0.1 .. 2 */
    MAX_PAUSE = 32,
    POINT = 100, /* a hundredth of the tokens */
};

/* A cache over frames of its own. */
typedef struct {
    Cache *cache;
    Frames *frames;
} Copy;

/* A window of requests. */
typedef struct {
    CachedRequest *request; /* [max_requests]; their tokens are in token[] */
    int32_t *token;         /* [max_tokens] */
    int n, n_tokens;
    long asked, hits; /* prompt tokens, and those of them that were cached */
    Copy before;      /* the cache before the window */
} Window;

/* The side that replays. */
typedef struct {
    KeepRules rules;
    Copy scratch;
    Copy lru;        /* has served all since the first eviction, with alpha 0 */
    int32_t *page;   /* of a request */
    int searched;    /* 0: no window was there yet */
    int rest, pause; /* windows without a search from 0: now, and the next time */
    TuneStats stats;
} Replayer;

/* What the replayer says of a window that it was handed. */
typedef struct {
    Window *window;
    TuneStats stats;
} Result;

struct Tuner {
    Replayer replayer; /* the thread's, if there is one, from the first window on */
    Window window[2];
    Window *recording; /* NULL: none is */
    Window *spare[2];
    int n_spare;
    int max_requests, max_tokens;
    int search_window; /* requests of one while alpha is 0; 0: nothing was let go yet */
    int check_window;  /* while it is not: the sooner it is told from LRU */
    long seen;         /* requests until something was let go */
    TuneStats stats;
    pthread_t thread;
    Queue *todo, *done; /* NULL: no thread. Of Window pointers and Results */
};

/* ---- the side that replays ---- */

/* Prompt tokens of the window's requests from `from` on that are cached. */
static long replay_window(const Replayer *p, const Window *w, const Copy *on, int from)
{
    long hits = 0;
    int fits;
    for (int i = 0; i < w->n; i++) {
        int n = cache_replay(on->cache, on->frames, &p->rules, &w->request[i], p->page, &fits);
        if (i >= from) hits += n;
    }
    return hits;
}

/*
 * The best alpha for the window; any above 0 must gain more than `least` tokens on it. Its first
 * half only lets each alpha make the cache its own: what one gains by what the others left behind
 * does not last.
 */
static double search_alpha(Replayer *p, const Window *w, long least)
{
    double best = 0;
    long most = 0;
    p->stats.searches++;
    for (int i = 0; i < N_ALPHAS; i++) {
        cache_copy(p->scratch.cache, w->before.cache, p->scratch.frames);
        cache_set_alpha(p->scratch.cache, i / 10.0);
        long hits = replay_window(p, w, &p->scratch, w->n / 2);
        if (i && hits <= most) continue;
        most = hits + (i ? 0 : least);
        best = i / 10.0;
    }
    return best;
}

/* No search for a while, each time a longer one. */
static void pause_search(Replayer *p)
{
    p->rest = p->pause;
    p->pause = 2 * p->pause > MAX_PAUSE ? MAX_PAUSE : 2 * p->pause;
}

static Result replay(Replayer *p, Window *w)
{
    TuneStats *s = &p->stats;
    long lru = replay_window(p, w, &p->lru, 0), point = w->asked / POINT;
    s->windows++;
    s->asked_tokens += w->asked;
    s->hit_tokens += w->hits;
    s->lru_tokens += lru;
    if (s->alpha > 0) {
        if (lru > w->hits + point) {
            s->fallbacks++;
            s->alpha = 0;
            pause_search(p);
        }
    } else if (p->rest > 0) {
        p->rest--;
    } else {
        s->alpha = search_alpha(p, w, p->searched ? point : 0);
        p->searched = 1;
        if (s->alpha == 0) pause_search(p);
    }
    return (Result){w, *s};
}

/* ---- the thread ---- */

static void *work(void *arg)
{
    Tuner *t = arg;
    Window *w;
    for (;;) {
        if (queue_pop(t->todo, &w)) {
            Result result = replay(&t->replayer, w);
            queue_push(t->done, &result);
        } else if (queue_is_shut(t->todo)) {
            return NULL;
        } else {
            queue_wait(t->todo);
        }
    }
}

static int start_thread(Tuner *t, Error *err)
{
    t->todo = queue_open(2, sizeof(Window *), err);
    t->done = t->todo ? queue_open(2, sizeof(Result), err) : NULL;
    if (t->done && !thread_start(&t->thread, work, t, "tune", err)) return 0;
    if (t->done) queue_close(t->done);
    if (t->todo) queue_close(t->todo);
    t->todo = t->done = NULL;
    return -1;
}

static void stop_thread(Tuner *t)
{
    if (!t->todo) return;
    queue_shut(t->todo);
    pthread_join(t->thread, NULL);
    queue_close(t->todo);
    queue_close(t->done);
}

/* ---- the owner's side ---- */

static Copy copy_open(const TuneSetup *s)
{
    Copy c = {.frames = frames_open(s->n_frames, s->pages_per_frame, s->max_slots)};
    c.cache = cache_open(&s->cache, c.frames, s->max_nodes, &s->cost);
    return c;
}

static void copy_close(Copy *c)
{
    if (c->cache) cache_close(c->cache);
    if (c->frames) frames_close(c->frames);
}

static void free_all(Tuner *t)
{
    for (int i = 0; i < 2; i++) {
        copy_close(&t->window[i].before);
        mem_free(t->window[i].request);
        mem_free(t->window[i].token);
    }
    copy_close(&t->replayer.scratch);
    copy_close(&t->replayer.lru);
    mem_free(t->replayer.page);
    mem_free(t);
}

Tuner *tune_open(const TuneSetup *s, int threaded, Error *err)
{
    assert(s->max_requests > 0 && s->max_tokens > 0);
    Tuner *t = mem_alloc(1, sizeof *t);
    t->max_requests = s->max_requests;
    t->max_tokens = s->max_tokens;
    for (int i = 0; i < 2; i++) {
        Window *w = &t->window[i];
        w->request = mem_alloc((size_t)s->max_requests, sizeof *w->request);
        w->token = mem_alloc((size_t)s->max_tokens, sizeof *w->token);
        w->before = copy_open(s);
        t->spare[t->n_spare++] = w;
    }
    Replayer *p = &t->replayer;
    *p = (Replayer){.rules = s->rules, .pause = 1};
    p->page = mem_alloc((size_t)cache_replay_pages(s->max_tokens), sizeof *p->page);
    p->scratch = copy_open(s);
    p->lru = copy_open(s);
    if (!threaded || !start_thread(t, err)) return t;
    free_all(t);
    return NULL;
}

void tune_close(Tuner *t)
{
    if (!t) return;
    stop_thread(t);
    free_all(t);
}

static int bounded(long n, int most)
{
    if (n < MIN_WINDOW) n = MIN_WINDOW;
    return n > most ? most : (int)n;
}

/* The first eviction, until which every cache is LRU's. 0: it has not come yet. */
static int evicted(Tuner *t, Cache *c)
{
    if (t->search_window) return 1;
    CacheStats s = cache_stats(c);
    t->seen++;
    if (!s.evicted_states && !s.evicted_nodes) return 0;
    t->check_window = bounded(t->seen, t->max_requests);
    t->search_window = bounded(t->seen * WINDOW_TIMES, t->max_requests);
    cache_copy(t->replayer.lru.cache, c, t->replayer.lru.frames);
    return 1;
}

static void begin_window(Tuner *t, Cache *c)
{
    Window *w = t->spare[--t->n_spare];
    w->n = w->n_tokens = 0;
    w->asked = w->hits = 0;
    cache_copy(w->before.cache, c, w->before.frames);
    t->recording = w;
}

static void record(Window *w, const CachedRequest *r, int n_hit)
{
    int n = r->n_prompt + r->n_answer;
    CachedRequest *copy = &w->request[w->n++];
    *copy = *r;
    copy->token = memcpy(w->token + w->n_tokens, r->token, (size_t)n * sizeof *r->token);
    w->n_tokens += n;
    w->asked += r->n_prompt;
    w->hits += n_hit;
}

static void take_result(Tuner *t, Cache *c, const Result *result)
{
    t->spare[t->n_spare++] = result->window;
    t->stats = result->stats;
    cache_set_alpha(c, t->stats.alpha);
}

static void end_window(Tuner *t, Cache *c)
{
    Window *w = t->recording;
    t->recording = NULL;
    if (t->todo) {
        queue_try_push(t->todo, &w); /* has a place for each window */
    } else {
        Result result = replay(&t->replayer, w);
        take_result(t, c, &result);
    }
}

void tune_served(Tuner *t, Cache *c, const CachedRequest *r, int n_hit)
{
    Result result;
    if (t->todo && queue_pop(t->done, &result)) take_result(t, c, &result);
    Window *w = t->recording;
    if (w) {
        int fits = r->n_prompt + r->n_answer <= t->max_tokens - w->n_tokens;
        if (fits) record(w, r, n_hit);
        int full = t->stats.alpha > 0 ? t->check_window : t->search_window;
        if (w->n && (!fits || w->n >= full)) end_window(t, c);
    }
    if (!t->recording && evicted(t, c) && t->n_spare) begin_window(t, c);
}

TuneStats tune_stats(const Tuner *t)
{
    return t->stats;
}
