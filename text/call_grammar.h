/*
 * call_grammar.h: answers that are tool calls, and how an answer's grammar begins and ends.
 */
#ifndef OFFSHOOT_TEXT_CALL_GRAMMAR_H
#define OFFSHOOT_TEXT_CALL_GRAMMAR_H

#include "text/chat.h"
#include "text/schema.h"

typedef struct {
    const json_t *tools; /* as chat_render's: those that may be called */
    int parallel;        /* 1: more calls may follow the first */
    int forced;          /* 0: calls may come anywhere in the answer, or none */
    int follow;          /* 1: the schemas of all of them, not of strict ones alone */
    ChatFamily family;
    const Tokenizer *tok;
} CallGrammar;

/*
 * The part that is the calls; 0 and an Error that names the tool. In the XML form a parameter's
 * text is one that is read back as a value of its schema (schema_text). What of a schema cannot be
 * followed is an error where the tool is strict; elsewhere such a parameter is free.
 */
uint32_t call_grammar(SchemaCompiler *c, GrammarBuilder *b, const CallGrammar *o, Error *err);

/* The same part behind reasoning, which is free: up to </think>, and at most two newlines. */
uint32_t grammar_behind_thinking(GrammarBuilder *b, const Tokenizer *tok, uint32_t part);

#endif
