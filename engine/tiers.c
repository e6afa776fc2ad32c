/* tiers.c: see tiers.h. */
#include "engine/tiers.h"

#include <assert.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "engine/fingerprint.h"
#include "engine/state.h"

static const size_t MAX_STAGING = (size_t)256 << 20;

/* ---- bytes ---- */

static unsigned char *page_at(const Engine *e, int32_t page)
{
    return e->mem.base + (size_t)pages_place(e->mem.frames, page) * e->mem.page_bytes;
}

static unsigned char *slot_at(const Engine *e, int32_t slot)
{
    return e->mem.base + (size_t)slot * e->mem.frame_bytes;
}

/* ---- opening ---- */

static int open_staging(Engine *e, Error *err)
{
    Tiers *t = &e->tiers;
    const Memory *mem = &e->mem;
    size_t most = (size_t)mem->table_stride * mem->page_bytes + mem->frame_bytes;
    if (e->be->is_host) return 0;
    t->staging_bytes = most < MAX_STAGING ? most : MAX_STAGING;
    t->staging = e->be->host_alloc(e->be, t->staging_bytes, err);
    return t->staging ? 0 : -1;
}

static int open_disk(Engine *e, Error *err)
{
    Tiers *t = &e->tiers;
    const EngineOptions *o = &e->options;
    const Memory *mem = &e->mem;
    char fingerprint[FINGERPRINT_SIZE];
    Error why = {0};
    if (!o->cache_dir) return 0;
    model_fingerprint(e->model, o->kv_type, o->drafter && e->model->has_mtp, fingerprint);
    t->disk = disk_open(o->cache_dir, o->disk_cache,
                        &(DiskShape){.fingerprint = fingerprint,
                                     .page_bytes = mem->page_bytes,
                                     .state_bytes = mem->slot_bytes,
                                     .max_tokens = o->ctx_size},
                        &why);
    if (t->disk) return open_staging(e, err);
    log_warn("disk_cache_off dir=%s: %s", o->cache_dir, why.msg);
    return 0;
}

/* ---- host memory ---- */

static void copy_out(void *ctx, void *host, const void *from, size_t bytes)
{
    Backend *be = ctx;
    be->download(be, host, from, bytes);
}

static void copy_in(void *ctx, void *to, const void *host, size_t bytes)
{
    Backend *be = ctx;
    be->upload(be, to, host, bytes);
}

/* The cache lets a prefix go: its bytes go down a tier. */
static void going(void *ctx, int32_t node)
{
    Engine *e = ctx;
    Tiers *t = &e->tiers;
    int32_t slot;
    uint64_t salt;
    TierRefused why;
    int n = cache_prefix(e->mem.cache, node, t->token, t->page, &slot, &salt);
    int first = host_tier_first_new(t->host, salt, t->token, n);
    for (int i = first; i < memory_pages_for(n); i++)
        t->from[i - first] = page_at(e, t->page[i]);
    host_tier_save(t->host, salt, t->token, n, first, t->from, slot_at(e, slot),
                   &(HostCopy){copy_out, copy_in, e->be}, &why);
}

static int open_host(Engine *e, Error *err)
{
    Tiers *t = &e->tiers;
    const EngineOptions *o = &e->options;
    if (!o->host_cache) return 0;
    t->host_memory = e->be->host_alloc(e->be, (size_t)o->host_cache, err);
    if (!t->host_memory) return -1;
    t->host = host_tier_open(t->host_memory, (size_t)o->host_cache,
                             &(HostShape){.page_bytes = e->mem.page_bytes,
                                          .state_bytes = e->mem.slot_bytes,
                                          .max_tokens = o->ctx_size},
                             err);
    if (!t->host) return -1;
    cache_on_evict(e->mem.cache, going, e);
    return 0;
}

int tiers_open(Engine *e, Error *err)
{
    Tiers *t = &e->tiers;
    size_t stride = (size_t)e->mem.table_stride;
    for (int i = 0; i < MAX_SAVES; i++)
        t->save[i].job = -1;
    if (!e->options.cache.on) return 0;
    t->from = mem_alloc(stride, sizeof *t->from);
    t->to = mem_alloc(stride, sizeof *t->to);
    t->page = mem_alloc(stride, sizeof *t->page);
    t->token = mem_alloc(stride * PAGE_TOKENS, sizeof *t->token);
    for (int i = 0; i < MAX_SAVES; i++)
        t->save[i].page = mem_alloc(stride, sizeof *t->save[i].page);
    return open_disk(e, err) || open_host(e, err) ? -1 : 0;
}

void tiers_close(Engine *e)
{
    Tiers *t = &e->tiers;
    disk_close(t->disk);
    for (int i = 0; i < MAX_SAVES; i++)
        mem_free(t->save[i].page);
    host_tier_close(t->host);
    if (t->host_memory) e->be->host_free(e->be, t->host_memory);
    mem_free(t->from);
    mem_free(t->to);
    mem_free(t->page);
    mem_free(t->token);
    if (t->staging) e->be->host_free(e->be, t->staging);
    *t = (Tiers){0};
}

void tiers_status(const Engine *e, EngineStatus *s)
{
    if (e->tiers.host) {
        HostTierStats h = host_tier_stats(e->tiers.host);
        s->host_cache.saved = h.saved;
        s->host_cache.loaded = h.loaded;
        s->host_cache.bytes = h.bytes;
        s->host_cache.max_bytes = h.max_bytes;
    }
    if (!e->tiers.disk) return;
    DiskStats d = disk_stats(e->tiers.disk);
    s->disk.on = 1;
    s->disk.saved = d.saved;
    s->disk.loaded = d.loaded;
    s->disk.failed = d.failed;
    s->disk.files = d.files;
    s->disk.bytes = d.bytes;
    for (int i = 0; i < MAX_SAVES; i++)
        s->disk.saving += e->tiers.save[i].job >= 0;
}

/* Where the host finds n pages and a state: there, or in the staging memory; 0: that is too small
 * or in use. */
static int place_for_host(Engine *e, const int32_t *page, int n, int32_t slot, void **at,
                          void **state)
{
    Tiers *t = &e->tiers;
    size_t bytes = e->mem.page_bytes;
    if (!e->be->is_host && (t->staged || (size_t)n * bytes + e->mem.slot_bytes > t->staging_bytes))
        return 0;
    t->staged = !e->be->is_host;
    for (int i = 0; i < n; i++)
        at[i] = t->staged ? t->staging + (size_t)i * bytes : page_at(e, page[i]);
    *state = t->staged ? t->staging + (size_t)n * bytes : slot_at(e, slot);
    return 1;
}

/* ---- saving ---- */

static void end_save(Engine *e, Save *s)
{
    Frames *f = e->mem.frames;
    for (int i = 0; i < s->n_pages; i++) {
        pages_unfix(f, s->page[i]);
        pages_release(f, s->page[i]);
    }
    slots_release(f, s->slot);
    s->job = -1;
    e->tiers.staged = 0;
}

static Save *free_save(Tiers *t)
{
    for (int i = 0; i < MAX_SAVES; i++)
        if (t->save[i].job < 0) return &t->save[i];
    return NULL;
}

/* Holds pages [first, n) of s; of a last one that s may go on to write, a copy. */
static int hold_pages(Engine *e, Save *save, const Seq *s, int first, int n_tokens)
{
    Memory *mem = &e->mem;
    const int32_t *page = memory_pages(mem, (int)(s - e->seq));
    int end = memory_pages_for(n_tokens);
    int32_t copy = -1;
    save->n_pages = 0;
    if (n_tokens % PAGE_TOKENS) {
        if (cache_claim_pages(mem->cache, 1, &copy)) return -1;
        e->be->copy(e->be, page_at(e, copy), page_at(e, page[end - 1]), mem->page_bytes);
    }
    for (int i = first; i < end; i++) {
        int32_t p = i == end - 1 && copy >= 0 ? copy : page[i];
        if (p != copy) pages_hold(mem->frames, p);
        pages_fix(mem->frames, p);
        save->page[save->n_pages++] = p;
    }
    return 0;
}

void tiers_save(Engine *e, Seq *s, int n, int32_t slot)
{
    Tiers *t = &e->tiers;
    Backend *be = e->be;
    Save *save = t->disk ? free_save(t) : NULL;
    TierRefused why;
    void *state;
    if (!save || n < PAGE_TOKENS || t->staged) return;
    int first = disk_first_new(t->disk, s->req.salt, s->token, n);
    if (hold_pages(e, save, s, first, n)) return;
    save->slot = slot;
    slots_hold(e->mem.frames, slot);
    if (place_for_host(e, save->page, save->n_pages, slot, t->to, &state)) {
        for (int i = 0; i < save->n_pages; i++) {
            if (t->staged) be->download(be, t->to[i], page_at(e, save->page[i]), e->mem.page_bytes);
            t->from[i] = t->to[i];
        }
        if (t->staged) be->download(be, state, slot_at(e, slot), e->mem.slot_bytes);
        save->job = disk_save(t->disk, s->req.salt, s->token, n, first, t->from, state, &why);
    }
    if (save->job < 0) end_save(e, save);
}

/* ---- loading ---- */

/* Blocks from here on are read: the last of the hit's may be a part of one. */
static int first_block(const CacheHit *hit)
{
    return hit->n / PAGE_TOKENS;
}

/* s has the first n tokens' rows and state: it begins, and others can have them too. */
static void begin_loaded(Engine *e, Seq *s, const CacheHit *before)
{
    CacheHit hit = *before;
    prefix_loaded(e, s, &hit);
    schedule_begin(e, s, &hit);
    prefix_share(e, s);
}

static int load_from_host(Engine *e, Seq *s, const CacheHit *hit, int n)
{
    Tiers *t = &e->tiers;
    int first = first_block(hit), end = memory_pages_for(n);
    const int32_t *page = memory_pages(&e->mem, (int)(s - e->seq));
    for (int i = first; i < end; i++)
        t->to[i - first] = page_at(e, page[i]);
    if (host_tier_load(t->host, s->req.salt, s->token, n, first, t->to, slot_at(e, s->slot),
                       &(HostCopy){copy_out, copy_in, e->be}))
        return 0;
    s->n_loading = n;
    begin_loaded(e, s, hit);
    return 1;
}

static int load_from_disk(Engine *e, Seq *s, const CacheHit *hit, int n)
{
    Tiers *t = &e->tiers;
    int first = first_block(hit), n_pages = memory_pages_for(n) - first;
    const int32_t *page = memory_pages(&e->mem, (int)(s - e->seq)) + first;
    void *state;
    if (!place_for_host(e, page, n_pages, s->slot, t->to, &state)) return 0;
    s->load_job = disk_load(t->disk, s->req.salt, s->token, n, first, t->to, state);
    if (s->load_job < 0) {
        t->staged = 0;
        return 0;
    }
    for (int i = 0; i < n_pages; i++)
        pages_fix(e->mem.frames, page[i]);
    s->load_hit = *hit;
    s->n_loading = n;
    s->state = SEQ_LOADING;
    return 1;
}

int tiers_load(Engine *e, Seq *s, const CacheHit *hit)
{
    const Tiers *t = &e->tiers;
    const EngineRequest *r = &s->req;
    int in_use = hit->n && s->src < 0; /* its slot is the hit's state itself */
    int n = s->n_tokens, on_host = 0, on_disk = 0;
    if (r->no_cache || r->prompt_logprobs || in_use) return 0;
    if (t->host) on_host = host_tier_find(t->host, r->salt, s->token, n, n);
    if (t->disk && !s->load_failed) on_disk = disk_find(t->disk, r->salt, s->token, n, n);
    if (on_host >= on_disk && on_host - hit->n >= MIN_BRANCH)
        return load_from_host(e, s, hit, on_host);
    return on_disk - hit->n >= MIN_BRANCH && load_from_disk(e, s, hit, on_disk);
}

/* What was read is where it belongs. */
static void end_load(Engine *e, Seq *s, int ok)
{
    Tiers *t = &e->tiers;
    Backend *be = e->be;
    int first = first_block(&s->load_hit), n = memory_pages_for(s->n_loading) - first;
    const int32_t *page = memory_pages(&e->mem, (int)(s - e->seq)) + first;
    for (int i = 0; i < n; i++) {
        pages_unfix(e->mem.frames, page[i]);
        if (t->staged && ok)
            be->upload(be, page_at(e, page[i]), t->staging + (size_t)i * e->mem.page_bytes,
                       e->mem.page_bytes);
    }
    if (t->staged && ok)
        be->upload(be, slot_at(e, s->slot), t->staging + (size_t)n * e->mem.page_bytes,
                   e->mem.slot_bytes);
    if (t->staged) be->sync(be, NULL); /* the staging memory is used again */
    t->staged = 0;
    s->load_job = -1;
    s->load_failed = !ok;
}

static void take(Engine *e, const DiskDone *done)
{
    for (int i = 0; i < MAX_SAVES; i++)
        if (e->tiers.save[i].job == done->job) end_save(e, &e->tiers.save[i]);
    for (int i = 0; i < e->options.max_seqs; i++)
        if (e->seq[i].state == SEQ_LOADING && e->seq[i].load_job == done->job)
            end_load(e, &e->seq[i], done->ok);
}

void tiers_poll(Engine *e, int wait)
{
    DiskDone done;
    if (!e->tiers.disk) return;
    while (disk_next(e->tiers.disk, &done, wait)) {
        take(e, &done);
        wait = 0;
    }
    for (int i = 0; i < e->options.max_seqs; i++) {
        Seq *s = &e->seq[i];
        if (s->state != SEQ_LOADING || s->load_job >= 0) continue;
        if (s->load_failed)
            schedule_begin(e, s, &s->load_hit);
        else
            begin_loaded(e, s, &s->load_hit);
    }
}

void tiers_stop_loading(Engine *e, Seq *s)
{
    DiskDone done;
    while (s->load_job >= 0 && disk_next(e->tiers.disk, &done, 1))
        take(e, &done);
}
