/* file.c: see file.h. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"

int mapped_file_open(MappedFile *file, const char *path, Error *err)
{
    *file = (MappedFile){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe is not waited for */
    if (fd < 0) return error_set(err, ERR_FILE, "cannot open '%s': %s", path, strerror(errno));
    struct stat st;
    if (fstat(fd, &st) || !S_ISREG(st.st_mode)) {
        close(fd);
        return error_set(err, ERR_FILE, "cannot read '%s': not a regular file", path);
    }
    if (st.st_size > 0) {
        void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED) {
            close(fd);
            return error_set(err, ERR_FILE, "cannot map '%s': %s", path, strerror(errno));
        }
        file->data = p;
        file->size = (size_t)st.st_size;
    }
    file->written_ns = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
    close(fd);
    return 0;
}

int mapped_file_open_up_to(MappedFile *file, const char *path, size_t max_bytes, Error *err)
{
    if (mapped_file_open(file, path, err)) return -1;
    if (file->size <= max_bytes) return 0;
    error_set(err, ERR_LIMIT, "'%s' has %zu bytes, the limit is %zu", path, file->size, max_bytes);
    mapped_file_close(file);
    return -1;
}

void mapped_file_close(MappedFile *file)
{
    if (file->data) munmap((void *)(size_t)file->data, file->size);
    *file = (MappedFile){0};
}

void mapped_file_fetch(const void *from, size_t bytes)
{
#ifdef MADV_POPULATE_READ
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)from;
    uintptr_t first = begin / page * page, end = (begin + bytes + page - 1) / page * page;
    /* Where it fails, as before Linux 5.14, that costs time and nothing else. */
    if (bytes) madvise((void *)first, end - first, MADV_POPULATE_READ);
#else
    (void)from, (void)bytes;
#endif
}

void mapped_file_forget(const void *from, size_t bytes)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)from;
    uintptr_t first = (begin + page - 1) / page * page, end = (begin + bytes) / page * page;
    /* Where it fails they stay: that costs memory and nothing else. */
    if (first < end) madvise((void *)first, end - first, MADV_DONTNEED);
}

char *path_join(const char *dir, const char *name)
{
    size_t n = strlen(dir) + strlen(name) + 2;
    char *p = mem_realloc(NULL, n, 1);
    snprintf(p, n, "%s/%s", dir, name);
    return p;
}

int file_is_in(const char *dir, const char *name)
{
    char *path = path_join(dir, name);
    struct stat st;
    int found = !lstat(path, &st);
    mem_free(path);
    return found;
}
