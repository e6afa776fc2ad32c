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
    MIN_WINDOW = 20,  /* and of one until then */
    N_ALPHAS = 21,    /* 0, 0.1 .. 2 */
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
    int limit;        /* requests that it was to have */
    long asked, hits; /* prompt tokens, and those of them that were cached */
} Window;

/* The side that replays. */
typedef struct {
    KeepRules rules;
    Copy lru;      /* has served all requests, with alpha 0 */
    Copy before;   /* lru before the window */
    Copy scratch;  /* of a replay */
    int32_t *page; /* of a request */
    int max_requests;
    long seen;                       /* requests until something was let go */
    int search_window, check_window; /* 0: nothing was yet */
    int searched;
    int rest, pause; /* windows without a search from 0: now, and the next time */
    Queue *todo;     /* shut: nobody waits for a result any more; NULL: no thread */
    TuneStats stats;
} Replayer;

/* What the replayer says of a window that it was handed. */
typedef struct {
    Window *window;
    int limit; /* requests of the next ones */
    TuneStats stats;
} Result;

struct Tuner {
    Replayer replayer; /* the thread's, if there is one */
    Window window[2];
    Window *recording; /* NULL: none is */
    Window *spare[2];
    int n_spare;
    int limit, max_tokens; /* of a window */
    TuneStats stats;
    pthread_t thread;
    Queue *todo, *done; /* NULL: no thread. Of Window pointers and Results */
};

/* ---- the side that replays ---- */

/* Prompt tokens that are cached: of the whole window, and of its second half. */
typedef struct {
    long all, late;
} Hits;

static Hits replay_window(const Replayer *p, const Window *w, const Copy *on)
{
    Hits hits = {0};
    int fits;
    for (int i = 0; i < w->n; i++) {
        int n = cache_replay(on->cache, on->frames, &p->rules, &w->request[i], p->page, &fits);
        hits.all += n;
        if (i >= w->n / 2) hits.late += n;
    }
    return hits;
}

static void copy(const Copy *to, const Copy *from)
{
    cache_copy(to->cache, from->cache, to->frames);
}

/*
 * The best alpha for the window, on which alpha 0 has lru_late hits in the second half; any other
 * must gain more than `least`. The first half only lets each alpha make the cache its own: what one
 * gains by what another left behind does not last.
 */
static double search_alpha(Replayer *p, const Window *w, long lru_late, long least)
{
    double best = 0;
    long most = lru_late + least;
    p->stats.searches++;
    for (int i = 1; i < N_ALPHAS; i++) {
        copy(&p->scratch, &p->before);
        cache_set_alpha(p->scratch.cache, i / 10.0);
        long late = replay_window(p, w, &p->scratch).late;
        if (p->todo && queue_is_shut(p->todo)) break;
        if (late <= most) continue;
        most = late;
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

static int bounded(long n, int most)
{
    if (n < MIN_WINDOW) n = MIN_WINDOW;
    return n > most ? most : (int)n;
}

/* 1 once something was let go; until then every alpha is LRU. */
static int under_pressure(Replayer *p, const Window *w)
{
    CacheStats s = cache_stats(p->lru.cache);
    if (p->search_window) return 1;
    p->seen += w->n;
    if (s.evicted_states || s.evicted_nodes) {
        p->check_window = bounded(p->seen / 2, p->max_requests);
        p->search_window = bounded(p->seen * WINDOW_TIMES, p->max_requests);
    }
    return 0;
}

static void judge(Replayer *p, const Window *w, Hits lru)
{
    TuneStats *s = &p->stats;
    long point = w->asked / POINT;
    s->windows++;
    s->asked_tokens += w->asked;
    s->hit_tokens += w->hits;
    s->lru_tokens += lru.all;
    if (s->alpha > 0) {
        if (lru.all <= w->hits + point) return;
        s->fallbacks++;
        s->alpha = 0;
        pause_search(p);
    } else if (p->rest > 0) {
        p->rest--;
    } else if (w->limit >= p->search_window) { /* else it began before that was known */
        s->alpha = search_alpha(p, w, lru.late, p->searched ? point : 0);
        p->searched = 1;
        if (s->alpha == 0) pause_search(p);
    }
}

static Result replay(Replayer *p, Window *w)
{
    if (p->search_window && p->stats.alpha == 0 && !p->rest) copy(&p->before, &p->lru);
    Hits lru = replay_window(p, w, &p->lru);
    if (under_pressure(p, w)) judge(p, w, lru);
    int limit = p->stats.alpha > 0 ? p->check_window : p->search_window;
    return (Result){w, limit ? limit : bounded(0, p->max_requests), p->stats};
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
    t->replayer.todo = t->todo;
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
        mem_free(t->window[i].request);
        mem_free(t->window[i].token);
    }
    copy_close(&t->replayer.scratch);
    copy_close(&t->replayer.before);
    copy_close(&t->replayer.lru);
    mem_free(t->replayer.page);
    mem_free(t);
}

Tuner *tune_open(const TuneSetup *s, int threaded, Error *err)
{
    assert(s->max_requests > 0 && s->max_tokens > 0);
    Tuner *t = mem_alloc(1, sizeof *t);
    t->max_tokens = s->max_tokens;
    t->limit = bounded(0, s->max_requests);
    for (int i = 0; i < 2; i++) {
        Window *w = &t->window[i];
        w->request = mem_alloc((size_t)s->max_requests, sizeof *w->request);
        w->token = mem_alloc((size_t)s->max_tokens, sizeof *w->token);
        t->spare[t->n_spare++] = w;
    }
    Replayer *p = &t->replayer;
    *p = (Replayer){.rules = s->rules, .pause = 1, .max_requests = s->max_requests};
    p->page = mem_alloc((size_t)pages_for(s->max_tokens), sizeof *p->page);
    p->lru = copy_open(s);
    p->before = copy_open(s);
    p->scratch = copy_open(s);
    cache_set_alpha(p->lru.cache, 0);
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

/* While the other side has both windows, requests go unseen. */
static Window *window_for(Tuner *t)
{
    if (t->recording || !t->n_spare) return t->recording;
    Window *w = t->spare[--t->n_spare];
    w->n = w->n_tokens = 0;
    w->asked = w->hits = 0;
    return t->recording = w;
}

static void record(Window *w, const CachedRequest *r, int n_hit)
{
    int n = r->n_prompt + r->n_answer;
    CachedRequest *kept = &w->request[w->n++];
    *kept = *r;
    kept->token = memcpy(w->token + w->n_tokens, r->token, (size_t)n * sizeof *r->token);
    w->n_tokens += n;
    w->asked += r->n_prompt;
    w->hits += n_hit;
}

static void take_result(Tuner *t, Cache *c, const Result *result)
{
    t->spare[t->n_spare++] = result->window;
    t->limit = result->limit;
    t->stats = result->stats;
    cache_set_alpha(c, t->stats.alpha);
}

static void end_window(Tuner *t, Cache *c)
{
    Window *w = t->recording;
    t->recording = NULL;
    w->limit = t->limit;
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
    int n = r->n_prompt + r->n_answer;
    if (t->todo && queue_pop(t->done, &result)) take_result(t, c, &result);
    if (n > t->max_tokens) return;
    if (t->recording && n > t->max_tokens - t->recording->n_tokens) end_window(t, c);
    Window *w = window_for(t);
    if (!w) return;
    record(w, r, n_hit);
    if (w->n >= t->limit) end_window(t, c);
}

TuneStats tune_stats(const Tuner *t)
{
    return t->stats;
}
