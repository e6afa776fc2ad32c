/*
 * structures.h: the grammars of answers that must have a form, compiled once and shared.
 *
 * Requests are read on two threads, grammars made on a third: all of this may be called from any.
 */
#ifndef OFFSHOOT_SERVER_STRUCTURES_H
#define OFFSHOOT_SERVER_STRUCTURES_H

#include "server/api_request.h"
#include "server/service.h"
#include "text/grammar_run.h"

typedef struct Structures Structures;

/*
 * service and config must outlive it. max_seqs: as the engine's. What takes memory is taken when
 * the first grammar is asked for.
 */
Structures *structures_open(const Service *service, const ModelConfig *config, int max_seqs);
void structures_close(Structures *s);

/* What a grammar is made of. */
typedef struct {
    const ApiRequest *api;
    int starts_in_think; /* reasoning comes first, which is free */
    StrBuf text;         /* all that it depends on; to be freed */
} StructureAsk;

/* api must have a grammar and stay. */
StructureAsk structures_ask(const ApiRequest *api, int starts_in_think);

/* The grammar, to be given back by structures_release, or NULL: it is not there. */
const Grammar *structures_find(Structures *s, const StructureAsk *ask);

/* The same, compiled, which may take half a second. NULL and an error that names the part. */
const Grammar *structures_compile(Structures *s, const StructureAsk *ask, ApiError *err);

/* NULL is fine. */
void structures_release(Structures *s, const Grammar *g);

/* Room for the states of those who run. There once a grammar is. */
GrammarPool *structures_pool(Structures *s);

#endif
