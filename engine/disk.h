/*
 * disk.h: the prefix cache's tier on disk: prefixes with their pages and states, kept in files
 * under one folder, there again after a restart.
 *
 * The caller's thread has the index and never waits for the disk unless it asks to: reading and
 * writing are jobs of a thread of its own (disk_worker.h). Files appear whole or not at all, and
 * what is read is checked byte for byte, so a prefix that loads is the one that was saved. All that
 * goes wrong on disk is a job that fails, with a line in the log: the caller then computes. Where
 * the disk is full before max_bytes are there, the oldest go, too. No memory is taken after
 * disk_open.
 */
#ifndef OFFSHOOT_ENGINE_DISK_H
#define OFFSHOOT_ENGINE_DISK_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "engine/store.h"

typedef struct Disk Disk;

/* fingerprint: a text with all that changes what pages and states mean; others' are ignored. */
typedef struct {
    const char *fingerprint;
    size_t page_bytes, state_bytes;
    int max_tokens; /* of a prefix */
} DiskShape;

/*
 * Opens a folder (made when it is not there) and reads what lies in it. At most max_bytes of files,
 * those used last. An Error when the folder cannot be used, ERR_BUSY when another process does,
 * ERR_LIMIT when max_bytes hold no state.
 */
Disk *disk_open(const char *path, int64_t max_bytes, const DiskShape *shape, Error *err);

/* Waits for the job that is running; saves and loads behind it are dropped and never told of. */
void disk_close(Disk *d);

/*
 * Tokens of the longest prefix of n that can be loaded, 0 when there is none.
 * Prefixes have at least PAGE_TOKENS tokens; one that was saved is found once disk_next has told of
 * its job.
 */
int disk_find(const Disk *d, uint64_t salt, const int32_t *token, int n);

/* A prefix of n tokens was found elsewhere: if it is here too it counts as used. */
void disk_use(Disk *d, uint64_t salt, const int32_t *token, int n);

/* The first page that a save of n tokens would write: earlier blocks are there. */
int disk_first_new(const Disk *d, uint64_t salt, const int32_t *token, int n);

/*
 * Queues the saving of n tokens' prefix. page[i] is the page of block first_page + i, up to the
 * last, partial one; what disk_first_new leaves out is not looked at. Pages and state stay as they
 * are until the job is done; tokens are copied. Returns the job, or -1 and why.
 */
int disk_save(Disk *d, uint64_t salt, const int32_t *token, int n, int first_page,
              const void *const *page, const void *state, TierRefused *why);

/*
 * Queues the loading of a prefix that disk_find told of, from page first_page on. Until the job is
 * done the memory belongs to it; if it fails it holds anything. Returns the job, or -1: not there,
 * or too many jobs.
 */
int disk_load(Disk *d, uint64_t salt, const int32_t *token, int n, int first_page,
              void *const *page, void *state);

/*
 * Forgets all and has the files removed, those of saves under way too. Waits for the disk's thread
 * where it has more to remove than it can be told of at once.
 */
void disk_clear(Disk *d);

typedef struct {
    int job;
    int ok;
} DiskDone;

/* The next job that is done: 1, or 0 when there is none. wait: waits for one, if any is on. */
int disk_next(Disk *d, DiskDone *done, int wait);

typedef struct {
    long saved, loaded; /* jobs done */
    long failed;        /* jobs that failed */
    long evicted;       /* items that made room */
    long lost;          /* items that could not be read, and what needed them */
    int files;          /* now */
    int64_t bytes;
} DiskStats;

DiskStats disk_stats(const Disk *d);

#endif
