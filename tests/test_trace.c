/*
 * test_trace.c: traces of every form as tokens, loads made from knobs, and files that are wrong.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/strbuf.h"
#include "bench/json_lines.h"
#include "bench/trace.h"
#include "tests/checkpoint.h"

static const char *write_file(const char *text)
{
    const char *path = scratch_path(scratch_dir("trace"), "trace.jsonl");
    scratch_write(path, text, strlen(text));
    return path;
}

static Trace open_text(const char *text)
{
    Trace t;
    Error err = {0};
    const char *path = write_file(text);
    if (trace_open(&t, path, NULL, NULL, &err)) fail_msg("%s", err.msg);
    return t;
}

static Trace open_load(const char *kind, const char *knobs)
{
    Trace t;
    Error err = {0};
    if (trace_open(&t, kind, knobs, NULL, &err)) fail_msg("%s", err.msg);
    return t;
}

/* Tokens of request i, in memory that the caller frees. */
static int32_t *tokens(const Trace *t, int i)
{
    int32_t *token = mem_alloc((size_t)t->longest, sizeof *token);
    trace_tokens(t, i, token);
    return token;
}

static void assert_tokens(const Trace *t, int i, const int32_t *want, int n)
{
    assert_int_equal(t->request[i].n_prompt + t->request[i].n_answer, n);
    int32_t *token = tokens(t, i);
    assert_memory_equal(token, want, (size_t)n * sizeof *token);
    mem_free(token);
}

/* Leading tokens that two requests share, of prompt and answer. */
static int shared(const Trace *t, int i, int j)
{
    int a = t->request[i].n_prompt + t->request[i].n_answer;
    int b = t->request[j].n_prompt + t->request[j].n_answer, n = 0;
    int32_t *x = tokens(t, i), *y = tokens(t, j);
    while (n < a && n < b && x[n] == y[n])
        n++;
    mem_free(x);
    mem_free(y);
    return n;
}

/* ---- files ---- */

static void test_ids(void **state)
{
    (void)state;
    Trace t = open_text(
        "{\"session_id\": 7, \"turn_id\": 0, \"ts\": 1.5, \"input_tokens\": [1, 2],"
        " \"output_tokens\": [3]}\n"
        "\n"
        "{\"session_id\": 9, \"turn_id\": 0, \"ts\": 0.5, \"input_tokens\": [8],"
        " \"output_tokens\": []}\n"
        "{\"session_id\": 7, \"turn_id\": 1, \"ts\": 2, \"input_tokens\": [1, 2, 3, 4, 5],"
        " \"output_tokens\": [6]}\n"
        "{\"session_id\": 7, \"turn_id\": 2, \"ts\": 3, \"input_tokens\": [1, 2],"
        " \"output_tokens\": [3, 4]}\n");
    assert_int_equal(t.n, 4);
    assert_int_equal(t.n_sessions, 2);
    assert_int_equal(t.longest, 6);
    assert_true(t.request[0].ts == 0.5 && t.request[1].ts == 1.5);
    assert_tokens(&t, 0, (int32_t[]){8}, 1);
    assert_tokens(&t, 1, (int32_t[]){1, 2, 3}, 3);
    assert_tokens(&t, 2, (int32_t[]){1, 2, 3, 4, 5, 6}, 6);
    assert_tokens(&t, 3, (int32_t[]){1, 2, 3, 4}, 4);
    assert_int_equal(t.request[2].n_prompt, 5);
    assert_int_equal(t.request[2].n_stable, 5);
    assert_int_equal(t.request[2].answer_changes, 0);
    assert_true(t.prompt_tokens == 10 && t.answer_tokens == 4);
    assert_true(t.new_tokens == 1 + 3 + 3 + 2);
    assert_int_equal(t.n_tokens, 9); /* what is said again is not stored again */
    trace_close(&t);
}

static void test_blocks(void **state)
{
    (void)state;
    Trace t = open_text("{\"timestamp\": 2000, \"input_length\": 1030, \"output_length\": 5,"
                        " \"hash_ids\": [0, 1, 2]}\n"
                        "{\"timestamp\": 2000, \"input_length\": 1024, \"output_length\": 3,"
                        " \"hash_ids\": [0, 3]}\n"
                        "{\"timestamp\": 2500, \"input_length\": 20, \"output_length\": 0,"
                        " \"hash_ids\": [2]}\n");
    assert_int_equal(t.n, 3);
    assert_true(t.request[1].ts == 2 && t.request[2].ts == 2.5);
    assert_int_equal(t.request[0].n_prompt, 1030);
    assert_int_equal(t.request[0].n_stable, 1024);
    assert_int_equal(t.request[1].n_stable, 1024);
    assert_int_equal(t.request[2].n_stable, 20);
    assert_int_equal(t.request[0].answer_changes, 1);
    assert_int_equal(shared(&t, 0, 1), 512);
    assert_int_equal(shared(&t, 0, 2), 0);
    assert_true(t.new_tokens == 1035 + 515 + 0);
    int32_t *a = tokens(&t, 0), *b = tokens(&t, 2);
    assert_memory_equal(a + 1024, b, 6 * sizeof *a); /* the same block, cut */
    mem_free(a);
    mem_free(b);
    trace_close(&t);
}

static const char talk[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \"Be brief.\"},"
    " {\"role\": \"user\", \"content\": \"How many legs do three spiders have?\"},"
    " {\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"name\": \"legs\"}]},"
    " {\"role\": \"tool\", \"content\": \"8\"},"
    " {\"role\": \"assistant\", \"content\": \"24\"},"
    " {\"role\": \"user\", \"content\": \"Thanks\"}]}\n"
    "{\"messages\": [{\"role\": \"system\", \"content\": \"Be brief.\"},"
    " {\"role\": \"user\", \"content\": \"Hello\"},"
    " {\"role\": \"assistant\", \"content\": \"Hello\"}]}\n";

static void test_messages(void **state)
{
    (void)state;
    Trace t = open_text(talk);
    assert_int_equal(t.n, 3);
    assert_int_equal(t.n_sessions, 2);
    int i[3] = {0}, n = 0, other = 0; /* the two of the first session, in order */
    for (int k = 0; k < 3; k++)
        if (t.request[k].session == 0)
            i[n++] = k;
        else
            other = k;
    assert_int_equal(n, 2);
    int first = t.request[i[0]].n_prompt + t.request[i[0]].n_answer;
    assert_int_equal(shared(&t, i[0], i[1]), first);
    assert_true(t.request[i[1]].ts > t.request[i[0]].ts);
    assert_true(t.request[i[1]].n_prompt > first);

    /* The system message in common, and "<|im_start|>user\n". */
    int system = shared(&t, i[0], other);
    assert_true(system > 10 && system < t.request[other].n_prompt);
    const TraceRequest *last = &t.request[i[1]], *apart = &t.request[other];
    assert_true(t.new_tokens ==
                last->n_prompt + last->n_answer + apart->n_prompt + apart->n_answer);

    /* The header of the answer ends every prompt. */
    int32_t *a = tokens(&t, i[1]), *b = tokens(&t, other);
    size_t header = 4; /* "assi", "stan", "t", "\n" */
    assert_memory_equal(a + last->n_prompt - header, b + apart->n_prompt - header,
                        header * sizeof *a);
    assert_int_not_equal(a[last->n_prompt - 3], a[first - 2]);
    mem_free(a);
    mem_free(b);
    trace_close(&t);
}

static void test_bfcl(void **state)
{
    (void)state;
    Trace t = open_text("{\"question\": [[{\"role\": \"user\", \"content\": \"a\"}], "
                        "[{\"role\": \"user\", \"content\": \"b\"}]],"
                        " \"involved_classes\": [\"X\", \"Y\"]}\n"
                        "{\"question\": [[{\"role\": \"user\", \"content\": \"c\"}]],"
                        " \"involved_classes\": [\"X\", \"Z\"]}\n");
    assert_int_equal(t.n, 3);
    assert_int_equal(t.n_sessions, 2);
    int second = t.request[1].session == 0 ? 1 : 2;
    assert_int_equal(shared(&t, 0, second), t.request[0].n_prompt + t.request[0].n_answer);
    int classes = shared(&t, 0, 3 - second);
    assert_true(classes > 2000 && classes < 2020);
    trace_close(&t);
}

static void refuse_source(const char *source, const char *knobs, const char *why)
{
    Trace t;
    Error err = {0};
    assert_int_equal(trace_open(&t, source, knobs, NULL, &err), -1);
    if (!strstr(err.msg, why)) fail_msg("'%s' lacks '%s'", err.msg, why);
    assert_null(t.request);
}

static void refuse(const char *text, const char *why)
{
    refuse_source(write_file(text), NULL, why);
}

/* Their made tokens are more than an int holds. */
static void refuse_many_classes(void)
{
    enum { CLASSES = 1100000 };
    StrBuf line = {0};
    strbuf_puts(&line, "{\"question\": [[]], \"involved_classes\": [\"\"");
    for (int i = 1; i < CLASSES; i++)
        strbuf_puts(&line, ",\"\"");
    strbuf_puts(&line, "]}");
    refuse(strbuf_str(&line), "more than 1048576 tokens");
    strbuf_free(&line);
}

/* As of a file that is no trace at all. */
static void refuse_long_line(void)
{
    const char *path = write_file("");
    assert_int_equal(truncate(path, LINE_MOST), 0);
    refuse_source(path, NULL, "line 1: ");
    assert_int_equal(truncate(path, LINE_MOST + 1), 0);
    refuse_source(path, NULL, "line 1: it has more than 67108864 bytes");
}

static void test_bad_files(void **state)
{
    (void)state;
    Trace t;
    Error err = {0};
    assert_int_equal(trace_open(&t, "no/such/file", NULL, NULL, &err), -1);
    assert_int_equal(err.code, ERR_FILE);
    refuse_source("no/such/file", NULL, "No such file or directory; --trace takes a file");
    refuse_source("/tmp", NULL, "cannot read '/tmp': Is a directory");
    refuse("\n\n", "holds no request");
    refuse("{\"input_tokens\": [1], \"output_tokens\": [2], \"session_id\": 0}\n{", "line 2: ");
    refuse("[]", "neither input_tokens");
    refuse("{\"input_tokens\": [], \"output_tokens\": [], \"session_id\": 0}", "'input_tokens'");
    refuse("{\"input_tokens\": [1], \"session_id\": 0}", "'output_tokens'");
    refuse("{\"input_tokens\": [1, -1], \"output_tokens\": [], \"session_id\": 0}", "item 1");
    refuse("{\"input_tokens\": [1.5], \"output_tokens\": [], \"session_id\": 0}", "item 0");
    refuse("{\"input_tokens\": [1], \"output_tokens\": []}", "session_id");
    refuse("{\"input_tokens\": [1], \"output_tokens\": [], \"session_id\": 0, \"ts\": -1}", "ts");
    refuse("{\"hash_ids\": [1], \"input_length\": 513, \"output_length\": 1}", "2 blocks");
    refuse("{\"hash_ids\": [-1], \"input_length\": 5, \"output_length\": 1}", "item 0");
    refuse("{\"hash_ids\": [], \"input_length\": 0, \"output_length\": 1}", "input_length");
    refuse("{\"messages\": 1}", "no list");
    refuse("{\"messages\": [{\"content\": \"x\"}]}", "no role");
    refuse("{\"messages\": [{\"role\": \"user\", \"content\": [1]}]}", "no text");
    refuse("{\"question\": [1]}", "no list");
    refuse_many_classes();
    refuse_long_line();
}

/* Sessions of different forms are different ones, and those without a request are none. */
static void test_sessions(void **state)
{
    (void)state;
    Trace t = open_text("{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\"}]}\n"
                        "{\"messages\": [{\"role\": \"assistant\", \"content\": \"b\"}]}\n"
                        "{\"messages\": [{\"role\": \"user\", \"content\": \"c\"}]}\n"
                        "{\"session_id\": 1, \"input_tokens\": [1], \"output_tokens\": [2]}\n");
    assert_int_equal(t.n, 3);
    assert_int_equal(t.n_sessions, 3);
    trace_close(&t);
    t = open_load("agent", "most=8192");
    int n_sessions = t.n_sessions;
    trace_limit(&t, t.n);
    assert_int_equal(n_sessions, t.n_sessions);
    trace_close(&t);
}

/* ---- made loads ---- */

static void test_chat_load(void **state)
{
    (void)state;
    static const char knobs[] = "sessions=30,turns=4,systems=1,system-tokens=50,seed=3";
    Trace t = open_load("chat", knobs), again = open_load("chat", knobs);
    assert_int_equal(t.n, again.n);
    assert_int_equal(t.n_tokens, 0);
    double ts = 0;
    for (int i = 0; i < t.n; i++) {
        int32_t *a = tokens(&t, i), *b = tokens(&again, i);
        size_t n = (size_t)(t.request[i].n_prompt + t.request[i].n_answer);
        assert_memory_equal(a, b, n * sizeof *a);
        assert_true(t.request[i].ts >= ts);
        ts = t.request[i].ts;
        mem_free(a);
        mem_free(b);
    }
    trace_close(&again);

    /* A turn begins with the turn before and its answer, a session with the system prompt. */
    int system = 0, turns = 0;
    double n_new = t.request[0].n_prompt + t.request[0].n_answer;
    assert_int_equal(t.n_sessions, 30);
    for (int i = 1; i < t.n; i++) {
        n_new += t.request[i].n_prompt + t.request[i].n_answer;
        assert_int_equal(t.request[i].answer_changes, 0);
        int before = i - 1;
        while (before >= 0 && t.request[before].session != t.request[i].session)
            before--;
        if (before < 0 && !system) system = shared(&t, i, 0);
        if (before < 0) {
            assert_int_equal(shared(&t, i, 0), system);
            continue;
        }
        turns++;
        const TraceRequest *r = &t.request[before];
        n_new -= r->n_prompt + r->n_answer;
        assert_int_equal(shared(&t, i, before), r->n_prompt + r->n_answer);
        assert_true(t.request[i].n_prompt > r->n_prompt + r->n_answer);
    }
    assert_true(system >= 10 && turns >= 30);
    assert_true(t.new_tokens == n_new); /* a system prompt is each session's own */

    Trace other = open_load("chat", "sessions=30,turns=4,systems=1,system-tokens=50,seed=4");
    Trace none = open_load("chat", "sessions=2,turns=1,systems=0");
    Trace some = open_load("chat", "sessions=9,turns=1,systems=9");
    assert_int_equal(none.n, 2);
    assert_int_equal(shared(&none, 0, 1), 0);
    int n_shared = 0;
    for (int i = 1; i < some.n; i++)
        n_shared += shared(&some, 0, i) > 0;
    assert_in_range(n_shared, 0, 4);
    assert_true(other.request[1].ts != t.request[1].ts);
    trace_close(&t);
    trace_close(&other);
    trace_close(&none);
    trace_close(&some);
}

static void assert_close(const char *what, double got, double want)
{
    if (fabs(got - want) > 0.05 * want) fail_msg("%s: %g, not %g", what, got, want);
}

/* Over many sessions the draws have the law that the knobs say. */
static void test_law(void **state)
{
    (void)state;
    enum { N = 5000 };
    Trace t = open_load("chat", "sessions=5000,turns=1,systems=0,question=1000,answer=200,"
                                "spread=0.5,rate=2,most=1000000");
    double question = 0, answer = 0, logs = 0, squares = 0, start = 0;
    assert_int_equal(t.n, N);
    for (int i = 0; i < N; i++) {
        const TraceRequest *r = &t.request[i];
        double l = log(r->n_prompt);
        question += r->n_prompt, answer += r->n_answer;
        logs += l, squares += l * l;
        if (r->ts > start) start = r->ts;
    }
    assert_close("question", question / N, 1000);
    assert_close("answer", answer / N, 200);
    assert_close("spread", sqrt(squares / N - logs / N * logs / N), 0.5);
    assert_close("seconds", start, N / 2.0);
    trace_close(&t);

    /* Turns are geometric; between two there are an answer at 50 tokens a second and a pause. */
    t = open_load("chat", "sessions=5000,turns=4,systems=0,question=1,answer=100,spread=0,think=3,"
                          "most=1000000");
    static double last[N];
    double pauses = 0;
    int n_pauses = 0;
    for (int i = 0; i < t.n; i++) {
        const TraceRequest *r = &t.request[i];
        if (last[r->session] > 0) pauses += r->ts - last[r->session], n_pauses++;
        last[r->session] = r->ts;
    }
    assert_close("turns", (double)t.n / N, 4);
    assert_close("pause", pauses / n_pauses, 2 + 3);
    trace_close(&t);
}

/* What the model thought is not in the next prompt. */
static void test_reasoning(void **state)
{
    (void)state;
    Trace t = open_load("agent", "sessions=1,turns=40,reasoning=100,most=20000");
    assert_true(t.n > 2);
    double n_new = t.request[0].n_prompt + t.request[0].n_answer;
    for (int i = 1; i < t.n; i++) {
        assert_int_equal(t.request[i].answer_changes, 1);
        assert_int_equal(shared(&t, i, i - 1), t.request[i - 1].n_prompt);
        n_new += t.request[i].n_prompt + t.request[i].n_answer - t.request[i - 1].n_prompt;
    }
    assert_true(t.new_tokens == n_new);
    trace_close(&t);
    t = open_load("chat", "sessions=50,turns=9,systems=0,question=100,reasoning=100,answer=100,"
                          "spread=0,most=1000");
    for (int i = 0, most = 0; i < t.n; i++) {
        int n = t.request[i].n_prompt + t.request[i].n_answer;
        most = n > most ? n : most;
        if (i == t.n - 1) assert_int_equal(most, 900); /* four turns; a fifth were 1100 */
    }
    trace_close(&t);
}

static void test_bad_loads(void **state)
{
    (void)state;
    refuse_source("chat", "sesions=3", "sesions=3");
    refuse_source("chat", "turns=0", "from 1 to");
    refuse_source("agent", "turns=3x", "from 1 to");
    refuse_source("agent", "turns=,seed=1", "from 1 to");
    refuse_source("chat", "most=2,question=1000,spread=0", "no request");
    refuse_source("file", "turns=3", "for chat and agent");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ids),       cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_messages),  cmocka_unit_test(test_bfcl),
        cmocka_unit_test(test_bad_files), cmocka_unit_test(test_sessions),
        cmocka_unit_test(test_chat_load), cmocka_unit_test(test_law),
        cmocka_unit_test(test_reasoning), cmocka_unit_test(test_bad_loads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
