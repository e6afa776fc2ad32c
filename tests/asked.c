/* asked.c: see asked.h. */
#include "tests/asked.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "drafts/mtp.h"
#include "tests/analyzer.h"

#ifdef __SANITIZE_THREAD__
enum { N_THREADS = 2 };
#else
enum { N_THREADS = 1 };
#endif

Backend *asked_backend;
Model *asked_model;
json_t *asked_references;

int asked_open_demo(void **state)
{
    (void)state;
    Error err = {0};
    asked_backend = backend_cpu_open(N_THREADS, NULL, 4096, &err);
    asked_model = asked_backend ? model_open("models/demo", NULL, asked_backend, &err) : NULL;
    if (!asked_model) {
        fprintf(stderr, "%s\n", err.msg);
        return -1;
    }
    asked_references = json_array();
    static char line[1 << 18];
    FILE *f = fopen("models/demo/reference.jsonl", "r");
    while (f && fgets(line, sizeof line, f))
        json_array_append_new(asked_references, json_loads(line, 0, NULL));
    if (f) fclose(f);
    return json_array_size(asked_references) > 0 ? 0 : -1;
}

int asked_close_demo(void **state)
{
    (void)state;
    json_decref(asked_references);
    model_close(asked_model);
    asked_backend->close(asked_backend);
    return 0;
}

void asked_open(AskedEngine *s, EngineOptions o)
{
    Error err = {0};
    memset(s, 0, sizeof *s);
    if (o.tree_nodes > 1 && !o.drafter) {
        if (mtp_drafter_open(asked_model, &s->drafter, &err)) fail_msg("%s", err.msg);
        o.drafter = &s->drafter;
    }
    s->engine = engine_open(asked_model, &o, &err);
    if (!s->engine) fail_msg("%s", err.msg);
}

void asked_close(AskedEngine *s)
{
    engine_close(s->engine);
    if (s->drafter.self) s->drafter.close(s->drafter.self);
}

EngineOptions asked_options(int nodes, int depth, int topk)
{
    EngineOptions o = engine_defaults();
    o.ctx_size = 2048;
    o.max_seqs = 4;
    o.tree_nodes = nodes;
    o.draft_depth = depth;
    o.draft_topk = topk;
    return o;
}

int asked_load_ids(const json_t *list, int32_t *id, int max)
{
    int n = (int)json_array_size(list);
    assert_true(n <= max);
    for (int i = 0; i < n; i++)
        id[i] = (int32_t)json_integer_value(json_array_get(list, (size_t)i));
    return n;
}

EngineRequest asked_greedy(uint64_t id, const int32_t *prompt, int n, int max_tokens)
{
    return (EngineRequest){.id = id,
                           .prompt = prompt,
                           .n_prompt = n,
                           .max_tokens = max_tokens,
                           .params = {.top_p = 1, .repetition = 1},
                           .n_logprobs = -1,
                           .draft_max = -1};
}

void asked_take(AskedAnswer *a, const Event *ev)
{
    if (ev->type == EVENT_TOKEN) {
        assert_true(a->n < MAX_ANSWER);
        a->token[a->n] = ev->token;
        a->drafted[a->n] = ev->drafted;
        a->logprob[a->n++] = ev->logprob;
    } else if (ev->type == EVENT_PROMPT) {
        assert_int_equal(ev->pos, a->n_prompt_events);
        if (a->n_prompt_events++) a->prompt_logprob += (double)ev->logprob;
    } else {
        a->done = *ev;
        a->n_done++;
    }
}

void asked_run(Engine *e, AskedAnswer *a, int n)
{
    Error err;
    for (int done = 0; done < n;) {
        int ran = engine_step(e, &err);
        if (ran < 0) fail_msg("%s", err.msg);
        int n_events = 0;
        for (const Event *ev; (ev = engine_next_event(e)); n_events++) {
            asked_take(&a[ev->id - 1], ev);
            done += ev->type == EVENT_DONE;
        }
        if (ran == 0 && n_events == 0) fail_msg("nothing runs, %d of %d done", done, n);
    }
}

void asked_steps(Engine *e, AskedAnswer *a, int n)
{
    Error err;
    for (int i = 0; i < n; i++) {
        assert_true(engine_step(e, &err) >= 0);
        for (const Event *ev; (ev = engine_next_event(e));)
            asked_take(&a[ev->id - 1], ev);
    }
}

void asked_submit(Engine *e, const EngineRequest *r)
{
    Error err;
    if (engine_submit(e, r, &err)) fail_msg("%s", err.msg);
}

void asked_expect_idle(Engine *e)
{
    EngineStatus s;
    engine_status(e, &s);
    assert_int_equal(s.running, 0);
    assert_int_equal(s.waiting, 0);
    assert_int_equal(s.slots_free, s.slots);
    assert_int_equal(s.pages_free, s.pages);
}
