/* test_chat_command.c: `offshoot chat` end to end, with the demo model. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <setjmp.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include <jansson.h>

#include "tests/checkpoint.h"
#include "tests/run_binary.h"

#define RAW "chat", "--model", "models/demo", "--memory", "64M", "--threads", "2", "--raw"
#define DEMO                                                                                       \
    "chat", "--model", "models/demo", "--memory", "64M", "--threads", "2", "--thinking", "off"
#define WITH_TOOLS DEMO, "--tools", "models/demo/tools.json"
#define GREEDY     "--temperature", "0"

static const char ITALIAN[] = "I want to find an Italian restaurant in San Jose";
static const char MEXICAN[] =
    "I'm hungry. Can you help me find a cheap Mexican restaurant in Oakland?";
static const char TONIGHT[] = "I am looking for somewhere to eat tonight.";

static const char ITALIAN_CALL[] = "<tool_call>\n"
                                   "<function=FindRestaurants>\n"
                                   "<parameter=city>\nSan Jose\n</parameter>\n"
                                   "<parameter=cuisine>\nItalian\n</parameter>\n"
                                   "</function>\n"
                                   "</tool_call>\n";

static void test_stated_answers(void **state)
{
    (void)state;
    RunResult italian = RUN(WITH_TOOLS, GREEDY, ITALIAN);
    assert_run(&italian, 0, ITALIAN_CALL);
    assert_run(&italian, 0, "acceptance length ");
    run_result_free(&italian);

    RunResult mexican = RUN(WITH_TOOLS, GREEDY, MEXICAN);
    assert_run(&mexican, 0, "<function=FindRestaurants>");
    assert_run(&mexican, 0, "<parameter=city>\nOakland\n</parameter>");
    assert_run(&mexican, 0, "<parameter=cuisine>\nMexican\n</parameter>");
    run_result_free(&mexican);

    RunResult tonight = RUN(WITH_TOOLS, GREEDY, TONIGHT);
    assert_run(&tonight, 0, "In which city?");
    run_result_free(&tonight);
}

/* A scratch folder with these files of the demo model. */
static const char *demo_of(const char *const *files)
{
    const char *dir = scratch_dir("chat_command");
    char *root = realpath("models/demo", NULL);
    assert_non_null(root);
    for (; *files; files++)
        assert_int_equal(symlink(scratch_path(root, *files), scratch_path(dir, *files)), 0);
    free(root);
    return dir;
}

/* A folder that does not say how a turn ends but by the tokenizer's token for it. */
static void test_end_of_a_turn(void **state)
{
    (void)state;
    const char *dir =
        demo_of((const char *const[]){"model.safetensors", "tokenizer.json",
                                      "tokenizer_config.json", "chat_template.jinja", NULL});
    config_write(dir, "config.json", "models/demo/config.json",
                 (const char *[]){"text_config.eos_token_id", "4087", NULL});
    expect_run(RUN("chat", "--model", dir, "--memory", "64M", "--thinking", "off", "--tools",
                   "models/demo/tools.json", GREEDY, "--max-tokens", "60", ITALIAN),
               0, "; 27 tokens");
}

/* The model's file says how long an answer is at most, but no more than the context holds. */
static void test_length_of_the_model(void **state)
{
    static const char *const lengths[][2] = {{"5", "; 5 tokens"}, {"100000", "; 27 tokens"}};
    (void)state;
    for (int i = 0; i < 2; i++) {
        const char *dir =
            demo_of((const char *const[]){"model.safetensors", "tokenizer.json", "config.json",
                                          "tokenizer_config.json", "chat_template.jinja", NULL});
        config_write(dir, "generation_config.json", "models/demo/generation_config.json",
                     (const char *[]){"max_new_tokens", lengths[i][0], NULL});
        expect_run(RUN("chat", "--model", dir, "--memory", "64M", "--thinking", "off", "--tools",
                       "models/demo/tools.json", GREEDY, ITALIAN),
                   0, lengths[i][1]);
    }
}

/* Tokens of the tokenizer without a row in the model, and nothing that ends an answer, are said. */
static void test_tokens_that_do_not_fit(void **state)
{
    (void)state;
    const char *dir = demo_of((const char *const[]){"model.safetensors", NULL});
    json_error_t why;
    json_t *tokens = json_load_file("models/demo/tokenizer.json", 0, &why);
    json_array_append_new(
        json_object_get(tokens, "added_tokens"),
        json_pack("{s:i, s:s, s:b}", "id", 4096, "content", "<new>", "special", 1));
    assert_int_equal(json_dump_file(tokens, scratch_path(dir, "tokenizer.json"), 0), 0);
    json_decref(tokens);
    config_write(dir, "config.json", "models/demo/config.json",
                 (const char *[]){"text_config.eos_token_id", "null", NULL});
    RunResult r = RUN("chat", "--model", dir, "--memory", "64M", "--raw", "--max-tokens", "2", "a");
    assert_run(&r, 0, "warn tokens_outside model=");
    assert_run(&r, 0,
               ": prompts with any of 1 tokens of its tokenizer, which "
               "are no ids of its 4096, ");
    assert_run(&r, 0, "warn eos_none model=");
    run_result_free(&r);
    expect_run(
        RUN("chat", "--model", dir, "--memory", "64M", "--raw", "--max-tokens", "2", "<new>"), 2,
        "prompt token 4096 is not in the vocabulary of 4096");

    /* An end token by number, of which the tokenizer knows nothing. */
    dir = demo_of((const char *const[]){"model.safetensors", "config.json", NULL});
    tokens = json_load_file("models/demo/tokenizer.json", 0, &why);
    json_object_del(tokens, "added_tokens");
    assert_int_equal(json_dump_file(tokens, scratch_path(dir, "tokenizer.json"), 0), 0);
    json_decref(tokens);
    expect_run(RUN("chat", "--model", dir, "--memory", "64M", "--raw", "--max-tokens", "2", "a"), 0,
               "warn eos_none model=");
}

/* An end token that is no id of the model is said, and the others end the answer. */
static void test_end_outside(void **state)
{
    (void)state;
    const char *dir = demo_of(
        (const char *const[]){"model.safetensors", "tokenizer.json", "chat_template.jinja", NULL});
    config_write(dir, "config.json", "models/demo/config.json",
                 (const char *[]){"text_config.eos_token_id", "[4096, 4089]", NULL});
    RunResult r = RUN("chat", "--model", dir, "--memory", "64M", "--thinking", "off", "--tools",
                      "models/demo/tools.json", GREEDY, "--max-tokens", "60", ITALIAN);
    assert_run(&r, 0, ": 1 end tokens are no ids of its 4096 and never come");
    assert_run(&r, 0, "; 27 tokens");
    run_result_free(&r);
}

/* Of a model without a draft head: what is drafted is said, and the answer is the same. */
static void test_no_draft_head(void **state)
{
    (void)state;
    static const struct {
        const char *draft, *says;
        int drafts;
    } cases[] = {{"mtp", ": it has no MTP head, decoding is plain", 0},
                 {"union", ": it has no MTP head, drafts are copies alone", 1}};
    Checkpoint c;
    const char *dir = demo_of((const char *const[]){
        "config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", NULL});
    checkpoint_read(&c, "models/demo");
    for (int i = c.n - 1; i >= 0; i--)
        if (!strncmp(c.tensor[i].name, "mtp.", 4)) checkpoint_drop(&c, c.tensor[i].name);
    checkpoint_write(&c, scratch_path(dir, "model.safetensors"), 0, 1, 0);
    checkpoint_free(&c);
    for (int i = 0; i < 2; i++) {
        RunResult r = RUN("chat", "--model", dir, "--memory", "64M", "--thinking", "off", "--tools",
                          "models/demo/tools.json", GREEDY, "--draft", cases[i].draft,
                          "--tree-nodes", "4", ITALIAN);
        assert_run(&r, 0, cases[i].says);
        assert_string_equal(strbuf_str(&r.out), ITALIAN_CALL);
        assert_int_equal(!strstr(strbuf_str(&r.err), "(0 of 0 drafted"), cases[i].drafts);
        run_result_free(&r);
    }
}

/* Runs the same words with some drafting options and compares stdout with the plain answer. */
static void assert_same(const char *const *words, const char *plain)
{
    static const char *const shapes[][3] = {{"4", "3", "1"}, {"2", "1", "1"}, {"16", "4", "3"}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const char *argv[36];
        int n = 0;
        for (; words[n]; n++)
            argv[n] = words[n];
        const char *const more[] = {"--draft",      "mtp",           "--tree-nodes",
                                    shapes[i][0],   "--draft-depth", shapes[i][1],
                                    "--draft-topk", shapes[i][2],    NULL};
        memcpy(argv + n, more, sizeof more);
        RunResult r = run_binary(argv, "");
        assert_int_equal(r.status, 0);
        assert_string_equal(strbuf_str(&r.out), plain);
        run_result_free(&r);
    }
}

static void test_drafting_changes_nothing(void **state)
{
    (void)state;
    static const char *const prompts[] = {ITALIAN, MEXICAN, TONIGHT};
    static const char *const heat[] = {"0", "0.8"};
    for (size_t i = 0; i < 6; i++) {
        const char *const words[] = {WITH_TOOLS,      "--max-tokens", "60",           "--seed", "7",
                                     "--temperature", heat[i % 2],    prompts[i / 2], NULL};
        RunResult plain = RUN(WITH_TOOLS, "--max-tokens", "60", "--seed", "7", "--temperature",
                              heat[i % 2], prompts[i / 2], "--draft", "none");
        assert_run(&plain, 0, "acceptance length 1.00 (0 of 0 drafted accepted)");
        assert_same(words, strbuf_str(&plain.out));
        run_result_free(&plain);
    }
}

/* Without its color codes the colored answer is the answer. */
static void test_colors(void **state)
{
    (void)state;
    RunResult r = RUN(WITH_TOOLS, GREEDY, "--show-draft", "on", "--color", "on", "--tree-nodes",
                      "4", ITALIAN);
    assert_run(&r, 0, "\033[32m");
    StrBuf text = {0};
    for (const char *c = strbuf_str(&r.out); *c; c++) {
        if (*c == '\033')
            c += strcspn(c, "m");
        else
            strbuf_add(&text, c, 1);
    }
    assert_string_equal(strbuf_str(&text), ITALIAN_CALL);
    strbuf_free(&text);
    run_result_free(&r);

    /* Neither a pipe nor --color off shows any. */
    RunResult pipe = RUN(WITH_TOOLS, GREEDY, "--show-draft", ITALIAN);
    assert_run(&pipe, 0, ITALIAN_CALL);
    run_result_free(&pipe);
    RunResult off = RUN(WITH_TOOLS, GREEDY, "--show-draft", "--color=off", ITALIAN);
    assert_run(&off, 0, ITALIAN_CALL);
    run_result_free(&off);
}

static void test_conversation(void **state)
{
    (void)state;
    /* The second turn knows the first: alone it names no city. */
    RunResult r = RUN_ON("I am looking for somewhere to eat tonight.\n\nIn Oakland, Mexican food.\n"
                         "/exit\nnever read\n",
                         WITH_TOOLS, GREEDY, "--system", "You are helpful.");
    assert_run(&r, 0, "In which city?\n");
    assert_run(&r, 0, "Oakland\n</parameter>");
    run_result_free(&r);

    RunResult crlf = RUN_ON("\r\nI am looking for somewhere to eat tonight.\r\n/exit\r\nnever\r\n",
                            DEMO, GREEDY);
    RunResult lf = RUN_ON("I am looking for somewhere to eat tonight.\n", DEMO, GREEDY);
    assert_run(&crlf, 0, strbuf_str(&lf.out));
    assert_int_equal(crlf.out.len, lf.out.len);
    run_result_free(&crlf);
    run_result_free(&lf);

    RunResult end = RUN_ON("", DEMO);
    assert_run(&end, 0, "");
    assert_int_equal(end.out.len, 0);
    run_result_free(&end);

    RunResult bad = RUN_ON("broken \xff\nI am hungry\n", DEMO);
    assert_run(&bad, 2, "not valid UTF-8");
    run_result_free(&bad);
}

#define AT_TERMINAL(text, ...)                                                                     \
    run_at_terminal((const char *const[]){__VA_ARGS__, NULL}, text, sizeof(text) - 1)

/* A person may try again after a line that is no message. Drafts have a shape that is given: what
 * pays is learnt from times. */
static void test_terminal(void **state)
{
    (void)state;
    RunResult r = AT_TERMINAL("a\0b\nbroken \xff\nI am looking for somewhere to eat tonight.\n\x04",
                              WITH_TOOLS, GREEDY, "--show-draft", "--tree-nodes", "4");
    assert_run(&r, 0, "Say something;");
    assert_run(&r, 0,
               "> offshoot: a line holds a NUL byte\r\n"
               "> offshoot: the user message is not valid UTF-8\r\n> ");
    assert_run(&r, 0, "> In");
    assert_run(&r, 0, "\033[32m");
    run_result_free(&r);
}

/* The program on a pipe whose other end writes, and on a file that keeps what it says. */
static pid_t start_on_pipe(FILE *said, int *to)
{
    int ends[2];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    pid_t pid =
        start_binary((const char *const[]){DEMO, NULL}, ends[0], fileno(said), fileno(said));
    close(ends[0]);
    *to = ends[1];
    return pid;
}

/*
 * A line that ctrl-C cuts off is not answered. It is pressed until the program has ended, which
 * ignores it before the conversation and behind it, as it was started.
 */
static void test_interrupted_line(void **state)
{
    (void)state;
    int to, left = 1;
    siginfo_t ended = {0};
    FILE *said = tmpfile();
    void (*old)(int) = signal(SIGINT, SIG_IGN);
    pid_t pid = start_on_pipe(said, &to);
    signal(SIGINT, old);
    assert_int_equal(write(to, "I am looking", 12), 12);
    while (left) {
        usleep(1000);
        assert_int_equal(ioctl(to, FIONREAD, &left), 0);
    }
    while (!ended.si_pid) {
        usleep(10000);
        kill(pid, SIGINT);
        assert_int_equal(waitid(P_PID, (id_t)pid, &ended, WEXITED | WNOHANG | WNOWAIT), 0);
    }
    assert_int_equal(end_of_binary(pid), 0);
    assert_int_equal(lseek(fileno(said), 0, SEEK_END), 0);
    fclose(said);
    close(to);
}

/* What cannot be read is no end of what is said. */
static void test_unreadable_input(void **state)
{
    (void)state;
    char text[64];
    int folder = open("tests", O_RDONLY | O_CLOEXEC);
    FILE *said = tmpfile();
    pid_t pid = start_binary((const char *const[]){DEMO, NULL}, folder, fileno(said), fileno(said));
    assert_int_equal(end_of_binary(pid), 5);
    rewind(said);
    assert_non_null(fgets(text, sizeof text, said));
    assert_string_equal(text, "offshoot: cannot read the input: Is a directory\n");
    fclose(said);
    close(folder);
}

/* What begins a terminal's commands does not reach it: neither ESC nor U+009B, which is ESC [. */
static void test_control_characters(void **state)
{
    (void)state;
    const char *dir =
        demo_of((const char *const[]){"config.json", "generation_config.json", "model.safetensors",
                                      "tokenizer_config.json", "chat_template.jinja", NULL});
    json_t *file = json_load_file("models/demo/tokenizer.json", 0, NULL), *token;
    size_t i;
    json_array_foreach(json_object_get(file, "added_tokens"), i, token)
    {
        if (!strcmp(json_string_value(json_object_get(token, "content")), "<tool_call>"))
            json_object_set_new(token, "content",
                                json_string("a\xc2\x9b;1m b\033[1m \xc2\xa9 \177\tc"));
    }
    assert_int_equal(json_dump_file(file, scratch_path(dir, "tokenizer.json"), 0), 0);
    json_decref(file);
    RunResult r = AT_TERMINAL("", "chat", "--model", dir, "--memory", "64M", "--threads", "2",
                              "--thinking", "off", GREEDY, "--max-tokens", "1", "hotel");
    assert_run(&r, 0, "a?;1m b?[1m \xc2\xa9 ?\tc\r\n");
    run_result_free(&r);
}

static void test_raw_and_length(void **state)
{
    (void)state;
    RunResult r = RUN(RAW, GREEDY, "--max-tokens", "5", "I want to find");
    assert_run(&r, 0, "; 5 tokens, ");
    assert_run(&r, 0, "prompt 4 tokens");
    run_result_free(&r);
    r = RUN(DEMO, "--max-tokens", "0", "hi");
    assert_run(&r, 0, "; 0 tokens, 0 tokens/s");
    run_result_free(&r);
}

static void assert_fails(RunResult r, int status, const char *text)
{
    assert_run(&r, status, text);
    assert_int_equal(strncmp(strbuf_str(&r.err), "offshoot: ", 10), 0);
    assert_int_equal(r.out.len, 0);
    run_result_free(&r);
}

static const char *tools_file(char path[64], const char *text)
{
    snprintf(path, 64, "/tmp/offshoot-test-XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    return path;
}

static void test_bad_tools(void **state)
{
    (void)state;
    static const char *const files[] = {"", "[{\"name\": ", "{}", "[1]", "[\xff]", "\"text\""};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[64];
        RunResult r = RUN(DEMO, "--tools", tools_file(path, files[i]), "hi");
        unlink(path);
        assert_fails(r, 5, path);
    }
    assert_fails(RUN(DEMO, "--tools", "/nowhere.json", "hi"), 5, "/nowhere.json");
    assert_fails(RUN(DEMO, "--tools", "tests", "hi"), 5, "'tests'");
}

/* Nothing of a template goes with a prompt that is completed as it is. */
static void test_raw_alone(void **state)
{
    (void)state;
    static const char *const options[][2] = {{"--system", "Be short."},
                                             {"--tools", "models/demo/tools.json"},
                                             {"--thinking", "off"},
                                             {"--preserve-thinking", "on"},
                                             {"--reasoning-effort", "low"}};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        char says[80];
        snprintf(says, sizeof says, "--raw takes no %s: the prompt is completed as it is\n",
                 options[i][0]);
        assert_fails(RUN(RAW, options[i][0], options[i][1], "hi"), 2, says);
    }
    expect_run(RUN(RAW, "--thinking", "auto", "--max-tokens", "1", "hi"), 0, "; 1 tokens");
}

static void test_hostile(void **state)
{
    (void)state;
    assert_fails(RUN(DEMO, ""), 2, "the prompt is empty");
    assert_fails(RUN(RAW, ""), 2, "the prompt is empty");
    assert_fails(RUN(DEMO, "broken \xc3("), 2, "not valid UTF-8");
    assert_fails(RUN(DEMO, "--system", "\xff", "hi"), 2, "the system message");
    assert_fails(RUN(WITH_TOOLS, "--ctx-size", "64", ITALIAN), 3, "64");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stated_answers),
        cmocka_unit_test(test_drafting_changes_nothing),
        cmocka_unit_test(test_colors),
        cmocka_unit_test(test_conversation),
        cmocka_unit_test(test_raw_and_length),
        cmocka_unit_test(test_bad_tools),
        cmocka_unit_test(test_raw_alone),
        cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_end_of_a_turn),
        cmocka_unit_test(test_tokens_that_do_not_fit),
        cmocka_unit_test(test_end_outside),
        cmocka_unit_test(test_no_draft_head),
        cmocka_unit_test(test_length_of_the_model),
        cmocka_unit_test(test_terminal),
        cmocka_unit_test(test_control_characters),
        cmocka_unit_test(test_interrupted_line),
        cmocka_unit_test(test_unreadable_input),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
