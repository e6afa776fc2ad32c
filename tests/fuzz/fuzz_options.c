/*
 * fuzz_options.c: a config file, for each command that takes one, and the same lines as words.
 *
 * Input: the file.
 */
#include "tests/fuzz/fuzz.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "server/settings.h"

enum { MAX_WORDS = 64 };

/* What main.c relies on; a value out of the table's range must not get through. */
static void check_settings(const Settings *s)
{
    FUZZ_CHECK(s->port >= 0 && s->port <= 65535);
    FUZZ_CHECK(s->max_seqs >= 1 && s->tree_nodes >= 1 && s->ctx_size >= 0 && s->memory >= 0);
    FUZZ_CHECK(s->draft == DRAFT_MTP || s->draft == DRAFT_NONE);
    FUZZ_CHECK(s->thinking >= AUTO && s->thinking <= OFF);
    FUZZ_CHECK(s->raw == 0 || s->raw == 1);
    FUZZ_CHECK(isnan(s->temperature) || (s->temperature >= 0 && s->temperature <= 100));
    if (s->model) FUZZ_CHECK(strlen(s->model) < 1 << 20);
}

static void parse(unsigned command, int argc, char **argv)
{
    Settings s;
    Error err = {0};
    const char *rest[MAX_WORDS + 1];
    int n_rest = 0;
    int rc = settings_parse(&s, command, argc, argv, rest, &n_rest, &err);
    FUZZ_CHECK(!rc || *err.msg);
    FUZZ_CHECK(n_rest >= 0 && n_rest <= argc);
    if (!rc) check_settings(&s);
    options_free();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char config[] = "--config=" FUZZ_DIR "/x.conf", *file[] = {config}, *word[MAX_WORDS];
    char *text = malloc(size + 1), *rest = NULL;
    int n = 0;
    FUZZ_CHECK(text);
    memcpy(text, data, size);
    text[size] = 0;
    for (char *w = strtok_r(text, "\n", &rest); w && n < MAX_WORDS; w = strtok_r(NULL, "\n", &rest))
        word[n++] = w;
    fuzz_file("x.conf", data, size);
    for (unsigned command = COMMAND_SERVE; command < COMMANDS_END; command *= 2) {
        parse(command, 1, file);
        parse(command, n, word);
    }
    free(text);
    fuzz_files_clear();
    return 0;
}
