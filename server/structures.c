/*
 * structures.c: see structures.h.
 */
#include "server/structures.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/strbuf.h"
#include "text/call_grammar.h"

enum { MAX_KEPT = 128, MAX_KEPT_BYTES = 64 << 20 };

typedef struct {
    StrBuf text;      /* of who asked */
    Grammar *grammar; /* NULL: free */
    uint64_t used;
} Kept;

struct Structures {
    const Service *service;
    const ModelConfig *config;
    int max_seqs;
    pthread_mutex_t lock; /* of what is kept and of who holds it */
    pthread_mutex_t opening;
    Kept kept[MAX_KEPT];
    uint64_t n_used;
    size_t bytes;
    GrammarVocab *vocab; /* NULL until a grammar is asked for */
    GrammarPool *pool;
};

Structures *structures_open(const Service *service, const ModelConfig *config, int max_seqs)
{
    Structures *s = mem_alloc(1, sizeof *s);
    s->service = service;
    s->config = config;
    s->max_seqs = max_seqs;
    pthread_mutex_init(&s->lock, NULL);
    pthread_mutex_init(&s->opening, NULL);
    return s;
}

/* One holder less; the last one frees it. */
static void let_go(const Grammar *g)
{
    Grammar *ours = (Grammar *)g;
    if (--ours->holders == 0) grammar_free(ours);
}

static void drop(Structures *s, Kept *k)
{
    s->bytes -= k->grammar->bytes + k->text.len;
    let_go(k->grammar);
    strbuf_free(&k->text);
    *k = (Kept){0};
}

void structures_close(Structures *s)
{
    if (!s) return;
    for (int i = 0; i < MAX_KEPT; i++)
        if (s->kept[i].grammar) drop(s, &s->kept[i]);
    grammar_pool_close(s->pool);
    grammar_vocab_close(s->vocab);
    pthread_mutex_destroy(&s->lock);
    pthread_mutex_destroy(&s->opening);
    mem_free(s);
}

/* ---- what is asked for ---- */

static void add_json(StrBuf *text, const char *name, const json_t *value)
{
    if (!value) return;
    char *dumped = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
    strbuf_printf(text, "%s %s\n", name, dumped ? dumped : "");
    free(dumped);
}

/* The tools that the answer may call. */
static const json_t *callable(const ApiRequest *api)
{
    if (api->forced) return api->forced;
    return api->allowed_tools ? api->allowed_tools : api->tools;
}

/* 1: more calls may follow the first. Who names a function wants that one call. */
static int is_parallel(const ApiRequest *api)
{
    return api->parallel_calls && !api->names_tool;
}

StructureAsk structures_ask(const ApiRequest *api, int starts_in_think)
{
    StrBuf text = {0};
    int has_tools = api->parse_calls || api->forced;
    strbuf_printf(&text, "%d %d %d %d %d\n", (int)api->structure.kind, api->structure.strict,
                  is_parallel(api), api->parse_calls, starts_in_think);
    add_json(&text, "value", api->structure.value);
    add_json(&text, "forced", api->forced);
    add_json(&text, "tools", has_tools && !api->forced ? callable(api) : NULL);
    return (StructureAsk){api, starts_in_think, text};
}

/* ---- what was compiled ---- */

static int is_asked(const Kept *k, const StructureAsk *ask)
{
    return k->grammar && k->text.len == ask->text.len &&
           !memcmp(k->text.data, ask->text.data, k->text.len);
}

static const Grammar *find(Structures *s, const StructureAsk *ask)
{
    for (int i = 0; i < MAX_KEPT; i++) {
        Kept *k = &s->kept[i];
        if (!is_asked(k, ask)) continue;
        k->used = ++s->n_used;
        k->grammar->holders++;
        return k->grammar;
    }
    return NULL;
}

const Grammar *structures_find(Structures *s, const StructureAsk *ask)
{
    pthread_mutex_lock(&s->lock);
    const Grammar *g = find(s, ask);
    pthread_mutex_unlock(&s->lock);
    return g;
}

/* The place that is free, or was used longest ago; in_use: of those that hold one. */
static Kept *oldest(Structures *s, int in_use)
{
    Kept *old = NULL;
    for (int i = 0; i < MAX_KEPT; i++) {
        Kept *k = &s->kept[i];
        if (in_use && !k->grammar) continue;
        if (!old || k->used < old->used) old = k;
    }
    assert(old);
    return old;
}

/* Those used longest ago make room. */
static void keep(Structures *s, const StructureAsk *ask, Grammar *g)
{
    size_t bytes = g->bytes + ask->text.len;
    if (bytes > MAX_KEPT_BYTES) return;
    while (s->bytes + bytes > MAX_KEPT_BYTES)
        drop(s, oldest(s, 1));
    Kept *k = oldest(s, 0);
    if (k->grammar) drop(s, k);
    *k = (Kept){.grammar = g, .used = ++s->n_used};
    strbuf_add(&k->text, ask->text.data, ask->text.len);
    g->holders++;
    s->bytes += bytes;
}

void structures_release(Structures *s, const Grammar *g)
{
    if (!g) return;
    pthread_mutex_lock(&s->lock);
    let_go(g);
    pthread_mutex_unlock(&s->lock);
}

GrammarPool *structures_pool(Structures *s)
{
    return s->pool;
}

/* ---- compiling ---- */

static uint32_t choice_part(GrammarBuilder *b, const json_t *list)
{
    size_t n = json_array_size(list);
    GrammarWord *word = mem_alloc(n, sizeof *word);
    for (size_t i = 0; i < n; i++) {
        const json_t *one = json_array_get(list, i);
        word[i] = (GrammarWord){.text = json_string_value(one), .len = json_string_length(one)};
    }
    uint32_t part = grammar_words(b, word, (int)n);
    mem_free(word);
    return part;
}

static uint32_t pattern_part(GrammarBuilder *b, const ApiStructure *a, Error *err)
{
    Error why = {0};
    uint32_t part =
        grammar_pattern(b, json_string_value(a->value), json_string_length(a->value), &why);
    if (part) return part;
    error_set(err, why.code, "%s: %s", a->field, why.msg);
    return 0;
}

static uint32_t text_part(SchemaCompiler *c, GrammarBuilder *b, const ApiStructure *a, Error *err)
{
    switch (a->kind) {
    case STRUCTURE_OBJECT:
        return schema_any_object(c);
    case STRUCTURE_SCHEMA:
        return schema_value(c, a->value, a->value, a->strict, a->field, err);
    case STRUCTURE_CHOICE:
        return choice_part(b, a->value);
    case STRUCTURE_PATTERN:
        return pattern_part(b, a, err);
    case STRUCTURE_FREE:
        break;
    }
    return 0;
}

/* Where the text has a form and tools may be called, a call is the other way to answer. */
static uint32_t whole_part(const Structures *s, SchemaCompiler *c, GrammarBuilder *b,
                           const ApiRequest *api, Error *err)
{
    int has_text = api->structure.kind != STRUCTURE_FREE;
    CallGrammar calls = {.tools = callable(api),
                         .parallel = is_parallel(api),
                         .forced = api->forced || has_text,
                         .follow = api->forced != NULL,
                         .family = s->service->tmpl.family,
                         .tok = s->service->tok};
    uint32_t way[2] = {0};
    if (has_text) way[0] = text_part(c, b, &api->structure, err);
    if (has_text && (err->code || !api->parse_calls)) return way[0];
    way[1] = call_grammar(c, b, &calls, err);
    return has_text && way[1] ? grammar_any_of(b, way, 2) : way[1];
}

static Grammar *compile(const Structures *s, const StructureAsk *ask, Error *err)
{
    GrammarBuilder b;
    if (!s->config->n_eos) { /* where nothing else may come, nothing could */
        error_set(err, ERR_INPUT,
                  "the model's files name no end token, so an answer of a form could not end");
        return NULL;
    }
    grammar_build_begin(&b);
    SchemaCompiler *c = schema_begin(&b);
    uint32_t part = whole_part(s, c, &b, ask->api, err);
    if (!err->code && ask->starts_in_think)
        part = grammar_behind_thinking(&b, s->service->tok, part);
    schema_end(c);
    if (!err->code) return grammar_build_end(&b, part, err);
    grammar_build_drop(&b);
    return NULL;
}

/* The vocabulary in order and the pool, once. It takes long; who looks for a grammar need not wait.
 */
static int prepare(Structures *s, Error *err)
{
    const ModelConfig *c = s->config;
    pthread_mutex_lock(&s->opening);
    if (!s->vocab) s->vocab = grammar_vocab_open(s->service->tok, c->n_vocab, c->eos, c->n_eos);
    if (!s->pool) s->pool = grammar_pool_open(s->vocab, s->max_seqs, MAX_TREE_NODES, err);
    int rc = s->pool ? 0 : -1;
    pthread_mutex_unlock(&s->opening);
    return rc;
}

static const char *param_of(const ApiRequest *api)
{
    return api->structure.kind != STRUCTURE_FREE ? api->structure.param : "tools";
}

const Grammar *structures_compile(Structures *s, const StructureAsk *ask, ApiError *err)
{
    Grammar *g = compile(s, ask, &err->error);
    if (!g) {
        err->code = "invalid_schema";
        err->error.code = ERR_INPUT;
        api_in_field(err, param_of(ask->api));
        return NULL;
    }
    g->holders = 1;
    if (prepare(s, &err->error)) {
        let_go(g);
        return NULL;
    }
    pthread_mutex_lock(&s->lock);
    keep(s, ask, g);
    pthread_mutex_unlock(&s->lock);
    return g;
}
