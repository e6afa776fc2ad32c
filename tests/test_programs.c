/*
 * test_programs.c: `check` and every program of `bench` take the options that they follow, refuse
 * all others, and have just their own in their help, which fits a screen, as those of `serve` and
 * `chat` do.
 */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <setjmp.h>
#include <cmocka.h>

#include "server/settings.h"

#define MODEL                                                                                      \
    "model quant dummy-weights config device cuda-graph pdl wgmma threads isa log-level kv-dtype " \
    "act-dtype ctx-size"
#define DRAFTS                                                                                     \
    " draft tree-nodes draft-depth draft-topk draft-vocab draft-quant state-mode ubatch-size"
#define DRAWS " temperature top-p min-p top-k"
#define TIERS " cache-answers cache-dir disk-cache host-cache"
#define CACHE TIERS " cache-policy cache-alpha"

static const struct {
    unsigned command;
    const char *usage, *options;
} programs[] = {
    {COMMAND_CHECK, "check", MODEL " memory limit json max-tokens draft-vocab draft-quant"},
    {COMMAND_QUANTIZE, "quantize", "model out quant config threads isa log-level"},
    {BENCH_ACCEPT, "bench accept",
     MODEL DRAFTS DRAWS CACHE " memory prefix-cache prompts limit json max-tokens thinking seed"},
    {BENCH_AGENT, "bench agent",
     MODEL DRAFTS DRAWS CACHE " memory prefix-cache prompts limit json url api-key max-tokens"
                              " thinking seed"},
    {BENCH_LOAD, "bench load",
     MODEL DRAFTS CACHE " memory prefix-cache prompts limit json url api-key connections"
                        " requests thinking top-p min-p top-k max-seqs max-waiting"},
    {BENCH_SHARED_PREFIX, "bench shared-prefix",
     MODEL DRAFTS CACHE " memory prefix-cache json url api-key connections groups"
                        " group-prompts system-tokens question-tokens max-tokens seed"
                        " max-seqs max-waiting"},
    {BENCH_PREFIX, "bench prefix",
     MODEL DRAFTS TIERS " limit json trace load shape capacity policy alpha flops-per-second"
                        " svg real connections max-seqs max-waiting"},
    {BENCH_TURN, "bench turn",
     MODEL DRAWS CACHE " memory json requests question-tokens contexts draft ubatch-size"},
    {BENCH_LATENCY, "bench latency",
     MODEL DRAFTS DRAWS CACHE
     " memory prefix-cache json requests contexts max-tokens synthetic-acceptance"},
    {BENCH_KERNELS, "bench kernels", MODEL " memory contexts state-mode"},
    {BENCH_MASKS, "bench masks", "model config json seed log-level"},
};
enum { N_PROGRAMS = sizeof programs / sizeof *programs, MAX_NAME = 40, MAX_NAMES = 160 };

/* What no program above takes. */
static const char OTHERS[] =
    "host port takeover cors served-model-name strict-model messages-thinking default-max-tokens "
    "max-connections max-line-bytes max-header-bytes max-body-bytes max-unsent-bytes "
    "request-timeout idle-timeout write-timeout drain-timeout sse-keepalive system tools raw "
    "show-draft color reasoning-effort preserve-thinking";

typedef struct {
    char name[MAX_NAMES][MAX_NAME];
    int n;
} Names;

static int has_name(const Names *names, const char *name)
{
    for (int i = 0; i < names->n; i++)
        if (!strcmp(names->name[i], name)) return 1;
    return 0;
}

static void add_name(Names *names, const char *text, size_t len)
{
    char name[MAX_NAME];
    assert_true(len > 0 && len < MAX_NAME && names->n < MAX_NAMES);
    snprintf(name, sizeof name, "%.*s", (int)len, text);
    if (!has_name(names, name)) memcpy(names->name[names->n++], name, sizeof name);
}

static void add_names(Names *names, const char *list)
{
    for (const char *at = list; *at; at += strspn(at, " ")) {
        size_t len = strcspn(at, " ");
        add_name(names, at, len);
        at += len;
    }
}

/* All that follows a "--". */
static void add_help(Names *names, const char *text)
{
    for (const char *at = text; (at = strstr(at, "--"));) {
        at += 2;
        add_name(names, at, strspn(at, "abcdefghijklmnopqrstuvwxyz-"));
    }
}

static void read_help(unsigned command, char *text, size_t size)
{
    memset(text, 0, size);
    FILE *out = fmemopen(text, size - 1, "w");
    settings_help(command, out);
    fclose(out);
}

/* Without a value: one of its own is a switch, or wants one. */
static int takes(unsigned command, const char *name)
{
    Settings s;
    Error err = {0};
    char word[MAX_NAME + 2], *argv[] = {word};
    const char *rest[1];
    int n_rest = 0;
    snprintf(word, sizeof word, "--%s", name);
    int failed = settings_parse(&s, command, 1, argv, rest, &n_rest, &err);
    options_free();
    if (!failed || strstr(err.msg, "needs a value")) return 1;
    assert_int_equal(err.code, ERR_INPUT);
    assert_non_null(strstr(err.msg, name));
    assert_non_null(strstr(err.msg, "is an option of another command"));
    return 0;
}

static void add_known(Names *names)
{
    add_names(names, OTHERS);
    for (int p = 0; p < N_PROGRAMS; p++)
        add_names(names, programs[p].options);
}

static void test_own_options_alone(void **state)
{
    (void)state;
    Names all = {0};
    add_known(&all);
    for (int p = 0; p < N_PROGRAMS; p++) {
        Names own = {0}, shown = {0};
        char text[8192], usage[64];
        add_names(&own, programs[p].options);
        read_help(programs[p].command, text, sizeof text);
        add_help(&shown, text);
        snprintf(usage, sizeof usage, "usage: offshoot %s ", programs[p].usage);
        assert_int_equal(strncmp(text, usage, strlen(usage)), 0);
        for (int i = 0; i < all.n; i++) {
            const char *name = all.name[i];
            int is_own = has_name(&own, name);
            if (takes(programs[p].command, name) != is_own)
                fail_msg("%s: --%s is %s", programs[p].usage, name, is_own ? "refused" : "taken");
            if (has_name(&shown, name) != is_own)
                fail_msg("%s: --%s is%s in\n%s", programs[p].usage, name, is_own ? " not" : "",
                         text);
        }
    }
}

/* Every option that a help shows is in one of the lists above. */
static void test_no_option_is_left_out(void **state)
{
    (void)state;
    Names all = {0}, shown = {0};
    add_known(&all);
    for (unsigned command = COMMAND_SERVE; command < COMMANDS_END; command *= 2) {
        char text[8192];
        read_help(command, text, sizeof text);
        add_help(&shown, text);
    }
    for (int i = 0; i < shown.n; i++)
        if (!has_name(&all, shown.name[i])) fail_msg("--%s: whose?", shown.name[i]);
}

/* The help names what has no line of its own. */
static void test_help_of_neighbours(void **state)
{
    (void)state;
    static const unsigned commands[] = {COMMAND_SERVE, COMMAND_CHAT};
    for (size_t i = 0; i < 2; i++) {
        char text[8192];
        read_help(commands[i], text, sizeof text);
        assert_non_null(strstr(text, "--draft-topk: guesses each (default auto)"));
        assert_non_null(strstr(text, "; --min-p: 0 is off"));
        assert_non_null(strstr(text, "; --cache-answers: "));
        assert_true(commands[i] != COMMAND_SERVE || strstr(text, "; --port N (default "));
    }
}

/* A screen has 80 columns and 40 lines. */
static void test_help_fits(void **state)
{
    (void)state;
    for (unsigned command = COMMAND_SERVE; command < COMMANDS_END; command *= 2) {
        char text[8192];
        int lines = 0;
        read_help(command, text, sizeof text);
        assert_int_equal(strncmp(text, "usage: offshoot ", 16), 0);
        for (char *line = text; *line; lines++) {
            size_t len = strcspn(line, "\n");
            if (len > 80) fail_msg("line of %zu columns: %.*s", len, (int)len, line);
            line += len + (line[len] == '\n');
        }
        if (lines > 40) fail_msg("%d lines:\n%s", lines, text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_own_options_alone),
        cmocka_unit_test(test_no_option_is_left_out),
        cmocka_unit_test(test_help_of_neighbours),
        cmocka_unit_test(test_help_fits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
