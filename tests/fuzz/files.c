/*
 * files.c: the in-memory files of fuzz.h; the linker puts the __wrap_ functions before ours.
 *
 * A file ends where a page ends, and the page after it may not be touched: so a read past the end
 * is seen in jansson too, which was built without the sanitizer.
 */
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/strbuf.h"

enum { MAX_FILES = 16 };

static struct {
    char *path;
    unsigned char *pages; /* n_bytes of them, the last one forbidden */
    unsigned char *data;
    size_t size, n_bytes;
} files[MAX_FILES];
static int n_files;

/* The linker's names. NOLINTBEGIN(bugprone-reserved-identifier) */
int __wrap_mapped_file_open(MappedFile *file, const char *path, Error *err);
int __real_mapped_file_open(MappedFile *file, const char *path, Error *err);
int __wrap_mapped_file_open_up_to(MappedFile *file, const char *path, size_t max_bytes, Error *err);
int __real_mapped_file_open_up_to(MappedFile *file, const char *path, size_t max_bytes, Error *err);
void __wrap_mapped_file_close(MappedFile *file);
void __real_mapped_file_close(MappedFile *file);
void __wrap_mapped_file_forget(const void *from, size_t bytes);
int __wrap_file_is_in(const char *dir, const char *name);
int __real_file_is_in(const char *dir, const char *name);

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
    size_t page = (size_t)sysconf(_SC_PAGESIZE), room = (size + page - 1) / page * page;
    unsigned char *p =
        mmap(NULL, room + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    FUZZ_CHECK(p != MAP_FAILED);
    FUZZ_CHECK(mprotect(p + room, page, PROT_NONE) == 0);
    files[n_files].path = path_join(FUZZ_DIR, name);
    files[n_files].pages = p;
    files[n_files].n_bytes = room + page;
    files[n_files].data = p + room - size;
    files[n_files].size = size;
    if (size) memcpy(files[n_files].data, data, size);
    n_files++;
}

void fuzz_file_json(const char *name, const json_t *value)
{
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
    if (text) fuzz_file(name, text, strlen(text));
    free(text);
}

void fuzz_file_safetensors(const char *name, const json_t *header, const void *data, size_t size)
{
    StrBuf file = {0};
    char *text = json_dumps(header, JSON_COMPACT | JSON_ENCODE_ANY), length[8];
    uint64_t n = text ? strlen(text) : 0;
    for (int i = 0; i < 8; i++)
        length[i] = (char)(n >> 8 * i);
    strbuf_add(&file, length, sizeof length);
    strbuf_add(&file, text ? text : "", n);
    strbuf_add(&file, data, size);
    fuzz_file(name, file.data, file.len);
    strbuf_free(&file);
    free(text);
}

void fuzz_files_clear(void)
{
    while (n_files) {
        n_files--;
        mem_free(files[n_files].path);
        munmap(files[n_files].pages, files[n_files].n_bytes);
    }
}

int __wrap_mapped_file_open(MappedFile *file, const char *path, Error *err)
{
    int i = find(path);
    if (!is_ours(path)) return __real_mapped_file_open(file, path, err);
    *file = (MappedFile){0};
    if (i < 0) return error_set(err, ERR_FILE, "cannot open '%s'", path);
    if (files[i].size) *file = (MappedFile){.data = files[i].data, .size = files[i].size};
    return 0;
}

/* Ours are small. */
int __wrap_mapped_file_open_up_to(MappedFile *file, const char *path, size_t max_bytes, Error *err)
{
    if (!is_ours(path)) return __real_mapped_file_open_up_to(file, path, max_bytes, err);
    return __wrap_mapped_file_open(file, path, err);
}

void __wrap_mapped_file_close(MappedFile *file)
{
    for (int i = 0; i < n_files; i++)
        if (file->data == files[i].data) *file = (MappedFile){0};
    __real_mapped_file_close(file);
}

/* Ours are on the heap, where the kernel would take the bytes away. */
void __wrap_mapped_file_forget(const void *from, size_t bytes)
{
    (void)from, (void)bytes;
}

int __wrap_file_is_in(const char *dir, const char *name)
{
    char *path = path_join(dir, name);
    int found = is_ours(path) ? find(path) >= 0 : __real_file_is_in(dir, name);
    mem_free(path);
    return found;
}
/* NOLINTEND(bugprone-reserved-identifier) */

void fuzz_byte_symbols(json_t *vocab, json_int_t first)
{
    int next = 256;
    for (int b = 0; b < 256; b++) {
        int prints = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
        int c = prints ? b : next++;
        char symbol[3] = {(char)(0xC0 | c >> 6), (char)(0x80 | (c & 0x3F)), 0};
        if (c < 0x80) snprintf(symbol, sizeof symbol, "%c", c);
        if (!json_object_get(vocab, symbol))
            json_object_set_new(vocab, symbol, json_integer(first + b));
    }
}
