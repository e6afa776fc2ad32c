/* textdata.c: see textdata.h. */
#include "tests/textdata.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"

static void fail_to(const char *verb, const char *path)
{
    fprintf(stderr, "cannot %s '%s'; tests run from the root of the repository\n", verb, path);
    exit(2);
}

json_t *read_json_lines(const char *path)
{
    FILE *file = fopen(path, "r");
    if (!file) fail_to("open", path);
    json_t *lines = json_array();
    char *line = NULL;
    size_t cap = 0;
    while (getline(&line, &cap, file) > 0) {
        json_error_t je;
        json_t *value = json_loads(line, JSON_ALLOW_NUL, &je);
        if (!value) fail_to("parse", path);
        json_array_append_new(lines, value);
    }
    free(line);
    fclose(file);
    return lines;
}

char *with_quotes(char *text)
{
    for (char *at = strchr(text, '\''); at; at = strchr(at, '\''))
        *at = '"';
    return text;
}

char *temp_path(const char *name)
{
    size_t len = strlen(name) + 40;
    char *path = mem_realloc(NULL, len, 1);
    mkdir("build", 0777);
    mkdir("build/tests", 0777);
    snprintf(path, len, "build/tests/%s-%ld", name, (long)getpid());
    return path;
}

void write_file(const char *path, const void *data, size_t len)
{
    FILE *file = fopen(path, "w");
    if (!file || fwrite(data, 1, len, file) != len || fclose(file)) fail_to("write", path);
}

Tokenizer *open_big_tokenizer(void)
{
    char command[400];
    char *path = temp_path("tokenizer.json");
    Error err = {0};
    snprintf(command, sizeof command, "xz -dc tests/data/tokenizer/tokenizer.json.xz > %s", path);
    int rc = system(command); /* NOLINT(bugprone-command-processor): a fixed command */
    Tokenizer *tok = rc ? NULL : tokenizer_open(path, &err);
    if (!tok) fprintf(stderr, "%s: %s\n", command, err.msg);
    unlink(path);
    mem_free(path);
    return tok;
}

const NamedTemplate named_templates[N_TEMPLATES] = {
    {"q35", {CHAT_QWEN35, .thinking_default = 1, .known = 1}, -1},
    {"q35off", {CHAT_QWEN35, .known = 1}, -1},
    {"q36", {CHAT_QWEN35, .thinking_default = 1, .scalars_as_json = 1, .known = 1}, -1},
    {"q36keep",
     {CHAT_QWEN35, .thinking_default = 1, .scalars_as_json = 1, .can_keep_thinking = 1, .known = 1},
     1},
    {"q38", {CHAT_QWEN38, .thinking_default = 1, .scalars_as_json = 1, .known = 1}, -1},
    {"q38max",
     {CHAT_QWEN38, .thinking_default = 1, .scalars_as_json = 1, .always_thinks = 1, .known = 1},
     -1},
    {"next", {CHAT_QWEN3_NEXT, .known = 1}, -1},
    {"think", {CHAT_QWEN3_NEXT_THINKING, .thinking_default = 1, .known = 1}, -1},
    {"coder", {CHAT_QWEN3_CODER, .scalars_as_json = 1, .known = 1}, -1},
};

int32_t byte_token(const Tokenizer *tok, unsigned char byte)
{
    for (int32_t id = 0; id < tokenizer_size(tok); id++) {
        size_t len;
        const char *bytes = tokenizer_bytes(tok, id, &len);
        if (len == 1 && (unsigned char)bytes[0] == byte) return id;
    }
    return -1;
}

Tokenizer *open_demo_tokenizer(int32_t token_of[256])
{
    Error err = {0};
    Tokenizer *demo = tokenizer_open("models/demo/tokenizer.json", &err);
    if (!demo) fprintf(stderr, "%s\n", err.msg);
    for (int b = 0; demo && b < 256; b++)
        token_of[b] = byte_token(demo, (unsigned char)b);
    return demo;
}

uint64_t random_next(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 0x2545F4914F6CDD1Du;
}
