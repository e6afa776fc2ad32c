/* cache_file.c: see cache_file.h. Plain reads: a mapped file that shrinks would end the process. */
#include "engine/cache_file.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/cache.h"

_Static_assert(sizeof(CacheHead) == 80, "a file's head has no holes");
_Static_assert(offsetof(CacheHead, model) == CACHE_FILE_UNSUMMED, "the sum covers what follows it");

/* Sums begin at a multiple of 8. */
static size_t sums_offset(size_t n_tokens)
{
    return (sizeof(CacheHead) + n_tokens * sizeof(int32_t) + 7) / 8 * 8;
}

/* Bytes up to the pages. */
static size_t head_bytes_of(int n_tokens, int n_sums)
{
    size_t bytes = sums_offset((size_t)n_tokens) + (size_t)n_sums * sizeof(uint64_t);
    return (bytes + CACHE_FILE_ALIGN - 1) / CACHE_FILE_ALIGN * CACHE_FILE_ALIGN;
}

size_t cache_file_buffer_bytes(const CacheShape *shape)
{
    return head_bytes_of(shape->max_tokens, shape->max_tokens / PAGE_TOKENS + 2);
}

int64_t cache_file_bytes(const CacheShape *shape, int n_tokens, int n_pages, int has_state)
{
    return (int64_t)(head_bytes_of(n_tokens, n_pages + has_state) +
                     (size_t)n_pages * shape->page_bytes + (size_t)has_state * shape->state_bytes);
}

int64_t cache_file_room(int64_t bytes)
{
    return (bytes + CACHE_FILE_ALIGN - 1) / CACHE_FILE_ALIGN * CACHE_FILE_ALIGN;
}

/* ---- judging ---- */

static CacheFileKind judge(CacheFileKind kind, Error *why, const char *says)
{
    error_set(why, ERR_FILE, "%s", says);
    return kind;
}

/* A run ends with its last full block; a state has the page that its prefix fills in part. */
static int fits_together(const CacheHead *h)
{
    uint32_t n_full = h->n_tokens / PAGE_TOKENS, rest = h->n_tokens % PAGE_TOKENS;
    if (h->has_state) return n_full && h->first_block == n_full && h->n_pages == (rest > 0);
    return h->n_pages && !rest && h->n_pages <= n_full && h->first_block == n_full - h->n_pages;
}

CacheFileKind cache_file_parse(const CacheShape *shape, const unsigned char *buf, size_t size,
                               int64_t file_bytes, CacheFile *file, Error *why)
{
    CacheHead *h = &file->head;
    if (size < sizeof *h) return judge(CACHE_FILE_BROKEN, why, "too short for a head");
    memcpy(h, buf, sizeof *h);
    if (memcmp(h->magic, CACHE_FILE_MAGIC, sizeof h->magic))
        return judge(CACHE_FILE_BROKEN, why, "does not begin as a cache file does");
    if (h->version < CACHE_FILE_VERSION)
        return judge(CACHE_FILE_OLD, why, "written by an earlier version");
    if (h->version > CACHE_FILE_VERSION)
        return judge(CACHE_FILE_OTHER, why, "written by a later version");
    if (!hash_equal(h->model, shape->model) || h->page_bytes != shape->page_bytes ||
        h->state_bytes != shape->state_bytes)
        return judge(CACHE_FILE_OTHER, why, "of another model or other settings");
    if (h->n_tokens > (uint32_t)shape->max_tokens)
        return judge(CACHE_FILE_OTHER, why, "longer than a sequence may be");
    if (h->zero || h->has_state > 1 || !fits_together(h))
        return judge(CACHE_FILE_BROKEN, why, "its head contradicts itself");
    int n_sums = (int)(h->n_pages + h->has_state);
    size_t head_bytes = head_bytes_of((int)h->n_tokens, n_sums);
    if (size < head_bytes) return judge(CACHE_FILE_BROKEN, why, "ends inside its head");
    if (hash_sum(buf + CACHE_FILE_UNSUMMED, head_bytes - CACHE_FILE_UNSUMMED) != h->head_sum)
        return judge(CACHE_FILE_BROKEN, why, "checksum of its head is wrong");
    if (file_bytes != cache_file_bytes(shape, (int)h->n_tokens, (int)h->n_pages, (int)h->has_state))
        return judge(CACHE_FILE_BROKEN, why, "has not the length that its head says");
    file->token = (const void *)(buf + sizeof *h);
    file->sum = (const void *)(buf + sums_offset(h->n_tokens));
    return CACHE_FILE_GOOD;
}

/* ---- reading ---- */

/* Up to `bytes` bytes, fewer at the file's end; -1 with errno. */
static ssize_t read_at(int fd, void *to, size_t bytes, int64_t at)
{
    size_t done = 0;
    while (done < bytes) {
        ssize_t n = pread(fd, (char *)to + done, bytes - done, (off_t)at + (off_t)done);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return -1;
        if (!n) break;
        done += (size_t)n;
    }
    return (ssize_t)done;
}

CacheFileKind cache_file_read_head(const CacheShape *shape, int fd, unsigned char *buf,
                                   CacheFile *file, Error *why)
{
    struct stat st;
    size_t want = CACHE_FILE_ALIGN;
    if (fstat(fd, &st)) return judge(CACHE_FILE_BROKEN, why, strerror(errno));
    ssize_t got = read_at(fd, buf, want, 0);
    /* The first page of most heads is all of it; of the rest it says how much there is. */
    if (got == (ssize_t)want) {
        CacheHead h;
        memcpy(&h, buf, sizeof h);
        size_t n_tokens = h.n_tokens, n_sums = (size_t)h.n_pages + 1;
        if (n_tokens <= (size_t)shape->max_tokens && n_sums <= n_tokens)
            want = head_bytes_of((int)n_tokens, (int)n_sums);
        if (want > cache_file_buffer_bytes(shape)) want = cache_file_buffer_bytes(shape);
        if (want > CACHE_FILE_ALIGN) got = read_at(fd, buf, want, 0);
    }
    if (got < 0) return judge(CACHE_FILE_BROKEN, why, strerror(errno));
    return cache_file_parse(shape, buf, (size_t)got, (int64_t)st.st_size, file, why);
}

static int read_part(int fd, void *to, size_t bytes, int64_t at, uint64_t sum, const char *what,
                     Error *why)
{
    ssize_t got = read_at(fd, to, bytes, at);
    if (got < 0) return error_set(why, ERR_FILE, "cannot read %s: %s", what, strerror(errno));
    if ((size_t)got < bytes) return error_set(why, ERR_FILE, "ends inside %s", what);
    if (hash_sum(to, bytes) != sum)
        return error_set(why, ERR_FILE, "checksum of %s is wrong", what);
    return 0;
}

static int64_t page_offset(const CacheHead *h, int i)
{
    return (int64_t)head_bytes_of((int)h->n_tokens, (int)(h->n_pages + h->has_state)) +
           (int64_t)i * (int64_t)h->page_bytes;
}

int cache_file_read_page(const CacheFile *file, int fd, int i, void *page, Error *why)
{
    assert(i >= 0 && (uint32_t)i < file->head.n_pages);
    return read_part(fd, page, file->head.page_bytes, page_offset(&file->head, i), file->sum[i],
                     "a page", why);
}

int cache_file_read_state(const CacheFile *file, int fd, void *state, Error *why)
{
    assert(file->head.has_state);
    int n_pages = (int)file->head.n_pages;
    return read_part(fd, state, file->head.state_bytes, page_offset(&file->head, n_pages),
                     file->sum[n_pages], "the state", why);
}

/* ---- writing ---- */

static int write_at(int fd, const void *from, size_t bytes, int64_t at, Error *why)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t n = pwrite(fd, (const char *)from + done, bytes - done, (off_t)at + (off_t)done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return error_set(why, ERR_FILE, "%s", n ? strerror(errno) : "nothing written");
        done += (size_t)n;
    }
    return 0;
}

/* The head goes last: each part is summed while it is in the processor's cache. */
int cache_file_write(const CacheShape *shape, int fd, unsigned char *buf, CacheHead head,
                     const int32_t *token, const void *const *page, const void *state, Error *why)
{
    assert(head.n_tokens <= (uint32_t)shape->max_tokens);
    assert(fits_together(&head));
    memcpy(head.magic, CACHE_FILE_MAGIC, sizeof head.magic);
    head.version = CACHE_FILE_VERSION;
    head.model = shape->model;
    head.page_bytes = shape->page_bytes;
    head.state_bytes = shape->state_bytes;
    size_t head_bytes = head_bytes_of((int)head.n_tokens, (int)(head.n_pages + head.has_state));
    memset(buf, 0, head_bytes);
    memcpy(buf + sizeof head, token, head.n_tokens * sizeof *token);
    uint64_t *sum = (void *)(buf + sums_offset(head.n_tokens));
    int n = (int)head.n_pages;
    for (int i = 0; i < n; i++) {
        sum[i] = hash_sum(page[i], shape->page_bytes);
        if (write_at(fd, page[i], shape->page_bytes, page_offset(&head, i), why)) return -1;
    }
    if (head.has_state) {
        sum[n] = hash_sum(state, shape->state_bytes);
        if (write_at(fd, state, shape->state_bytes, page_offset(&head, n), why)) return -1;
    }
    memcpy(buf, &head, sizeof head);
    head.head_sum = hash_sum(buf + CACHE_FILE_UNSUMMED, head_bytes - CACHE_FILE_UNSUMMED);
    memcpy(buf, &head, sizeof head);
    return write_at(fd, buf, head_bytes, 0, why);
}
