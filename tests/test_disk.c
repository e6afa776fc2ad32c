/*
 * test_disk.c: the disk cache: what was saved is found and read, after a restart too, in the order
 * of its use; what goes wrong around it is a job that fails. Damaged files: test_disk_files.c.
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

#include "base/mem.h"
#include "tests/checkpoint.h"
#include "tests/disk_case.h"

/* ---- what is saved is there ---- */

static void test_round_trip(void **state)
{
    (void)state;
    const char *path = scratch_dir("disk");
    Prefix p = disk_case_prefix(75, 1), q = p;
    struct stat st;
    TierRefused why;
    q.n = 128;
    for (int i = 40; i < q.n; i++)
        q.token[i] = 7; /* parts inside the third block */
    Disk *d = disk_case_open(path, PLENTY);
    assert_int_equal(disk_case_found(d, &p), 0);
    disk_case_must_save(d, &p);
    assert_int_equal(disk_stats(d).files, 2);
    assert_int_equal(disk_case_save(d, &p, &why), -1);
    assert_int_equal(why, TIER_KNOWN);
    assert_int_equal(disk_first_new(d, q.salt, q.token, q.n), 2);
    disk_case_must_save(d, &q);
    assert_int_equal(disk_stats(d).files, 4);
    for (int restart = 0; restart < 2; restart++) {
        assert_int_equal(disk_case_found(d, &p), 75);
        assert_int_equal(disk_case_found(d, &q), 128);
        assert_int_equal(disk_find(d, p.salt, p.token, 74), 0);
        assert_int_equal(disk_find(d, p.salt + 1, p.token, 75), 0);
        for (int first = 0; first <= 5; first++)
            assert_int_equal(disk_case_load(d, &p, 75, first), 1);
        for (int first = 0; first <= 8; first++)
            assert_int_equal(disk_case_load(d, &q, 128, first), 1);
        assert_int_equal(disk_load(d, p.salt, p.token, 74, 0, NULL, NULL), -1);
        disk_close(d);
        d = disk_case_open(path, PLENTY);
    }
    disk_close(d);
    assert_int_equal(disk_case_count(path, "", NULL), 4);
    assert_int_equal(disk_case_count(path, ".run", NULL), 2);
    assert_int_equal(disk_case_count(path, ".state", NULL), 2);
    assert_int_equal(stat(scratch_path(path, "offshoot.lock"), &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
}

static void test_refusals(void **state)
{
    (void)state;
    const char *path = scratch_dir("disk");
    Prefix p = disk_case_prefix(40, 1), tiny = disk_case_prefix(15, 2);
    PrefixBytes b;
    TierRefused why;
    prefix_fill(&p, p.n, &b);
    const void *const *page = (const void *const *)b.page;
    Disk *d = disk_case_open(path, 2 * ITEM); /* a head and a page each */
    assert_int_equal(disk_case_save(d, &tiny, &why), -1);
    assert_int_equal(why, TIER_SHORT);
    assert_int_equal(disk_save(d, 0, p.token, PREFIX_MAX + 1, 0, page, b.state, &why), -1);
    assert_int_equal(why, TIER_LARGE);
    assert_int_equal(disk_save(d, p.salt, p.token, p.n, 1, page + 1, b.state, &why), -1);
    assert_int_equal(why, TIER_MISSING);
    disk_case_must_save(d, &p);
    disk_close(d);
}

/* Nothing goes for what cannot be kept; what does not fit any more goes, the oldest first. */
static void test_too_large(void **state)
{
    (void)state;
    static unsigned char bytes[4096];
    const char *path = scratch_dir("disk");
    DiskShape shape = disk_case_shape;
    Prefix small = disk_case_prefix(PAGE_TOKENS, 1), large = disk_case_prefix(PREFIX_MAX, 2);
    const void *page[PREFIX_PAGES];
    TierRefused why;
    for (int i = 0; i < PREFIX_PAGES; i++)
        page[i] = bytes;
    shape.page_bytes = sizeof bytes;
    Disk *d = disk_open(path, 2 * ITEM, &shape, NULL);
    assert_non_null(d);
    int job = disk_save(d, small.salt, small.token, small.n, 0, page, bytes, &why);
    assert_int_equal(disk_case_wait(d, job), 1);
    assert_int_equal(disk_save(d, large.salt, large.token, large.n, 0, page, bytes, &why), -1);
    assert_int_equal(why, TIER_LARGE);
    assert_int_equal(disk_case_found(d, &small), PAGE_TOKENS);
    assert_int_equal(disk_case_count(path, "", NULL), 2);
    disk_close(d);
    d = disk_open(path, PLENTY, &shape, NULL);
    assert_non_null(d);
    job = disk_save(d, large.salt, large.token, large.n, 0, page, bytes, &why);
    assert_int_equal(disk_case_wait(d, job), 1);
    disk_close(d);
    d = disk_open(path, 2 * ITEM, &shape, NULL);
    assert_non_null(d);
    assert_int_equal(disk_case_found(d, &large), 0);
    disk_close(d);
}

/* More saves than there are jobs: some are refused, all others come back once; then all go. */
static void test_many_jobs(void **state)
{
    (void)state;
    enum { N = 40 };
    Disk *d = disk_case_open(scratch_dir("disk"), PLENTY);
    static PrefixBytes b[N];
    Prefix p[N];
    int is_on[64] = {0}, n_sent = 0, n_busy = 0;
    TierRefused why;
    DiskDone done;
    unsigned long n_allocs = mem_count();
    for (int i = 0; i < N; i++) {
        p[i] = disk_case_prefix(50 + i, i);
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
        if (!disk_case_found(d, &p[i])) disk_case_must_save(d, &p[i]);
    for (int i = 0; i < N; i++)
        assert_int_equal(disk_case_load(d, &p[i], p[i].n, 0), 1);
    assert_int_equal(mem_count(), n_allocs); /* none on this thread after disk_open */
    disk_close(d);
}

/* Closing drops what waits; the memory of those jobs is the caller's again. */
static void test_close_drops_jobs(void **state)
{
    (void)state;
    const char *path = scratch_dir("disk");
    for (int round = 0; round < 20; round++) {
        Disk *d = disk_case_open(path, PLENTY);
        PrefixBytes *b = mem_alloc(6, sizeof *b);
        TierRefused why;
        for (int i = 0; i < 6; i++) {
            Prefix p = disk_case_prefix(60 + i, 10 * round + i);
            prefix_fill(&p, p.n, &b[i]);
            disk_save(d, p.salt, p.token, p.n, 0, (const void *const *)b[i].page, b[i].state, &why);
        }
        disk_close(d);
        mem_free(b);
    }
    Disk *d = disk_case_open(path, PLENTY);
    for (int i = 0; i < 200; i++) {
        Prefix p = disk_case_prefix(60 + i % 10, i);
        if (disk_case_found(d, &p)) assert_int_equal(disk_case_load(d, &p, p.n, 0), 1);
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
    Disk *d[2] = {disk_case_open(path[0], MAX), disk_case_open(path[1], MAX)};
    for (int round = 0; round < ROUNDS; round++) {
        Prefix p = prefix_random(&seed, 16);
        TierRefused why[2] = {0};
        int saved[2];
        if (rand_r(&seed) % 3) {
            int n = disk_case_found(d[0], &p);
            if (n != disk_case_found(d[1], &p))
                fail_msg("round %d: %d, %d", round, n, disk_case_found(d[1], &p));
            int first = rand_r(&seed) % 3;
            if (n && first * 16 <= n) {
                assert_int_equal(disk_case_load(d[0], &p, n, first), 1);
                assert_int_equal(disk_case_load(d[1], &p, n, first), 1);
                n_found++;
            }
        } else {
            for (int i = 0; i < 2; i++)
                saved[i] = disk_case_save(d[i], &p, &why[i]);
            assert_int_equal(saved[0], saved[1]);
            assert_int_equal(why[0], why[1]);
            if (saved[0] == 1) assert_int_equal(disk_case_found(d[0], &p), p.n);
        }
        if (rand_r(&seed) % 5 == 0) {
            disk_close(d[1]);
            d[1] = disk_case_open(path[1], MAX);
            int64_t bytes = 0;
            assert_int_equal(disk_case_count(path[1], "", &bytes), disk_stats(d[1]).files);
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
    Disk *d = disk_case_open(path, 4 * 2 * ITEM);
    for (int i = 0; i < 4; i++)
        p[i] = disk_case_prefix(32, i);
    disk_case_must_save(d, &p[0]);
    disk_close(d);
    set_time(path, "", 4102444800);
    for (int i = 1; i < 4; i++) {
        d = disk_case_open(path, 4 * 2 * ITEM);
        disk_case_must_save(d, &p[i]);
        disk_close(d);
    }
    d = disk_case_open(path, 3 * 2 * ITEM);
    assert_int_equal(disk_case_found(d, &p[0]), 0);
    for (int i = 1; i < 4; i++)
        assert_int_equal(disk_case_found(d, &p[i]), 32);
    assert_int_equal(disk_case_load(d, &p[1], 32, 0), 1); /* from now on the second is the oldest */
    disk_close(d);
    d = disk_case_open(path, 2 * 2 * ITEM);
    assert_int_equal(disk_case_found(d, &p[2]), 0);
    assert_int_equal(disk_case_found(d, &p[1]), 32);
    assert_int_equal(disk_case_found(d, &p[3]), 32);
    disk_close(d);
    set_time(path, "", -5);
    d = disk_case_open(path, PLENTY);
    assert_int_equal(disk_case_found(d, &p[1]), 32);
    disk_close(d);
}

/* What was found elsewhere is young here and after a restart; what is not here is nothing. */
static void test_used_elsewhere(void **state)
{
    (void)state;
    const char *path = scratch_dir("disk");
    Prefix p[4];
    Disk *d = disk_case_open(path, 3 * 2 * ITEM);
    for (int i = 0; i < 4; i++)
        p[i] = disk_case_prefix(32, i);
    for (int i = 0; i < 3; i++)
        disk_case_must_save(d, &p[i]);
    disk_use(d, p[0].salt, p[0].token, 32);
    disk_use(d, p[1].salt, p[1].token, 31); /* no state is there */
    disk_use(d, p[3].salt, p[3].token, 32);
    disk_case_must_save(d, &p[3]);
    assert_int_equal(disk_case_found(d, &p[0]), 32);
    assert_int_equal(disk_case_found(d, &p[1]), 0);
    disk_use(d, p[0].salt, p[0].token, 32);
    disk_close(d);
    d = disk_case_open(path, 2 * 2 * ITEM);
    assert_int_equal(disk_case_found(d, &p[0]), 32);
    assert_int_equal(disk_case_found(d, &p[2]), 0);
    assert_int_equal(disk_case_found(d, &p[3]), 32);
    disk_close(d);
}

/* Saving what is there counts as use, here and after a restart. */
static void test_known_is_used(void **state)
{
    (void)state;
    const char *path = scratch_dir("disk");
    Prefix p[4];
    TierRefused why;
    Disk *d = disk_case_open(path, 3 * 2 * ITEM);
    for (int i = 0; i < 4; i++)
        p[i] = disk_case_prefix(32, i);
    for (int i = 0; i < 3; i++)
        disk_case_must_save(d, &p[i]);
    assert_int_equal(disk_case_save(d, &p[0], &why), -1);
    assert_int_equal(why, TIER_KNOWN);
    disk_case_must_save(d, &p[3]);
    assert_int_equal(disk_case_found(d, &p[0]), 32);
    assert_int_equal(disk_case_found(d, &p[1]), 0);
    assert_int_equal(disk_case_save(d, &p[2], &why), -1);
    disk_close(d);
    d = disk_case_open(path, 2 * 2 * ITEM);
    assert_int_equal(disk_case_found(d, &p[0]), 0);
    assert_int_equal(disk_case_found(d, &p[2]), 32);
    assert_int_equal(disk_case_found(d, &p[3]), 32);
    disk_close(d);
}

/* A run's file that others need looks older than they, as after a crash: it is kept for them. */
static void test_ages_are_mended(void **state)
{
    (void)state;
    const char *path = scratch_dir("disk");
    Prefix p = disk_case_prefix(64, 1), q = disk_case_prefix(32, 2);
    Disk *d = disk_case_open(path, PLENTY);
    disk_case_must_save(d, &p);
    disk_close(d);
    set_time(path, ".run", 1000);
    d = disk_case_open(path, 3 * ITEM);
    assert_int_equal(disk_case_found(d, &p), 64);
    TierRefused why;
    assert_int_equal(disk_case_save(d, &q, &why), 1);
    assert_int_equal(disk_case_found(d, &p), 0);
    assert_int_equal(disk_stats(d).files, 3); /* the state went, the run stayed */
    assert_int_equal(disk_first_new(d, p.salt, p.token, p.n), 4);
    disk_close(d);
}

/* ---- folders that cannot be used ---- */

static void expect_no_disk(const char *path, ErrorCode code, const char *says)
{
    Error err = {0};
    Disk *d = disk_open(path, PLENTY, &disk_case_shape, &err);
    if (d) fail_msg("'%s' was opened", path);
    assert_int_equal(err.code, code);
    if (!strstr(err.msg, says) || !strstr(err.msg, path)) fail_msg("'%s'", err.msg);
}

static void test_two_on_one_folder(void **state)
{
    (void)state;
    const char *path = scratch_dir("disk");
    Disk *d = disk_case_open(path, PLENTY);
    expect_no_disk(path, ERR_BUSY, "another process has");
    Prefix p = disk_case_prefix(40, 1);
    disk_case_must_save(d, &p); /* the first one is not disturbed */
    disk_close(d);
    disk_close(disk_case_open(path, PLENTY));
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
    disk_close(disk_case_open(path, PLENTY));
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
    if (disk_open(".", PLENTY, &disk_case_shape, &err)) return 3;
    if (!strstr(err.msg, "cannot write in '.'")) return 4;
    if (disk_open("new/cache", PLENTY, &disk_case_shape, &err)) return 5;
    return strstr(err.msg, "cannot use 'new/cache' as a folder: Permission denied") ? 0 : 6;
}

static void test_read_only_folder(void **state)
{
    (void)state;
    const char *path = scratch_dir("disk");
    in_child(open_as_nobody, path); /* nothing is there yet */
    assert_int_equal(chmod(path, 0755), 0);
    Disk *d = disk_case_open(path, PLENTY);
    Prefix p = disk_case_prefix(40, 1);
    disk_case_must_save(d, &p);
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
        Prefix p = disk_case_prefix(100, 50 + i);
        PrefixBytes b;
        DiskDone done;
        prefix_fill(&p, p.n, &b);
        int job = disk_save(d, p.salt, p.token, p.n, 0, (const void *const *)b.page, b.state, &why);
        if (job < 0 || !disk_next(d, &done, 1)) return 10;
        if (done.ok || disk_case_found(d, &p)) return 11;
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
    Prefix p = disk_case_prefix(40, 1), q = disk_case_prefix(40, 2);
    Disk *d = disk_open(path, PLENTY, &disk_case_shape, NULL);
    TierRefused why;
    if (!d || disk_case_save(d, &p, &why) != 1) return 1;
    if (getrlimit(RLIMIT_FSIZE, &high)) return 2;
    low.rlim_max = high.rlim_max;
    if (setrlimit(RLIMIT_FSIZE, &low)) return 2;
    int failed = check_full(d, &p);
    if (failed) return failed;
    if (setrlimit(RLIMIT_FSIZE, &high)) return 3;
    if (disk_case_save(d, &q, &why) != 1 || disk_case_found(d, &q) != 40)
        return 4; /* there is room again */
    disk_close(d);
    return disk_case_count(path, ".tmp", NULL) ? 5 : 0;
}

static void test_files_cannot_grow(void **state)
{
    (void)state;
    in_child(run_limited, scratch_dir("disk"));
}

/* A file system of its own in path's place; 0 where the system lets us make none. */
static int make_disk(const char *path, const char *size)
{
    if (unshare(CLONE_NEWNS) && unshare(CLONE_NEWUSER | CLONE_NEWNS)) return 0;
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL)) return 0;
    return !mount("disk", path, "tmpfs", 0, size);
}

/* Leaves no room; 0, or -1. */
static int fill_disk(const char *path)
{
    static const char zeros[65536];
    FILE *f = fopen(scratch_path(path, "ballast"), "wb");
    if (!f) return -1;
    setvbuf(f, NULL, _IONBF, 0);
    while (fwrite(zeros, 1, 512, f) == 512)
        continue;
    return fclose(f);
}

/* Each save that fails makes room, for which the oldest go. */
static int run_on_small_disk(const char *path)
{
    enum { N = 20, ROOM = 3 };
    Prefix p[N];
    TierRefused why;
    int n_failed = 0;
    for (int i = 0; i < N; i++)
        p[i] = disk_case_prefix(40, i);
    if (!make_disk(path, "size=65536")) return 0;
    Disk *d = disk_open(path, PLENTY, &disk_case_shape, NULL);
    for (int i = 0; i < ROOM; i++)
        if (!d || disk_case_save(d, &p[i], &why) != 1) return 1;
    if (fill_disk(path)) return 2;
    for (int i = ROOM; i < N; i++) {
        int saved = disk_case_save(d, &p[i], &why);
        if (saved < 0) return 3;
        n_failed += !saved;
        if (saved && disk_case_load(d, &p[i], 40, 0) != 1) return 4;
        if (disk_case_found(d, &p[0])) return 5;
    }
    if (n_failed > N / 2 || disk_stats(d).failed != n_failed) return 6;
    if (unlink(scratch_path(path, "ballast"))) return 7;
    disk_clear(d);
    for (int i = 0; i < ROOM; i++)
        if (disk_case_save(d, &p[i], &why) != 1) return 8;
    for (int i = 0; i < ROOM; i++)
        if (disk_case_load(d, &p[i], 40, 0) != 1) return 9;
    disk_close(d);
    return disk_case_count(path, ".tmp", NULL) ? 10 : 0;
}

/* Saves that fail together lack one room. */
static int run_saves_together(const char *path)
{
    enum { N = 20, TOGETHER = 7 };
    static PrefixBytes b[TOGETHER];
    TierRefused why;
    DiskDone done;
    if (!make_disk(path, "size=1048576")) return 0;
    Disk *d = disk_open(path, PLENTY, &disk_case_shape, NULL);
    if (!d) return 1;
    for (int i = 0; i < N; i++) {
        Prefix p = disk_case_prefix(40, i);
        if (disk_case_save(d, &p, &why) != 1) return 2;
    }
    if (fill_disk(path)) return 3;
    for (int i = 0; i < TOGETHER; i++) {
        Prefix p = disk_case_prefix(40, N + i);
        prefix_fill(&p, p.n, &b[i]);
        disk_save(d, p.salt, p.token, p.n, 0, (const void *const *)b[i].page, b[i].state, &why);
    }
    while (disk_next(d, &done, 1))
        continue;
    DiskStats stats = disk_stats(d);
    disk_close(d);
    return stats.failed && stats.evicted && stats.files > 2 * N * 5 / 8 ? 0 : 4;
}

static void test_full_disk(void **state)
{
    (void)state;
    in_child(run_on_small_disk, scratch_dir("disk"));
    in_child(run_saves_together, scratch_dir("disk"));
}

static void test_folder_goes(void **state)
{
    (void)state;
    const char *path = scratch_dir("disk");
    Prefix p = disk_case_prefix(40, 1), q = disk_case_prefix(40, 2);
    TierRefused why;
    Disk *d = disk_case_open(path, PLENTY);
    disk_case_must_save(d, &p);
    scratch_dir("disk"); /* empties it */
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(disk_case_save(d, &q, &why), 0);
    assert_int_equal(disk_case_found(d, &p), 40); /* nobody looked yet */
    assert_int_equal(disk_case_load(d, &p, 40, 0), 0);
    assert_int_equal(disk_case_found(d, &p), 0);
    assert_int_equal(disk_case_save(d, &q, &why), 0);
    assert_int_equal(disk_stats(d).files, 1); /* the run, which nobody looked at */
    disk_close(d);
}

/* ---- killed at any moment ---- */

enum { KILLED_BYTES = 30 * ITEM };

/* Saves for ever and says after each save what is there now. */
static void save_for_ever(const char *path, unsigned seed, int fd)
{
    Error err;
    Disk *d = disk_open(path, KILLED_BYTES, &disk_case_shape, &err);
    while (d) {
        TierRefused why;
        Prefix p = prefix_random(&seed, 16);
        if (disk_case_save(d, &p, &why) != 1) continue;
        if (write(fd, &p, sizeof p) != sizeof p) break;
    }
    _exit(1);
}

/* What was told of last must be there, whole; all else that is found must be right. */
static void check_after_kill(const char *path, const Prefix *last, int n_last)
{
    Disk *d = disk_case_open(path, KILLED_BYTES);
    unsigned seed = 99;
    int64_t bytes = 0;
    assert_int_equal(disk_case_count(path, ".tmp", NULL), 0);
    assert_int_equal(disk_case_count(path, "", &bytes), disk_stats(d).files);
    assert_true(bytes <= KILLED_BYTES);
    for (int i = 0; i < n_last; i++) {
        assert_int_equal(disk_case_found(d, &last[i]), last[i].n);
        assert_int_equal(disk_case_load(d, &last[i], last[i].n, 0), 1);
    }
    for (int i = 0; i < 20; i++) {
        Prefix p = prefix_random(&seed, 16);
        int n = disk_case_found(d, &p);
        if (n) assert_int_equal(disk_case_load(d, &p, n, 0), 1);
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

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_too_large),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_many_jobs),
        cmocka_unit_test(test_close_drops_jobs),
        cmocka_unit_test(test_restarts_change_nothing),
        cmocka_unit_test(test_clock_jumps),
        cmocka_unit_test(test_used_elsewhere),
        cmocka_unit_test(test_known_is_used),
        cmocka_unit_test(test_ages_are_mended),
        cmocka_unit_test(test_two_on_one_folder),
        cmocka_unit_test(test_folders),
        cmocka_unit_test(test_read_only_folder),
        cmocka_unit_test(test_files_cannot_grow),
        cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_folder_goes),
        cmocka_unit_test(test_killed),
    };
    return cmocka_run_group_tests(tests, disk_case_quiet, NULL);
}
