/* tiers.c: see tiers.h. */
#include "engine/tiers.h"

#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "engine/fingerprint.h"
#include "engine/state.h"

static const size_t MAX_STAGING = (size_t)256 << 20;

/* Numbers of copies aside; those of a sequence's load have the sequence's. */
enum { ASIDE_SAVE = MAX_SEQS, ASIDE_GOING, N_ASIDES };
_Static_assert((int)N_ASIDES <= (int)BACKEND_ASIDES, "each kind of copy has a number");

/* ---- copies aside ---- */

static void end_aside(Engine *e, int number)
{
    e->be->aside_end(e->be, number);
    e->tiers.last_aside = number;
}

/* No copy aside is under way. */
static void wait_aside(Engine *e)
{
    e->be->aside_done(e->be, e->tiers.last_aside, 1);
}

/* ---- opening ---- */

static int open_staging(Engine *e, Error *err)
{
    Tiers *t = &e->tiers;
    const Memory *mem = &e->mem;
    size_t most = (size_t)mem->table_stride * mem->page_bytes + mem->frame_bytes;
    if (e->be->is_host) return 0;
    t->staging_bytes = most < MAX_STAGING ? most : MAX_STAGING;
    t->staged_save.token = mem_alloc((size_t)mem->table_stride * PAGE_TOKENS, sizeof(int32_t));
    for (int i = 0; i < N_STAGED; i++) {
        t->staging[i].memory = e->be->host_alloc(e->be, t->staging_bytes, err);
        if (!t->staging[i].memory) return -1;
    }
    return 0;
}

static int open_disk(Engine *e, Error *err)
{
    Tiers *t = &e->tiers;
    const EngineOptions *o = &e->options;
    const Memory *mem = &e->mem;
    char fingerprint[FINGERPRINT_SIZE];
    Error why = {0};
    if (!o->cache_dir) return 0;
    model_fingerprint(e->model, o->kv_type, engine_uses_head(e), fingerprint);
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

static void copy_aside(void *ctx, void *to, const void *from, size_t bytes)
{
    Backend *be = ctx;
    be->aside_copy(be, to, from, bytes);
}

static HostCopy host_copy(Engine *e)
{
    return (HostCopy){copy_aside, e->be};
}

/* The cache lets a prefix go: its bytes go down a tier, before anything is written over them. */
static void going(void *ctx, int32_t node)
{
    Engine *e = ctx;
    Tiers *t = &e->tiers;
    int32_t slot;
    uint64_t salt;
    TierRefused why;
    int n = cache_prefix(e->mem.cache, node, t->token, t->page, &slot, &salt);
    int first = host_tier_first_new(t->host, salt, t->token, n);
    for (int i = first; i < pages_for(n); i++)
        t->from[i - first] = memory_page(&e->mem, t->page[i]);
    HostCopy copy = host_copy(e);
    wait_aside(e); /* what the tier moves now may be read or written by earlier copies */
    e->be->aside_begin(e->be);
    host_tier_save(t->host, salt, t->token, n, first, t->from, memory_slot(&e->mem, slot), &copy,
                   &why);
    end_aside(e, ASIDE_GOING);
    e->be->aside_join(e->be);
}

static int open_host(Engine *e, Error *err)
{
    Tiers *t = &e->tiers;
    const EngineOptions *o = &e->options;
    Error why = {0};
    if (!o->host_cache) return 0;
    t->host_memory = e->be->host_alloc(e->be, (size_t)o->host_cache, &why);
    if (!t->host_memory) return error_set(err, why.code, "%s; lower --host-cache", why.msg);
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
    if (!e->options.cache.on) return 0;
    if (e->options.ctx_size < PAGE_TOKENS) {
        if (e->options.cache_dir || e->options.host_cache)
            log_warn("cache_tiers_off context=%d: --cache-dir and --host-cache keep %d tokens at "
                     "least",
                     e->options.ctx_size, PAGE_TOKENS);
        return 0;
    }
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
    wait_aside(e);
    for (int i = 0; i < MAX_SAVES; i++)
        mem_free(t->save[i].page);
    host_tier_close(t->host);
    if (t->host_memory) e->be->host_free(e->be, t->host_memory);
    mem_free(t->from);
    mem_free(t->to);
    mem_free(t->page);
    mem_free(t->token);
    for (int i = 0; i < N_STAGED; i++)
        if (t->staging[i].memory) e->be->host_free(e->be, t->staging[i].memory);
    mem_free(t->staged_save.token);
    *t = (Tiers){0};
}

void tiers_clear(Engine *e)
{
    Tiers *t = &e->tiers;
    wait_aside(e);
    if (t->host) host_tier_clear(t->host);
    if (t->disk) disk_clear(t->disk);
}

int tiers_saving(const Engine *e)
{
    int n = 0;
    for (int i = 0; i < MAX_SAVES; i++)
        n += e->tiers.save[i].state != SAVE_FREE;
    return n;
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
    s->disk.saving = tiers_saving(e);
}

/* 1 when the host can have so many pages and a state: there, or in staging memory. */
static int fits_staging(const Engine *e, int n_pages)
{
    size_t bytes = (size_t)n_pages * e->mem.page_bytes + e->mem.slot_bytes;
    return e->be->is_host || bytes <= e->tiers.staging_bytes;
}

/* Where the host finds n pages, to at[], and a state. */
static void *places_for_host(const Engine *e, Staged what, const int32_t *page, int n, int32_t slot,
                             void **at)
{
    unsigned char *staging = e->tiers.staging[what].memory;
    size_t bytes = e->mem.page_bytes;
    for (int i = 0; i < n; i++)
        at[i] = staging ? staging + (size_t)i * bytes : memory_page(&e->mem, page[i]);
    return staging ? staging + (size_t)n * bytes : memory_slot(&e->mem, slot);
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
    s->state = SAVE_FREE;
    e->tiers.staging[STAGED_SAVE].in_use = 0;
}

static Save *free_save(Tiers *t)
{
    for (int i = 0; i < MAX_SAVES; i++)
        if (t->save[i].state == SAVE_FREE) return &t->save[i];
    return NULL;
}

/* Holds pages [first, n) of s; of a last one that s may go on to write, a copy. */
static int hold_pages(Engine *e, Save *save, const Seq *s, int first, int n_tokens)
{
    Memory *mem = &e->mem;
    const int32_t *page = memory_pages(mem, seq_index(e, s));
    int end = pages_for(n_tokens);
    int32_t copy = -1;
    save->n_pages = 0;
    if (n_tokens % PAGE_TOKENS) {
        if (cache_claim_pages(mem->cache, 1, &copy)) return -1;
        e->be->copy(e->be, memory_page(&e->mem, copy), memory_page(&e->mem, page[end - 1]),
                    mem->page_bytes);
    }
    for (int i = first; i < end; i++) {
        int32_t p = i == end - 1 && copy >= 0 ? copy : page[i];
        if (p != copy) pages_hold(mem->frames, p);
        pages_fix(mem->frames, p);
        save->page[save->n_pages++] = p;
    }
    return 0;
}

/* What the host can read of a save goes to the disk's thread. */
static void write_save(Engine *e, Save *save, uint64_t salt, const int32_t *token, int n,
                       int first_page)
{
    Tiers *t = &e->tiers;
    TierRefused why;
    void *state = places_for_host(e, STAGED_SAVE, save->page, save->n_pages, save->slot, t->to);
    for (int i = 0; i < save->n_pages; i++)
        t->from[i] = t->to[i];
    save->job = disk_save(t->disk, salt, token, n, first_page, t->from, state, &why);
    save->state = SAVE_WRITTEN;
    if (save->job < 0) end_save(e, save);
}

/* To the staging memory; tiers_poll goes on. */
static void copy_save(Engine *e, Save *save, const Seq *s, int n, int first_page)
{
    Tiers *t = &e->tiers;
    Backend *be = e->be;
    void *state = places_for_host(e, STAGED_SAVE, save->page, save->n_pages, save->slot, t->to);
    be->aside_begin(be);
    for (int i = 0; i < save->n_pages; i++)
        be->aside_copy(be, t->to[i], memory_page(&e->mem, save->page[i]), e->mem.page_bytes);
    be->aside_copy(be, state, memory_slot(&e->mem, save->slot), e->mem.slot_bytes);
    end_aside(e, ASIDE_SAVE);
    t->staging[STAGED_SAVE].in_use = 1;
    memcpy(t->staged_save.token, s->token, (size_t)n * sizeof *s->token);
    t->staged_save.n = n;
    t->staged_save.first_page = first_page;
    t->staged_save.salt = s->req.salt;
    save->state = SAVE_COPIED_ASIDE;
}

void tiers_save(Engine *e, Seq *s, int n, int32_t slot)
{
    Tiers *t = &e->tiers;
    Save *save = t->disk ? free_save(t) : NULL;
    if (!save || n < PAGE_TOKENS || t->staging[STAGED_SAVE].in_use) return;
    int first = disk_first_new(t->disk, s->req.salt, s->token, n);
    if (!fits_staging(e, pages_for(n) - first) || hold_pages(e, save, s, first, n)) return;
    save->slot = slot;
    slots_hold(e->mem.frames, slot);
    if (!e->be->is_host)
        copy_save(e, save, s, n, first);
    else
        write_save(e, save, s->req.salt, s->token, n, first);
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

/* It waits: its pages, from the first block that is read on, keep their places. */
static void begin_loading(Engine *e, Seq *s, const CacheHit *hit, int n)
{
    const int32_t *page = memory_pages(&e->mem, seq_index(e, s));
    for (int i = first_block(hit); i < pages_for(n); i++)
        pages_fix(e->mem.frames, page[i]);
    s->load_hit = *hit;
    s->n_loading = n;
    s->state = SEQ_LOADING;
}

static int load_from_host(Engine *e, Seq *s, const CacheHit *hit, int n)
{
    Tiers *t = &e->tiers;
    HostCopy copy = host_copy(e);
    int first = first_block(hit), end = pages_for(n), index = seq_index(e, s);
    const int32_t *page = memory_pages(&e->mem, index);
    for (int i = first; i < end; i++)
        t->to[i - first] = memory_page(&e->mem, page[i]);
    e->be->aside_begin(e->be);
    int failed = host_tier_load(t->host, s->req.salt, s->token, n, first, t->to,
                                memory_slot(&e->mem, s->slot), &copy);
    end_aside(e, index);
    if (failed) return 0;
    begin_loading(e, s, hit, n);
    s->is_uploaded = 1;
    return 1;
}

/* Nothing of it is under way any more. */
static void end_load(Engine *e, Seq *s, int ok)
{
    const int32_t *page = memory_pages(&e->mem, seq_index(e, s));
    for (int i = first_block(&s->load_hit); i < pages_for(s->n_loading); i++)
        pages_unfix(e->mem.frames, page[i]);
    if (s->is_staged) e->tiers.staging[STAGED_LOAD].in_use = 0;
    s->waits_staging = s->is_staged = s->is_uploaded = 0;
    s->load_failed = !ok;
}

/* Queues the reading, when it is s's turn. */
static void read_from_disk(Engine *e, Seq *s)
{
    Tiers *t = &e->tiers;
    int first = first_block(&s->load_hit), n = s->n_loading;
    const int32_t *page = memory_pages(&e->mem, seq_index(e, s)) + first;
    if (t->staging[STAGED_LOAD].in_use) return;
    void *state = places_for_host(e, STAGED_LOAD, page, pages_for(n) - first, s->slot, t->to);
    s->waits_staging = 0;
    s->load_job = disk_load(t->disk, s->req.salt, s->token, n, first, t->to, state);
    if (s->load_job < 0)
        end_load(e, s, 0);
    else
        s->is_staged = t->staging[STAGED_LOAD].in_use = !e->be->is_host;
}

static int load_from_disk(Engine *e, Seq *s, const CacheHit *hit, int n)
{
    if (!fits_staging(e, pages_for(n) - first_block(hit))) return 0;
    begin_loading(e, s, hit, n);
    s->waits_staging = 1;
    read_from_disk(e, s);
    return !s->load_failed;
}

int tiers_load(Engine *e, Seq *s, const CacheHit *hit)
{
    const Tiers *t = &e->tiers;
    const EngineRequest *r = &s->req;
    int in_use = hit->n && s->src < 0; /* its slot is the hit's state itself */
    int n = s->n_tokens, on_host = 0, on_disk = 0, n_found = hit->n;
    if (!prefix_reads(r)) return 0;
    if (t->host && !in_use) on_host = host_tier_find(t->host, r->salt, s->token, n);
    if (t->disk && !in_use && !s->load_failed) on_disk = disk_find(t->disk, r->salt, s->token, n);
    int is_best = on_host >= on_disk && on_host - hit->n >= MIN_BRANCH;
    if (!is_best && on_disk - hit->n >= MIN_BRANCH && load_from_disk(e, s, hit, on_disk)) return 1;
    int loaded = is_best && load_from_host(e, s, hit, on_host);
    if (loaded) n_found = on_host;
    if (t->disk && n_found) disk_use(t->disk, r->salt, s->token, n_found);
    return loaded;
}

/* From the staging memory to where it belongs. */
static void upload(Engine *e, Seq *s)
{
    Backend *be = e->be;
    int first = first_block(&s->load_hit), n = pages_for(s->n_loading) - first;
    int index = seq_index(e, s);
    const int32_t *page = memory_pages(&e->mem, index) + first;
    const void *state = places_for_host(e, STAGED_LOAD, page, n, s->slot, e->tiers.to);
    be->aside_begin(be);
    for (int i = 0; i < n; i++)
        be->aside_copy(be, memory_page(&e->mem, page[i]), e->tiers.to[i], e->mem.page_bytes);
    be->aside_copy(be, memory_slot(&e->mem, s->slot), state, e->mem.slot_bytes);
    end_aside(e, index);
    s->is_uploaded = 1;
}

static void take(Engine *e, const DiskDone *done)
{
    for (int i = 0; i < MAX_SAVES; i++) {
        Save *save = &e->tiers.save[i];
        if (save->state == SAVE_WRITTEN && save->job == done->job) end_save(e, save);
    }
    for (int i = 0; i < e->options.max_seqs; i++) {
        Seq *s = &e->seq[i];
        if (s->state != SEQ_LOADING || s->load_job != done->job) continue;
        s->load_job = -1;
        if (s->is_staged && done->ok)
            upload(e, s);
        else
            end_load(e, s, done->ok);
    }
}

/*
 * Copies aside that are done; wait: at least one load's, if there is one, else a save's. Returns
 * whether a load's is. What a device that is lost has copied goes nowhere.
 */
static int poll_aside(Engine *e, int wait)
{
    Tiers *t = &e->tiers;
    int n = 0;
    for (int i = 0; i < e->options.max_seqs; i++) {
        Seq *s = &e->seq[i];
        if (s->state != SEQ_LOADING || !s->is_uploaded) continue;
        int done = e->be->aside_done(e->be, i, wait && !n);
        if (!done) continue;
        end_load(e, s, done > 0);
        n++;
    }
    for (int i = 0; i < MAX_SAVES; i++) {
        Save *save = &t->save[i];
        if (save->state != SAVE_COPIED_ASIDE) continue;
        int done = e->be->aside_done(e->be, ASIDE_SAVE, wait && !n);
        if (done > 0)
            write_save(e, save, t->staged_save.salt, t->staged_save.token, t->staged_save.n,
                       t->staged_save.first_page);
        else if (done < 0)
            end_save(e, save);
    }
    return n > 0;
}

/* A reading that failed has left anything in the page in which the hit ends: its rows are needed.
 */
static void mend_hit(Engine *e, const Seq *s)
{
    int n = s->load_hit.n, last = n / PAGE_TOKENS;
    int32_t own = memory_pages(&e->mem, seq_index(e, s))[last], *page = e->tiers.page;
    if (n % PAGE_TOKENS == 0) return;
    cache_pages(e->mem.cache, s->node, n, page);
    e->be->copy(e->be, memory_page(&e->mem, own), memory_page(&e->mem, page[last]),
                e->mem.page_bytes);
}

/* Those whose load has come to its end. */
static void begin_all(Engine *e)
{
    for (int i = 0; i < e->options.max_seqs; i++) {
        Seq *s = &e->seq[i];
        if (s->state == SEQ_LOADING && s->waits_staging) read_from_disk(e, s);
        if (s->state != SEQ_LOADING || s->waits_staging || s->load_job >= 0 || s->is_uploaded)
            continue;
        if (s->load_failed) {
            mend_hit(e, s);
            schedule_begin(e, s, &s->load_hit);
        } else {
            begin_loaded(e, s, &s->load_hit);
        }
    }
}

void tiers_poll(Engine *e, int wait)
{
    DiskDone done;
    if (poll_aside(e, wait)) wait = 0;
    while (e->tiers.disk && disk_next(e->tiers.disk, &done, wait)) {
        take(e, &done);
        wait = 0;
    }
    begin_all(e);
}

void tiers_stop_loading(Engine *e, Seq *s)
{
    DiskDone done;
    while (s->load_job >= 0 && disk_next(e->tiers.disk, &done, 1))
        take(e, &done);
    if (s->is_uploaded) e->be->aside_done(e->be, seq_index(e, s), 1);
    if (s->is_uploaded || s->waits_staging) end_load(e, s, 1);
}
