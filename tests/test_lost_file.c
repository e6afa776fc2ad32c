/* test_lost_file.c: a mapped file that is cut ends the process with a line that names it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/lost_file.h"
#include "base/thread.h"
#include "tests/apart.h"
#include "tests/checkpoint.h"

enum { STATUS = 5, PAGES = 3, PAGE = 4096 };

static void *read_last(void *arg)
{
    const MappedFile *file = arg;
    volatile unsigned char last = file->data[PAGES * PAGE - 1];
    _exit(last ? 2 : 3);
}

/* Its last page goes, and is looked at: by a thread of its own, as the engine is. */
static void read_what_was_cut(const void *arg)
{
    const char *path = arg;
    MappedFile file;
    pthread_t thread;
    lost_file_ends_process(STATUS);
    if (mapped_file_open(&file, path, NULL) || truncate(path, PAGE)) _exit(1);
    if (!thread_start(&thread, read_last, &file, "reader", NULL)) pthread_join(thread, NULL);
    _exit(1);
}

static void test_cut(void **state)
{
    (void)state;
    static const unsigned char bytes[PAGES * PAGE];
    char said[APART_SAID];
    const char *path = scratch_path(scratch_dir("lost_file"), "weights of mine");
    scratch_write(path, bytes, sizeof bytes);
    int status = run_apart(read_what_was_cut, path, said);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), STATUS);
    assert_non_null(strstr(said, "lost_file/weights of mine' is not what it was"));
}

/* What is no file's ends as it did before. */
static void raise_another(const void *arg)
{
    (void)arg;
    lost_file_ends_process(STATUS);
    raise(SIGBUS);
    raise(SIGBUS);
    _exit(1);
}

static void test_another(void **state)
{
    (void)state;
    char said[APART_SAID];
    int status = run_apart(raise_another, NULL, said);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGBUS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cut),
        cmocka_unit_test(test_another),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
