/*
 * cache_file.h: one file of the disk cache: an item of engine/store.h with its bytes.
 *
 * A head: CacheHead, the tokens from the first one of all to the item's end, a checksum of each
 * page and of the state; zeros up to a multiple of 4096. Then the pages, then the state. The head
 * has a checksum of its own, and the file's length follows from it. Numbers are little-endian. A
 * reader believes nothing: what a head says is checked before it is used.
 */
#ifndef OFFSHOOT_ENGINE_CACHE_FILE_H
#define OFFSHOOT_ENGINE_CACHE_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/hash.h"

enum {
    CACHE_FILE_VERSION = 1,
    CACHE_FILE_ALIGN = 4096,
    CACHE_FILE_UNSUMMED = 24, /* bytes in front that the head's checksum leaves out */
};
#define CACHE_FILE_MAGIC "OFFSHOOT"

/* What all files of a cache have in common. */
typedef struct {
    Hash model; /* of the model and all that changes what its bytes mean */
    size_t page_bytes, state_bytes;
    int max_tokens;
} CacheShape;

typedef struct {
    char magic[8];
    uint32_t version, zero;
    uint64_t head_sum;
    Hash model;
    uint64_t page_bytes, state_bytes;
    uint64_t salt;
    uint32_t n_tokens, first_block, n_pages;
    uint32_t has_state; /* 1: a state and its partial page, 0: a run of full pages */
} CacheHead;

typedef enum {
    CACHE_FILE_GOOD,
    CACHE_FILE_BROKEN,
    CACHE_FILE_OLD,   /* an earlier version's */
    CACHE_FILE_OTHER, /* another model's, or a later version's */
} CacheFileKind;

/* Bytes of the whole file. */
int64_t cache_file_bytes(const CacheShape *shape, int n_tokens, int n_pages, int has_state);

/* What a file of so many bytes takes of the disk. */
int64_t cache_file_room(int64_t bytes);

/* Bytes of a head as large as any: what buf below must have. */
size_t cache_file_buffer_bytes(const CacheShape *shape);

/* A head that was read; token and sum point into the reader's buffer. */
typedef struct {
    CacheHead head;
    const int32_t *token; /* [head.n_tokens] */
    const uint64_t *sum;  /* [head.n_pages + head.has_state] */
} CacheFile;

/*
 * Judges the first `size` bytes of a file of file_bytes, which are all its head has or as many as a
 * head may have. Unless it is good, why says why.
 */
CacheFileKind cache_file_parse(const CacheShape *shape, const unsigned char *buf, size_t size,
                               int64_t file_bytes, CacheFile *file, Error *why);

/* The same from an open file. */
CacheFileKind cache_file_read_head(const CacheShape *shape, int fd, unsigned char *buf,
                                   CacheFile *file, Error *why);

/* Reads page i or the state; -1 and why when it is short or its checksum is wrong. */
int cache_file_read_page(const CacheFile *file, int fd, int i, void *page, Error *why);
int cache_file_read_state(const CacheFile *file, int fd, void *state, Error *why);

/*
 * Writes all of a file; of head magic, version, sum, model and sizes are filled in here. -1 and
 * why.
 */
int cache_file_write(const CacheShape *shape, int fd, unsigned char *buf, CacheHead head,
                     const int32_t *token, const void *const *page, const void *state, Error *why);

#endif
