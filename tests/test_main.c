/* test_main.c: commands, help, and what a user sees when something is wrong. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <setjmp.h>
#include <sys/wait.h>
#include <cmocka.h>

#include <jansson.h>
#include <math.h>

#include "base/clock.h"
#include "base/version.h"
#include "tests/checkpoint.h"
#include "tests/run_binary.h"
#include "text/utf8.h"

/* Two ways to the same help, which opens with usage. */
static void assert_helps(RunResult long_way, RunResult option, const char *usage)
{
    assert_run(&long_way, 0, usage);
    assert_run(&option, 0, usage);
    assert_string_equal(strbuf_str(&long_way.out), strbuf_str(&option.out));
    run_result_free(&long_way);
    run_result_free(&option);
}

static void test_version_and_help(void **state)
{
    (void)state;
    RunResult r = RUN("version");
    assert_run(&r, 0, "offshoot " OFFSHOOT_VERSION "\n");
    run_result_free(&r);

    static const char *const commands[] = {"serve", "chat", "bench", "check"};
    RunResult all = RUN("help");
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        char usage[64];
        snprintf(usage, sizeof usage, "usage: offshoot %s ", commands[i]);
        assert_run(&all, 0, commands[i]);
        assert_helps(RUN("help", commands[i]), RUN(commands[i], "--help"), usage);
    }
    run_result_free(&all);
}

/* Its list names every program, each of which has a help of its own. */
static void test_bench_help(void **state)
{
    (void)state;
    static const char *const names[] = {"accept", "agent", "load",    "shared-prefix",
                                        "prefix", "turn",  "latency", "kernels"};
    RunResult all = RUN("bench", "--help");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char line[32], usage[64];
        snprintf(line, sizeof line, "\n  %s ", names[i]);
        snprintf(usage, sizeof usage, "usage: offshoot bench %s ", names[i]);
        assert_run(&all, 0, line);
        assert_helps(RUN("help", "bench", names[i]), RUN("bench", names[i], "--help"), usage);
    }
    run_result_free(&all);
}

/* One line on stderr that starts with the program's name, nothing on stdout. */
static void assert_complains(RunResult r, int status, const char *text)
{
    const char *err = strbuf_str(&r.err);
    assert_run(&r, status, text);
    assert_int_equal(r.out.len, 0);
    assert_int_equal(strncmp(err, "offshoot: ", 10), 0);
    assert_ptr_equal(strchr(err, '\n'), err + r.err.len - 1);
    run_result_free(&r);
}

/* One question, and a context without room for its second turn. */
static void test_check_of_one(void **state)
{
    (void)state;
    RunResult r = RUN("check", "--model", "models/demo", "--device", "cpu", "--limit", "1",
                      "--max-tokens", "48", "--ctx-size", "112");
    assert_run(&r, 0, "all equal");
    run_result_free(&r);
    expect_run(
        RUN("check", "--model", "models/demo", "--device", "cpu", "--max-tokens", "2147483647"), 3,
        "too short to check");
}

static void test_wrong_usage(void **state)
{
    (void)state;
    assert_complains(RUN("serve", "models/demo"), 2, "a model is named by --model");
    assert_complains(run_binary((const char *const[]){NULL}, ""), 2, "which command?");
    assert_complains(RUN("serv"), 2, "unknown command 'serv'");
    assert_complains(RUN("help", "me"), 2, "no command 'me'");
    assert_complains(RUN("help", "bench", "me"), 2, "no bench 'me'");
    assert_complains(RUN("chat"), 2, "--model DIR");
    assert_complains(RUN("chat", "--modle", "x"), 2, "did you mean '--model'?");
    assert_complains(RUN("chat", "--model", "x", "two", "words"), 2, "'words'; a prompt of");
    assert_complains(RUN("serve", "--model", "models/demo", "word"), 2, "'word'; options are");
    assert_complains(RUN("serve", "--model", "models/demo", "--api-key", ""), 2, "--api-key is ''");
    assert_complains(RUN("check", "--model", ""), 2, "which model?");
    assert_complains(RUN("chat", "--model", "models/demo", "--host-cache", "900000000G", "hi"), 6,
                     "lower --host-cache");
    assert_complains(RUN("serve", "--port", "65536"), 2, "--port is '65536'");
    assert_complains(RUN("bench", "--model", "models/demo"), 2, "which bench?");
    assert_complains(RUN("bench"), 2, "which bench?");
    assert_complains(RUN("bench", "acept"), 2, "which bench?");
    assert_complains(RUN("bench", "turn", "word"), 2, "'word'");
    assert_complains(RUN("bench", "turn"), 2, "which model?");
    assert_complains(RUN("bench", "accept", "--groups", "5"), 2,
                     "'--groups' is an option of another command");
    assert_complains(RUN("chat", "--model", "models/demo", "--isa", "mmx", "hi"), 2, "mmx");
    assert_complains(RUN("check", "--max-tokens", "0"), 2, "'0', must be a whole number from 1");
    assert_complains(RUN("bench", "accept", "--max-tokens", "0"), 2, "'0', must be");
    assert_complains(RUN("bench", "agent", "--max-tokens", "-1"), 2, "'-1', must be");
    assert_complains(RUN("bench", "shared-prefix", "--max-tokens", "0"), 2, "'0', must be");
    /* Speed is that of the tokens behind the first. */
    assert_complains(RUN("bench", "latency", "--max-tokens", "1"), 2, "number from 2");
}

/* What would let nobody in, or no page, is a slip. */
static void test_wrong_access(void **state)
{
    (void)state;
    static const struct {
        const char *option, *value, *says;
    } cases[] = {
        {"--api-key", "", "--api-key is ''"},
        {"--api-key", ",", "--api-key has an empty key"},
        {"--api-key", "one,", "--api-key has an empty key"},
        {"--api-key", "one, ,two", "--api-key has an empty key"},
        {"--served-model-name", "", "--served-model-name is ''"},
        {"--served-model-name", "\xff", "256 bytes of UTF-8"},
        {"--cors", "foo", "--cors has 'foo', must be '*' or scheme://host[:port]"},
        {"--cors", "*,http://a", "--cors has '*', must be"},
        {"--cors", "http://a,,http://b", "--cors has '', must be"},
        {"--cors", "http://a/", "--cors has 'http://a/', must be"},
        {"--cors", "http://", "--cors has 'http://', must be"},
        {"--cors", "http://:80", "--cors has 'http://:80', must be"},
        {"--cors", "http://a:", "--cors has 'http://a:', must be"},
        {"--cors", "http://a:b", "--cors has 'http://a:b', must be"},
        {"--cors", "://a", "--cors has '://a', must be"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_complains(
            RUN("serve", "--model", "/nowhere", "--port", "0", cases[i].option, cases[i].value), 2,
            cases[i].says);
    char name[256 + 2]; /* nobody could ask for it */
    memset(name, 'a', sizeof name);
    name[sizeof name - 1] = '\0';
    assert_complains(
        RUN("serve", "--model", "/nowhere", "--port", "0", "--served-model-name", name), 2,
        "must be 1 to 256 bytes");
    expect_run(RUN("serve", "--model", "/nowhere", "--port", "0", "--served-model-name", name + 1),
               5, "/nowhere");
    static const char *const origins[] = {
        "", "*", "null", "http://localhost:3000, https://a.example,app://-", "http://[::1]:80"};
    for (size_t i = 0; i < sizeof origins / sizeof *origins; i++)
        expect_run(RUN("serve", "--model", "/nowhere", "--port", "0", "--api-key", "one, two",
                       "--cors", origins[i]),
                   5, "/nowhere");
}

/* A report that is cut short by a full disk must not look like a whole one. */
static void test_full_disk(void **state)
{
    (void)state;
    static const char *const commands[] = {OFFSHOOT_BINARY " help serve >/dev/full 2>&1",
                                           OFFSHOOT_BINARY " version >/dev/full 2>&1"};
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        int status = system(commands[i]);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 5);
    }
}

/* What is opened first does not come in the place of what was closed: it is an empty file there. */
static void test_closed_files(void **state)
{
    (void)state;
    static const char *const closed[] = {"0<&-", "1>&-", "2>&-"};
    char command[160];
    for (int fd = 0; fd < 3; fd++) {
        snprintf(command, sizeof command, "exec %s bench prefix --trace /proc/self/fd/%d %s %s",
                 OFFSHOOT_BINARY, fd, fd == 2 ? "" : "2>/dev/null", closed[fd]);
        int status = system(command);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 2); /* it holds no request */
    }
    int status = system("exec " OFFSHOOT_BINARY " help serve 2>/dev/null >&-");
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 5);
}

/* The kernels take a MiB of the first thread's stack: it grows to that, or nothing is begun. */
static void test_small_stack(void **state)
{
    (void)state;
    static const struct {
        const char *limit;
        int status;
    } rows[] = {{"-S -s 512", 0}, {"-s 512", 6}};
    char command[160];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        snprintf(command, sizeof command,
                 "ulimit %s; exec %s chat --model models/demo --device cpu --max-tokens 2 hi "
                 ">/dev/null 2>&1",
                 rows[i].limit, OFFSHOOT_BINARY);
        int status = system(command);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), rows[i].status);
    }
}

/* Said before libevent, which ends a process that has no file for it. */
static void test_no_files_left(void **state)
{
    (void)state;
    int status = system("exec >/dev/null 2>&1 3>&- 4>&-; ulimit -n 5; exec " OFFSHOOT_BINARY
                        " serve --model /nowhere --port 0");
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 3);
}

static void test_missing_files(void **state)
{
    (void)state;
    assert_complains(RUN("chat", "--model", "/nowhere", "hi"), 5, "/nowhere");
    assert_complains(RUN("chat", "--model", "tests", "hi"), 5, "tests/config.json");
    assert_complains(RUN("chat", "--config", "/nowhere.conf", "hi"), 5, "/nowhere.conf");
}

/* What a short `bench accept` says must hold text, or not where that is not wanted. */
static void check_drafts(const char *draft, const char *n, const char *text, int wanted)
{
    static const char prompt[] = "{\"turns\": [\"Hello\"]}\n";
    const char *prompts = scratch_path(scratch_dir("main"), "prompts.jsonl");
    scratch_write(prompts, prompt, sizeof prompt - 1);
    RunResult r = RUN("bench", "accept", "--model", "models/demo", "--device", "cpu", "--prompts",
                      prompts, "--max-tokens", "8", "--draft", draft, "--draft-vocab", n);
    assert_run(&r, 0, "acceptance length");
    int found = strstr(strbuf_str(&r.out), text) != NULL;
    if (found != wanted)
        fail_msg("--draft-vocab %s: '%s' is%s in\n%s", n, text, found ? "" : " not",
                 strbuf_str(&r.out));
    run_result_free(&r);
}

/* A reduced draft vocabulary has all nine added tokens of the demonstration model. */
static void test_draft_vocab(void **state)
{
    (void)state;
    check_drafts("mtp", "1024", "draft vocabulary: 1033 of 4096 ids\n", 1);
    check_drafts("mtp", "0", "draft vocabulary: 4096 of 4096 ids\n", 1);
    check_drafts("mtp", "32768", "draft vocabulary: 4096 of 4096 ids\n", 1);
    check_drafts("none", "1024", "draft vocabulary", 0);
    RunResult r = RUN("chat", "--model", "models/demo", "--device", "cpu", "--max-tokens", "1",
                      "--log-level", "debug", "--draft-vocab", "1024", "hi");
    assert_run(&r, 0, "drafts are of 1033 of 4096 ids (--draft-vocab)\n");
    run_result_free(&r);
    r = RUN("chat", "--model", "models/demo", "--device", "cpu", "--max-tokens", "1", "--log-level",
            "debug", "hi");
    assert_run(&r, 0, "scratch");
    assert_null(strstr(strbuf_str(&r.err), "drafts are"));
    run_result_free(&r);
}

/* Tiers of a cache that is off are named, and nothing else is. */
static void test_cache_off(void **state)
{
    (void)state;
    static const char *const says = "prefix_cache_off: --cache-dir and --host-cache keep nothing\n";
    for (int off = 0; off < 2; off++) {
        RunResult r = RUN("chat", "--model", "models/demo", "--device", "cpu", "--max-tokens", "1",
                          "--prefix-cache", off ? "off" : "on", "--host-cache", "8M", "hi");
        assert_run(&r, 0, "");
        assert_int_equal(strstr(strbuf_str(&r.err), says) != NULL, off);
        run_result_free(&r);
    }
}

/* What the start-up table says of the draft head's weights, in 8 bits unless something is said. */
static void test_draft_quant(void **state)
{
    (void)state;
    static const struct {
        const char *option, *value, *says;
    } cases[] = {
        {"--draft-quant", "auto", "the draft head's weights are q8 (--draft-quant)\n"},
        {"--draft-quant", "q4", "the draft head's weights are q4 (--draft-quant)\n"},
        {"--draft-quant", "fp8", "the draft head's weights are fp8 (--draft-quant)\n"},
        {"--draft-quant", "none", NULL},
        {"--draft", "union", "the draft head's weights are q8 (--draft-quant)\n"},
        {"--draft", "ngram", NULL},
        {"--quant", "q8", "the draft head's weights are q4 (--draft-quant)\n"},
        {"--quant", "q4", "the draft head's weights are q4 (--draft-quant)\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        RunResult r = RUN("chat", "--model", "models/demo", "--device", "cpu", "--max-tokens", "1",
                          "--log-level", "debug", cases[i].option, cases[i].value, "hi");
        assert_run(&r, 0, cases[i].says ? cases[i].says : "scratch");
        if (!cases[i].says) assert_null(strstr(strbuf_str(&r.err), "the draft head's"));
        run_result_free(&r);
    }
}

/* A category more than there is room for is an error, not a part of another one. */
static void test_many_categories(void **state)
{
    (void)state;
    enum { MOST = 64 };
    StrBuf lines = {0};
    for (int i = 1; i <= MOST + 1; i++)
        strbuf_printf(&lines, "{\"category\": \"sort %d\", \"turns\": [\"Hello\"]}\n", i);
#define ACCEPT "bench", "accept", "--model", "models/demo", "--device", "cpu", "--max-tokens", "1"
    RunResult r = RUN_ON(lines.data, ACCEPT, "--prompts", "/dev/stdin", "--limit", "64");
    assert_run(&r, 0, "\nsort 64 ");
    run_result_free(&r);
    r = RUN_ON(lines.data, ACCEPT, "--prompts", "/dev/stdin");
    assert_complains(r, 3, "line 65: more than 64 categories");
    strbuf_free(&lines);
}

/* However long, a category is itself, and no character of its name is cut in two. */
static void test_long_categories(void **state)
{
    (void)state;
#define CASE(name) "{\"category\": \"" name "\", \"turns\": [\"Hello\"]}\n"
#define LONG       "\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9" /* 18 bytes */
#define LONGER     LONG LONG "\u20ac\u20ac\u20ac\u20ac"
    static const char lines[] = CASE(LONGER "1") CASE(LONGER "2") CASE(LONG "\u20ac");
    RunResult r = RUN_ON(lines, ACCEPT, "--prompts", "/dev/stdin", "--json");
    assert_run(&r, 0, "\"categories\"");
    json_t *report = json_loads(strbuf_str(&r.out), 0, NULL);
    assert_int_equal(json_array_size(json_object_get(report, "categories")), 3);
    json_decref(report);
    run_result_free(&r);
    r = RUN_ON(lines, ACCEPT, "--prompts", "/dev/stdin");
    assert_run(&r, 0, "\nall ");
    assert_int_equal(utf8_check(strbuf_str(&r.out), r.out.len), r.out.len);
    run_result_free(&r);
#undef LONGER
#undef LONG
#undef CASE
}

/* Who drafted what. */
static void test_report(void **state)
{
    (void)state;
    static const char line[] = "{\"turns\": [\"Hello\"]}";
#define REPORT                                                                                     \
    "bench", "accept", "--model", "models/demo", "--device", "cpu", "--prompts", "/dev/stdin",     \
        "--temperature", "0", "--tree-nodes", "6", "--draft-topk", "2"
    expect_run(RUN_ON(line, REPORT, "--draft", "union"), 0,
               "model: demo; temperature 0\ndrafts: union, 3 levels, top-k 2, 6 nodes\n");
    expect_run(RUN_ON(line, REPORT, "--json", "--draft", "union"), 0, "\"drafter\": \"union\"");
    expect_run(RUN_ON(line, REPORT, "--json", "--draft", "none"), 0, "\"drafter\": null");
}

static double number(const json_t *totals, const char *name)
{
    return json_number_value(json_object_get(totals, name));
}

static double count_at(const json_t *totals, const char *name, size_t i)
{
    return json_number_value(json_array_get(json_object_get(totals, name), i));
}

/* What is counted of the same tokens comes to the same. */
static void check_sums(const json_t *totals)
{
    double steps = number(totals, "steps"), accepted = number(totals, "accepted");
    double by_steps = 0, by_accepted = 0, by_depth = 0;
    for (size_t i = 0; i <= 3; i++) {
        by_steps += count_at(totals, "steps_by_accepted", i);
        by_accepted += (double)i * count_at(totals, "steps_by_accepted", i);
        by_depth += count_at(totals, "depth_accepted", i);
    }
    assert_true(accepted > 0 && number(totals, "steps_with_drafts") < steps);
    assert_true(number(totals, "drafted") >= accepted);
    size_t last = json_array_size(json_object_get(totals, "steps_by_accepted")) - 1;
    assert_true(last <= 3 && count_at(totals, "steps_by_accepted", last) > 0);
    assert_true(by_steps == steps && by_accepted == accepted && by_depth == accepted);
    assert_true(steps + accepted == number(totals, "tokens") - number(totals, "answers"));
    assert_true(fabs(number(totals, "acceptance_length") - 1 - accepted / steps) < 1e-4);
}

/* The report for people has the figures of that for programs, and speeds that ms allowed for. */
static void check_figures(const char *text, const json_t *totals, double ms)
{
    char says[400];
    int answers;
    double tokens, steps, length, speed, plain, ratio,
        drafted = number(totals, "steps_with_drafts"),
        first = count_at(totals, "depth_accepted", 0), accepted = number(totals, "accepted");
    snprintf(says, sizeof says,
             "acceptance length %.3f (1 + accepted drafts / all steps); as vLLM "
             "counts, over the steps that had drafts: %.3f; as SGLang, tokens / steps: %.3f\n",
             1 + accepted / number(totals, "steps"), 1 + accepted / drafted,
             number(totals, "tokens") / number(totals, "steps"));
    assert_non_null(strstr(text, says));
    snprintf(says, sizeof says, "\nacceptance by depth:       1: %.3f  2: ",
             first / count_at(totals, "depth_tried", 0));
    assert_non_null(strstr(text, says));
    snprintf(says, sizeof says, "\nthe same as vLLM counts:   1: %.3f  2: ", first / drafted);
    assert_non_null(strstr(text, says));
    assert_int_equal(sscanf(strstr(text, "\nall "), " all %d %lf %lf %lf %lf %lf %lf", &answers,
                            &tokens, &steps, &length, &speed, &plain, &ratio),
                     7);
    assert_true(tokens == number(totals, "tokens") && steps == number(totals, "steps"));
    assert_true(fabs(length - number(totals, "acceptance_length")) < 0.01);
    assert_true(fabs(ratio - speed / plain) < 0.01);
    double took = (tokens - answers) * (1 / speed + 1 / plain) * 1e3;
    assert_true(took < ms && took > ms / 1e3);
}

/* Two categories; many steps have no drafts. */
static void test_figures(void **state)
{
    (void)state;
    static const char lines[] =
        "{\"category\": \"one\", \"turns\": [\"Say a b a b a b a b\", \"again\"]}\n"
        "{\"category\": \"two\", \"turns\": [\"Hello\"]}\n";
    RunResult json = RUN_ON(lines, REPORT, "--draft", "ngram", "--json");
    assert_run(&json, 0, "\"all\"");
    json_t *report = json_loads(strbuf_str(&json.out), 0, NULL);
    const json_t *list = json_object_get(report, "categories"),
                 *all = json_object_get(report, "all");
    check_sums(all);
    assert_int_equal(number(all, "answers"), 3);
    assert_int_equal(number(json_array_get(list, 0), "tokens") +
                         number(json_array_get(list, 1), "tokens"),
                     number(all, "tokens"));

    /* The second turn's prompt has the whole answer of the first. */
    RunResult cut = RUN_ON(lines, REPORT, "--draft", "ngram", "--json", "--max-tokens", "2");
    json_t *of_cut = json_loads(strbuf_str(&cut.out), 0, NULL);
    assert_int_equal(number(json_object_get(of_cut, "all"), "tokens"), 3 * 2);
    assert_true(number(json_object_get(of_cut, "all"), "prompt_tokens") + 5 <
                number(all, "prompt_tokens"));
    json_decref(of_cut);
    run_result_free(&cut);

    double start = clock_ms();
    RunResult text = RUN_ON(lines, REPORT, "--draft", "ngram");
    check_figures(strbuf_str(&text.out), all, clock_ms() - start);
    json_decref(report);
    run_result_free(&json);
    run_result_free(&text);
#undef REPORT
}

/* Answers of one token have no step: nothing is faster than anything. */
static void test_no_steps(void **state)
{
    (void)state;
    expect_run(RUN_ON("{\"turns\": [\"Hello\"]}", ACCEPT, "--prompts", "/dev/stdin"), 0,
               " 1        1        0    1.00       0.0       0.0     0.00\n");
}

/* Blank lines are none; a file that gives nothing to measure is an error. */
static void test_no_prompts(void **state)
{
    (void)state;
    static const char prompt[] = "\n{\"turns\": [\"Hello\"]}\n \r\n";
    expect_run(RUN_ON(prompt, ACCEPT, "--prompts", "/dev/stdin"), 0, "\nall prompts ");
    expect_run(RUN_ON(" \n\n", ACCEPT, "--prompts", "/dev/stdin"), 5, "has no lines");
    expect_run(RUN_ON("", ACCEPT, "--prompts", "/dev/stdin"), 5, "has no lines");
    expect_run(RUN_ON("{\"turns\": []}", ACCEPT, "--prompts", "/dev/stdin"), 2,
               "line 1: it has no answer to measure");
    expect_run(RUN_ON("{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\"}]}", ACCEPT,
                      "--prompts", "/dev/stdin"),
               2, "line 1: it has no answer to measure");
    expect_run(RUN_ON("{\"turns\": [\"Hello\"], \"tools\": 5}", ACCEPT, "--prompts", "/dev/stdin"),
               2, "'tools' is no array");
}

/* A conversation may begin with an answer, which nobody asked for, and end with a question. */
static void test_messages(void **state)
{
    (void)state;
#define SAYS(role) "{\"role\": \"" role "\", \"content\": \"Hello\"}"
    static const char asks[] = "{\"messages\": [" SAYS("user") "]}",
                      talks[] = "{\"messages\": [" SAYS("assistant") "," SAYS("user") "," SAYS(
                          "assistant") "," SAYS("user") "]}";
    RunResult one = RUN_ON(asks, ACCEPT, "--prompts", "/dev/stdin");
    assert_run(&one, 0, "from those without: 0 of 1\n");
    assert_null(strstr(strbuf_str(&one.out), "\nall  ")); /* beside a single category */
    assert_null(strstr(strbuf_str(&one.out), "skipped"));
    run_result_free(&one);
    expect_run(RUN_ON(talks, ACCEPT, "--prompts", "/dev/stdin"), 0, "from those without: 0 of 2\n");
#undef SAYS
    static const char some[] = "{\"turns\": [\"Hello\"]}\n{\"turns\": [\"Hello Hello Hello Hello "
                               "Hello Hello Hello Hello Hello Hello Hello Hello Hello Hello\"]}\n";
    expect_run(RUN_ON(some, ACCEPT, "--prompts", "/dev/stdin", "--ctx-size", "32"), 0,
               "0 of 1\nprompts too long for the context, skipped: 1\n");
}

static int n_prompt_tokens(const char *line)
{
    RunResult r = RUN_ON(line, ACCEPT, "--prompts", "/dev/stdin", "--json");
    assert_run(&r, 0, "\"all\"");
    json_t *report = json_loads(strbuf_str(&r.out), 0, NULL);
    int n = -1;
    json_unpack(report, "{s:{s:i}}", "all", "prompt_tokens", &n);
    json_decref(report);
    run_result_free(&r);
    return n;
}

static void test_turns_with_tools(void **state)
{
    (void)state;
    int without = n_prompt_tokens("{\"turns\": [\"Hello\"], \"tools\": null}");
    int with = n_prompt_tokens("{\"turns\": [\"Hello\"], \"tools\": [{\"type\": \"function\", "
                               "\"function\": {\"name\": \"look_up\"}}]}");
    assert_true(without > 0 && with > without + 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_version_and_help), cmocka_unit_test(test_bench_help),
        cmocka_unit_test(test_wrong_usage),      cmocka_unit_test(test_wrong_access),
        cmocka_unit_test(test_check_of_one),     cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_closed_files),     cmocka_unit_test(test_missing_files),
        cmocka_unit_test(test_draft_vocab),      cmocka_unit_test(test_draft_quant),
        cmocka_unit_test(test_cache_off),        cmocka_unit_test(test_many_categories),
        cmocka_unit_test(test_long_categories),  cmocka_unit_test(test_no_prompts),
        cmocka_unit_test(test_messages),         cmocka_unit_test(test_turns_with_tools),
        cmocka_unit_test(test_no_steps),         cmocka_unit_test(test_report),
        cmocka_unit_test(test_figures),          cmocka_unit_test(test_small_stack),
        cmocka_unit_test(test_no_files_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
