/* test_chat_template.c: which of the published templates a folder has. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <setjmp.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/mem.h"
#include "base/strbuf.h"
#include "tests/textdata.h"
#include "text/chat.h"

static const ChatTemplate qwen35 = {CHAT_QWEN35, .thinking_default = 1, .known = 1},
                          qwen38 = {CHAT_QWEN38, .thinking_default = 1, .known = 1},
                          next = {CHAT_QWEN3_NEXT, .known = 1},
                          thinking = {CHAT_QWEN3_NEXT_THINKING, .thinking_default = 1, .known = 1},
                          coder = {CHAT_QWEN3_CODER, .known = 1};

static Error err;

enum { N_FILES = 3 };

/* A folder with these files (NULL: not there), and what is chosen for it. */
static int open_files(const char *const text[N_FILES], const char *type, ChatTemplate *t)
{
    static const char *const name[] = {"chat_template.jinja", "tokenizer_config.json",
                                       "chat_template.json"};
    char *dir = temp_path("chat"), path[N_FILES][120];
    mkdir(dir, 0777);
    for (int i = 0; i < N_FILES; i++) {
        snprintf(path[i], sizeof path[i], "%s/%s", dir, name[i]);
        if (text[i]) write_file(path[i], text[i], strlen(text[i]));
    }
    memset(t, 0x55, sizeof *t);
    err = (Error){0};
    int rc = chat_template_open(t, dir, type, &err);
    for (int i = 0; i < N_FILES; i++)
        unlink(path[i]);
    rmdir(dir);
    mem_free(dir);
    return rc;
}

static int open_folder(const char *template, const char *config, const char *type, ChatTemplate *t)
{
    return open_files((const char *const[]){template, config, NULL}, type, t);
}

/* What each template says, which no other does. */
#define XML     "<function=example_function_name> "
#define SWITCH  "enable_thinking is defined and enable_thinking is false "
#define KEEPS   "preserve_thinking is defined and preserve_thinking is true "
#define AS_JSON "args_value | string if args_value is string else args_value | tojson "
#define Q38                                                                                        \
    XML AS_JSON "enable_thinking is undefined or enable_thinking is true reasoning_effort "        \
                "'Reasoning effort is set to xhigh. Please think carefully' "                      \
                "preserve_thinking is undefined or preserve_thinking is true "
#define CODER XML AS_JSON "You have access to the following functions: <name>"
#define CALLS "{\\\"name\\\": <function-name>, '<|im_start|>assistant\\n'"

static const ChatTemplate UNKNOWN = {CHAT_QWEN35, .thinking_default = 1};

/* None of them is published: what is chosen is the nearest, and not known. */
static void tells_templates_apart(void **state)
{
    static const char json_think[] =
        "{\"name\": <function-name>, '<|im_start|>assistant\\n<think>\\n'";
    static const char in_config[] =
        "{\"chat_template\": \"{\\\"name\\\": <function-name>, '<|im_start|>assistant\\n<think>\"}";
    static const char in_list[] =
        "{\"chat_template\": [{\"name\": \"rag\", \"template\": \"x\"}, {\"name\": \"default\", "
        "\"template\": \"" XML SWITCH "\"}]}";
    static const char opens[] = XML "add_generation_prompt </think> {%- if add_generation_prompt %}"
                                    "'<|im_start|>assistant\\n<think>\\n'",
                      closes[] = XML "<think> {%- if add_generation_prompt %}'<think></think>'";
    const ChatTemplate by_type35 = qwen35, by_type_next = next;
    ChatTemplate q35 = UNKNOWN, q35off, q36, q38 = qwen38, q38max, q38early, coder_next = coder,
                 old_coder, json = next, json_thinks = thinking;
    q35off = q36 = q35;
    q35off.thinking_default = 0;
    q36.scalars_as_json = q36.can_keep_thinking = 1;
    q38.known = coder_next.known = json.known = json_thinks.known = 0;
    q38early = q38;
    q38.scalars_as_json = 1;
    q38max = q38, q38max.always_thinks = 1;
    old_coder = coder_next;
    coder_next.scalars_as_json = 1;
    const struct {
        const char *template, *config, *type;
        const ChatTemplate *want;
    } rows[] = {
        {XML SWITCH, NULL, "qwen3_5", &q35},
        {XML "enable_thinking is defined and enable_thinking is true", NULL, "qwen3_5", &q35off},
        {XML SWITCH KEEPS AS_JSON, NULL, "qwen3_5_moe", &q36},
        {Q38, NULL, "qwen3_5", &q38},
        {Q38 "raise_exception('Disabling thinking is not supported.')", NULL, "", &q38max},
        {CODER, NULL, "qwen3_next", &coder_next},
        {XML SWITCH, NULL, "qwen3_next", &q35}, /* the file knows better */
        {CALLS, NULL, "qwen3_next", &json},
        {json_think, NULL, "qwen3_next", &json_thinks},
        {NULL, in_config, "qwen3_next", &json_thinks},
        {NULL, in_list, "qwen3_next", &q35},
        {CALLS, in_list, "qwen3_5", &json}, /* the .jinja comes first */
        {NULL, "{}", "qwen3_5", &by_type35},
        {NULL, NULL, "qwen3_5_text", &by_type35},
        {NULL, NULL, "qwen3_next", &by_type_next},
        {NULL, NULL, "llama", &UNKNOWN},
        {NULL, NULL, NULL, &UNKNOWN},
        {"<|user|>", NULL, "qwen3_next", &json},
        /* Without the switch, which Qwen3-Coder-Next has not either. */
        {opens, NULL, "qwen3_5", &q35},
        {opens, NULL, "qwen3_5_moe", &q35},
        {XML "{%- if add_generation_prompt %}'<|im_start|>'", NULL, "qwen3_5", &q35off},
        {XML, NULL, "qwen3_5", &q35off},
        {closes, NULL, "qwen3_5", &q35off},
        {opens, NULL, "qwen3_next", &old_coder},
        {opens, NULL, "", &old_coder},
        {CODER, NULL, "qwen3_5", &coder_next},
        /* Alike, but not ours: Qwen3-Coder before Next, Qwen3 with a switch, an early Qwen3.8. */
        {XML "You have access to the following tools: <name>", NULL, "qwen3_next", &old_coder},
        {XML SWITCH "<name>", NULL, "", &UNKNOWN},
        {"{\"name\": <function-name> enable_thinking", NULL, "qwen3", &UNKNOWN},
        {XML "enable_thinking reasoning_effort", NULL, "qwen3_5", &q38early},
    };
    ChatTemplate t;
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (open_folder(rows[i].template, rows[i].config, rows[i].type, &t))
            fail_msg("row %zu: %s", i, err.msg);
        if (memcmp(&t, rows[i].want, sizeof t) != 0)
            fail_msg("row %zu: family %d, thinking %d, json %d, keeps %d, always %d, known %d", i,
                     (int)t.family, t.thinking_default, t.scalars_as_json, t.can_keep_thinking,
                     t.always_thinks, t.known);
    }
    assert_int_equal(open_folder(NULL, "{\"chat_template\"", "qwen3_5", &t), -1);
    assert_int_equal(err.code, ERR_FILE);
    assert_non_null(strstr(err.msg, "tokenizer_config.json"));
}

/* What older programs save for a processor: behind the .jinja, before the tokenizer's. */
static void reads_a_processors_template(void **state)
{
    static const char processors[] = "{\"chat_template\": \"" XML SWITCH "\"}",
                      tokenizers[] = "{\"chat_template\": \"" XML "\"}";
    ChatTemplate t;
    (void)state;
    const char *text[N_FILES] = {NULL, tokenizers, processors};
    assert_int_equal(open_files(text, "qwen3_next", &t), 0);
    assert_memory_equal(&t, &UNKNOWN, sizeof t);
    text[1] = NULL;
    assert_int_equal(open_files(text, "qwen3_next", &t), 0);
    assert_memory_equal(&t, &UNKNOWN, sizeof t);
    text[0] = CODER;
    assert_int_equal(open_files(text, "qwen3_next", &t), 0);
    assert_int_equal(t.family, CHAT_QWEN3_CODER);
    text[0] = NULL;
    text[2] = "{";
    assert_int_equal(open_files(text, "qwen3_next", &t), -1);
    assert_non_null(strstr(err.msg, "chat_template.json"));
}

/* Opens a folder with dir's template in it, but for the first `from`, or all of them. */
static void expect_edited(const char *dir, const char *from, const char *to, int all,
                          const ChatTemplate *want)
{
    ChatTemplate t;
    StrBuf text = {0}, out = {0};
    if (chat_template_read(dir, &text, &err)) fail_msg("%s", err.msg);
    const char *at = strbuf_str(&text), *found = strstr(at, from);
    if (!found) fail_msg("'%s' is not in %s", from, dir);
    for (; found; found = all ? strstr(at, from) : NULL) {
        strbuf_add(&out, at, (size_t)(found - at));
        strbuf_puts(&out, to);
        at = found + strlen(from);
    }
    strbuf_puts(&out, at);
    if (open_folder(strbuf_str(&out), NULL, "qwen3_5", &t)) fail_msg("%s", err.msg);
    if (memcmp(&t, want, sizeof t) != 0)
        fail_msg("'%s' for '%s': family %d, thinking %d, known %d", to, from, (int)t.family,
                 t.thinking_default, t.known);
    strbuf_free(&text);
    strbuf_free(&out);
}

#define PUBLISHED "tests/data/chat"

/* Who changes a published template has one of his own, though all that tells the family stays. */
static void does_not_know_edited_ones(void **state)
{
    static const char last[] = "{{- '<think>\\n' }}\n    {%- endif %}\n{%- endif %}",
                      tail[] =
                          "    {%- if enable_thinking is defined and enable_thinking is false %}\n"
                          "        {{- '<think>\\n\\n</think>\\n\\n' }}\n"
                          "    {%- else %}\n"
                          "        {{- '<think>\\n' }}\n"
                          "    {%- endif %}\n";
    static const char turned[] =
        "    {%- if enable_thinking is defined and enable_thinking is true %}\n"
        "        {{- '<think>\\n' }}\n"
        "    {%- else %}\n"
        "        {{- '<think>\\n\\n</think>\\n\\n' }}\n"
        "    {%- endif %}\n";
    ChatTemplate off = qwen35, no_switch = UNKNOWN;
    (void)state;
    off.thinking_default = no_switch.thinking_default = 0;
    /* As an editor leaves it. */
    expect_edited(PUBLISHED, "\n", "\r\n", 1, &qwen35);
    char more[sizeof last + 8];
    snprintf(more, sizeof more, "%s\r\n\n", last);
    expect_edited(PUBLISHED, last, more, 0, &qwen35);
    /* Jinja writes what more there is behind the last line, if only a space. */
    snprintf(more, sizeof more, "%s\n\n\n", last);
    expect_edited(PUBLISHED, last, more, 0, &UNKNOWN);
    snprintf(more, sizeof more, "%s \n", last);
    expect_edited(PUBLISHED, last, more, 0, &UNKNOWN);
    /* The small models' is Qwen3.5's with its default turned round. */
    expect_edited(PUBLISHED, tail, turned, 0, &off);

    expect_edited(PUBLISHED, "{%- if tools", "{{- '<|im_start|>system\\nI am X.' }}{%- if tools", 0,
                  &UNKNOWN);
    expect_edited(PUBLISHED, "<|im_start|>", "<|start|>", 1, &UNKNOWN);
    expect_edited(PUBLISHED, "{{- raise_exception('No user query found in messages.') }}", "", 0,
                  &UNKNOWN);
    expect_edited(PUBLISHED, "multiple lines", "more lines", 0, &UNKNOWN);
    expect_edited(PUBLISHED, tail, "", 0, &no_switch);
    ChatTemplate q36 = UNKNOWN;
    q36.scalars_as_json = q36.can_keep_thinking = 1;
    expect_edited("tests/data/chat/qwen3.6", "\n", "\n ", 0, &q36);
}

/* The published template as one of a list, beside another with a name. */
static void expect_listed(const char *name, const char *other, int known)
{
    ChatTemplate t, want = qwen35;
    StrBuf text = {0};
    want.known = known;
    if (chat_template_read(PUBLISHED, &text, &err)) fail_msg("%s", err.msg);
    json_t *list = json_pack("{s:[{s:s, s:s}, {s:s, s:s}]}", "chat_template", "name", name,
                             "template", strbuf_str(&text), "name", other, "template", "x");
    char *config = json_dumps(list, 0);
    if (open_folder(NULL, config, "qwen3_5", &t)) fail_msg("%s", err.msg);
    assert_memory_equal(&t, &want, sizeof t);
    free(config);
    json_decref(list);
    strbuf_free(&text);
}

/* The same in files; the published one is the default, if it is there at all. */
static void expect_beside(const char *other, int has_default, int known)
{
    char *dir = temp_path("chat"), path[4][160];
    ChatTemplate t, want = qwen35;
    StrBuf text = {0};
    want.known = known;
    if (chat_template_read(PUBLISHED, &text, &err)) fail_msg("%s", err.msg);
    snprintf(path[0], sizeof *path, "%s", dir);
    snprintf(path[1], sizeof *path, "%s/additional_chat_templates", dir);
    snprintf(path[2], sizeof *path, "%s/additional_chat_templates/%s", dir, other);
    snprintf(path[3], sizeof *path, "%s/chat_template.jinja", dir);
    mkdir(path[0], 0777);
    mkdir(path[1], 0777);
    write_file(path[2], "x", 1);
    if (has_default) write_file(path[3], text.data, text.len);
    int rc = chat_template_open(&t, dir, "qwen3_5", &err);
    unlink(path[3]);
    unlink(path[2]);
    rmdir(path[1]);
    rmdir(path[0]);
    mem_free(dir);
    strbuf_free(&text);
    assert_int_equal(rc, 0);
    assert_memory_equal(&t, &want, sizeof t);
}

/* Of templates by name transformers takes "tool_use" where there are tools, none without default.
 */
static void tells_of_others_by_name(void **state)
{
    (void)state;
    expect_listed("default", "rag", 1);
    expect_listed("default", "tool_use", 0);
    expect_listed("tool_use", "default", 0);
    expect_listed("rag", "tool_use", 0);
    expect_listed("rag", "summary", 0);
    expect_beside("rag.jinja", 1, 1);
    expect_beside("tool_use.jinja", 1, 0);
    expect_beside("tool_use.jinja", 0, 0);
}

/* However large the file is: no memory is taken for it. */
static void bounds_the_template(void **state)
{
    size_t len = ((size_t)16 << 20) + 1;
    char *text = mem_alloc(len + 1, 1);
    ChatTemplate t;
    (void)state;
    memset(text, ' ', len);
    assert_int_equal(open_folder(text, NULL, "qwen3_5", &t), -1);
    assert_int_equal(err.code, ERR_LIMIT);
    assert_non_null(strstr(err.msg, "chat_template.jinja' has 16777217 bytes, the limit is"));
    text[len - 1] = 0;
    assert_int_equal(open_folder(text, NULL, "qwen3_5", &t), 0);
    mem_free(text);
}

/* The published files, whole. */
static void knows_the_published_ones(void **state)
{
    static const char *const rows[][2] = {{"tests/data/chat", "q35"},
                                          {"tests/data/chat/qwen3.6", "q36keep"},
                                          {"tests/data/chat/qwen3.8", "q38"},
                                          {"tests/data/chat/qwen3-coder-next", "coder"}};
    int n_found = 0;
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int k = 0; k < N_TEMPLATES; k++) {
            ChatTemplate t;
            if (strcmp(rows[i][1], named_templates[k].name) != 0) continue;
            assert_int_equal(chat_template_open(&t, rows[i][0], "", &err), 0);
            assert_memory_equal(&t, &named_templates[k].t, sizeof t);
            n_found++;
        }
    assert_int_equal(n_found, 4);
}
int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tells_templates_apart),     cmocka_unit_test(reads_a_processors_template),
        cmocka_unit_test(does_not_know_edited_ones), cmocka_unit_test(knows_the_published_ones),
        cmocka_unit_test(bounds_the_template),       cmocka_unit_test(tells_of_others_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
