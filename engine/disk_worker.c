/* disk_worker.c: see disk_worker.h. It takes no memory while it runs. */
#include "engine/disk_worker.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/thread.h"
#include "engine/cache.h"

/* What goes wrong goes wrong for every request: one line a minute. */
static const double LOG_EVERY_MS = 60000;

struct DiskWorker {
    pthread_t thread;
    DiskJob *job;
    int n_jobs;
    DiskFolder *folder;
    CacheShape shape;
    Queue *todo, *done;
    unsigned char *head; /* a file's, read or to be written */
    int *waiting;        /* [n_jobs] jobs taken from todo, the oldest first */
    int n_waiting;
    struct {
        double ms; /* when a line was written, < 0: never */
        int n_not;
    } logged[JOB_LOAD + 1];
};

static void log_failure(DiskWorker *w, JobKind kind, CacheName name, const Error *why)
{
    double now = clock_ms(), *last = &w->logged[kind].ms;
    char text[CACHE_NAME_BYTES];
    if (*last >= 0 && now - *last < LOG_EVERY_MS) {
        w->logged[kind].n_not++;
        return;
    }
    cache_name_print(name, text);
    log_warn("disk_cache_not_%s file=%s reason=\"%s\" not_logged=%d",
             kind == JOB_SAVE ? "saved" : "loaded", text, why->msg, w->logged[kind].n_not);
    *last = now;
    w->logged[kind].n_not = 0;
}

/* ---- saving ---- */

/* Written under another name first: under its own a file is whole, or is not there. -1 with errno.
 */
static int write_file(DiskWorker *w, const DiskJob *j, const JobPart *p, Error *why)
{
    int has_state = p->name.kind == CACHE_NAME_STATE, n_full = j->n / PAGE_TOKENS;
    int first = has_state ? n_full : p->first;
    int n_pages = has_state ? j->n % PAGE_TOKENS > 0 : p->n_blocks;
    CacheHead head = {.salt = j->salt,
                      .n_tokens = (uint32_t)(has_state ? j->n : (first + n_pages) * PAGE_TOKENS),
                      .first_block = (uint32_t)first,
                      .n_pages = (uint32_t)n_pages,
                      .has_state = (uint32_t)has_state};
    int fd = disk_folder_create(w->folder, p->name);
    if (fd < 0) return error_set(why, ERR_FILE, "cannot make it: %s", strerror(errno));
    int failed = cache_file_write(&w->shape, fd, w->head, head, j->token,
                                  j->from + (first - j->first_page), j->from_state, why);
    if (!failed && fsync(fd)) failed = error_set(why, ERR_FILE, "%s", strerror(errno));
    if (close(fd) && !failed) failed = error_set(why, ERR_FILE, "%s", strerror(errno));
    if (!failed && disk_folder_rename(w->folder, p->name))
        failed = error_set(why, ERR_FILE, "cannot rename it: %s", strerror(errno));
    if (failed) {
        int cause = errno;
        CacheName left = {p->name.hash, CACHE_NAME_TEMPORARY};
        disk_folder_remove(w->folder, left);
        errno = cause;
    }
    return failed;
}

/* The run comes before the state, which is useless without it. */
static void save(DiskWorker *w, DiskJob *j)
{
    Error why = {0};
    for (int i = j->n_new - 1; i >= 0; i--) {
        if (write_file(w, j, &j->part[i], &why)) {
            j->no_room = errno == ENOSPC || errno == EDQUOT;
            log_failure(w, JOB_SAVE, j->part[i].name, &why);
            return;
        }
    }
    if (disk_folder_sync(w->folder)) {
        error_set(&why, ERR_FILE, "cannot sync the folder: %s", strerror(errno));
        log_failure(w, JOB_SAVE, j->part[0].name, &why);
        return;
    }
    j->ok = 1;
}

/* ---- loading ---- */

static int reads(const DiskJob *j, const JobPart *p)
{
    return p->name.kind == CACHE_NAME_STATE || p->end > j->first_page;
}

/* The file must be the one that the index thinks it is, token by token up to where it is used. */
static int is_expected(const DiskJob *j, const JobPart *p, const CacheFile *file, Error *why)
{
    const CacheHead *h = &file->head;
    int same, n;
    if (p->name.kind == CACHE_NAME_STATE) {
        n = j->n;
        same = h->has_state && h->n_tokens == (uint32_t)n;
    } else {
        n = p->end * PAGE_TOKENS;
        same = !h->has_state && h->first_block == (uint32_t)p->first &&
               h->n_pages == (uint32_t)p->n_blocks;
    }
    if (same && h->salt == j->salt && !memcmp(file->token, j->token, (size_t)n * sizeof *j->token))
        return 1;
    error_set(why, ERR_FILE, "holds another prefix than its name says");
    return 0;
}

static int read_pages(const DiskJob *j, const JobPart *p, const CacheFile *file, int fd, Error *why)
{
    int n_full = j->n / PAGE_TOKENS;
    if (p->name.kind == CACHE_NAME_STATE) {
        if (file->head.n_pages && j->first_page <= n_full &&
            cache_file_read_page(file, fd, 0, j->to[n_full - j->first_page], why))
            return -1;
        return cache_file_read_state(file, fd, j->to_state, why);
    }
    for (int b = p->first > j->first_page ? p->first : j->first_page; b < p->end; b++)
        if (cache_file_read_page(file, fd, b - p->first, j->to[b - j->first_page], why)) return -1;
    return 0;
}

/* 0, or -1; *is_lost: the file is gone or wrong, not just out of reach now. */
static int read_file(DiskWorker *w, const DiskJob *j, const JobPart *p, int *is_lost, Error *why)
{
    CacheFile file;
    int fd = disk_folder_read(w->folder, p->name);
    if (fd < 0) {
        *is_lost = errno != EMFILE && errno != ENFILE && errno != ENOMEM;
        return error_set(why, ERR_FILE, "cannot open it: %s", strerror(errno));
    }
    int failed = cache_file_read_head(&w->shape, fd, w->head, &file, why) != CACHE_FILE_GOOD ||
                 !is_expected(j, p, &file, why) || read_pages(j, p, &file, fd, why);
    close(fd);
    *is_lost = failed;
    return failed ? -1 : 0;
}

static void load(DiskWorker *w, DiskJob *j)
{
    Error why = {0};
    for (int i = 0, is_lost = 0; i < j->n_parts; i++) {
        if (!reads(j, &j->part[i]) || !read_file(w, j, &j->part[i], &is_lost, &why)) continue;
        log_failure(w, JOB_LOAD, j->part[i].name, &why);
        if (is_lost) j->bad = i;
        return;
    }
    j->ok = 1;
}

/* ---- the thread ---- */

static void touch(DiskWorker *w, const DiskJob *j)
{
    for (int i = 0; i < j->n_parts; i++)
        disk_folder_touch(w->folder, j->part[i].name);
}

static void run_job(DiskWorker *w, DiskJob *j)
{
    j->ok = j->no_room = 0;
    j->bad = -1;
    switch (j->kind) {
    case JOB_SAVE:
        save(w, j);
        if (j->ok) touch(w, j);
        break;
    case JOB_LOAD:
        load(w, j);
        if (j->ok) touch(w, j);
        break;
    case JOB_TOUCH:
        touch(w, j);
        break;
    case JOB_REMOVE:
        for (int i = 0; i < j->n_parts; i++)
            disk_folder_remove(w->folder, j->part[i].name);
        break;
    }
}

static int is_long(JobKind kind)
{
    return kind == JOB_SAVE || kind == JOB_LOAD;
}

/* The next of the jobs that wait, or -1. Once shut, only what takes no time. */
static int take_next(DiskWorker *w, int shut)
{
    int at = -1;
    for (int i = 0; i < w->n_waiting; i++) {
        JobKind kind = w->job[w->waiting[i]].kind;
        if (shut && is_long(kind)) continue;
        if (at < 0) at = i;
        if (kind == JOB_LOAD && w->job[w->waiting[at]].kind != JOB_LOAD) at = i;
    }
    if (at < 0) return -1;
    int job = w->waiting[at];
    memmove(w->waiting + at, w->waiting + at + 1,
            (size_t)(--w->n_waiting - at) * sizeof *w->waiting);
    return job;
}

static void *run(void *arg)
{
    DiskWorker *w = arg;
    for (;;) {
        int shut = queue_is_shut(w->todo), job;
        while (w->n_waiting < w->n_jobs && queue_pop(w->todo, &w->waiting[w->n_waiting]))
            w->n_waiting++;
        if ((job = take_next(w, shut)) >= 0) {
            run_job(w, &w->job[job]);
            int failed = queue_try_push(w->done, &job);
            assert(!failed); /* it has room for all jobs */
            (void)failed;
        } else if (shut) {
            return NULL;
        } else {
            queue_wait(w->todo);
        }
    }
}

DiskWorker *disk_worker_open(DiskJob *job, int n_jobs, DiskFolder *folder, const CacheShape *shape,
                             Queue *done, Error *err)
{
    DiskWorker *w = mem_alloc(1, sizeof *w);
    *w = (DiskWorker){.job = job,
                      .n_jobs = n_jobs,
                      .folder = folder,
                      .shape = *shape,
                      .done = done,
                      .logged = {{.ms = -1}, {.ms = -1}}};
    w->head = mem_map(cache_file_buffer_bytes(shape));
    w->waiting = mem_alloc((size_t)n_jobs, sizeof *w->waiting);
    w->todo = queue_open(n_jobs, sizeof *w->waiting, err);
    if (w->head && w->todo && !thread_start(&w->thread, run, w, "disk", err)) return w;
    if (!w->head) error_set(err, ERR_DEVICE, "no memory for a file's head");
    queue_close(w->todo);
    mem_free(w->waiting);
    mem_unmap(w->head);
    mem_free(w);
    return NULL;
}

void disk_worker_send(DiskWorker *w, int job)
{
    int failed = queue_try_push(w->todo, &job);
    assert(!failed); /* it has room for all jobs */
    (void)failed;
}

void disk_worker_close(DiskWorker *w)
{
    if (!w) return;
    queue_shut(w->todo);
    pthread_join(w->thread, NULL);
    queue_close(w->todo);
    mem_free(w->waiting);
    mem_unmap(w->head);
    mem_free(w);
}
