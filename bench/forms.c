/* forms.c: see forms.h. */
#include "bench/forms.h"

#include <assert.h>

#include "base/mem.h"
#include "spec/tree.h"
#include "text/schema.h"

struct Forms {
    Grammar *object;
    GrammarVocab *vocab;
    GrammarPool *pool;
    GrammarAnswer *answer; /* [max] */
    int n, max;
};

static Grammar *object_grammar(Error *err)
{
    GrammarBuilder b;
    grammar_build_begin(&b);
    SchemaCompiler *c = schema_begin(&b);
    uint32_t part = schema_any_object(c);
    schema_end(c);
    return grammar_build_end(&b, part, err);
}

Forms *forms_open(const Tokenizer *tok, const ModelConfig *config, int n_answers, int n_seqs,
                  Error *err)
{
    Forms *f = mem_alloc(1, sizeof *f);
    *f = (Forms){.max = n_answers};
    f->object = object_grammar(err);
    f->answer = mem_alloc((size_t)n_answers, sizeof *f->answer);
    f->vocab = grammar_vocab_open(tok, config->n_vocab, config->eos, config->n_eos);
    if (f->object) f->pool = grammar_pool_open(f->vocab, n_seqs, MAX_TREE_NODES, err);
    if (f->pool) return f;
    forms_close(f);
    return NULL;
}

void forms_close(Forms *f)
{
    if (!f) return;
    grammar_pool_close(f->pool);
    grammar_vocab_close(f->vocab);
    grammar_free(f->object);
    mem_free(f->answer);
    mem_free(f);
}

Constraint forms_object(Forms *f)
{
    assert(f->n < f->max);
    GrammarAnswer *a = &f->answer[f->n++];
    *a = (GrammarAnswer){.grammar = f->object, .pool = f->pool};
    return grammar_constraint(a);
}
