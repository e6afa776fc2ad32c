/* files.c: the in-memory files of fuzz.h; the linker puts the __wrap_ functions before ours. */
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"

enum { MAX_FILES = 16 };

static struct {
    char *path;
    unsigned char *data;
    size_t size;
} files[MAX_FILES];
static int n_files;

/* The linker's names. NOLINTBEGIN(bugprone-reserved-identifier) */
int __wrap_mapped_file_open(MappedFile *file, const char *path, Error *err);
int __real_mapped_file_open(MappedFile *file, const char *path, Error *err);
void __wrap_mapped_file_close(MappedFile *file);
void __real_mapped_file_close(MappedFile *file);
int __wrap_access(const char *path, int mode);
int __real_access(const char *path, int mode);

static int find(const char *path)
{
    int i = n_files - 1;
    while (i >= 0 && strcmp(path, files[i].path) != 0)
        i--;
    return i;
}

static int is_ours(const char *path)
{
    return !strncmp(path, FUZZ_DIR "/", sizeof FUZZ_DIR);
}

void fuzz_file(const char *name, const void *data, size_t size)
{
    if (n_files == MAX_FILES) return;
    files[n_files].path = path_join(FUZZ_DIR, name);
    files[n_files].size = size;
    files[n_files].data = malloc(size); /* mem_alloc would round up, and so hide the end */
    FUZZ_CHECK(files[n_files].data);
    if (size) memcpy(files[n_files].data, data, size);
    n_files++;
}

void fuzz_file_json(const char *name, const json_t *value)
{
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
    if (text) fuzz_file(name, text, strlen(text));
    free(text);
}

void fuzz_files_clear(void)
{
    while (n_files) {
        n_files--;
        mem_free(files[n_files].path);
        free(files[n_files].data);
    }
}

int __wrap_mapped_file_open(MappedFile *file, const char *path, Error *err)
{
    int i = find(path);
    if (!is_ours(path)) return __real_mapped_file_open(file, path, err);
    *file = (MappedFile){0};
    if (i < 0) return error_set(err, ERR_FILE, "cannot open '%s'", path);
    if (files[i].size) *file = (MappedFile){files[i].data, files[i].size};
    return 0;
}

void __wrap_mapped_file_close(MappedFile *file)
{
    for (int i = 0; i < n_files; i++)
        if (file->data == files[i].data) *file = (MappedFile){0};
    __real_mapped_file_close(file);
}

int __wrap_access(const char *path, int mode)
{
    if (!is_ours(path)) return __real_access(path, mode);
    return find(path) < 0 ? -1 : 0;
}
/* NOLINTEND(bugprone-reserved-identifier) */
