/*
 * forms.h: answers that must be JSON, for questions to an engine without a server.
 */
#ifndef OFFSHOOT_BENCH_FORMS_H
#define OFFSHOOT_BENCH_FORMS_H

#include "engine/config.h"
#include "text/grammar_run.h"

typedef struct Forms Forms;

/* For at most n_answers of them, among n_seqs sequences. tok and config must outlive it. */
Forms *forms_open(const Tokenizer *tok, const ModelConfig *config, int n_answers, int n_seqs,
                  Error *err);
void forms_close(Forms *f);

/* One more answer's constraint: any JSON object. */
Constraint forms_object(Forms *f);

#endif
