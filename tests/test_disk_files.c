/*
 * test_disk_files.c: files of the disk cache that are damaged, lost, in each other's place, or not
 * its own: each is ignored or fails to load, and nothing wrong is ever read.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/mem.h"
#include "engine/cache.h"
#include "engine/cache_file.h"
#include "tests/checkpoint.h"
#include "tests/disk_case.h"

/* ---- damage ---- */

/* A folder with two prefixes that share a run, and its files in memory. */
typedef struct {
    const char *path;
    char file[4][512];
    unsigned char *bytes[4];
    size_t size[4];
    Prefix p, q;
} Damaged;

static void damaged_begin(Damaged *x)
{
    *x = (Damaged){.path = scratch_dir("disk_files")};
    x->p = disk_case_prefix(39, 1);
    x->q = disk_case_prefix(71, 1);
    Disk *d = disk_case_open(x->path, PLENTY);
    disk_case_must_save(d, &x->p);
    disk_case_must_save(d, &x->q);
    disk_close(d);
    DIR *dir = opendir(x->path);
    assert_non_null(dir);
    int n = 0;
    for (struct dirent *e; (e = readdir(dir));) {
        if (!strstr(e->d_name, ".run") && !strstr(e->d_name, ".state")) continue;
        snprintf(x->file[n], sizeof x->file[n], "%s", scratch_path(x->path, e->d_name));
        x->bytes[n] = disk_case_read(x->file[n], &x->size[n]);
        n++;
    }
    closedir(dir);
    assert_int_equal(n, 4);
}

/* File i with other bytes, the others as they were: those that are gone are made again. */
static void damaged_write(const Damaged *x, int i, const void *bytes, size_t size)
{
    for (int k = 0; k < 4; k++) {
        struct stat st;
        int is_whole = !stat(x->file[k], &st) && st.st_size == (off_t)x->size[k];
        if (k == i || !is_whole) unlink(x->file[k]); /* cheaper than to cut it */
        if (k == i)
            scratch_write(x->file[k], bytes, size);
        else if (!is_whole)
            scratch_write(x->file[k], x->bytes[k], x->size[k]);
    }
}

static void damaged_end(Damaged *x)
{
    for (int i = 0; i < 4; i++)
        mem_free(x->bytes[i]);
}

/*
 * Whatever is found loads right or fails; what failed is not found again. Returns how many of the
 * two prefixes could be read whole.
 */
static int check_damaged(const Damaged *x)
{
    const Prefix *all[] = {&x->p, &x->q};
    int n_read = 0;
    Disk *d = disk_case_open(x->path, PLENTY);
    for (int i = 0; i < 2; i++) {
        int n = disk_case_found(d, all[i]);
        if (!n) continue;
        assert_true(n == 39 || n == 71);
        if (disk_case_load(d, all[i], n, 0))
            n_read += n == all[i]->n;
        else
            assert_int_not_equal(disk_case_found(d, all[i]), n);
    }
    disk_close(d);
    return n_read;
}

/* One bit of any byte of any file. The padding of the head counts too. */
static void test_flipped(void **state)
{
    (void)state;
    Damaged x;
    damaged_begin(&x);
    for (int i = 0; i < 4; i++) {
        unsigned char *copy = mem_alloc(x.size[i], 1);
        for (size_t at = 0; at < x.size[i]; at += at < 420 ? 1 : at >= 4090 ? 5 : 97) {
            memcpy(copy, x.bytes[i], x.size[i]);
            copy[at] ^= (unsigned char)(1 << at % 8);
            damaged_write(&x, i, copy, x.size[i]);
            if (check_damaged(&x) > 1) fail_msg("file %d byte %zu is believed", i, at);
        }
        mem_free(copy);
        damaged_write(&x, i, x.bytes[i], x.size[i]);
    }
    assert_int_equal(check_damaged(&x), 2);
    damaged_end(&x);
}

static void test_truncated(void **state)
{
    (void)state;
    Damaged x;
    unsigned seed = 11;
    damaged_begin(&x);
    for (int i = 0; i < 4; i++) {
        for (int round = 0; round < 25; round++) {
            size_t n = round ? (size_t)rand_r(&seed) % x.size[i] : 0;
            if (round == 1) n = x.size[i] - 1;
            damaged_write(&x, i, x.bytes[i], n);
            assert_true(check_damaged(&x) < 2);
            assert_int_not_equal(access(x.file[i], F_OK), 0); /* ours and broken: removed */
        }
        unsigned char *more = mem_alloc(x.size[i] + 1, 1);
        memcpy(more, x.bytes[i], x.size[i]);
        damaged_write(&x, i, more, x.size[i] + 1);
        assert_true(check_damaged(&x) < 2);
        mem_free(more);
        damaged_write(&x, i, x.bytes[i], x.size[i]);
    }
    assert_int_equal(check_damaged(&x), 2);
    damaged_end(&x);
}

/* Files in each other's place, whole and with right checksums. */
static void test_swapped(void **state)
{
    (void)state;
    Damaged x;
    damaged_begin(&x);
    for (int i = 0; i < 4; i++) {
        for (int k = 0; k < 4; k++) {
            if (i == k) continue;
            damaged_write(&x, i, x.bytes[k], x.size[k]);
            assert_true(check_damaged(&x) < 2);
            damaged_write(&x, i, x.bytes[i], x.size[i]);
        }
    }
    /* And while it runs: the index has read the right heads. */
    for (int i = 0; i < 4; i++) {
        damaged_write(&x, i, x.bytes[i], x.size[i]);
        Disk *d = disk_case_open(x.path, PLENTY);
        assert_int_equal(disk_case_found(d, &x.q), 71);
        scratch_write(x.file[i], x.bytes[(i + 1) % 4], x.size[(i + 1) % 4]);
        int n_read = disk_case_load(d, &x.p, 39, 0);
        n_read += disk_case_found(d, &x.q) == 71 && disk_case_load(d, &x.q, 71, 0);
        assert_true(n_read < 2);
        disk_close(d);
    }
    damaged_end(&x);
}

/* A whole file under a name that is in use: only the tokens differ, of as many, or the salt. */
static void test_other_prefix(void **state)
{
    (void)state;
    static const char *const kinds[] = {".run", ".state"};
    for (int i = 0; i < 4; i++) {
        const char *path = scratch_dir("disk_files"), *kind = kinds[i % 2];
        Prefix p = disk_case_prefix(40, 1), q = disk_case_prefix(40, i < 2 ? 2 : 1);
        size_t size;
        if (i >= 2) q.salt = p.salt + 1;
        Disk *d = disk_case_open(path, PLENTY);
        disk_case_must_save(d, &p);
        disk_close(d);
        unsigned char *bytes = disk_case_read(disk_case_file(path, kind), &size);
        scratch_dir("disk_files");
        d = disk_case_open(path, PLENTY);
        disk_case_must_save(d, &q);
        scratch_write(disk_case_file(path, kind), bytes, size);
        assert_int_equal(disk_case_load(d, &q, 40, 0), 0);
        assert_int_equal(disk_case_found(d, &q), 0);
        disk_close(d);
        mem_free(bytes);
    }
}

/* A file that goes while it is in use: the job fails, what needs it is not found, nothing else. */
static void test_lost_file(void **state)
{
    (void)state;
    Prefix other = disk_case_prefix(50, 9);
    for (int i = 0; i < 4; i++) {
        Damaged x;
        damaged_begin(&x);
        Disk *d = disk_case_open(x.path, PLENTY);
        disk_case_must_save(d, &other);
        assert_int_equal(unlink(x.file[i]), 0);
        int n_read = disk_case_load(d, &x.p, 39, 0);
        n_read += disk_case_found(d, &x.q) == 71 && disk_case_load(d, &x.q, 71, 0);
        assert_true(n_read < 2);
        assert_int_equal(disk_stats(d).failed, 1);
        assert_true(disk_stats(d).lost > 0);
        assert_int_equal(disk_case_load(d, &other, 50, 0), 1);
        if (disk_case_found(d, &x.q) != 71) disk_case_must_save(d, &x.q);
        if (disk_case_found(d, &x.p) != 39) disk_case_must_save(d, &x.p);
        assert_int_equal(disk_case_load(d, &x.q, 71, 0), 1);
        assert_int_equal(disk_case_load(d, &x.p, 39, 0), 1);
        disk_close(d);
        damaged_end(&x);
    }
}

/* ---- what is not ours ---- */

static void test_foreign_files(void **state)
{
    (void)state;
    const char *path = scratch_dir("disk_files");
    static const char *const others[] = {"README",
                                         "offshoot.run",
                                         "offshoot-12.run",
                                         "offshoot-0123456789abcdef0123456789abcde.run",
                                         "offshoot-0123456789ABCDEF0123456789abcdef.run",
                                         "offshoot-0123456789abcdef0123456789abcdef.runs",
                                         "x.tmp"};
    static const char *const ours[] = {"offshoot-0123456789abcdef0123456789abcdef.run",
                                       "offshoot-0123456789abcdef0123456789abcde0.state",
                                       "offshoot-0123456789abcdef0123456789abcde1.tmp"};
    static const char *const special[] = {"offshoot-1123456789abcdef0123456789abcdef.run",
                                          "offshoot-2123456789abcdef0123456789abcdef.state",
                                          "offshoot-3123456789abcdef0123456789abcdef.tmp"};
    for (int i = 0; i < 7; i++)
        scratch_write(scratch_path(path, others[i]), "hello", 5);
    for (int i = 0; i < 3; i++)
        scratch_write(scratch_path(path, ours[i]), "hello", 5);
    mkdir(scratch_path(path, special[0]), 0700);
    mkfifo(scratch_path(path, special[1]), 0600);
    assert_int_equal(symlink("README", scratch_path(path, special[2])), 0);
    Disk *d = disk_case_open(path, 1 << 20);
    assert_int_equal(disk_stats(d).files, 0);
    Prefix p = disk_case_prefix(40, 1);
    disk_case_must_save(d, &p);
    disk_close(d);
    for (int i = 0; i < 7; i++) {
        size_t size;
        unsigned char *bytes = disk_case_read(scratch_path(path, others[i]), &size);
        assert_int_equal(size, 5);
        assert_memory_equal(bytes, "hello", 5);
        mem_free(bytes);
    }
    for (int i = 0; i < 3; i++) {
        struct stat st;
        assert_int_not_equal(access(scratch_path(path, ours[i]), F_OK), 0);
        assert_int_equal(lstat(scratch_path(path, special[i]), &st), 0);
    }
    rmdir(scratch_path(path, special[0]));
}

/* Pipes in the places of what is to be written: nobody waits until somebody reads them. */
static void test_pipes_in_the_way(void **state)
{
    (void)state;
    const char *path = scratch_dir("disk_files");
    Prefix p = disk_case_prefix(40, 1);
    char state_file[512], run_file[512];
    Error err = {0};
    TierRefused why;
    alarm(20); /* ends the test that waits all the same */
    Disk *d = disk_case_open(path, PLENTY);
    disk_case_must_save(d, &p);
    snprintf(state_file, sizeof state_file, "%s", disk_case_file(path, ".state"));
    snprintf(run_file, sizeof run_file, "%s", disk_case_file(path, ".run"));
    disk_clear(d);
    disk_close(d);
    for (char *file = state_file; file; file = file == state_file ? run_file : NULL) {
        memcpy(strrchr(file, '.'), ".tmp", sizeof ".tmp");
        assert_int_equal(mkfifo(file, 0600), 0);
        d = disk_case_open(path, PLENTY);
        assert_int_equal(disk_case_save(d, &p, &why), 0);
        disk_close(d);
        unlink(file);
    }
    assert_int_equal(mkfifo(scratch_path(path, "offshoot-probe.tmp"), 0600), 0);
    assert_null(disk_open(path, PLENTY, &disk_case_shape, &err));
    assert_non_null(strstr(err.msg, "cannot write in"));
    alarm(0);
}

/* The least that is not refused holds a prefix. */
static void test_smallest(void **state)
{
    (void)state;
    const char *path = scratch_dir("disk_files");
    Prefix p = disk_case_prefix(PAGE_TOKENS, 1);
    Error err = {0};
    assert_null(disk_open(path, 2 * ITEM - 1, &disk_case_shape, &err));
    assert_int_equal(err.code, ERR_LIMIT);
    assert_non_null(strstr(err.msg, "raise --disk-cache"));
    Disk *d = disk_case_open(path, 2 * ITEM);
    disk_case_must_save(d, &p);
    assert_int_equal(disk_case_found(d, &p), PAGE_TOKENS);
    disk_close(d);
}

/* Another model's files are not read, take their room, and go when they are the oldest. */
static void test_other_model(void **state)
{
    (void)state;
    const char *path = scratch_dir("disk_files");
    DiskShape other = disk_case_shape;
    Prefix p = disk_case_prefix(40, 1), q = disk_case_prefix(40, 2);
    other.fingerprint = "another model";
    Disk *d = disk_open(path, 6 * ITEM, &other, NULL);
    assert_non_null(d);
    disk_case_must_save(d, &p);
    disk_close(d);
    d = disk_case_open(path, 3 * ITEM);
    assert_int_equal(disk_case_found(d, &p), 0);
    assert_int_equal(disk_stats(d).files, 2);
    disk_case_must_save(
        d, &p); /* the same tokens, its own files: one of the other's goes, the older state */
    assert_int_equal(disk_case_found(d, &p), 40);
    assert_int_equal(disk_stats(d).files, 3);
    disk_case_must_save(d, &q);
    disk_close(d);
    d = disk_open(path, 3 * ITEM, &other, NULL);
    assert_int_equal(disk_case_found(d, &p), 0);
    disk_close(d);
    d = disk_case_open(path, PLENTY);
    assert_int_equal(disk_case_found(d, &q), 40);
    disk_close(d);
    DiskShape shapes[] = {disk_case_shape, disk_case_shape, disk_case_shape};
    shapes[0].page_bytes++;
    shapes[1].state_bytes++;
    shapes[2].max_tokens = 32;
    for (int i = 0; i < 3; i++) {
        d = disk_open(path, PLENTY, &shapes[i], NULL);
        assert_non_null(d);
        assert_int_equal(disk_case_found(d, &q), 0);
        disk_close(d);
    }
    d = disk_case_open(path, PLENTY);
    assert_int_equal(disk_case_load(d, &q, 40, 0), 1);
    disk_close(d);
}

/* More files go for one save than the jobs that are free can remove: it is refused until they are.
 */
static void test_many_removals(void **state)
{
    (void)state;
    enum { N = 30, MAX = 2 * N * ITEM, STATE = 450000 };
    static unsigned char big[STATE], back[STATE];
    const char *path = scratch_dir("disk_files");
    DiskShape other = disk_case_shape, large = disk_case_shape;
    other.fingerprint = "another model";
    large.state_bytes = STATE;
    large.max_tokens = 32; /* few names in a job */
    Disk *d = disk_open(path, MAX, &other, NULL);
    assert_non_null(d);
    for (int i = 0; i < N; i++) {
        Prefix small = disk_case_prefix(16, i);
        disk_case_must_save(d, &small);
    }
    disk_close(d);
    assert_int_equal(disk_case_count(path, "", NULL), 2 * N);
    d = disk_open(path, MAX, &large, NULL);
    assert_non_null(d);
    Prefix p = disk_case_prefix(32, 1);
    PrefixBytes b;
    TierRefused why;
    int job, n_refused = 0;
    prefix_fill(&p, 32, &b);
    memset(big, 3, sizeof big);
    const void *const *page = (const void *const *)b.page;
    while ((job = disk_save(d, p.salt, p.token, 32, 0, page, big, &why)) < 0) {
        assert_int_equal(why, TIER_BUSY);
        n_refused++;
    }
    assert_true(n_refused > 0);
    assert_int_equal(disk_case_wait(d, job), 1);
    int64_t bytes = 0;
    assert_int_equal(disk_case_count(path, "", &bytes), disk_stats(d).files);
    assert_true(bytes <= MAX);
    job = disk_load(d, p.salt, p.token, 32, 2, NULL, back);
    assert_int_equal(disk_case_wait(d, job), 1);
    assert_memory_equal(big, back, sizeof big);
    disk_close(d);
}

/* Two runs that begin with the same blocks, as when a removal was lost: one of them is enough. */
static void test_overlap(void **state)
{
    (void)state;
    const char *path = scratch_dir("disk_files");
    Prefix p = disk_case_prefix(64, 1), q = disk_case_prefix(40, 1);
    char run[512], last[512];
    size_t run_size, last_size;
    Disk *d = disk_case_open(path, PLENTY);
    disk_case_must_save(d, &p);
    disk_close(d);
    snprintf(run, sizeof run, "%s", disk_case_file(path, ".run"));
    snprintf(last, sizeof last, "%s", disk_case_file(path, ".state"));
    unsigned char *run_bytes = disk_case_read(run, &run_size),
                  *last_bytes = disk_case_read(last, &last_size);
    scratch_dir("disk_files");
    d = disk_case_open(path, PLENTY);
    disk_case_must_save(d, &q);
    disk_close(d);
    scratch_write(run, run_bytes, run_size);
    scratch_write(last, last_bytes, last_size);
    d = disk_case_open(path, PLENTY);
    assert_int_equal(disk_case_count(path, ".run", NULL), 1);
    assert_int_equal(disk_stats(d).files, 3);
    assert_int_equal(disk_case_load(d, &p, 64, 0), 1);
    assert_int_equal(disk_case_load(d, &q, 40, 0), 1);
    disk_close(d);
    mem_free(run_bytes);
    mem_free(last_bytes);
}

/* An earlier version's files are removed, a later one's are left. */
static void test_versions(void **state)
{
    (void)state;
    const char *path = scratch_dir("disk_files");
    Prefix p = disk_case_prefix(40, 1);
    Disk *d = disk_case_open(path, PLENTY);
    disk_case_must_save(d, &p);
    disk_close(d);
    for (int step = 0; step < 2; step++) {
        char file[512];
        size_t size;
        snprintf(file, sizeof file, "%s", disk_case_file(path, ".state"));
        unsigned char *bytes = disk_case_read(file, &size);
        bytes[8] = step ? CACHE_FILE_VERSION - 1 : CACHE_FILE_VERSION + 1;
        scratch_write(file, bytes, size);
        mem_free(bytes);
        d = disk_case_open(path, PLENTY);
        assert_int_equal(disk_case_found(d, &p), 0);
        assert_int_equal(disk_case_count(path, ".state", NULL), !step);
        disk_close(d);
    }
}

/* Heads of runs that have more pages than their tokens fill, sealed as good ones are. */
static void test_too_many_pages(void **state)
{
    (void)state;
    enum { BEYOND = 1 << 17 };
    const CacheShape shape = {.page_bytes = 64, .state_bytes = 64, .max_tokens = 8192};
    size_t room = cache_file_buffer_bytes(&shape);
    unsigned char *file = mem_alloc(room + BEYOND, 1), *buf = mem_alloc(room + BEYOND, 1);
    CacheHead h = {.version = CACHE_FILE_VERSION,
                   .page_bytes = shape.page_bytes,
                   .state_bytes = shape.state_bytes,
                   .n_tokens = 8192,
                   .n_pages = 8191};
    CacheFile f;
    Error why = {0};
    memcpy(h.magic, CACHE_FILE_MAGIC, sizeof h.magic);
    memset(file, 1, room + BEYOND);
    memcpy(file, &h, sizeof h);
    const char *path = scratch_path(scratch_dir("too_many"), "a.run");
    scratch_write(path, file, room + BEYOND);
    int fd = open(path, O_RDONLY);
    assert_int_equal(cache_file_read_head(&shape, fd, buf, &f, &why), CACHE_FILE_BROKEN);
    close(fd);
    for (size_t i = room; i < room + BEYOND; i++)
        assert_int_equal(buf[i], 0); /* no byte behind the reader's memory */

    h.n_tokens = PAGE_TOKENS, h.n_pages = 2, h.first_block = UINT32_MAX; /* one before the first */
    memset(file, 0, CACHE_FILE_ALIGN);
    memcpy(file, &h, sizeof h);
    h.head_sum = hash_sum(file + CACHE_FILE_UNSUMMED, CACHE_FILE_ALIGN - CACHE_FILE_UNSUMMED);
    memcpy(file, &h, sizeof h);
    int64_t bytes = cache_file_bytes(&shape, PAGE_TOKENS, 2, 0);
    assert_int_equal(cache_file_parse(&shape, file, CACHE_FILE_ALIGN, bytes, &f, &why),
                     CACHE_FILE_BROKEN);
    assert_string_equal(why.msg, "its head contradicts itself");
    mem_free(file);
    mem_free(buf);
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_flipped),        cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_swapped),        cmocka_unit_test(test_other_prefix),
        cmocka_unit_test(test_lost_file),      cmocka_unit_test(test_foreign_files),
        cmocka_unit_test(test_smallest),       cmocka_unit_test(test_other_model),
        cmocka_unit_test(test_many_removals),  cmocka_unit_test(test_overlap),
        cmocka_unit_test(test_versions),       cmocka_unit_test(test_pipes_in_the_way),
        cmocka_unit_test(test_too_many_pages),
    };
    return cmocka_run_group_tests(tests, disk_case_quiet, NULL);
}
