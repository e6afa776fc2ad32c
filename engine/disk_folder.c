/* disk_folder.c: see disk_folder.h. All by the folder's descriptor: it may be renamed or removed.
 */
#include "engine/disk_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"

static const char LOCK_NAME[] = "offshoot.lock";
static const char PROBE_NAME[] = "offshoot-probe.tmp";
static const int64_t SECOND = 1000000000;

/* A pipe in the file's place is an error, not a wait for its reader. */
enum { FOR_WRITING = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK };

/* In the year 2255; as nanoseconds they fit with room to spare. Files from later are as old. */
static const int64_t MAX_SECONDS = 9000000000;

/* ---- names ---- */

static const char *const suffix[] = {
    [CACHE_NAME_RUN] = "run", [CACHE_NAME_STATE] = "state", [CACHE_NAME_TEMPORARY] = "tmp"};

CacheName cache_name_of(const CacheShape *shape, Hash key, int is_state)
{
    uint64_t in[] = {shape->model.low,   shape->model.high, shape->page_bytes,
                     shape->state_bytes, key.low,           key.high};
    return (CacheName){hash_key(in, sizeof in, 0), is_state ? CACHE_NAME_STATE : CACHE_NAME_RUN};
}

void cache_name_print(CacheName name, char text[CACHE_NAME_BYTES])
{
    snprintf(text, CACHE_NAME_BYTES, "offshoot-%016" PRIx64 "%016" PRIx64 ".%s", name.hash.high,
             name.hash.low, suffix[name.kind]);
}

/* Printed again it must be the same: so there is one way to write each. */
CacheName cache_name_parse(const char *text)
{
    CacheName name = {.kind = CACHE_NAME_NONE};
    char again[CACHE_NAME_BYTES];
    if (sscanf(text, "offshoot-%16" SCNx64 "%16" SCNx64, &name.hash.high, &name.hash.low) != 2)
        return name;
    for (NameKind k = CACHE_NAME_RUN; k <= CACHE_NAME_TEMPORARY; k++) {
        name.kind = k;
        cache_name_print(name, again);
        if (!strcmp(text, again)) return name;
    }
    return (CacheName){.kind = CACHE_NAME_NONE};
}

int cache_name_equal(CacheName a, CacheName b)
{
    return a.kind == b.kind && hash_equal(a.hash, b.hash);
}

/* ---- the folder ---- */

/* Keeps the first errno of several folders in *why; what is there already is no failure. */
static void make_folder(const char *path, int *why)
{
    if (mkdir(path, 0700) && errno != EEXIST && !*why) *why = errno;
}

/* mkdir -p: 0, or why a folder was not made. Whether what is there will do, open says. */
static int make_folders(const char *path)
{
    int why = 0;
    char *part = mem_strdup(path);
    for (char *c = part + 1; *part && *c; c++) {
        if (*c != '/') continue;
        *c = 0;
        make_folder(part, &why);
        *c = '/';
    }
    make_folder(part, &why);
    mem_free(part);
    return why;
}

static int take_lock(DiskFolder *f, const char *path, Error *err)
{
    f->lock_fd = openat(f->fd, LOCK_NAME, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (f->lock_fd < 0)
        return error_set(err, ERR_FILE, "cannot write in '%s': %s", path, strerror(errno));
    if (!flock(f->lock_fd, LOCK_EX | LOCK_NB)) return 0;
    if (errno == EWOULDBLOCK)
        return error_set(err, ERR_BUSY, "another process has '%s' in use as its cache", path);
    return error_set(err, ERR_FILE, "cannot lock '%s': %s", path, strerror(errno));
}

/* A lock file that is there does not tell whether others can be made. */
static int try_to_write(const DiskFolder *f, const char *path, Error *err)
{
    int fd = openat(f->fd, PROBE_NAME, FOR_WRITING, 0600);
    if (fd < 0) return error_set(err, ERR_FILE, "cannot write in '%s': %s", path, strerror(errno));
    close(fd);
    unlinkat(f->fd, PROBE_NAME, 0);
    return 0;
}

int disk_folder_open(DiskFolder *f, const char *path, Error *err)
{
    *f = (DiskFolder){.fd = -1, .lock_fd = -1};
    int why = make_folders(path);
    f->fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (f->fd < 0)
        return error_set(err, ERR_FILE, "cannot use '%s' as a folder: %s", path,
                         strerror(errno == ENOENT && why ? why : errno));
    if (take_lock(f, path, err) || try_to_write(f, path, err)) {
        disk_folder_close(f);
        return -1;
    }
    return 0;
}

void disk_folder_close(DiskFolder *f)
{
    if (f->lock_fd >= 0) close(f->lock_fd);
    if (f->fd >= 0) close(f->fd);
    *f = (DiskFolder){.fd = -1, .lock_fd = -1};
}

/* ---- what is there ---- */

static int64_t nanoseconds(struct timespec t)
{
    int64_t s = t.tv_sec < 0 ? 0 : t.tv_sec > MAX_SECONDS ? MAX_SECONDS : t.tv_sec;
    return s * SECOND + t.tv_nsec;
}

static int by_use(const void *a, const void *b)
{
    const FolderFile *x = a, *y = b;
    if (x->used != y->used) return x->used < y->used ? 1 : -1;
    return x->name.hash.low < y->name.hash.low ? 1 : -1;
}

/* 1 when the entry is a file of ours that stays. */
static int look_at(const DiskFolder *f, const char *text, FolderFile *file)
{
    struct stat st;
    *file = (FolderFile){.name = cache_name_parse(text)};
    if (file->name.kind == CACHE_NAME_NONE) return 0;
    if (fstatat(f->fd, text, &st, AT_SYMLINK_NOFOLLOW) || !S_ISREG(st.st_mode)) {
        log_warn("disk_cache_ignored file=%s reason=\"not a regular file\"", text);
        return 0;
    }
    if (file->name.kind == CACHE_NAME_TEMPORARY) {
        unlinkat(f->fd, text, 0);
        return 0;
    }
    file->used = nanoseconds(st.st_mtim);
    file->bytes = st.st_size;
    return 1;
}

FolderFile *disk_folder_list(DiskFolder *f, int *n)
{
    int fd = openat(f->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), room = 256;
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    FolderFile *file = mem_realloc(NULL, (size_t)room, sizeof *file);
    *n = 0;
    for (struct dirent *e; dir && (e = readdir(dir));) {
        if (*n == room) file = mem_realloc(file, (size_t)(room *= 2), sizeof *file);
        *n += look_at(f, e->d_name, &file[*n]);
    }
    if (dir)
        closedir(dir);
    else if (fd >= 0)
        close(fd);
    qsort(file, (size_t)*n, sizeof *file, by_use);
    if (*n && file[0].used > f->stamp) f->stamp = file[0].used;
    return file;
}

/* ---- one file ---- */

int disk_folder_read(const DiskFolder *f, CacheName name)
{
    char text[CACHE_NAME_BYTES];
    cache_name_print(name, text);
    return openat(f->fd, text, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
}

static void temporary(CacheName name, char text[CACHE_NAME_BYTES])
{
    name.kind = CACHE_NAME_TEMPORARY;
    cache_name_print(name, text);
}

int disk_folder_create(const DiskFolder *f, CacheName name)
{
    char text[CACHE_NAME_BYTES];
    temporary(name, text);
    return openat(f->fd, text, FOR_WRITING, 0600);
}

int disk_folder_rename(const DiskFolder *f, CacheName name)
{
    char from[CACHE_NAME_BYTES], to[CACHE_NAME_BYTES];
    temporary(name, from);
    cache_name_print(name, to);
    return renameat(f->fd, from, f->fd, to);
}

void disk_folder_remove(const DiskFolder *f, CacheName name)
{
    char text[CACHE_NAME_BYTES];
    cache_name_print(name, text);
    unlinkat(f->fd, text, 0);
}

int disk_folder_sync(const DiskFolder *f)
{
    return fsync(f->fd);
}

void disk_folder_touch(DiskFolder *f, CacheName name)
{
    char text[CACHE_NAME_BYTES];
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    int64_t stamp = nanoseconds(now);
    /* A microsecond apart: not all file systems keep less. */
    if (stamp < f->stamp + 1000) stamp = f->stamp + 1000;
    f->stamp = stamp;
    struct timespec t = {.tv_sec = stamp / SECOND, .tv_nsec = stamp % SECOND};
    struct timespec both[] = {t, t};
    cache_name_print(name, text);
    utimensat(f->fd, text, both, AT_SYMLINK_NOFOLLOW);
}
