/*
 * test_disk.c: the disk cache: what was saved is found and read, or is computed, never wrong.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "engine/cache_file.h"
#include "engine/disk.h"
#include "tests/checkpoint.h"
#include "tests/prefixes.h"

enum {
    PLENTY = 1 << 20,
    ITEM = 2 * 4096, /* bytes on disk of a file with a head and little more */
};

static const DiskShape shape = {.fingerprint = "a model",
                                .page_bytes = PREFIX_PAGE_BYTES,
                                .state_bytes = PREFIX_STATE_BYTES,
                                .max_tokens = PREFIX_MAX};

/* ---- helpers ---- */

static Disk *open_disk(const char *path, int64_t max_bytes)
{
    Error err = {0};
    Disk *d = disk_open(path, max_bytes, &shape, &err);
    if (!d) fail_msg("%s", err.msg);
    return d;
}

/* Waits for the one job that is on; whether it went well. */
static int wait_for(Disk *d, int job)
{
    DiskDone done;
    assert_int_equal(disk_next(d, &done, 1), 1);
    assert_int_equal(done.job, job);
    assert_int_equal(disk_next(d, &done, 1), 0);
    return done.ok;
}

/* 1 saved, 0 the job failed, -1 refused. */
static int save(Disk *d, const Prefix *p, TierRefused *why)
{
    PrefixBytes b;
    int first = disk_first_new(d, p->salt, p->token, p->n);
    prefix_fill(p, p->n, &b);
    for (int i = 0; i < first; i++)
        memset(b.page[i], 0, PREFIX_PAGE_BYTES); /* not to be looked at */
    int job = disk_save(d, p->salt, p->token, p->n, first, (const void *const *)b.page + first,
                        b.state, why);
    return job < 0 ? -1 : wait_for(d, job);
}

static void must_save(Disk *d, const Prefix *p)
{
    TierRefused why = N_TIER_REFUSED;
    if (save(d, p, &why) != 1) fail_msg("%d tokens are not saved: %d", p->n, (int)why);
}

static int found(const Disk *d, const Prefix *p)
{
    return disk_find(d, p->salt, p->token, p->n, p->n);
}

/* Loads n tokens from a page on and checks every byte. 0: the job failed. */
static int load(Disk *d, const Prefix *p, int n, int first)
{
    PrefixBytes b;
    prefix_clear(&b);
    int job = disk_load(d, p->salt, p->token, n, first, b.page + first, b.state);
    assert_true(job >= 0);
    if (!wait_for(d, job)) return 0;
    prefix_check(p, n, first, &b);
    return 1;
}

static Prefix prefix_of(int n, int32_t kind)
{
    Prefix p = {.salt = 5, .n = n};
    for (int i = 0; i < n; i++)
        p.token[i] = 1000 * kind + i;
    return p;
}

/* Entries of a folder that look like ours, or all; bytes as du counts them. */
static int count_files(const char *path, const char *ending, int64_t *bytes)
{
    DIR *dir = opendir(path);
    int n = 0;
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));) {
        size_t length = strlen(e->d_name), end = strlen(ending);
        struct stat st;
        if (e->d_name[0] == '.' || !strcmp(e->d_name, "offshoot.lock")) continue;
        if (length < end || strcmp(e->d_name + length - end, ending)) continue;
        assert_int_equal(fstatat(dirfd(dir), e->d_name, &st, AT_SYMLINK_NOFOLLOW), 0);
        if (bytes) *bytes += (st.st_size + 4095) / 4096 * 4096;
        n++;
    }
    closedir(dir);
    return n;
}

/* The path of the only file with this ending. */
static const char *only_file(const char *path, const char *ending)
{
    static char out[512];
    DIR *dir = opendir(path);
    assert_non_null(dir);
    assert_int_equal(count_files(path, ending, NULL), 1);
    for (struct dirent *e; (e = readdir(dir));) {
        size_t length = strlen(e->d_name), end = strlen(ending);
        if (length > end && !strcmp(e->d_name + length - end, ending))
            snprintf(out, sizeof out, "%s/%s", path, e->d_name);
    }
    closedir(dir);
    return out;
}

static unsigned char *read_all(const char *path, size_t *size)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    unsigned char *bytes = mem_alloc(1 << 16, 1);
    *size = fread(bytes, 1, 1 << 16, f);
    fclose(f);
    return bytes;
}

/* ---- what is saved is there ---- */

static void test_round_trip(void **state)
{
    (void)state;
    const char *path = scratch_dir("disk");
    Prefix p = prefix_of(75, 1), q = p;
    struct stat st;
    TierRefused why;
    q.n = 128;
    for (int i = 40; i < q.n; i++)
        q.token[i] = 7; /* parts inside the third block */
    Disk *d = open_disk(path, PLENTY);
    assert_int_equal(found(d, &p), 0);
    must_save(d, &p);
    assert_int_equal(disk_stats(d).files, 2);
    assert_int_equal(save(d, &p, &why), -1);
    assert_int_equal(why, TIER_KNOWN);
    assert_int_equal(disk_first_new(d, q.salt, q.token, q.n), 2);
    must_save(d, &q);
    assert_int_equal(disk_stats(d).files, 4);
    for (int restart = 0; restart < 2; restart++) {
        assert_int_equal(found(d, &p), 75);
        assert_int_equal(found(d, &q), 128);
        assert_int_equal(disk_find(d, p.salt, p.token, 75, 74), 0);
        assert_int_equal(disk_find(d, p.salt + 1, p.token, 75, 75), 0);
        for (int first = 0; first <= 5; first++)
            assert_int_equal(load(d, &p, 75, first), 1);
        for (int first = 0; first <= 8; first++)
            assert_int_equal(load(d, &q, 128, first), 1);
        assert_int_equal(disk_load(d, p.salt, p.token, 74, 0, NULL, NULL), -1);
        disk_close(d);
        d = open_disk(path, PLENTY);
    }
    disk_close(d);
    assert_int_equal(count_files(path, "", NULL), 4);
    assert_int_equal(count_files(path, ".run", NULL), 2);
    assert_int_equal(count_files(path, ".state", NULL), 2);
    assert_int_equal(stat(scratch_path(path, "offshoot.lock"), &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
}

static void test_refusals(void **state)
{
    (void)state;
    const char *path = scratch_dir("disk");
    Prefix p = prefix_of(40, 1), tiny = prefix_of(15, 2);
    PrefixBytes b;
    TierRefused why;
    prefix_fill(&p, p.n, &b);
    const void *const *page = (const void *const *)b.page;
    Disk *d = open_disk(path, 2 * ITEM); /* a head and a page each */
    assert_int_equal(save(d, &tiny, &why), -1);
    assert_int_equal(why, TIER_SHORT);
    assert_int_equal(disk_save(d, 0, p.token, PREFIX_MAX + 1, 0, page, b.state, &why), -1);
    assert_int_equal(why, TIER_LARGE);
    assert_int_equal(disk_save(d, p.salt, p.token, p.n, 1, page + 1, b.state, &why), -1);
    assert_int_equal(why, TIER_MISSING);
    must_save(d, &p);
    disk_close(d);
    d = open_disk(path, 2 * ITEM - 1); /* too small: the state of what is there goes, it is older */
    assert_int_equal(found(d, &p), 0);
    assert_int_equal(disk_stats(d).files, 1);
    assert_int_equal(save(d, &p, &why), -1);
    assert_int_equal(why, TIER_LARGE);
    assert_int_equal(disk_stats(d).files, 1); /* nothing went for what cannot be kept */
    assert_int_equal(count_files(path, "", NULL), 1);
    disk_close(d);
    d = open_disk(path, 0);
    assert_int_equal(count_files(path, "", NULL), 0);
    assert_int_equal(save(d, &p, &why), -1);
    assert_int_equal(why, TIER_LARGE);
    disk_close(d);
}

/* More saves than there are jobs: some are refused, all others come back once; then all go. */
static void test_many_jobs(void **state)
{
    (void)state;
    enum { N = 40 };
    Disk *d = open_disk(scratch_dir("disk"), PLENTY);
    static PrefixBytes b[N];
    Prefix p[N];
    int is_on[64] = {0}, n_sent = 0, n_busy = 0;
    TierRefused why;
    DiskDone done;
    unsigned long n_allocs = mem_count();
    for (int i = 0; i < N; i++) {
        p[i] = prefix_of(50 + i, i);
        prefix_fill(&p[i], p[i].n, &b[i]);
        int job = disk_save(d, p[i].salt, p[i].token, p[i].n, 0, (const void *const *)b[i].page,
                            b[i].state, &why);
        if (job < 0) assert_int_equal(why, TIER_BUSY);
        n_busy += job < 0;
        if (job >= 0) is_on[job]++;
        n_sent += job >= 0;
        if (job >= 0) assert_int_equal(is_on[job], 1);
        if (n_sent >= 30 && !disk_next(d, &done, 0)) continue;
        if (n_sent < 30) continue;
        assert_int_equal(is_on[done.job]--, 1);
    }
    assert_true(n_busy > 0);
    while (disk_next(d, &done, 1)) {
        assert_int_equal(done.ok, 1);
        assert_int_equal(is_on[done.job]--, 1);
    }
    for (int i = 0; i < 64; i++)
        assert_int_equal(is_on[i], 0);
    for (int i = 0; i < N; i++)
        if (!found(d, &p[i])) must_save(d, &p[i]);
    for (int i = 0; i < N; i++)
        assert_int_equal(load(d, &p[i], p[i].n, 0), 1);
    assert_int_equal(mem_count(), n_allocs); /* none on this thread after disk_open */
    disk_close(d);
}

/* Closing drops what waits; the memory of those jobs is the caller's again. */
static void test_close_drops_jobs(void **state)
{
    (void)state;
    const char *path = scratch_dir("disk");
    for (int round = 0; round < 20; round++) {
        Disk *d = open_disk(path, PLENTY);
        PrefixBytes *b = mem_alloc(6, sizeof *b);
        TierRefused why;
        for (int i = 0; i < 6; i++) {
            Prefix p = prefix_of(60 + i, 10 * round + i);
            prefix_fill(&p, p.n, &b[i]);
            disk_save(d, p.salt, p.token, p.n, 0, (const void *const *)b[i].page, b[i].state, &why);
        }
        disk_close(d);
        mem_free(b);
    }
    Disk *d = open_disk(path, PLENTY);
    for (int i = 0; i < 200; i++) {
        Prefix p = prefix_of(60 + i % 10, i);
        if (found(d, &p)) assert_int_equal(load(d, &p, p.n, 0), 1);
    }
    disk_close(d);
}

/*
 * Random saves and finds on two folders, of which one is closed and opened again and again: both
 * must know the same at any time, and so throw away in the same order.
 */
static void test_restarts_change_nothing(void **state)
{
    (void)state;
    enum { ROUNDS = 600, MAX = 15 * ITEM };
    char path[2][256];
    unsigned seed = 3;
    long n_found = 0;
    snprintf(path[0], sizeof path[0], "%s", scratch_dir("disk"));
    snprintf(path[1], sizeof path[1], "%s", scratch_dir("disk2"));
    Disk *d[2] = {open_disk(path[0], MAX), open_disk(path[1], MAX)};
    for (int round = 0; round < ROUNDS; round++) {
        Prefix p = prefix_random(&seed, 16);
        TierRefused why[2] = {0};
        int saved[2];
        if (rand_r(&seed) % 3) {
            int n = found(d[0], &p);
            if (n != found(d[1], &p)) fail_msg("round %d: %d, %d", round, n, found(d[1], &p));
            int first = rand_r(&seed) % 3;
            if (n && first * 16 <= n) {
                assert_int_equal(load(d[0], &p, n, first), 1);
                assert_int_equal(load(d[1], &p, n, first), 1);
                n_found++;
            }
        } else {
            for (int i = 0; i < 2; i++)
                saved[i] = save(d[i], &p, &why[i]);
            assert_int_equal(saved[0], saved[1]);
            assert_int_equal(why[0], why[1]);
            if (saved[0] == 1) assert_int_equal(found(d[0], &p), p.n);
        }
        if (rand_r(&seed) % 5 == 0) {
            disk_close(d[1]);
            d[1] = open_disk(path[1], MAX);
            int64_t bytes = 0;
            assert_int_equal(count_files(path[1], "", &bytes), disk_stats(d[1]).files);
            assert_int_equal(bytes, disk_stats(d[1]).bytes);
            assert_true(bytes <= MAX);
        }
        assert_int_equal(disk_stats(d[0]).files, disk_stats(d[1]).files);
    }
    assert_true(n_found > ROUNDS / 20);
    disk_close(d[0]);
    disk_close(d[1]);
}

/* ---- age ---- */

static void set_time(const char *path, const char *ending, int64_t seconds)
{
    DIR *dir = opendir(path);
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));) {
        size_t length = strlen(e->d_name), end = strlen(ending);
        if (length < end || strcmp(e->d_name + length - end, ending)) continue;
        struct timespec t[2] = {{.tv_sec = seconds}, {.tv_sec = seconds}};
        assert_int_equal(utimensat(dirfd(dir), e->d_name, t, 0), 0);
    }
    closedir(dir);
}

/* Files of the year 2100 stay older than what is used after them, across restarts. */
static void test_clock_jumps(void **state)
{
    (void)state;
    const char *path = scratch_dir("disk");
    Prefix p[4];
    Disk *d = open_disk(path, 4 * 2 * ITEM);
    for (int i = 0; i < 4; i++)
        p[i] = prefix_of(32, i);
    must_save(d, &p[0]);
    disk_close(d);
    set_time(path, "", 4102444800);
    for (int i = 1; i < 4; i++) {
        d = open_disk(path, 4 * 2 * ITEM);
        must_save(d, &p[i]);
        disk_close(d);
    }
    d = open_disk(path, 3 * 2 * ITEM);
    assert_int_equal(found(d, &p[0]), 0);
    for (int i = 1; i < 4; i++)
        assert_int_equal(found(d, &p[i]), 32);
    assert_int_equal(load(d, &p[1], 32, 0), 1); /* from now on the second is the oldest */
    disk_close(d);
    d = open_disk(path, 2 * 2 * ITEM);
    assert_int_equal(found(d, &p[2]), 0);
    assert_int_equal(found(d, &p[1]), 32);
    assert_int_equal(found(d, &p[3]), 32);
    disk_close(d);
    set_time(path, "", -5);
    d = open_disk(path, PLENTY);
    assert_int_equal(found(d, &p[1]), 32);
    disk_close(d);
}

/* Saving what is there counts as use, here and after a restart. */
static void test_known_is_used(void **state)
{
    (void)state;
    const char *path = scratch_dir("disk");
    Prefix p[4];
    TierRefused why;
    Disk *d = open_disk(path, 3 * 2 * ITEM);
    for (int i = 0; i < 4; i++)
        p[i] = prefix_of(32, i);
    for (int i = 0; i < 3; i++)
        must_save(d, &p[i]);
    assert_int_equal(save(d, &p[0], &why), -1);
    assert_int_equal(why, TIER_KNOWN);
    must_save(d, &p[3]);
    assert_int_equal(found(d, &p[0]), 32);
    assert_int_equal(found(d, &p[1]), 0);
    assert_int_equal(save(d, &p[2], &why), -1);
    disk_close(d);
    d = open_disk(path, 2 * 2 * ITEM);
    assert_int_equal(found(d, &p[0]), 0);
    assert_int_equal(found(d, &p[2]), 32);
    assert_int_equal(found(d, &p[3]), 32);
    disk_close(d);
}

/* A run's file that others need looks older than they, as after a crash: it is kept for them. */
static void test_ages_are_mended(void **state)
{
    (void)state;
    const char *path = scratch_dir("disk");
    Prefix p = prefix_of(64, 1), q = prefix_of(32, 2);
    Disk *d = open_disk(path, PLENTY);
    must_save(d, &p);
    disk_close(d);
    set_time(path, ".run", 1000);
    d = open_disk(path, 3 * ITEM);
    assert_int_equal(found(d, &p), 64);
    TierRefused why;
    assert_int_equal(save(d, &q, &why), 1);
    assert_int_equal(found(d, &p), 0);
    assert_int_equal(disk_stats(d).files, 3); /* the state went, the run stayed */
    assert_int_equal(disk_first_new(d, p.salt, p.token, p.n), 4);
    disk_close(d);
}

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
    x->path = scratch_dir("disk");
    x->p = prefix_of(39, 1);
    x->q = prefix_of(71, 1);
    Disk *d = open_disk(x->path, PLENTY);
    must_save(d, &x->p);
    must_save(d, &x->q);
    disk_close(d);
    DIR *dir = opendir(x->path);
    assert_non_null(dir);
    int n = 0;
    for (struct dirent *e; (e = readdir(dir));) {
        if (!strstr(e->d_name, ".run") && !strstr(e->d_name, ".state")) continue;
        snprintf(x->file[n], sizeof x->file[n], "%s", scratch_path(x->path, e->d_name));
        x->bytes[n] = read_all(x->file[n], &x->size[n]);
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
    Disk *d = open_disk(x->path, PLENTY);
    for (int i = 0; i < 2; i++) {
        int n = found(d, all[i]);
        if (!n) continue;
        assert_true(n == 39 || n == 71);
        if (load(d, all[i], n, 0))
            n_read += n == all[i]->n;
        else
            assert_int_not_equal(found(d, all[i]), n);
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
        Disk *d = open_disk(x.path, PLENTY);
        assert_int_equal(found(d, &x.q), 71);
        scratch_write(x.file[i], x.bytes[(i + 1) % 4], x.size[(i + 1) % 4]);
        int n_read = load(d, &x.p, 39, 0);
        n_read += found(d, &x.q) == 71 && load(d, &x.q, 71, 0);
        assert_true(n_read < 2);
        disk_close(d);
    }
    damaged_end(&x);
}

/* A whole file of as many other tokens under a name that is in use: only the tokens differ. */
static void test_other_tokens(void **state)
{
    (void)state;
    static const char *const kinds[] = {".run", ".state"};
    for (int i = 0; i < 2; i++) {
        const char *path = scratch_dir("disk");
        Prefix p = prefix_of(40, 1), q = prefix_of(40, 2);
        size_t size;
        Disk *d = open_disk(path, PLENTY);
        must_save(d, &p);
        disk_close(d);
        unsigned char *bytes = read_all(only_file(path, kinds[i]), &size);
        scratch_dir("disk");
        d = open_disk(path, PLENTY);
        must_save(d, &q);
        scratch_write(only_file(path, kinds[i]), bytes, size);
        assert_int_equal(load(d, &q, 40, 0), 0);
        assert_int_equal(found(d, &q), 0);
        disk_close(d);
        mem_free(bytes);
    }
}

/* A file that goes while it is in use: the job fails, what needs it is not found, nothing else. */
static void test_lost_file(void **state)
{
    (void)state;
    Prefix other = prefix_of(50, 9);
    for (int i = 0; i < 4; i++) {
        Damaged x;
        damaged_begin(&x);
        Disk *d = open_disk(x.path, PLENTY);
        must_save(d, &other);
        assert_int_equal(unlink(x.file[i]), 0);
        int n_read = load(d, &x.p, 39, 0);
        n_read += found(d, &x.q) == 71 && load(d, &x.q, 71, 0);
        assert_true(n_read < 2);
        assert_int_equal(disk_stats(d).failed, 1);
        assert_true(disk_stats(d).lost > 0);
        assert_int_equal(load(d, &other, 50, 0), 1);
        if (found(d, &x.q) != 71) must_save(d, &x.q);
        if (found(d, &x.p) != 39) must_save(d, &x.p);
        assert_int_equal(load(d, &x.q, 71, 0), 1);
        assert_int_equal(load(d, &x.p, 39, 0), 1);
        disk_close(d);
        damaged_end(&x);
    }
}

/* ---- what is not ours ---- */

static void test_foreign_files(void **state)
{
    (void)state;
    const char *path = scratch_dir("disk");
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
    Disk *d = open_disk(path, 1 << 20);
    assert_int_equal(disk_stats(d).files, 0);
    Prefix p = prefix_of(40, 1);
    must_save(d, &p);
    disk_close(d);
    for (int i = 0; i < 7; i++) {
        size_t size;
        unsigned char *bytes = read_all(scratch_path(path, others[i]), &size);
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

/* Another model's files are not read, take their room, and go when they are the oldest. */
static void test_other_model(void **state)
{
    (void)state;
    const char *path = scratch_dir("disk");
    DiskShape other = shape;
    Prefix p = prefix_of(40, 1), q = prefix_of(40, 2);
    other.fingerprint = "another model";
    Disk *d = disk_open(path, 6 * ITEM, &other, NULL);
    assert_non_null(d);
    must_save(d, &p);
    disk_close(d);
    d = open_disk(path, 3 * ITEM);
    assert_int_equal(found(d, &p), 0);
    assert_int_equal(disk_stats(d).files, 2);
    must_save(d, &p); /* the same tokens, its own files: one of the other's goes, the older state */
    assert_int_equal(found(d, &p), 40);
    assert_int_equal(disk_stats(d).files, 3);
    must_save(d, &q);
    disk_close(d);
    d = disk_open(path, 3 * ITEM, &other, NULL);
    assert_int_equal(found(d, &p), 0);
    disk_close(d);
    d = open_disk(path, PLENTY);
    assert_int_equal(found(d, &q), 40);
    disk_close(d);
    DiskShape shapes[] = {shape, shape, shape};
    shapes[0].page_bytes++;
    shapes[1].state_bytes++;
    shapes[2].max_tokens = 32;
    for (int i = 0; i < 3; i++) {
        d = disk_open(path, PLENTY, &shapes[i], NULL);
        assert_non_null(d);
        assert_int_equal(found(d, &q), 0);
        disk_close(d);
    }
    d = open_disk(path, PLENTY);
    assert_int_equal(load(d, &q, 40, 0), 1);
    disk_close(d);
}

/* More files go for one save than the jobs that are free can remove: it is refused until they are.
 */
static void test_many_removals(void **state)
{
    (void)state;
    enum { N = 30, MAX = 2 * N * ITEM, STATE = 450000 };
    static unsigned char big[STATE], back[STATE];
    const char *path = scratch_dir("disk");
    DiskShape other = shape, large = shape;
    other.fingerprint = "another model";
    large.state_bytes = STATE;
    large.max_tokens = 32; /* few names in a job */
    Disk *d = disk_open(path, MAX, &other, NULL);
    assert_non_null(d);
    for (int i = 0; i < N; i++) {
        Prefix small = prefix_of(16, i);
        must_save(d, &small);
    }
    disk_close(d);
    assert_int_equal(count_files(path, "", NULL), 2 * N);
    d = disk_open(path, MAX, &large, NULL);
    assert_non_null(d);
    Prefix p = prefix_of(32, 1);
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
    assert_int_equal(wait_for(d, job), 1);
    int64_t bytes = 0;
    assert_int_equal(count_files(path, "", &bytes), disk_stats(d).files);
    assert_true(bytes <= MAX);
    job = disk_load(d, p.salt, p.token, 32, 2, NULL, back);
    assert_int_equal(wait_for(d, job), 1);
    assert_memory_equal(big, back, sizeof big);
    disk_close(d);
}

/* Two runs that begin with the same blocks, as when a removal was lost: one of them is enough. */
static void test_overlap(void **state)
{
    (void)state;
    const char *path = scratch_dir("disk");
    Prefix p = prefix_of(64, 1), q = prefix_of(40, 1);
    char run[512], last[512];
    size_t run_size, last_size;
    Disk *d = open_disk(path, PLENTY);
    must_save(d, &p);
    disk_close(d);
    snprintf(run, sizeof run, "%s", only_file(path, ".run"));
    snprintf(last, sizeof last, "%s", only_file(path, ".state"));
    unsigned char *run_bytes = read_all(run, &run_size), *last_bytes = read_all(last, &last_size);
    scratch_dir("disk");
    d = open_disk(path, PLENTY);
    must_save(d, &q);
    disk_close(d);
    scratch_write(run, run_bytes, run_size);
    scratch_write(last, last_bytes, last_size);
    d = open_disk(path, PLENTY);
    assert_int_equal(count_files(path, ".run", NULL), 1);
    assert_int_equal(disk_stats(d).files, 3);
    assert_int_equal(load(d, &p, 64, 0), 1);
    assert_int_equal(load(d, &q, 40, 0), 1);
    disk_close(d);
    mem_free(run_bytes);
    mem_free(last_bytes);
}

/* An earlier version's files are removed, a later one's are left. */
static void test_versions(void **state)
{
    (void)state;
    const char *path = scratch_dir("disk");
    Prefix p = prefix_of(40, 1);
    Disk *d = open_disk(path, PLENTY);
    must_save(d, &p);
    disk_close(d);
    for (int step = 0; step < 2; step++) {
        char file[512];
        size_t size;
        snprintf(file, sizeof file, "%s", only_file(path, ".state"));
        unsigned char *bytes = read_all(file, &size);
        bytes[8] = step ? CACHE_FILE_VERSION - 1 : CACHE_FILE_VERSION + 1;
        scratch_write(file, bytes, size);
        mem_free(bytes);
        d = open_disk(path, PLENTY);
        assert_int_equal(found(d, &p), 0);
        assert_int_equal(count_files(path, ".state", NULL), !step);
        disk_close(d);
    }
}

/* ---- folders that cannot be used ---- */

static void expect_no_disk(const char *path, ErrorCode code, const char *says)
{
    Error err = {0};
    Disk *d = disk_open(path, PLENTY, &shape, &err);
    if (d) fail_msg("'%s' was opened", path);
    assert_int_equal(err.code, code);
    if (!strstr(err.msg, says) || !strstr(err.msg, path)) fail_msg("'%s'", err.msg);
}

static void test_two_on_one_folder(void **state)
{
    (void)state;
    const char *path = scratch_dir("disk");
    Disk *d = open_disk(path, PLENTY);
    expect_no_disk(path, ERR_BUSY, "another process has");
    Prefix p = prefix_of(40, 1);
    must_save(d, &p); /* the first one is not disturbed */
    disk_close(d);
    disk_close(open_disk(path, PLENTY));
}

static void test_folders(void **state)
{
    (void)state;
    char path[512];
    struct stat st;
    const char *dir = scratch_dir("disk");
    scratch_write(scratch_path(dir, "file"), "x", 1);
    expect_no_disk(scratch_path(dir, "file"), ERR_FILE, "cannot use");
    expect_no_disk(scratch_path(dir, "file/below"), ERR_FILE, "cannot use");
    expect_no_disk("", ERR_FILE, "cannot use");
    expect_no_disk("/proc/offshoot/cache", ERR_FILE, "cannot use");
    snprintf(path, sizeof path, "%s/a/b/c", dir);
    disk_close(open_disk(path, PLENTY));
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    unlink(scratch_path(path, "offshoot.lock"));
    for (int i = 0; i < 3; i++) {
        assert_int_equal(rmdir(path), 0);
        *strrchr(path, '/') = 0;
    }
}

/* Runs in a child of its own, which must return 0. */
static void in_child(int (*run)(const char *path), const char *path)
{
    int status;
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) _exit(run(path));
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

/* 0 when the folder is refused as it should be. Somebody who is nobody may not write there. */
static int open_as_nobody(const char *path)
{
    Error err = {0};
    if (chdir(path) || chmod(".", 0555)) return 1;
    if (!geteuid() && (setgid(65534) || setuid(65534))) return 2;
    if (disk_open(".", PLENTY, &shape, &err)) return 3;
    return strstr(err.msg, "cannot write in '.'") ? 0 : 4;
}

static void test_read_only_folder(void **state)
{
    (void)state;
    const char *path = scratch_dir("disk");
    in_child(open_as_nobody, path); /* nothing is there yet */
    assert_int_equal(chmod(path, 0755), 0);
    Disk *d = open_disk(path, PLENTY);
    Prefix p = prefix_of(40, 1);
    must_save(d, &p);
    disk_close(d);
    assert_int_equal(chmod(scratch_path(path, "offshoot.lock"), 0666), 0);
    in_child(open_as_nobody, path); /* a lock that can be taken is not enough */
    assert_int_equal(chmod(path, 0755), 0);
}

/* ---- what goes wrong while it runs ---- */

/* Saves fail, loads and finds of what is there go on. For children: 0 when all is well. */
static int check_full(Disk *d, const Prefix *there)
{
    TierRefused why = N_TIER_REFUSED;
    for (int i = 0; i < 20; i++) {
        Prefix p = prefix_of(100, 50 + i);
        PrefixBytes b;
        DiskDone done;
        prefix_fill(&p, p.n, &b);
        int job = disk_save(d, p.salt, p.token, p.n, 0, (const void *const *)b.page, b.state, &why);
        if (job < 0 || !disk_next(d, &done, 1)) return 10;
        if (done.ok || found(d, &p)) return 11;
        prefix_clear(&b);
        job = disk_load(d, there->salt, there->token, there->n, 0, b.page, b.state);
        if (job < 0 || !disk_next(d, &done, 1) || !done.ok) return 12;
        if (!prefix_matches(there, there->n, 0, &b)) return 13;
    }
    return disk_stats(d).failed == 20 ? 0 : 14;
}

static int run_limited(const char *path)
{
    struct rlimit low = {.rlim_cur = 4096, .rlim_max = RLIM_INFINITY}, high = low;
    Prefix p = prefix_of(40, 1), q = prefix_of(40, 2);
    Disk *d = disk_open(path, PLENTY, &shape, NULL);
    TierRefused why;
    if (!d || save(d, &p, &why) != 1) return 1;
    if (getrlimit(RLIMIT_FSIZE, &high)) return 2;
    low.rlim_max = high.rlim_max;
    if (setrlimit(RLIMIT_FSIZE, &low)) return 2;
    int failed = check_full(d, &p);
    if (failed) return failed;
    if (setrlimit(RLIMIT_FSIZE, &high)) return 3;
    if (save(d, &q, &why) != 1 || found(d, &q) != 40) return 4; /* there is room again */
    disk_close(d);
    return count_files(path, ".tmp", NULL) ? 5 : 0;
}

static void test_files_cannot_grow(void **state)
{
    (void)state;
    in_child(run_limited, scratch_dir("disk"));
}

/* On a file system of 64 KiB of its own, where the system lets us make one. */
static int run_on_small_disk(const char *path)
{
    Prefix p = prefix_of(40, 1);
    TierRefused why;
    if (unshare(CLONE_NEWNS) && unshare(CLONE_NEWUSER | CLONE_NEWNS)) return 0;
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL)) return 0;
    if (mount("disk", path, "tmpfs", 0, "size=65536")) return 0;
    Disk *d = disk_open(path, PLENTY, &shape, NULL);
    if (!d || save(d, &p, &why) != 1) return 1;
    static const char zeros[65536];
    FILE *f = fopen(scratch_path(path, "ballast"), "wb");
    if (!f) return 2;
    setvbuf(f, NULL, _IONBF, 0);
    while (fwrite(zeros, 1, 512, f) == 512)
        continue;
    int failed = check_full(d, &p);
    fclose(f);
    if (failed) return failed;
    disk_close(d);
    return count_files(path, ".tmp", NULL) ? 3 : 0;
}

static void test_full_disk(void **state)
{
    (void)state;
    in_child(run_on_small_disk, scratch_dir("disk"));
}

static void test_folder_goes(void **state)
{
    (void)state;
    const char *path = scratch_dir("disk");
    Prefix p = prefix_of(40, 1), q = prefix_of(40, 2);
    TierRefused why;
    Disk *d = open_disk(path, PLENTY);
    must_save(d, &p);
    scratch_dir("disk"); /* empties it */
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(save(d, &q, &why), 0);
    assert_int_equal(found(d, &p), 40); /* nobody looked yet */
    assert_int_equal(load(d, &p, 40, 0), 0);
    assert_int_equal(found(d, &p), 0);
    assert_int_equal(save(d, &q, &why), 0);
    assert_int_equal(disk_stats(d).files, 1); /* the run, which nobody looked at */
    disk_close(d);
}

/* ---- killed at any moment ---- */

enum { KILLED_BYTES = 30 * ITEM };

/* Saves for ever and says after each save what is there now. */
static void save_for_ever(const char *path, unsigned seed, int fd)
{
    Error err;
    Disk *d = disk_open(path, KILLED_BYTES, &shape, &err);
    while (d) {
        TierRefused why;
        Prefix p = prefix_random(&seed, 16);
        if (save(d, &p, &why) != 1) continue;
        if (write(fd, &p, sizeof p) != sizeof p) break;
    }
    _exit(1);
}

/* What was told of last must be there, whole; all else that is found must be right. */
static void check_after_kill(const char *path, const Prefix *last, int n_last)
{
    Disk *d = open_disk(path, KILLED_BYTES);
    unsigned seed = 99;
    int64_t bytes = 0;
    assert_int_equal(count_files(path, ".tmp", NULL), 0);
    assert_int_equal(count_files(path, "", &bytes), disk_stats(d).files);
    assert_true(bytes <= KILLED_BYTES);
    for (int i = 0; i < n_last; i++) {
        assert_int_equal(found(d, &last[i]), last[i].n);
        assert_int_equal(load(d, &last[i], last[i].n, 0), 1);
    }
    for (int i = 0; i < 20; i++) {
        Prefix p = prefix_random(&seed, 16);
        int n = found(d, &p);
        if (n) assert_int_equal(load(d, &p, n, 0), 1);
    }
    disk_close(d);
}

static void test_killed(void **state)
{
    (void)state;
    enum { ROUNDS = 60, KEPT = 4 };
    const char *path = scratch_dir("disk");
    unsigned seed = 5;
    long n_saved = 0;
    for (int round = 0; round < ROUNDS; round++) {
        int ends[2], status, n = 0;
        Prefix last[KEPT], p;
        assert_int_equal(pipe(ends), 0);
        pid_t child = fork();
        assert_true(child >= 0);
        if (!child) save_for_ever(path, (unsigned)round, ends[1]);
        close(ends[1]);
        usleep((useconds_t)(rand_r(&seed) % 40000));
        kill(child, SIGKILL);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status));
        for (; read(ends[0], &p, sizeof p) == sizeof p; n++)
            last[n % KEPT] = p;
        close(ends[0]);
        /* The last two: they fit beside one that was on its way. */
        Prefix two[2] = {last[(n + KEPT - 1) % KEPT], last[(n + KEPT - 2) % KEPT]};
        check_after_kill(path, two, n < 2 ? n : 2);
        n_saved += n;
    }
    assert_true(n_saved > 0);
}

static int quiet(void **state)
{
    (void)state;
    log_set_level(LOG_LEVEL_ERROR); /* thousands of files are broken on purpose */
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_many_jobs),
        cmocka_unit_test(test_close_drops_jobs),
        cmocka_unit_test(test_restarts_change_nothing),
        cmocka_unit_test(test_clock_jumps),
        cmocka_unit_test(test_known_is_used),
        cmocka_unit_test(test_ages_are_mended),
        cmocka_unit_test(test_flipped),
        cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_swapped),
        cmocka_unit_test(test_other_tokens),
        cmocka_unit_test(test_lost_file),
        cmocka_unit_test(test_foreign_files),
        cmocka_unit_test(test_other_model),
        cmocka_unit_test(test_many_removals),
        cmocka_unit_test(test_overlap),
        cmocka_unit_test(test_versions),
        cmocka_unit_test(test_two_on_one_folder),
        cmocka_unit_test(test_folders),
        cmocka_unit_test(test_read_only_folder),
        cmocka_unit_test(test_files_cannot_grow),
        cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_folder_goes),
        cmocka_unit_test(test_killed),
    };
    return cmocka_run_group_tests(tests, quiet, NULL);
}
