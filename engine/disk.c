/*
 * disk.c: see disk.h. The caller's side: index, jobs, room.
 *
 * An item leaves the index at once; its file is removed by a job that is queued before the next
 * save. So the worker's order makes all of it right: a save finds the room and the names free, and
 * a load that was queued earlier still finds its files.
 */
#include "engine/disk.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "base/mem.h"
#include "engine/disk_restore.h"
#include "engine/disk_worker.h"
#include "engine/store.h"

enum {
    N_JOBS = 12,
    SPARE_SHARE = 8, /* one part of so many goes ahead when the disk is full */
    SPARE_JOBS = 4,  /* kept for loads, touches and removals */
    MAX_ITEMS = 1 << 18,
    MAX_BLOCKS = 1 << 20,
};

typedef enum { JOB_FREE, JOB_SENT, JOB_DONE } JobState;

struct Disk {
    DiskFolder folder;
    CacheShape shape;
    int max_items, max_blocks;
    Store *store;
    CacheName *name; /* of each item */
    CacheName *gone; /* files to be removed; no more than items and those of jobs */
    int n_gone;
    DiskJob job[N_JOBS];
    JobState job_state[N_JOBS];
    int finished[N_JOBS]; /* jobs that disk_next is to tell of, the oldest first */
    int n_finished;
    void *job_memory;
    Queue *done;
    DiskWorker *worker;
    DiskStats stats;
};

/* ---- opening ---- */

static size_t round_up(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* Arrays of all jobs in one block; touched as far as prompts reach. */
static int open_jobs(Disk *d, Error *err)
{
    size_t n = (size_t)d->shape.max_tokens, pages = n / PAGE_TOKENS + 1;
    size_t tokens = round_up(n * sizeof(int32_t)), list = round_up(pages * sizeof(void *));
    size_t parts = round_up((pages + 1) * sizeof(JobPart));
    unsigned char *at = d->job_memory = mem_map(N_JOBS * (tokens + 2 * list + parts));
    if (!at) return error_set(err, ERR_DEVICE, "no memory for the jobs of the disk cache");
    for (int i = 0; i < N_JOBS; i++) {
        DiskJob *j = &d->job[i];
        j->token = (void *)at;
        j->from = (void *)(at += tokens);
        j->to = (void *)(at += list);
        j->part = (void *)(at += list);
        at += parts;
    }
    return 0;
}

/* As many items and blocks as the budget can hold of the smallest, within reason. */
static int open_index(Disk *d, int64_t max_bytes, Error *err)
{
    int64_t run = cache_file_bytes(&d->shape, PAGE_TOKENS, 1, 0);
    int64_t state = cache_file_bytes(&d->shape, PAGE_TOKENS, 0, 1);
    int64_t least = cache_file_room(run) + cache_file_room(state);
    if (max_bytes < least)
        return error_set(err, ERR_LIMIT,
                         "a disk cache of %" PRId64 " bytes is too small: a state and its tokens "
                         "take %" PRId64 "; raise --disk-cache",
                         max_bytes, least);
    int64_t items = max_bytes / (run < state ? run : state) + 2;
    int64_t blocks = max_bytes / (int64_t)d->shape.page_bytes + 1;
    d->max_items = (int)(items < MAX_ITEMS ? items : MAX_ITEMS);
    d->max_blocks = (int)(blocks < MAX_BLOCKS ? blocks : MAX_BLOCKS);
    size_t names = (size_t)d->max_items + 2 * N_JOBS;
    d->store = store_open(max_bytes, d->max_items, d->max_blocks, err);
    d->name = mem_map(names * sizeof *d->name);
    d->gone = mem_map(names * sizeof *d->gone);
    if (!d->store) return -1;
    if (!d->name || !d->gone)
        return error_set(err, ERR_DEVICE, "no memory for the index of the disk cache");
    return 0;
}

Disk *disk_open(const char *path, int64_t max_bytes, const DiskShape *shape, Error *err)
{
    assert(shape->page_bytes > 0 && shape->state_bytes > 0);
    assert(shape->max_tokens >= PAGE_TOKENS);
    assert(max_bytes >= 0);
    Disk *d = mem_alloc(1, sizeof *d);
    *d = (Disk){
        .folder = {.fd = -1, .lock_fd = -1},
        .shape = {.model = hash_key(shape->fingerprint, strlen(shape->fingerprint), 0),
                  .page_bytes = shape->page_bytes,
                  .state_bytes = shape->state_bytes,
                  .max_tokens = shape->max_tokens},
    };
    if (disk_folder_open(&d->folder, path, err)) goto fail;
    if (open_index(d, max_bytes, err) || open_jobs(d, err)) goto fail;
    disk_restore(&d->folder, &d->shape, d->store, max_bytes, d->name);
    if (!(d->done = queue_open(N_JOBS, sizeof(int), err))) goto fail;
    if (!(d->worker = disk_worker_open(d->job, N_JOBS, &d->folder, &d->shape, d->done, err)))
        goto fail;
    return d;
fail:
    disk_close(d);
    return NULL;
}

void disk_close(Disk *d)
{
    if (!d) return;
    disk_worker_close(d->worker);
    queue_close(d->done);
    disk_folder_close(&d->folder);
    store_close(d->store);
    mem_unmap(d->name);
    mem_unmap(d->gone);
    mem_unmap(d->job_memory);
    mem_free(d);
}

/* ---- jobs ---- */

static int jobs_in(const Disk *d, JobState state)
{
    int n = 0;
    for (int i = 0; i < N_JOBS; i++)
        n += d->job_state[i] == state;
    return n;
}

static int free_jobs(const Disk *d)
{
    return jobs_in(d, JOB_FREE);
}

/* A free job with no parts; there must be one. */
static DiskJob *take_job(Disk *d, JobKind kind, int *number)
{
    int i = 0;
    while (d->job_state[i] != JOB_FREE)
        i++;
    DiskJob *j = &d->job[i];
    d->job_state[i] = JOB_SENT;
    j->kind = kind;
    j->n_parts = j->n_new = 0;
    *number = i;
    return j;
}

/* Parts of a prefix: its state, then the runs that it needs, each as far as it goes along. */
static void add_parts(const Disk *d, DiskJob *j, int32_t state)
{
    int end = 0;
    for (int32_t item = state; item >= 0; item = store_needs(d->store, item)) {
        StoreItem it = store_item(d->store, item);
        j->part[j->n_parts++] = (JobPart){.name = d->name[item],
                                          .item = item,
                                          .first = it.first,
                                          .n_blocks = it.n_blocks,
                                          .end = end};
        end = it.first;
    }
}

static void set_prefix(DiskJob *j, uint64_t salt, const int32_t *token, int n, int first_page)
{
    j->salt = salt;
    j->n = n;
    j->first_page = first_page;
    memcpy(j->token, token, (size_t)n * sizeof *token);
}

/* ---- removing ---- */

static void when_dropped(void *ctx, int32_t item)
{
    Disk *d = ctx;
    d->gone[d->n_gone++] = d->name[item];
    d->name[item].kind = CACHE_NAME_NONE;
}

/* Sends what is to be removed; 1 when nothing is left and a job is free for more. */
static int send_removals(Disk *d)
{
    int most = d->shape.max_tokens / PAGE_TOKENS + 2;
    while (free_jobs(d) && d->n_gone) {
        int number;
        DiskJob *j = take_job(d, JOB_REMOVE, &number);
        /* In their order: what needs another goes first, in case we are killed between the two. */
        for (; j->n_parts < d->n_gone && j->n_parts < most; j->n_parts++)
            j->part[j->n_parts] = (JobPart){.name = d->gone[j->n_parts], .item = -1};
        d->n_gone -= j->n_parts;
        memmove(d->gone, d->gone + j->n_parts, (size_t)d->n_gone * sizeof *d->gone);
        disk_worker_send(d->worker, number);
    }
    return free_jobs(d) > 0;
}

/* The part's item, unless it was dropped while the job was on. */
static int32_t item_of(const Disk *d, const JobPart *p)
{
    return p->item >= 0 && cache_name_equal(d->name[p->item], p->name) ? p->item : -1;
}

/* ---- what comes back ---- */

/*
 * The disk has less room than the budget: what is oldest goes for what could not be saved, and some
 * more, since the next saves that find no room are lost, too.
 */
static void give_way(Disk *d, int64_t bytes)
{
    int before = store_count(d->store);
    int64_t all = store_bytes(d->store), keep = all - all / SPARE_SHARE - bytes;
    while (store_bytes(d->store) > keep && store_oldest(d->store) >= 0)
        store_drop(d->store, store_oldest(d->store), when_dropped, d);
    d->stats.evicted += before - store_count(d->store);
}

/* Whether files are to go that still have their room. */
static int is_removing(const Disk *d)
{
    for (int i = 0; i < N_JOBS; i++)
        if (d->job_state[i] == JOB_SENT && d->job[i].kind == JOB_REMOVE) return 1;
    return d->n_gone > 0;
}

static void finish_save(Disk *d, const DiskJob *j)
{
    int has_room = !j->no_room || is_removing(d); /* soon: other saves failed before this one */
    int64_t before = store_bytes(d->store);
    int32_t state = item_of(d, &j->part[0]);
    if (j->ok && state >= 0) store_set_ready(d->store, state);
    /* The run first: the state goes with it. */
    for (int i = j->n_new - 1; i >= 0 && !j->ok; i--) {
        int32_t item = item_of(d, &j->part[i]);
        if (item >= 0) store_drop(d->store, item, when_dropped, d);
    }
    if (!has_room) give_way(d, before - store_bytes(d->store));
    d->stats.saved += j->ok;
}

static void finish_load(Disk *d, const DiskJob *j)
{
    int32_t item = j->bad >= 0 ? item_of(d, &j->part[j->bad]) : -1;
    if (item >= 0) {
        int before = store_count(d->store);
        store_drop(d->store, item, when_dropped, d);
        d->stats.lost += before - store_count(d->store);
    }
    d->stats.loaded += j->ok;
}

static void collect(Disk *d)
{
    int number;
    queue_clear(d->done);
    while (queue_pop(d->done, &number)) {
        DiskJob *j = &d->job[number];
        if (j->kind == JOB_SAVE || j->kind == JOB_LOAD) {
            (j->kind == JOB_SAVE ? finish_save : finish_load)(d, j);
            d->stats.failed += !j->ok;
            d->job_state[number] = JOB_DONE;
            d->finished[d->n_finished++] = number;
        } else {
            d->job_state[number] = JOB_FREE;
        }
    }
    if (d->n_gone) send_removals(d);
}

static int is_waited_for(const Disk *d)
{
    for (int i = 0; i < N_JOBS; i++)
        if (d->job_state[i] == JOB_SENT &&
            (d->job[i].kind == JOB_SAVE || d->job[i].kind == JOB_LOAD))
            return 1;
    return 0;
}

void disk_clear(Disk *d)
{
    for (int32_t item; (item = store_oldest(d->store)) >= 0;)
        store_drop(d->store, item, when_dropped, d);
    collect(d);
    while (d->n_gone && jobs_in(d, JOB_SENT)) { /* no job is free until one comes back */
        queue_wait(d->done);
        collect(d);
    }
}

int disk_next(Disk *d, DiskDone *done, int wait)
{
    collect(d);
    while (wait && !d->n_finished && is_waited_for(d)) {
        queue_wait(d->done);
        collect(d);
    }
    if (!d->n_finished) return 0;
    int number = d->finished[0];
    memmove(d->finished, d->finished + 1, (size_t)--d->n_finished * sizeof *d->finished);
    d->job_state[number] = JOB_FREE;
    *done = (DiskDone){.job = number, .ok = d->job[number].ok};
    return 1;
}

/* ---- finding and loading ---- */

int disk_find(const Disk *d, uint64_t salt, const int32_t *token, int n)
{
    return store_find(d->store, salt, token, n).n;
}

int disk_first_new(const Disk *d, uint64_t salt, const int32_t *token, int n)
{
    return store_match(d->store, salt, token, n, NULL);
}

/* Its age on disk, where a job is free: that is not worth a wait. */
static void touch(Disk *d, int32_t state)
{
    int number;
    if (free_jobs(d) < SPARE_JOBS / 2) return;
    DiskJob *j = take_job(d, JOB_TOUCH, &number);
    add_parts(d, j, state);
    disk_worker_send(d->worker, number);
}

void disk_use(Disk *d, uint64_t salt, const int32_t *token, int n)
{
    StoreHit hit = store_find(d->store, salt, token, n);
    if (hit.item < 0 || hit.n != n) return;
    store_use(d->store, hit.item);
    touch(d, hit.item);
}

int disk_load(Disk *d, uint64_t salt, const int32_t *token, int n, int first_page,
              void *const *page, void *state)
{
    int number;
    collect(d);
    StoreHit hit = store_find(d->store, salt, token, n);
    if (hit.item < 0 || hit.n != n || !free_jobs(d)) return -1;
    assert(first_page >= 0 && first_page <= pages_for(n));
    DiskJob *j = take_job(d, JOB_LOAD, &number);
    set_prefix(j, salt, token, n, first_page);
    for (int i = first_page; i < pages_for(n); i++)
        j->to[i - first_page] = page[i - first_page];
    j->to_state = state;
    add_parts(d, j, hit.item);
    store_use(d->store, hit.item);
    disk_worker_send(d->worker, number);
    return number;
}

/* ---- saving ---- */

/* Adds what is new to the index, for a job to write. */
static void add_items(Disk *d, DiskJob *j, const StorePlan *p, int64_t run_bytes,
                      int64_t state_bytes)
{
    int32_t run, state = store_add_planned(d->store, p, run_bytes, state_bytes, &run);
    j->n_new = 1 + (run >= 0);
    if (run >= 0) d->name[run] = cache_name_of(&d->shape, store_item(d->store, run).key, 0);
    d->name[state] = cache_name_of(&d->shape, store_item(d->store, state).key, 1);
    add_parts(d, j, state);
}

int disk_save(Disk *d, uint64_t salt, const int32_t *token, int n, int first_page,
              const void *const *page, const void *state, TierRefused *why)
{
    StorePlan p = {.salt = salt, .token = token, .n = n};
    int number;
    collect(d);
    if (store_plan(d->store, &p, d->shape.max_tokens, first_page, why)) {
        if (*why == TIER_KNOWN) touch(d, p.state);
        return -1;
    }
    if (free_jobs(d) <= SPARE_JOBS || d->n_gone) return store_refuse(why, TIER_BUSY);
    int64_t of_run =
        p.n_new ? cache_file_room(cache_file_bytes(&d->shape, n - p.n_rest, p.n_new, 0)) : 0;
    int64_t of_state = cache_file_room(cache_file_bytes(&d->shape, n, p.n_rest > 0, 1));
    int before = store_count(d->store);
    if (store_make_room(d->store, p.last, p.n_new, of_run + of_state, when_dropped, d))
        return store_refuse(why, TIER_LARGE);
    d->stats.evicted += before - store_count(d->store);
    if (!send_removals(d)) return store_refuse(why, TIER_BUSY);
    DiskJob *j = take_job(d, JOB_SAVE, &number);
    set_prefix(j, salt, token, n, first_page);
    for (int i = first_page; i < pages_for(n); i++)
        j->from[i - first_page] = page[i - first_page];
    j->from_state = state;
    add_items(d, j, &p, of_run, of_state);
    disk_worker_send(d->worker, number);
    return number;
}

DiskStats disk_stats(const Disk *d)
{
    DiskStats s = d->stats;
    s.files = store_count(d->store);
    s.bytes = store_bytes(d->store);
    return s;
}
