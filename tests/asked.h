/*
 * asked.h: questions to an engine on the demonstration model, and what came back.
 */
#ifndef OFFSHOOT_TESTS_ASKED_H
#define OFFSHOOT_TESTS_ASKED_H

#include <jansson.h>

#include "engine/engine.h"
#include "engine/model.h"

enum { MAX_PROMPT = 4096, MAX_ANSWER = 256 };

/* From asked_open_demo to asked_close_demo, cmocka's group functions. */
extern Backend *asked_backend;
extern Model *asked_model;
extern json_t *asked_references; /* of models/demo/reference.jsonl */

int asked_open_demo(void **state);
int asked_close_demo(void **state);

/* What came out of one request. */
typedef struct {
    int32_t token[MAX_ANSWER];
    int drafted[MAX_ANSWER];
    float logprob[MAX_ANSWER];
    int n, n_prompt_events, n_done;
    double prompt_logprob; /* sum */
    Event done;
} AskedAnswer;

/* An engine with the MTP drafter when o.tree_nodes > 1 and no other is given. */
typedef struct {
    Drafter drafter;
    Engine *engine;
} AskedEngine;

void asked_open(AskedEngine *s, EngineOptions o);
void asked_close(AskedEngine *s);

/* 4 sequences of up to 2,048 tokens, and trees of this shape. */
EngineOptions asked_options(int nodes, int depth, int topk);

/* A list of ids, at most max; returns how many. */
int asked_load_ids(const json_t *list, int32_t *id, int max);

/* A greedy request without drafting limits. */
EngineRequest asked_greedy(uint64_t id, const int32_t *prompt, int n, int max_tokens);

void asked_submit(Engine *e, const EngineRequest *r);

/* Adds an event to the answer it belongs to. */
void asked_take(AskedAnswer *a, const Event *ev);

/* n steps, or as many as n requests with ids 1..n need; answers by id - 1. */
void asked_steps(Engine *e, AskedAnswer *a, int n);
void asked_run(Engine *e, AskedAnswer *a, int n);

/* Nothing runs and the pools are whole. */
void asked_expect_idle(Engine *e);

#endif
