/* test_tokenizer_config.c: strings of a model's folder, in all forms that folders come in. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>
#include <unistd.h>

#include "tests/analyzer.h"
#include "tests/checkpoint.h"
#include "text/tokenizer_config.h"

static void assert_same(const char *text, const char *want)
{
    if (!want != !text || (want && strcmp(text, want) != 0))
        fail_msg("'%s' is not '%s'", text ? text : "(none)", want ? want : "(none)");
}

static int open_folder(const char *config, const char *template, TokenizerConfig *c, Error *err)
{
    const char *dir = scratch_dir("tokenizer_config");
    if (config) scratch_write(scratch_path(dir, "tokenizer_config.json"), config, strlen(config));
    if (template)
        scratch_write(scratch_path(dir, "chat_template.jinja"), template, strlen(template));
    memset(c, 0x55, sizeof *c);
    return tokenizer_config_open(c, dir, err);
}

static void test_forms(void **state)
{
    (void)state;
    static const struct {
        const char *config, *template;
        const char *eos, *bos, *pad, *class_name, *chat_template;
    } rows[] = {
        {"{\"eos_token\": \"<e>\", \"bos_token\": null, \"pad_token\": \"<p>\", "
         "\"tokenizer_class\": \"T\", \"chat_template\": \"in config\"}",
         "in file", "<e>", NULL, "<p>", "T", "in file"},
        {"{\"eos_token\": {\"content\": \"<e>\", \"special\": true}, \"bos_token\": {}, "
         "\"chat_template\": \"in config\"}",
         NULL, "<e>", NULL, NULL, NULL, "in config"},
        {"{\"eos_token\": 5, \"bos_token\": \"\", \"tokenizer_class\": [\"T\"]}", NULL, NULL, "",
         NULL, NULL, NULL},
        {"{\"model_max_length\": 1000000000000000019884624838656, \"x\": -Infinity, "
         "\"eos_token\": \"<e>\", \"eos_token\": \"NaN\"}",
         NULL, "NaN", NULL, NULL, NULL, NULL},
        {"[]", NULL, NULL, NULL, NULL, NULL, NULL},
        {NULL, "in file", NULL, NULL, NULL, NULL, "in file"},
        {NULL, NULL, NULL, NULL, NULL, NULL, NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        TokenizerConfig c;
        Error err = {0};
        if (open_folder(rows[i].config, rows[i].template, &c, &err))
            fail_msg("row %zu: %s", i, err.msg);
        assert_same(c.eos, rows[i].eos);
        assert_same(c.bos, rows[i].bos);
        assert_same(c.pad, rows[i].pad);
        assert_same(c.class_name, rows[i].class_name);
        assert_same(c.chat_template, rows[i].chat_template);
        tokenizer_config_close(&c);
    }
}

/* A file that is there and broken is an error that names it, and leaves nothing to free. */
static void test_broken(void **state)
{
    (void)state;
    TokenizerConfig c;
    Error err = {0};
    assert_int_equal(open_folder("{\"eos_token\": ", "in file", &c, &err), -1);
    assert_int_equal(err.code, ERR_FILE);
    assert_non_null(strstr(err.msg, "tokenizer_config.json"));
    assert_null(c.eos);
    assert_null(c.chat_template);
    tokenizer_config_close(&c);
}

/* As in a copy of a cache of downloads without what its links lead to: none of them is missing. */
static void test_link_to_nowhere(void **state)
{
    (void)state;
    static const char *const names[] = {"tokenizer_config.json", "chat_template.jinja"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        TokenizerConfig c;
        Error err = {0};
        const char *dir = scratch_dir("tokenizer_config");
        assert_int_equal(symlink("/nowhere", scratch_path(dir, names[i])), 0);
        assert_int_equal(tokenizer_config_open(&c, dir, &err), -1);
        assert_int_equal(err.code, ERR_FILE);
        assert_non_null(strstr(err.msg, names[i]));
        tokenizer_config_close(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forms),
        cmocka_unit_test(test_broken),
        cmocka_unit_test(test_link_to_nowhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
