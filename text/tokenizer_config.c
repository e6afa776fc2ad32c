/* tokenizer_config.c: see tokenizer_config.h. */
#include "text/tokenizer_config.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "text/chat.h"

static const size_t MAX_CONFIG_BYTES = 16u << 20;

/* A token is a string, or an object that says more of it. */
static char *get_text(const json_t *root, const char *key)
{
    const json_t *value = json_object_get(root, key);
    if (json_is_object(value)) value = json_object_get(value, "content");
    return json_is_string(value) ? mem_strdup(json_string_value(value)) : NULL;
}

int tokenizer_config_open(TokenizerConfig *c, const char *dir, Error *err)
{
    static const char name[] = "tokenizer_config.json";
    StrBuf text = {0};
    char *path = path_join(dir, name);
    json_t *root = NULL;
    int rc = 0;
    *c = (TokenizerConfig){0};
    if (file_is_in(dir, name)) {
        root = json_read_file(path, MAX_CONFIG_BYTES, err);
        if (!root) rc = -1;
    }
    if (!rc) rc = chat_template_read(dir, &text, err);
    if (!rc) {
        *c = (TokenizerConfig){.eos = get_text(root, "eos_token"),
                               .bos = get_text(root, "bos_token"),
                               .pad = get_text(root, "pad_token"),
                               .class_name = get_text(root, "tokenizer_class"),
                               .chat_template = text.len ? mem_strdup(text.data) : NULL};
    }
    strbuf_free(&text);
    json_decref(root);
    mem_free(path);
    return rc;
}

void tokenizer_config_close(TokenizerConfig *c)
{
    mem_free(c->eos);
    mem_free(c->bos);
    mem_free(c->pad);
    mem_free(c->class_name);
    mem_free(c->chat_template);
    *c = (TokenizerConfig){0};
}
