/*
 * test_available.c: what is left of a machine's memory, and of a container's; the end when it is
 * nothing; the processors that there is time on.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <ftw.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/available.h"
#include "base/mem.h"
#include "tests/apart.h"
#include "tests/checkpoint.h"

#define ROOT "build/tests/memory/"

static const SystemFiles files = {ROOT "meminfo", ROOT "groups", "build/tests/memory"};

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)st, (void)kind, (void)at;
    return remove(path);
}

/* Of a test that failed, too. */
static void clean(void)
{
    nftw(ROOT, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    scratch_dir("memory");
}

static void write_text(const char *path, const char *text)
{
    scratch_write(path, text, strlen(text));
}

/* A group's three files; NULL: it lacks one. */
static void write_group(const char *group, const char *most, const char *taken, const char *stat)
{
    static const char *const name[] = {"memory.max", "memory.current", "memory.stat"};
    const char *const text[] = {most, taken, stat};
    char path[256];
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, ROOT "%s/%s", group, name[i]);
        unlink(path);
        if (text[i]) write_text(path, text[i]);
    }
}

static void assert_left(int64_t want)
{
    assert_int_equal(memory_available_in(&files), want);
}

static void test_machine(void **state)
{
    (void)state;
    clean();
    assert_left(-1);
    write_text(ROOT "meminfo", "MemTotal: 900 kB\nMemFree:  100 kB\nMemAvailable:   400 kB\n");
    assert_left(400 << 10);
    write_text(ROOT "groups", "4:memory:/of/version/one\n");
    assert_left(400 << 10);
    write_text(ROOT "groups", "0::/\n");
    assert_left(400 << 10);
    write_text(ROOT "meminfo", "MemTotal: much\n");
    assert_left(-1);
}

/* Whatever is around the process's own group holds, too. */
static void test_groups(void **state)
{
    (void)state;
    clean();
    mkdir(ROOT "a", 0777);
    mkdir(ROOT "a/b", 0777);
    write_text(ROOT "meminfo", "MemAvailable:   400 kB\n");
    write_text(ROOT "groups", "1:name=x:/\n0::/a/b\n");
    write_group("a", "max\n", "100\n", "anon 60\nfile 40\n");
    write_group("a/b", "1000\n", "300\n", "anon 200\nfile 100\nfile_mapped 50\n");
    assert_left(800);
    write_group("a/b", "1000\n", "300\n", "anon 200\nfile 100\nshmem 70\nshmem_thp 0\n");
    assert_left(730);
    write_group("a/b", "1000\n", "300\n", "file 400\n"); /* they are not read at one moment */
    assert_left(1000);
    write_group("a", "500\n", "300\n", "anon 300\nfile 0\n");
    assert_left(200);
    write_group("a", "500\n", "700\n", NULL);
    assert_left(0);
    write_group("a", "500\n", NULL, NULL);
    write_group("a/b", "9999999999\n", "300\n", NULL);
    assert_left(400 << 10);
    write_text(ROOT "groups", "0::/a/b/gone\n");
    write_group("a/b", "1000\n", "300\n", NULL);
    assert_left(700);
    write_group(".", "600\n", "0\n", NULL);
    assert_left(600);
}

/* Version 1 has other names, under a folder of the controller's. */
static void test_groups_of_version_1(void **state)
{
    (void)state;
    clean();
    mkdir(ROOT "memory", 0777);
    mkdir(ROOT "memory/a", 0777);
    write_text(ROOT "meminfo", "MemAvailable:   400 kB\n");
    write_text(ROOT "groups", "3:cpu,cpuacct:/no\n2:memory:/a\n0::/\n");
    write_text(ROOT "memory/a/memory.limit_in_bytes", "9223372036854771712\n");
    write_text(ROOT "memory/a/memory.usage_in_bytes", "300\n");
    write_text(ROOT "memory/a/memory.stat",
               "cache 9\nshmem 9\ntotal_cache 100\ntotal_rss 200\ntotal_shmem 70\n");
    assert_left(400 << 10);
    write_text(ROOT "memory/a/memory.limit_in_bytes", "1000\n");
    assert_left(730);
    /* a container's own group, too, where its name is the machine's */
    write_text(ROOT "memory/memory.limit_in_bytes", "500\n");
    write_text(ROOT "memory/memory.usage_in_bytes", "400\n");
    assert_left(100);
    write_text(ROOT "groups", "2:memory:/docker/1f\n");
    assert_left(100);
}

static void assert_cpus(int n, int want)
{
    assert_int_equal(cpus_available_in(&files, n), want);
}

/* Of 64 processors, and of as many as a quota of version 2 gives. */
static void test_quota(void **state)
{
    (void)state;
    static const struct {
        const char *quota;
        int cpus;
    } c[] = {{"max 100000\n", 64},
             {"200000 100000\n", 2},
             {"200001 100000\n", 3},
             {"10000 100000\n", 1},
             {"50000 25000\n", 2},
             {"9000000 100000\n", 64},
             {"100000 0\n", 64},
             {"200000\n", 64},
             {"", 64},
             {"9223372036854775807 1\n", 64}};
    clean();
    assert_cpus(64, 64);
    write_text(ROOT "groups", "0::/a/b\n");
    assert_cpus(64, 64);
    mkdir(ROOT "a", 0777);
    mkdir(ROOT "a/b", 0777);
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        write_text(ROOT "a/b/cpu.max", c[i].quota);
        assert_cpus(64, c[i].cpus);
    }
    write_text(ROOT "a/b/cpu.max", "800000 100000\n");
    assert_cpus(4, 4);
    write_text(ROOT "a/cpu.max", "300000 100000\n");
    assert_cpus(64, 3);
}

/* Version 1 says it in two files, under a folder of the controller's. */
static void test_quota_of_version_1(void **state)
{
    (void)state;
    clean();
    mkdir(ROOT "cpu", 0777);
    mkdir(ROOT "cpu/a", 0777);
    write_text(ROOT "groups", "5:cpuset:/no\n4:cpu,cpuacct:/a\n1:name=x:/no\n0::/\n");
    write_text(ROOT "cpu/a/cpu.cfs_period_us", "100000\n");
    assert_cpus(64, 64);
    write_text(ROOT "cpu/a/cpu.cfs_quota_us", "-1\n");
    assert_cpus(64, 64);
    write_text(ROOT "cpu/a/cpu.cfs_quota_us", "250000\n");
    assert_cpus(64, 3);
    write_text(ROOT "groups", "4:cpuacct,cpu:/a\n");
    assert_cpus(64, 3);
    write_text(ROOT "groups", "4:cpuacct,cpuset:/a\n");
    assert_cpus(64, 64);
    write_text(ROOT "groups", "4:cpu:/docker/1f\n"); /* as the machine names it: not seen here */
    write_text(ROOT "cpu/cpu.cfs_quota_us", "50000\n");
    write_text(ROOT "cpu/cpu.cfs_period_us", "25000\n");
    assert_cpus(64, 2);
}

static void test_nodes(void **state)
{
    (void)state;
    static const char *const many[] = {"0-1\n", "0,2\n", "0-7"};
    clean();
    assert_true(memory_is_one_node_in(ROOT "online"));
    write_text(ROOT "online", "0\n");
    assert_true(memory_is_one_node_in(ROOT "online"));
    for (int i = 0; i < 3; i++) {
        write_text(ROOT "online", many[i]);
        assert_false(memory_is_one_node_in(ROOT "online"));
    }
}

static void test_here(void **state)
{
    (void)state;
    int64_t all = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    assert_in_range(memory_available(), 1 << 20, all);
    assert_in_range(cpus_available(), 1, sysconf(_SC_NPROCESSORS_CONF));
}

typedef struct {
    size_t count, size;
    void *(*take)(size_t count, size_t size);
} TooMuch;

static void *take_anew(size_t count, size_t size)
{
    return mem_realloc(NULL, count, size);
}

static void take_too_much(const void *arg)
{
    const TooMuch *t = arg;
    mem_free(t->take(t->count, t->size));
}

/* Products that are more than an address can say, and what would be when it is rounded. */
static void test_nothing_left(void **state)
{
    (void)state;
    static const TooMuch all[] = {
        {SIZE_MAX, 2, mem_alloc}, {SIZE_MAX, 1, mem_alloc}, {SIZE_MAX / 2 + 2, 2, take_anew}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char said[APART_SAID];
        int status = run_apart(take_too_much, &all[i], said);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 6); /* as README has it */
        assert_non_null(strstr(said, "offshoot: out of memory: "));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_machine),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_groups_of_version_1),
        cmocka_unit_test(test_quota),
        cmocka_unit_test(test_quota_of_version_1),
        cmocka_unit_test(test_nodes),
        cmocka_unit_test(test_here),
        cmocka_unit_test(test_nothing_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
