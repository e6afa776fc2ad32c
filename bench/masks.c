/*
 * masks.c: `bench masks`. See bench.h.
 *
 * A walk takes one of the tokens that may follow, any as likely as another, so it meets more states
 * than an answer of a model does, which goes on in a word or a number.
 */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "bench/bench.h"
#include "bench/json_report.h"
#include "bench/quantiles.h"
#include "kernels/philox.h"
#include "text/grammar_run.h"
#include "text/schema.h"

enum { N_WALKS = 4, MAX_WALK = 100, MAX_MASKS = N_WALKS * MAX_WALK };

/* A JSON schema with ' for ", or a pattern of whole answers. */
typedef struct {
    const char *name, *schema, *pattern;
} Form;

static const Form forms[] = {
    {"any object", .schema = "{'type':'object'}"},
    {"object of four fields",
     .schema = "{'type':'object','properties':{'name':{'type':'string'},'age':{'type':'integer',"
               "'minimum':0},'tags':{'type':'array','items':{'type':'string'}},'ok':{'type':"
               "'boolean'}},'required':['name','age','tags','ok'],'additionalProperties':false}"},
    {"one of two objects",
     .schema = "{'anyOf':[{'type':'object','properties':{'kind':{'const':'a'},'text':{'type':"
               "'string'}},'required':['kind','text']},{'type':'object','properties':{'kind':"
               "{'const':'b'},'text':{'type':'string','pattern':'^[a-z]*$'}},'required':['kind',"
               "'text']}]}"},
    {"tree of short strings",
     .schema = "{'type':'object','properties':{'v':{'type':'string','maxLength':40},'k':{'type':"
               "'array','items':{'$ref':'#'}}},'required':['v','k'],'additionalProperties':false}"},
    {"numbers within bounds",
     .schema = "{'type':'array','items':{'type':'number','minimum':-1000,'maximum':1000000}}"},
    {"dates and times",
     .schema = "{'type':'array','items':{'type':'string','format':'date-time'}}"},
    {"string of up to 200", .schema = "{'type':'string','maxLength':200}"},
    {"string of words", .schema = "{'type':'string','pattern':'^([A-Z][a-z]+ ){1,100}$'}"},
    {"one of three words", .pattern = "positive|negative|neutral"},
    {"lines", .pattern = "([^\\n]+\\n)*"},
    {"up to 250 characters", .pattern = ".{1,250}"},
    {"a link", .pattern = "(https?://)?[a-z0-9.-]+\\.[a-z]{2,}(/\\S*)?"},
    {"a query", .pattern = "SELECT [a-z_, *]+ FROM [a-z_]+( WHERE [a-z_]+ = ('[^']*'|[0-9]+))?;"},
};
enum { N_FORMS_HERE = sizeof forms / sizeof *forms };

typedef struct {
    GrammarPool *pool;
    uint64_t *mask; /* [n_words] */
    int n_vocab, n_words;
    uint64_t seed;
    uint32_t n_drawn;
    double compile_ms, us[MAX_MASKS]; /* of the form at hand */
    int n, n_untold;
} Bench;

static json_t *schema_of(const Form *f)
{
    if (!f->schema) return NULL;
    char *text = mem_strdup(f->schema);
    for (char *at = text; (at = strchr(at, '\'')); at++)
        *at = '"';
    json_t *schema = json_loads(text, 0, NULL);
    mem_free(text);
    return schema;
}

static uint32_t schema_part(GrammarBuilder *b, const json_t *schema, Error *err)
{
    SchemaCompiler *c = schema_begin(b);
    uint32_t part = schema_value(c, schema, schema, 1, "schema", err);
    schema_end(c);
    return part;
}

static Grammar *grammar_of(const Form *f, Error *err)
{
    GrammarBuilder b;
    grammar_build_begin(&b);
    json_t *schema = schema_of(f);
    uint32_t part = schema ? schema_part(&b, schema, err)
                           : grammar_pattern(&b, f->pattern, strlen(f->pattern), err);
    json_decref(schema);
    if (part) return grammar_build_end(&b, part, err);
    grammar_build_drop(&b);
    return NULL;
}

/* One of the ids in the mask; -1: there is none. */
static int32_t pick(Bench *b)
{
    int64_t n = 0;
    for (int i = 0; i < b->n_words; i++)
        n += __builtin_popcountll(b->mask[i]);
    if (!n) return -1;
    int64_t left = philox_word(b->seed, b->n_drawn++, 0, 0) % n;
    int i = 0;
    for (; left >= __builtin_popcountll(b->mask[i]); i++)
        left -= __builtin_popcountll(b->mask[i]);
    uint64_t word = b->mask[i];
    for (; left; left--)
        word &= word - 1;
    return i * 64 + __builtin_ctzll(word);
}

static void walk(Bench *b, const Grammar *g)
{
    GrammarAnswer a = {.grammar = g, .pool = b->pool};
    Constraint c = grammar_constraint(&a);
    c.begin(&a, 0);
    for (int i = 0; i < MAX_WALK; i++) {
        double begun = clock_ms();
        int failed = c.allowed(&a, 0, b->mask);
        b->us[b->n++] = (clock_ms() - begun) * 1e3;
        b->n_untold += failed != 0;
        int32_t id = failed ? -1 : pick(b);
        if (id < 0 || c.step(&a, 0, id, 0)) return;
    }
}

static double mean_of(const Bench *b)
{
    double sum = 0;
    for (int i = 0; i < b->n; i++)
        sum += b->us[i];
    return sum / b->n;
}

static json_t *row_of(const Bench *b, const Form *f)
{
    return json_pack("{s:s, s:o*, s:s*, s:f, s:i, s:i, s:f, s:f, s:f, s:f}", "form", f->name,
                     "schema", schema_of(f), "pattern", f->pattern, "compile_ms", b->compile_ms,
                     "masks", b->n, "not_told", b->n_untold, "mean_us", mean_of(b), "p50_us",
                     quantile(b->us, b->n, 0.5), "p90_us", quantile(b->us, b->n, 0.9), "max_us",
                     b->us[b->n - 1]);
}

static void print_row(const Bench *b, const Form *f)
{
    printf("%-22s %8.1f %6d %9d %9.1f %9.1f %9.1f %9.1f\n", f->name, b->compile_ms, b->n,
           b->n_untold, mean_of(b), quantile(b->us, b->n, 0.5), quantile(b->us, b->n, 0.9),
           b->us[b->n - 1]);
}

static int measure(Bench *b, const Form *f, Error *err)
{
    double begun = clock_ms();
    Grammar *g = grammar_of(f, err);
    if (!g) return -1;
    b->compile_ms = clock_ms() - begun;
    b->n = b->n_untold = 0;
    for (int i = 0; i < N_WALKS; i++)
        walk(b, g);
    grammar_free(g);
    quantile_sort(b->us, b->n);
    return 0;
}

static int report(Bench *b, const Service *s, Error *err)
{
    int json = s->settings->json, failed = 0;
    json_t *rows = json_array();
    if (!json)
        printf("%d tokens; %d walks of up to %d each; to compile, ms; a mask, us\n"
               "%-22s %8s %6s %9s %9s %9s %9s %9s\n",
               b->n_vocab, N_WALKS, MAX_WALK, "form", "compile", "masks", "not told", "mean", "p50",
               "p90", "max");
    for (int i = 0; i < N_FORMS_HERE && !failed; i++) {
        failed = measure(b, &forms[i], err);
        if (!failed && json) json_array_append_new(rows, row_of(b, &forms[i]));
        if (!failed && !json) print_row(b, &forms[i]);
    }
    if (json && !failed) {
        json_t *all = json_pack("{s:i, s:O}", "tokens", b->n_vocab, "rows", rows);
        json_report_print(all);
    }
    json_decref(rows);
    return failed;
}

int bench_masks_run(const Service *s, Error *err)
{
    Bench *b = mem_alloc(1, sizeof *b);
    int n = tokenizer_size(s->tok);
    GrammarVocab *vocab = grammar_vocab_open(s->tok, n, NULL, 0);
    b->n_vocab = n;
    b->n_words = (n + 63) / 64;
    b->seed = s->settings->seed > 0 ? (uint64_t)s->settings->seed : 1;
    b->mask = mem_alloc((size_t)b->n_words, sizeof *b->mask);
    b->pool = grammar_pool_open(vocab, 1, 1, err);
    int failed = b->pool ? report(b, s, err) : -1;
    grammar_pool_close(b->pool);
    grammar_vocab_close(vocab);
    mem_free(b->mask);
    mem_free(b);
    return failed;
}
