/*
 * test_hub_folder.c: a model by the name of its folder, and by that of its repository on the Hub.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/hub_folder.h"
#include "tests/checkpoint.h"
#include "tests/run_binary.h"

static const char *const variables[] = {"HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HOME"};
enum { N_VARIABLES = sizeof variables / sizeof *variables };

/* One variable of them, or none. */
static void set_cache(const char *variable, const char *value)
{
    for (int i = 0; i < N_VARIABLES; i++)
        unsetenv(variables[i]);
    if (variable) setenv(variable, value, 1);
}

/* root/models--acme--tiny of that commit on main, "" for none; its snapshot is a link to `model`.
 */
static void write_cache(const char *root, const char *commit, const char *model)
{
    char path[1024], target[512], command[4096];
    snprintf(command, sizeof command,
             "(cd '%s' 2>/dev/null && rm -rf models--acme--tiny); "
             "mkdir -p '%s/models--acme--tiny/refs' '%s/models--acme--tiny/snapshots'",
             root, root, root);
    assert_int_equal(system(command), 0);
    snprintf(path, sizeof path, "%s/models--acme--tiny/refs/main", root);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(commit, f);
    fclose(f);
    assert_non_null(realpath(model, target));
    snprintf(path, sizeof path, "%s/models--acme--tiny/snapshots/0a1b", root);
    assert_int_equal(symlink(target, path), 0);
}

static void assert_found(const char *name, const char *folder)
{
    int of_hub = -1;
    Error err = {0};
    char *found = hub_folder(name, &of_hub, &err);
    if (!found) fail_msg("%s: %s", name, err.msg);
    assert_string_equal(found, folder);
    assert_int_equal(of_hub, strcmp(name, folder) != 0);
    mem_free(found);
}

static void assert_lacks(const char *name, const char *text)
{
    int of_hub = -1;
    Error err = {0};
    assert_null(hub_folder(name, &of_hub, &err));
    assert_int_equal(err.code, ERR_FILE);
    if (!strstr(err.msg, text)) fail_msg("%s", err.msg);
}

/* Whatever is there, and what no repository can be called, is taken as it is. */
static void test_folders(void **state)
{
    (void)state;
    static const char *const names[] = {"models/demo", "models/demo/",  "models",   "/no/such",
                                        "nosuch",      "no/such/model", "../no",    "no/..",
                                        "no/",         "/no",           "no/s uch", "./no"};
    set_cache("HF_HUB_CACHE", scratch_dir("hub"));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_found(names[i], names[i]);
}

static void test_places(void **state)
{
    (void)state;
    static const char *const below[N_VARIABLES] = {"", "/hub", "/huggingface/hub",
                                                   "/.cache/huggingface/hub"};
    for (int i = 0; i < N_VARIABLES; i++) {
        char root[1024], folder[2048];
        const char *dir = scratch_dir("hub");
        snprintf(root, sizeof root, "%s%s", dir, below[i]);
        write_cache(root, i % 2 ? "0a1b\n" : "0a1b", "models/demo");
        set_cache(variables[i], dir);
        snprintf(folder, sizeof folder, "%s/models--acme--tiny/snapshots/0a1b", root);
        assert_found("acme/tiny", folder);
        assert_lacks("acme/tin", root);
        assert_lacks("acm/tiny", "hf download acm/tiny");
    }
    set_cache(NULL, NULL);
    assert_lacks("acme/tiny", "nor that model in the Hugging Face cache");
}

/* What refs/main holds must be a snapshot there. */
static void test_false_caches(void **state)
{
    (void)state;
    static const char *const commits[] = {"", "0a1c", "../snapshots/0a1b", ".", "..", "\n0a1b"};
    char long_one[256];
    memset(long_one, 'a', sizeof long_one - 1);
    long_one[sizeof long_one - 1] = 0;
    for (size_t i = 0; i <= sizeof commits / sizeof *commits; i++) {
        const char *dir = scratch_dir("hub");
        int is_last = i == sizeof commits / sizeof *commits;
        write_cache(dir, is_last ? long_one : commits[i], "models/demo");
        set_cache("HF_HUB_CACHE", dir);
        assert_lacks("acme/tiny", dir);
    }
}

/* The program finds it, and calls it by its name. */
static void test_program(void **state)
{
    (void)state;
    const char *dir = scratch_dir("hub");
    write_cache(dir, "0a1b", "models/demo");
    set_cache("HF_HUB_CACHE", dir);
    RunResult r = RUN("bench", "accept", "--model", "acme/tiny", "--device", "cpu", "--limit", "1",
                      "--max-tokens", "4");
    assert_run(&r, 0, "model: acme/tiny;");
    run_result_free(&r);
    r = RUN("chat", "--model", "acme/large", "hi");
    assert_run(&r, 5, "hf download acme/large");
    run_result_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_folders),
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_false_caches),
        cmocka_unit_test(test_program),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
