/* test_info.c: the routes that tell of the server and its model, for all the clients that ask. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>
#include <time.h>

#include "base/file.h"
#include "tests/analyzer.h"
#include "tests/served.h"

static double number(const json_t *reply, const char *path)
{
    return json_number_value(served_at(reply, path));
}

static json_t *get_json(const Served *s, const char *path, int status)
{
    HttpReply r = http_exchange(s->port, "GET", path, "", "");
    if (r.status != status) fail_msg("%s: %d %s", path, r.status, strbuf_str(&r.body));
    json_t *json = json_loadb(r.body.data, r.body.len, 0, NULL);
    assert_non_null(json);
    http_reply_free(&r);
    return json;
}

/* Sizes as the checkpoint's own header states them: the demo model uses all of its file. */
static void sum_tensors(double *n_params, double *bytes)
{
    MappedFile f;
    Error err = {0};
    uint64_t len;
    const char *name;
    json_t *tensor, *dim;
    size_t i;
    assert_int_equal(mapped_file_open(&f, "models/demo/model.safetensors", &err), 0);
    memcpy(&len, f.data, sizeof len);
    json_t *header = json_loadb((const char *)f.data + sizeof len, len, 0, NULL);
    assert_non_null(header);
    *n_params = *bytes = 0;
    json_object_foreach(header, name, tensor)
    {
        if (!strcmp(name, "__metadata__")) continue;
        double n = 1;
        json_array_foreach(json_object_get(tensor, "shape"), i, dim) n *= json_number_value(dim);
        *n_params += n;
        *bytes += number(tensor, "data_offsets.1") - number(tensor, "data_offsets.0");
    }
    json_decref(header);
    mapped_file_close(&f);
}

static void test_models(void **state)
{
    (void)state;
    double n_params, bytes;
    sum_tensors(&n_params, &bytes);
    ServedOptions o = served_defaults();
    o.model_name = "org/team/demo model";
    Served *s = served_start(&o);
    json_t *list = get_json(s, "/v1/models", 200);
    json_t *entry = get_json(s, "/v1/models/org/team/demo%20model", 200);
    assert_int_equal(json_array_size(json_object_get(list, "data")), 1);
    assert_int_equal(json_array_size(json_object_get(list, "models")), 1);
    assert_true(json_equal((json_t *)served_at(list, "data.0"), entry));
    served_expect_text(entry, "id", o.model_name);
    served_expect_text(entry, "root", o.model_name);
    served_expect_text(entry, "display_name", o.model_name);
    served_expect_text(entry, "type", "model");
    served_expect_text(entry, "owned_by", "offshoot");
    assert_true(json_is_null(json_object_get(entry, "parent")));
    assert_true(number(entry, "meta.n_params") == n_params);
    assert_true(number(entry, "meta.size") == bytes);
    assert_true(number(entry, "meta.n_ctx_train") == 8192);
    assert_true(number(entry, "meta.n_vocab") == 4096);
    served_expect_text(list, "models.0.model", o.model_name);
    served_expect_text(list, "models.0.capabilities.0", "completion");
    served_expect_text(list, "models.0.details.format", "safetensors");
    served_expect_text(list, "first_id", o.model_name);
    assert_true(json_is_false(json_object_get(list, "has_more")));

    struct tm tm = {0};
    const char *text = json_string_value(json_object_get(entry, "created_at"));
    const char *end = strptime(text, "%Y-%m-%dT%H:%M:%SZ", &tm);
    assert_true(end && !*end);
    assert_true((double)timegm(&tm) == number(entry, "created"));
    json_decref(entry);
    json_decref(list);
    json_decref(get_json(s, "/models/org/team/demo%20model", 200));
    json_decref(get_json(s, "/v1/models/org/team", 404));
    json_decref(get_json(s, "/v1/models/org/team/demo%20model/x", 404));
    assert_int_equal(served_stop(s), 0);
}

static void test_props(void **state)
{
    (void)state;
    Served *s = served_start(NULL);
    json_t *props = get_json(s, "/props", 200), *info = get_json(s, "/tokenizer_info", 200);
    MappedFile f;
    Error err = {0};
    assert_int_equal(mapped_file_open(&f, "models/demo/chat_template.jinja", &err), 0);
    json_t *template = json_stringn((const char *)f.data, f.size);
    assert_true(json_equal(json_object_get(props, "chat_template"), template));
    assert_true(json_equal(json_object_get(info, "chat_template"), template));
    json_decref(template);
    mapped_file_close(&f);

    assert_true(number(props, "default_generation_settings.n_ctx") == 8192);
    const json_t *params = served_at(props, "default_generation_settings.params");
    assert_true(number(params, "temperature") == 0.7 && number(params, "top_p") == 0.8);
    assert_true(number(params, "top_k") == 20 && number(params, "n_predict") == -1);
    assert_true(json_number_value(json_object_get(params, "speculative.n_max")) == 3);
    assert_true(number(props, "total_slots") == 4);
    served_expect_text(props, "model_alias", "demo");
    served_expect_text(props, "model_path", "demo");
    served_expect_text(props, "bos_token", "");
    served_expect_text(props, "eos_token", "<|im_end|>");
    served_expect_text(props, "build_info", "offshoot 0.1.0");
    assert_true(json_is_false(served_at(props, "modalities.vision")));
    json_decref(props);
    json_decref(served_post(s, "/props", "{}", 405));

    served_expect_text(info, "eos_token", "<|im_end|>");
    served_expect_text(info, "pad_token", "<|endoftext|>");
    served_expect_text(info, "tokenizer_class", "Qwen2Tokenizer");
    assert_true(json_is_null(json_object_get(info, "bos_token")));
    assert_true(number(info, "model_max_length") == 8192);
    json_decref(info);
    assert_int_equal(served_stop(s), 0);
}

static void test_default_of_tokens(void **state)
{
    (void)state;
    ServedOptions o = served_defaults();
    o.default_max_tokens = 7;
    Served *s = served_start(&o);
    json_t *props = get_json(s, "/props", 200);
    assert_true(number(props, "default_generation_settings.params.n_predict") == 7);
    json_decref(props);
    assert_int_equal(served_stop(s), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_models),
        cmocka_unit_test(test_props),
        cmocka_unit_test(test_default_of_tokens),
    };
    return cmocka_run_group_tests(tests, served_open_model, served_close_model);
}
