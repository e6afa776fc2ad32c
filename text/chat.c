/* chat.c: see chat.h. Which template a model has; rendering is in chat_template.c. */
#include "text/chat.h"

#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/mem.h"

/* tokenizer_config.json lists the added tokens; a few hundred KiB at most. A template has ten. */
static const size_t MAX_CONFIG_BYTES = 16u << 20;

/*
 * The published texts, which we render byte for byte, whatever ends their lines. Of what follows
 * the last, Jinja drops one newline behind a block and one at the end, and writes the rest. Known
 * by their hashes: who changes a few words of one mostly keeps all that it is told by. Sources, and
 * SHA-256 of each: tests/data/chat/SOURCES.md.
 */
static int is_published(const char *text, size_t len)
{
    static const Hash published[] = {
        {0x0ed0a1d8b9d7e0be, 0x427b80bb3dda26b1}, /* Qwen3.5 */
        {0xea7113e61d9a8bcf, 0xb20ce3c106c0a721}, /* its small ones, which think if asked to */
        {0x579b2c2e5ecdae85, 0x572380022568fa7b}, /* Qwen3.6 */
        {0xb488fed7dae5f0ed, 0xcb9dfc65c3b50c42}, /* Qwen3.8 */
        {0x8fb5d937b1e8f5d0, 0xcc9ddd5a40bc1c0c}, /* Qwen3-Next-Instruct */
        {0xbdee364f122d2352, 0xcb53a145cfc5e326}, /* Qwen3-Next-Thinking */
        {0x22191513bdf48d1e, 0xa99551776511a64f}, /* Qwen3-Coder-Next */
    };
    StrBuf plain = {0};
    int found = 0;
    for (size_t i = 0; i < len; i++)
        if (text[i] != '\r' || i + 1 == len || text[i + 1] != '\n') strbuf_add(&plain, text + i, 1);
    for (int i = 0; i < 2 && plain.len && plain.data[plain.len - 1] == '\n'; i++)
        plain.len--;
    Hash hash = hash_key(strbuf_str(&plain), plain.len, 0);
    for (size_t i = 0; i < sizeof published / sizeof *published; i++)
        found |= hash_equal(hash, published[i]);
    strbuf_free(&plain);
    return found;
}

static void choose_by_type(ChatTemplate *t, const char *model_type)
{
    int is_next = !strncmp(model_type, "qwen3_next", 10);
    t->family = is_next ? CHAT_QWEN3_NEXT : CHAT_QWEN35;
    t->thinking_default = !is_next;
    t->known = is_next || !strncmp(model_type, "qwen3_5", 7);
}

/* Whether an answer begins within a thought, which the prompt has opened. */
static int opens_thought(const char *text)
{
    const char *tail = NULL, *at = text;
    while ((at = strstr(at, "add_generation_prompt")))
        tail = at++;
    return tail && strstr(tail, "<think>") && !strstr(tail, "</think>");
}

/*
 * Calls as XML: Qwen3.5 and later, or without a switch Qwen3-Coder-Next. A Qwen3.5 whose switch
 * somebody took out still lists its tools as JSON.
 */
static void choose_xml(ChatTemplate *t, const char *text, int is_qwen35)
{
    int has_switch = strstr(text, "enable_thinking") != NULL,
        has_effort = strstr(text, "reasoning_effort") != NULL,
        tools_are_xml = strstr(text, "<name>") != NULL;
    t->scalars_as_json = strstr(text, "if args_value is string else") != NULL;
    t->can_keep_thinking =
        strstr(text, "preserve_thinking is defined and preserve_thinking is true") != NULL;
    t->always_thinks = strstr(text, "Disabling thinking is not supported") != NULL;
    t->thinking_default =
        has_switch && !strstr(text, "enable_thinking is defined and enable_thinking is true");
    if (!has_switch && (tools_are_xml || !is_qwen35)) {
        t->family = CHAT_QWEN3_CODER;
    } else {
        t->family = has_effort ? CHAT_QWEN38 : CHAT_QWEN35;
        if (!has_switch) t->thinking_default = opens_thought(text);
    }
}

/* Calls as JSON: Qwen3-Next. The Qwen3 that thinks by switch is alike, and no family of ours. */
static void choose_json(ChatTemplate *t, const char *text)
{
    /* In the file the newlines of a Jinja string are a backslash and an n, or real ones. */
    int thinks = strstr(text, "<|im_start|>assistant\\n<think>") != NULL ||
                 strstr(text, "<|im_start|>assistant\n<think>") != NULL;
    if (strstr(text, "enable_thinking")) return;
    t->family = thinks ? CHAT_QWEN3_NEXT_THINKING : CHAT_QWEN3_NEXT;
    t->thinking_default = thinks;
}

/*
 * A template's family is told by what it says to the model: how to write a call, how to think. Of
 * one that is not published that is the nearest.
 */
static void choose_by_markers(ChatTemplate *t, const char *text, size_t len)
{
    int is_qwen35 = t->family == CHAT_QWEN35 && t->known; /* by its type */
    t->known = is_published(text, len);
    if (strstr(text, "<function=example_function_name>"))
        choose_xml(t, text, is_qwen35);
    else if (strstr(text, "\"name\": <function-name>") ||
             strstr(text, "\\\"name\\\": <function-name>"))
        choose_json(t, text);
}

/* Reads dir/chat_template.jinja into *text; leaves it empty when there is no such file. */
static int read_template(const char *dir, StrBuf *text, Error *err)
{
    static const char name[] = "chat_template.jinja";
    char *path = path_join(dir, name);
    MappedFile file;
    int rc = 0;
    if (file_is_in(dir, name)) {
        rc = mapped_file_open_up_to(&file, path, MAX_CONFIG_BYTES, err);
        if (!rc) strbuf_add(text, (const char *)file.data, file.size);
        if (!rc) mapped_file_close(&file);
    }
    mem_free(path);
    return rc;
}

/*
 * The same from a JSON file: a string, or a list of named ones of which "default" counts. *others:
 * transformers would take one by its name, which we do not: "tool_use" where there are tools.
 */
static int read_json_template(const char *dir, const char *name, StrBuf *text, int *others,
                              Error *err)
{
    char *path = path_join(dir, name);
    json_t *root = NULL, *named;
    int rc = 0;
    size_t i;
    if (file_is_in(dir, name)) {
        root = json_read_file(path, MAX_CONFIG_BYTES, err);
        if (!root) rc = -1;
    }
    const json_t *list = json_object_get(root, "chat_template"), *template = list;
    json_array_foreach(list, i, named)
    {
        const char *is = json_string_value(json_object_get(named, "name"));
        if (is && !strcmp(is, "default")) template = json_object_get(named, "template");
        if (is && !strcmp(is, "tool_use")) *others = 1;
    }
    if (json_is_array(template)) *others = 1; /* none is the default */
    if (json_is_string(template)) strbuf_puts(text, json_string_value(template));
    json_decref(root);
    mem_free(path);
    return rc;
}

static int read_templates(const char *dir, StrBuf *text, int *others, Error *err)
{
    int rc = read_template(dir, text, err);
    *others = file_is_in(dir, "additional_chat_templates/tool_use.jinja");
    /* What older programs save beside the processor of a model that sees. */
    if (!rc && !text->len) rc = read_json_template(dir, "chat_template.json", text, others, err);
    if (!rc && !text->len) rc = read_json_template(dir, "tokenizer_config.json", text, others, err);
    return rc;
}

int chat_template_read(const char *dir, StrBuf *text, Error *err)
{
    int others;
    return read_templates(dir, text, &others, err);
}

int chat_template_open(ChatTemplate *t, const char *dir, const char *model_type, Error *err)
{
    StrBuf text = {0};
    int others;
    *t = (ChatTemplate){0};
    choose_by_type(t, model_type ? model_type : "");
    int rc = read_templates(dir, &text, &others, err);
    if (!rc && text.len) choose_by_markers(t, strbuf_str(&text), text.len);
    if (others) t->known = 0;
    strbuf_free(&text);
    return rc;
}
