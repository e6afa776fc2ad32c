/* cache_replay.c: see cache_replay.h. */
#include "engine/cache_replay.h"

#include "engine/frames.h"

enum { MAX_POINTS = 4 };

/* Where a state is to be kept: after n tokens. */
typedef struct {
    int n;
    CacheKept kind;
} Point;

typedef struct {
    Cache *cache;
    Frames *frames;
    const CachedRequest *r;
    CacheHit hit;
    int n_shared; /* pages of the hit's that are taken as they are */
    int n_pages;
    int32_t *page;
    int32_t slot; /* the state so far */
    Point point[MAX_POINTS];
    int n_points;
} Replay;

/* ---- where states are kept ---- */

/* In order; a place that is there already is not asked for again. */
static void add_point(Replay *p, int n, CacheKept kind)
{
    int at = p->n_points;
    if (n <= p->hit.n) return;
    for (int i = 0; i < p->n_points; i++)
        if (p->point[i].n == n) return;
    while (at > 0 && p->point[at - 1].n > n) {
        p->point[at] = p->point[at - 1];
        at--;
    }
    p->point[at] = (Point){n, kind};
    p->n_points++;
}

static void choose_points(Replay *p, const KeepRules *rules)
{
    const CachedRequest *r = p->r;
    KeepPlan plan =
        keep_plan(rules, &p->hit, r->n_prompt, r->n_system, r->n_stable, r->answer_changes);
    add_point(p, plan.branch, KEPT_BRANCH);
    add_point(p, plan.system, KEPT_BRANCH);
    add_point(p, plan.prompt, KEPT_PROMPT);
    if (plan.answer)
        add_point(p, r->n_prompt + r->n_answer, KEPT_ANSWER);
    else if (rules->keep_answers && r->answer_changes)
        cache_refuse(p->cache, REFUSED_CHANGES);
}

/* ---- memory ---- */

/* The hit's whole pages, and new ones for all that follows. */
static int claim_memory(Replay *p)
{
    p->n_shared = p->hit.n / PAGE_TOKENS;
    p->n_pages = pages_for(p->r->n_prompt + p->r->n_answer);
    if (p->hit.n) cache_pages(p->cache, p->hit.node, p->hit.n, p->page);
    if (cache_claim_pages(p->cache, p->n_pages - p->n_shared, p->page + p->n_shared)) return -1;
    if (cache_claim_slots(p->cache, 1, &p->slot) == 1) return 0;
    for (int i = p->n_shared; i < p->n_pages; i++)
        pages_release(p->frames, p->page[i]);
    return -1;
}

static void release_memory(Replay *p)
{
    slots_release(p->frames, p->slot);
    for (int i = p->n_shared; i < p->n_pages; i++)
        pages_release(p->frames, p->page[i]);
}

/* ---- the request ---- */

/* The state is kept and the tokens after it go on in another slot; the last one is given away. */
static void keep_point(Replay *p, int i)
{
    const CachedRequest *r = p->r;
    int32_t next;
    int last = i == p->n_points - 1 && p->point[i].n == r->n_prompt + r->n_answer;
    if (!last && cache_claim_slots(p->cache, 1, &next) < 1) {
        cache_refuse(p->cache, REFUSED_MEMORY);
        return;
    }
    double end = r->end > r->now ? r->end : r->now;
    cache_touch_since(p->cache, p->hit.node, r->now, end);
    cache_keep(p->cache, r->salt, p->hit.node, r->token, p->point[i].n, p->page, p->slot,
               p->point[i].kind, end);
    if (last) return;
    slots_release(p->frames, p->slot);
    p->slot = next;
}

int cache_replay(Cache *c, Frames *f, const KeepRules *rules, const CachedRequest *r, int32_t *page,
                 int *fits)
{
    Replay p = {.cache = c, .frames = f, .r = r, .page = page};
    p.hit = cache_find(c, r->salt, r->token, r->n_prompt);
    cache_use(c, &p.hit, r->n_prompt, r->now);
    cache_pin(c, p.hit.node);
    *fits = !claim_memory(&p);
    if (*fits) {
        choose_points(&p, rules);
        for (int i = 0; i < p.n_points; i++)
            keep_point(&p, i);
        release_memory(&p);
    }
    cache_unpin(c, p.hit.node);
    return p.hit.n;
}
