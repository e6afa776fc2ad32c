/*
 * disk_worker.h: the thread that reads and writes the files of the disk cache.
 *
 * It owns the folder while it runs, and a job from the moment it is sent until it comes back. Jobs
 * run in the order in which they were sent, but loads go first: nothing that waits can make a load
 * wrong, since only what lies there whole is ever loaded.
 */
#ifndef OFFSHOOT_ENGINE_DISK_WORKER_H
#define OFFSHOOT_ENGINE_DISK_WORKER_H

#include <stdint.h>

#include "base/queue.h"
#include "engine/disk_folder.h"

typedef enum { JOB_SAVE, JOB_LOAD, JOB_TOUCH, JOB_REMOVE } JobKind;

/* A file of a job: an item of the index when the job was sent. */
typedef struct {
    CacheName name;
    int32_t item;
    int first, n_blocks; /* of a run */
    int end;             /* block where the prefix leaves the run, or ends */
} JobPart;

/*
 * Of a prefix part[0] is the state, then come the runs that it needs, the last one first. All of
 * them are touched in this order. A save writes the first n_new; a removal has any parts.
 */
typedef struct {
    JobKind kind;
    uint64_t salt;
    int n;             /* tokens of the prefix */
    int32_t *token;    /* [max_tokens] the job's own copy */
    int first_page;    /* block that page[0] is of */
    const void **from; /* pages of a save, [max_tokens / PAGE_TOKENS + 1] */
    const void *from_state;
    void **to; /* pages of a load, as many */
    void *to_state;
    JobPart *part; /* [max_tokens / PAGE_TOKENS + 2] */
    int n_parts, n_new;
    int ok;
    int no_room; /* a save that failed since the disk, or the user's part of it, is full */
    int bad;     /* the part that cannot be read and never will, -1: none */
} DiskJob;

typedef struct DiskWorker DiskWorker;

/*
 * Starts the thread. job[] (n_jobs) and folder are borrowed. A job's number is sent through
 * disk_worker_send and comes back through `done`.
 */
DiskWorker *disk_worker_open(DiskJob *job, int n_jobs, DiskFolder *folder, const CacheShape *shape,
                             Queue *done, Error *err);
void disk_worker_send(DiskWorker *w, int job);

/* Ends the thread after the job that it is at; saves and loads that wait are dropped. */
void disk_worker_close(DiskWorker *w);

#endif
