/*
 * fuzz_cache_file.c: a file of the disk cache.
 *
 * Input: a byte of flags, two bytes with the length of what comes first in the file, the file's
 * bytes. By the flags what no mutation finds is made right: magic, version and model, zeros up to a
 * head's length, the checksums of the parts and of the head.
 */
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/cache_file.h"

enum {
    MAKE_OURS = 1,
    MAKE_PADDED = 2,
    MAKE_PARTS = 4,
    MAKE_SUM = 8,
    MAX_FILE = 3 * CACHE_FILE_ALIGN
};

static const CacheShape shape = {
    .model = {1, 2}, .page_bytes = 24, .state_bytes = 40, .max_tokens = 1500};

/* The file's bytes; returns how many. */
static size_t make_file(const uint8_t *data, size_t size, unsigned char *out)
{
    if (size < 3) return 0;
    size_t first = (size_t)(data[1] | data[2] << 8) % CACHE_FILE_ALIGN, n = size - 3;
    int is_padded = data[0] & MAKE_PADDED && first < n;
    size_t skip = is_padded ? CACHE_FILE_ALIGN - first : 0;
    if (n > MAX_FILE - CACHE_FILE_ALIGN) n = MAX_FILE - CACHE_FILE_ALIGN;
    if (!is_padded) first = n;
    memcpy(out, data + 3, first);
    memset(out + first, 0, skip);
    memcpy(out + first + skip, data + 3 + first, n - first);
    return n + skip;
}

static void make_right(int flags, unsigned char *file, size_t size)
{
    CacheHead h;
    if (size < sizeof h) return;
    memcpy(&h, file, sizeof h);
    if (flags & MAKE_OURS) {
        memcpy(h.magic, CACHE_FILE_MAGIC, sizeof h.magic);
        h.version = CACHE_FILE_VERSION;
        h.zero = 0;
        h.model = shape.model;
        h.page_bytes = shape.page_bytes;
        h.state_bytes = shape.state_bytes;
    }
    size_t sums = (sizeof h + (size_t)(h.n_tokens % 4096) * 4 + 7) / 8 * 8;
    if (flags & MAKE_PARTS && size > CACHE_FILE_ALIGN + shape.page_bytes && sums + 8 <= 4096) {
        uint64_t sum =
            hash_sum(file + CACHE_FILE_ALIGN, h.n_pages ? shape.page_bytes : shape.state_bytes);
        memcpy(file + sums, &sum, sizeof sum);
    }
    memcpy(file, &h, sizeof h);
    if (flags & MAKE_SUM && size >= CACHE_FILE_ALIGN) {
        h.head_sum = hash_sum(file + CACHE_FILE_UNSUMMED, CACHE_FILE_ALIGN - CACHE_FILE_UNSUMMED);
        memcpy(file, &h, sizeof h);
    }
}

/* What cache_file.h promises of a good file. */
static void check_good(const CacheFile *f, int fd)
{
    unsigned char part[64];
    Error why = {0};
    volatile uint64_t sum = 0; /* each is read once */
    FUZZ_CHECK(f->head.n_tokens >= 16 && f->head.n_tokens <= (uint32_t)shape.max_tokens);
    FUZZ_CHECK(f->head.first_block + f->head.n_pages <= f->head.n_tokens / 16 + 1);
    for (uint32_t i = 0; i < f->head.n_tokens; i++)
        sum = (uint32_t)f->token[i];
    for (uint32_t i = 0; i < f->head.n_pages + f->head.has_state; i++)
        sum = f->sum[i];
    for (uint32_t i = 0; i < f->head.n_pages; i++)
        FUZZ_CHECK(!cache_file_read_page(f, fd, (int)i, part, &why) || *why.msg);
    if (f->head.has_state) FUZZ_CHECK(!cache_file_read_state(f, fd, part, &why) || *why.msg);
    (void)sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static unsigned char file[MAX_FILE];
    size_t n = make_file(data, size, file);
    make_right(size ? data[0] : 0, file, n);
    unsigned char *exact = malloc(n ? n : 1), *buf = malloc(cache_file_buffer_bytes(&shape));
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    FUZZ_CHECK(exact && buf && fd >= 0);
    memcpy(exact, file, n);
    FUZZ_CHECK(write(fd, file, n) == (ssize_t)n);
    CacheFile a, b;
    Error why = {0}, again = {0};
    CacheFileKind kind = cache_file_parse(&shape, exact, n, (int64_t)n, &a, &why);
    FUZZ_CHECK((kind == CACHE_FILE_GOOD) == !*why.msg);
    FUZZ_CHECK(cache_file_read_head(&shape, fd, buf, &b, &again) == kind);
    if (kind == CACHE_FILE_GOOD) check_good(&b, fd);
    close(fd);
    free(exact);
    free(buf);
    return 0;
}
