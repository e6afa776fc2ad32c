/* chat.c: see chat.h. Which template a model has; rendering is in chat_template.c. */
#include "text/chat.h"

#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "text/pyjson.h"

/* tokenizer_config.json lists the added tokens; a few hundred KiB at most. */
static const size_t MAX_CONFIG_BYTES = 16u << 20;

void chat_dump_json(const json_t *value, StrBuf *out)
{
    pyjson_dump(value, out);
}

static void choose_by_type(ChatTemplate *t, const char *model_type)
{
    int is_next = !strncmp(model_type, "qwen3_next", 10);
    t->family = is_next ? CHAT_QWEN3_NEXT : CHAT_QWEN35;
    t->thinking_default = !is_next;
    t->known = is_next || !strncmp(model_type, "qwen3_5", 7);
}

/*
 * A template is told by what it says to the model: how to write a call, and how its thinking opens.
 * Not ours although alike: Qwen3-Coder (tools as XML), the Qwen3 that thinks by switch (JSON calls
 * and enable_thinking), Qwen3.8 (reasoning effort).
 */
static void choose_by_markers(ChatTemplate *t, const char *text)
{
    int xml_calls = strstr(text, "<function=example_function_name>") != NULL;
    int json_calls = strstr(text, "\"name\": <function-name>") != NULL ||
                     strstr(text, "\\\"name\\\": <function-name>") != NULL;
    int has_switch = strstr(text, "enable_thinking") != NULL;
    t->known = 0;
    if (xml_calls && has_switch) {
        t->family = CHAT_QWEN35;
        t->known = !strstr(text, "<name>") && !strstr(text, "reasoning_effort");
        t->thinking_default =
            !strstr(text, "enable_thinking is defined and enable_thinking is true");
        t->scalars_as_json = strstr(text, "if args_value is string else") != NULL;
    } else if (json_calls && !has_switch) {
        /* In the file the newlines of a Jinja string are a backslash and an n, or real ones. */
        int thinks = strstr(text, "<|im_start|>assistant\\n<think>") != NULL ||
                     strstr(text, "<|im_start|>assistant\n<think>") != NULL;
        t->family = thinks ? CHAT_QWEN3_NEXT_THINKING : CHAT_QWEN3_NEXT;
        t->thinking_default = thinks;
        t->known = 1;
    }
}

/* Reads dir/name into *text; leaves it empty when there is no such file. */
static int read_template(const char *dir, StrBuf *text, Error *err)
{
    char *path = path_join(dir, "chat_template.jinja");
    MappedFile file;
    int rc = 0;
    if (!access(path, F_OK)) {
        rc = mapped_file_open(&file, path, err);
        if (!rc) strbuf_add(text, (const char *)file.data, file.size);
        if (!rc) mapped_file_close(&file);
    }
    mem_free(path);
    return rc;
}

/*
 * The same from tokenizer_config.json: a string, or a list of named ones of which "default" counts.
 */
static int read_config_template(const char *dir, StrBuf *text, Error *err)
{
    char *path = path_join(dir, "tokenizer_config.json");
    json_t *root = NULL, *named;
    int rc = 0;
    size_t i;
    if (!access(path, F_OK)) {
        root = json_read_file(path, MAX_CONFIG_BYTES, err);
        if (!root) rc = -1;
    }
    const json_t *template = json_object_get(root, "chat_template");
    json_array_foreach(template, i, named)
    {
        const char *name = json_string_value(json_object_get(named, "name"));
        if (name && !strcmp(name, "default")) template = json_object_get(named, "template");
    }
    if (json_is_string(template)) strbuf_puts(text, json_string_value(template));
    json_decref(root);
    mem_free(path);
    return rc;
}

int chat_template_read(const char *dir, StrBuf *text, Error *err)
{
    int rc = read_template(dir, text, err);
    return rc || text->len ? rc : read_config_template(dir, text, err);
}

int chat_template_open(ChatTemplate *t, const char *dir, const char *model_type, Error *err)
{
    StrBuf text = {0};
    *t = (ChatTemplate){0};
    choose_by_type(t, model_type ? model_type : "");
    int rc = chat_template_read(dir, &text, err);
    if (!rc && text.len) choose_by_markers(t, strbuf_str(&text));
    strbuf_free(&text);
    return rc;
}
