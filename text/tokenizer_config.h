/*
 * tokenizer_config.h: what a model's folder says about its tokenizer to other programs.
 *
 * Nothing here changes how we tokenise or render: these are strings that clients ask for, to do the
 * same on their side. The end token ends our answers, too (main.c).
 */
#ifndef OFFSHOOT_TEXT_TOKENIZER_CONFIG_H
#define OFFSHOOT_TEXT_TOKENIZER_CONFIG_H

#include "base/error.h"

/* NULL where the files say nothing. */
typedef struct {
    char *eos, *bos, *pad; /* tokens by their text */
    char *class_name;
    char *chat_template; /* Jinja */
} TokenizerConfig;

/* Reads dir's tokenizer_config.json and its template (chat.h); either may be missing. */
int tokenizer_config_open(TokenizerConfig *c, const char *dir, Error *err);
void tokenizer_config_close(TokenizerConfig *c);

#endif
