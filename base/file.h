/*
 * file.h: a read-only file mapped into memory.
 */
#ifndef OFFSHOOT_BASE_FILE_H
#define OFFSHOOT_BASE_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

typedef struct {
    const unsigned char *data; /* NULL when the file is empty */
    size_t size;
    int64_t written_ns; /* when it was written last, since 1970 */
} MappedFile;

/* Maps path; an Error names it. Directories and special files are refused. */
int mapped_file_open(MappedFile *file, const char *path, Error *err);

/* The same, where a file of more than max_bytes is an ERR_LIMIT. */
int mapped_file_open_up_to(MappedFile *file, const char *path, size_t max_bytes, Error *err);

void mapped_file_close(MappedFile *file);

/*
 * These bytes of a mapped file are needed soon: they are read and mapped in one go, where the
 * system can do that. Else each page is when somebody first looks.
 */
void mapped_file_fetch(const void *from, size_t bytes);

/*
 * Nobody needs these bytes of a mapped file for now: whole pages of them leave this process's
 * memory. They are read again when somebody looks.
 */
void mapped_file_forget(const void *from, size_t bytes);

/* dir + "/" + name, to be freed with mem_free. */
char *path_join(const char *dir, const char *name);

/*
 * 1 if a folder holds a file of that name, of any kind: a link that leads nowhere is one, and to
 * open it an error. A cache that was copied without what its links lead to must not pass for a
 * model without these files.
 */
int file_is_in(const char *dir, const char *name);

#endif
