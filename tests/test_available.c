/*
 * test_available.c: what is left of a machine's memory, and of a container's; the end when it is
 * nothing.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

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

static const MemoryFiles files = {ROOT "meminfo", ROOT "groups", "build/tests/memory"};

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
    scratch_dir("memory");
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
    scratch_dir("memory");
    mkdir(ROOT "a", 0777);
    mkdir(ROOT "a/b", 0777);
    write_text(ROOT "meminfo", "MemAvailable:   400 kB\n");
    write_text(ROOT "groups", "1:name=x:/\n0::/a/b\n");
    write_group("a", "max\n", "100\n", "anon 60\nfile 40\n");
    write_group("a/b", "1000\n", "300\n", "anon 200\nfile 100\nfile_mapped 50\n");
    assert_left(800);
    write_group("a/b", "1000\n", "300\n", "anon 200\nfile 100\nshmem 70\nshmem_thp 0\n");
    assert_left(730);
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
    write_group("a/b", NULL, NULL, NULL);
    write_group("a", NULL, NULL, NULL);
    write_group(".", NULL, NULL, NULL);
    rmdir(ROOT "a/b");
    rmdir(ROOT "a");
}

static void test_nodes(void **state)
{
    (void)state;
    static const char *const many[] = {"0-1\n", "0,2\n", "0-7"};
    scratch_dir("memory");
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
}

static void take_too_much(const void *size)
{
    mem_alloc(SIZE_MAX, *(const size_t *)size);
}

static void test_nothing_left(void **state)
{
    (void)state;
    size_t size = 2;
    char said[APART_SAID];
    int status = run_apart(take_too_much, &size, said);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 6); /* as README has it */
    assert_non_null(strstr(said, "offshoot: out of memory: "));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_machine),      cmocka_unit_test(test_groups),
        cmocka_unit_test(test_nodes),        cmocka_unit_test(test_here),
        cmocka_unit_test(test_nothing_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
