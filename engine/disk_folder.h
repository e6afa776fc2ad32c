/*
 * disk_folder.h: the folder of the disk cache: who may use it, its files' names and ages.
 *
 * One process at a time: the lock goes with the process, however it ends. Only files with names as
 * made here are ever opened or removed, and only where they are plain files. A file's time of
 * change is its last use; stamps only rise, whatever the clock does.
 */
#ifndef OFFSHOOT_ENGINE_DISK_FOLDER_H
#define OFFSHOOT_ENGINE_DISK_FOLDER_H

#include <stdint.h>

#include "base/error.h"
#include "base/hash.h"
#include "engine/cache_file.h"

enum { CACHE_NAME_BYTES = 64 };

typedef enum { CACHE_NAME_NONE, CACHE_NAME_RUN, CACHE_NAME_STATE, CACHE_NAME_TEMPORARY } NameKind;

typedef struct {
    Hash hash;
    NameKind kind;
} CacheName;

/* The name of an item whose last block, or state, has this key. */
CacheName cache_name_of(const CacheShape *shape, Hash key, int is_state);
void cache_name_print(CacheName name, char text[CACHE_NAME_BYTES]);
CacheName cache_name_parse(const char *text); /* CACHE_NAME_NONE: not one of ours */
int cache_name_equal(CacheName a, CacheName b);

typedef struct {
    int fd, lock_fd;
    int64_t stamp; /* the last one given, ns; only who holds the folder's thread may raise it */
} DiskFolder;

/* Makes the folder (and those above it) where there is none. An Error when it cannot be used. */
int disk_folder_open(DiskFolder *f, const char *path, Error *err);
void disk_folder_close(DiskFolder *f);

typedef struct {
    CacheName name;
    int64_t used; /* ns */
    int64_t bytes;
} FolderFile;

/*
 * Our files, the one used last first, to be freed with mem_free; left-over temporary ones are
 * removed. From here on stamps are later than any of theirs.
 */
FolderFile *disk_folder_list(DiskFolder *f, int *n);

/* A file to read, or a new temporary one to write; -1 with errno. */
int disk_folder_read(const DiskFolder *f, CacheName name);
int disk_folder_create(const DiskFolder *f, CacheName name);

/* Gives a file that was created its name, in place of what had it. -1 with errno. */
int disk_folder_rename(const DiskFolder *f, CacheName name);
void disk_folder_remove(const DiskFolder *f, CacheName name);
int disk_folder_sync(const DiskFolder *f);

/* Says that the file was used now, after all that were before. */
void disk_folder_touch(DiskFolder *f, CacheName name);

#endif
