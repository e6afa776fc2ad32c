/* tokenized.c: see tokenized.h. */
#include "tests/tokenized.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "tests/analyzer.h"
#include "tests/textdata.h"

TokenList encode_text(const Tokenizer *tok, const char *text, size_t len)
{
    TokenList list = {0};
    Error err = {0};
    if (tokenizer_encode(tok, text, len, &list, &err)) fail_msg("%s", err.msg);
    return list;
}

void expect_ids(const Tokenizer *tok, const char *text, size_t len, const int32_t *id, int n)
{
    TokenList list = encode_text(tok, text, len);
    assert_int_equal(list.n, n);
    for (int i = 0; i < n; i++)
        assert_int_equal(list.id[i], id[i]);
    token_list_free(&list);
}

json_t *small_json(void)
{
    json_error_t je;
    json_t *root = json_load_file("tests/data/golden/qwen35-dense/tokenizer.json", 0, &je);
    assert_non_null(root);
    json_t *model = json_object_get(root, "model"), *vocab = json_object_get(model, "vocab");
    json_object_set_new(vocab, "ab", json_integer(300));
    json_object_set_new(vocab, "abc", json_integer(301));
    json_object_set_new(vocab, "12", json_integer(302));
    json_object_set_new(model, "merges",
                        json_pack("[[ss][ss][ss]]", "a", "b", "ab", "c", "1", "2"));
    return root;
}

Tokenizer *small_open(const json_t *root, Error *err)
{
    char *path = temp_path("small.json"), *text = json_dumps(root, 0);
    write_file(path, text, strlen(text));
    *err = (Error){0};
    Tokenizer *tok = tokenizer_open(path, err);
    if (!tok) {
        assert_int_equal(err->code, ERR_FILE);
        assert_non_null(strstr(err->msg, path));
        assert_null(strchr(err->msg, '\n'));
    }
    unlink(path);
    mem_free(path);
    free(text);
    return tok;
}

void small_set(json_t *root, const char *path, const char *value)
{
    char copy[100];
    snprintf(copy, sizeof copy, "%s", path);
    json_t *at = root, *part = value ? json_loads(value, JSON_DECODE_ANY, NULL) : NULL;
    char *save = NULL, *key = strtok_r(copy, "/", &save), *next;
    while ((next = strtok_r(NULL, "/", &save)) != NULL) {
        at = json_is_array(at) ? json_array_get(at, strtoul(key, NULL, 10))
                               : json_object_get(at, key);
        key = next;
    }
    if (value) assert_non_null(part);
    if (json_is_array(at))
        json_array_set_new(at, strtoul(key, NULL, 10), part);
    else if (part)
        json_object_set_new(at, key, part);
    else
        json_object_del(at, key);
}
