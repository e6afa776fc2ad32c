/*
 * disk_case.h: a disk cache opened, filled and read by a test, which fails when a step does.
 */
#ifndef OFFSHOOT_TESTS_DISK_CASE_H
#define OFFSHOOT_TESTS_DISK_CASE_H

#include "engine/disk.h"
#include "tests/prefixes.h"

enum {
    PLENTY = 1 << 20,
    ITEM = 2 * 4096, /* bytes on disk of a file with a head and little more */
};

extern const DiskShape disk_case_shape;

/* For a whole group: no line for each of thousands of files that are broken on purpose. */
int disk_case_quiet(void **state);

Disk *disk_case_open(const char *path, int64_t max_bytes);

/* n tokens that begin no other kind's prefix. */
Prefix disk_case_prefix(int n, int32_t kind);

/* Waits for the one job that is on; whether it went well. */
int disk_case_wait(Disk *d, int job);

/* 1 saved, 0 the job failed, -1 refused. */
int disk_case_save(Disk *d, const Prefix *p, TierRefused *why);
void disk_case_must_save(Disk *d, const Prefix *p);

int disk_case_found(const Disk *d, const Prefix *p);

/* Loads n tokens from a page on and checks every byte. 0: the job failed. */
int disk_case_load(Disk *d, const Prefix *p, int n, int first);

/* Files of a folder with this ending, the lock not among them; adds to *bytes what they take. */
int disk_case_count(const char *path, const char *ending, int64_t *bytes);

/* The path of the only file with this ending, in a static buffer. */
const char *disk_case_file(const char *path, const char *ending);

/* A small file's bytes, to be freed with mem_free. */
unsigned char *disk_case_read(const char *path, size_t *size);

#endif
