/*
 * fuzz_chat.c: which template a folder has, and rendering by all of them.
 *
 * Input: {"template": the text of chat_template.jinja, "tokenizer_config": ..., "model_type":
 * "...", "messages": [...], "tools": [...]}, all optional. Messages are not passed through the
 * server's checks: `chat --tools` and the chat command come without them.
 */
#include "tests/fuzz/fuzz.h"

#include <string.h>

#include "text/chat.h"
#include "text/pyjson.h"
#include "text/utf8.h"

/* Python's dumps is JSON again, and the same value. */
static void check_dump(const json_t *value)
{
    StrBuf out = {0};
    pyjson_dump(value, &out);
    json_t *again = json_loadb(strbuf_str(&out), out.len, JSON_ALLOW_NUL | JSON_DECODE_ANY, NULL);
    FUZZ_CHECK(json_equal(value, again));
    json_decref(again);
    strbuf_free(&out);
}

static void render(const ChatTemplate *t, const json_t *messages, const json_t *tools, int bits)
{
    static const char *const efforts[] = {NULL, "low", "medium", "huge"};
    ChatOptions options = {.add_generation_prompt = bits & 1,
                           .enable_thinking = (bits >> 1) % 3 - 1,
                           .preserve_thinking = (bits >> 2) % 3 - 1,
                           .effort = efforts[bits % 4],
                           .add_vision_id = bits >> 3 & 1,
                           .continue_final = bits == 10};
    StrBuf out = {0};
    Error err = {0};
    ChatMarks marks = {0};
    int rc = chat_render(t, messages, tools, &options, &out, &marks, &err);
    FUZZ_CHECK(rc ? *err.msg : marks.n_stable <= out.len);
    FUZZ_CHECK(utf8_check(strbuf_str(&out), out.len) == out.len);
    if (!rc && options.add_generation_prompt)
        FUZZ_CHECK(marks.n_stable >= 12 &&
                   !memcmp(out.data + marks.n_stable - 12, "<|im_start|>assistant\n", 22));
    size_t end = 0; /* spans are in order and apart */
    for (int i = 0; i < marks.n_client; i++) {
        FUZZ_CHECK(marks.client[i].len && (!i || marks.client[i].from > end));
        end = marks.client[i].from + marks.client[i].len;
        FUZZ_CHECK(end <= out.len);
    }
    chat_marks_free(&marks);
    strbuf_free(&out);
}

static void open_folder(const json_t *root, ChatTemplate *t)
{
    const json_t *template = json_object_get(root, "template");
    const json_t *config = json_object_get(root, "tokenizer_config");
    Error err = {0};
    if (json_is_string(template))
        fuzz_file("chat_template.jinja", json_string_value(template), json_string_length(template));
    if (config) fuzz_file_json("tokenizer_config.json", config);
    int rc = chat_template_open(t, FUZZ_DIR, json_string_value(json_object_get(root, "model_type")),
                                &err);
    FUZZ_CHECK(!rc || *err.msg);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ChatTemplate found = {0};
    json_t *root = json_loadb((const char *)data, size, JSON_ALLOW_NUL, NULL);
    const json_t *messages = json_object_get(root, "messages");
    const json_t *tools = json_object_get(root, "tools");
    if (!root) fuzz_file("chat_template.jinja", data, size);
    open_folder(root, &found);
    if (json_is_array(messages)) check_dump(messages);
    for (int family = CHAT_QWEN35; family <= CHAT_QWEN3_CODER; family++)
        for (int bits = 0; json_is_array(messages) && bits < 16; bits += 5) {
            ChatTemplate t = {.family = (ChatFamily)family,
                              .scalars_as_json = bits & 1,
                              .can_keep_thinking = bits >> 1 & 1,
                              .always_thinks = bits == 15};
            render(&t, messages, tools, bits);
        }
    if (json_is_array(messages)) render(&found, messages, tools, 3);
    json_decref(root);
    fuzz_files_clear();
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
    return fuzz_mutate_json(data, size, max_size, seed);
}
