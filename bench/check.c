/* check.c: see check.h. */
#include "bench/check.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "bench/check_variants.h"
#include "bench/forms.h"
#include "bench/prompt_check.h"
#include "drafts/mtp.h"
#include "drafts/ngram.h"
#include "drafts/scripted.h"
#include "drafts/suffix.h"
#include "drafts/union.h"
#include "engine/engine.h"
#include "engine/memory.h"

enum { MAX_QUESTIONS = 16, DEFAULT_TOKENS = 48, MIN_CTX = 64, COMPARED_TOKENS = 150 };

typedef struct {
    EngineRequest request;
    TokenList prompt;
    int32_t *answer; /* [max_tokens], of the plain run */
    int n_answer;
    FinishReason finish;
    Script script; /* prompt and answer */
    int32_t *script_token;
} Question;

typedef struct {
    const CheckSetup *setup;
    FILE *out;
    int max_tokens, ctx_size;
    Question q[MAX_QUESTIONS];
    int n;
    int first; /* the first question that is asked */
    Forms *forms;
    int32_t stop_id;
    int n_rows; /* lines printed so far */
} Check;

/* ---- questions ---- */

static const char *const texts[] = {
    "Hello",
    "<|im_start|>user\nI want to find an Italian restaurant in San Jose<|im_end|>\n"
    "<|im_start|>assistant\n",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return fibonacci(n - 1) + ",
    "The state of a recurrent layer stands for one exact run of tokens: it cannot be cut back. "
    "A tree of guesses therefore gives every node a state of its own. ",
};

/* Tokens of text, said often enough to fill min_tokens (a prompt longer than a chunk or a tile). */
static int add_prompt(Check *c, Question *q, const char *text, int min_tokens, Error *err)
{
    do {
        if (tokenizer_encode(c->setup->tok, text, strlen(text), &q->prompt, err)) return -1;
    } while (q->prompt.n < min_tokens);
    if (q->prompt.n > c->ctx_size - c->max_tokens) q->prompt.n = c->ctx_size - c->max_tokens;
    return 0;
}

/* The request of the last question, whose prompt is there. */
static void set_request(Check *c, SampleParams p)
{
    static const int32_t bias_id[] = {3, 7};
    static const float bias[] = {-2, 1.5f};
    Question *q = &c->q[c->n - 1];
    int biased = p.temperature > 0 && p.presence != 0;
    q->request = (EngineRequest){.id = (uint64_t)c->n,
                                 .prompt = q->prompt.id,
                                 .n_prompt = q->prompt.n,
                                 .max_tokens = c->max_tokens,
                                 .params = p,
                                 .n_logprobs = -1,
                                 .ignore_eos = 1,
                                 .draft_max = -1,
                                 .bias_id = bias_id,
                                 .bias = bias,
                                 .n_bias = biased ? 2 : 0};
    q->answer = mem_alloc((size_t)c->max_tokens, sizeof *q->answer);
    q->script_token = mem_alloc((size_t)(q->prompt.n + c->max_tokens), sizeof(int32_t));
}

static int add_question(Check *c, const char *text, int min_tokens, SampleParams p, Error *err)
{
    assert(c->n < MAX_QUESTIONS);
    if (add_prompt(c, &c->q[c->n++], text, min_tokens, err)) return -1;
    set_request(c, p);
    return 0;
}

/* A second turn: question i's prompt, its answer, and a text; none where that is too long. */
static int add_turn(Check *c, int i, const char *text, Error *err)
{
    const Question *from = &c->q[i];
    TokenList turn = {0};
    assert(c->n < MAX_QUESTIONS);
    for (int k = 0; k < from->prompt.n + from->n_answer; k++)
        token_list_add(&turn,
                       k < from->prompt.n ? from->prompt.id[k] : from->answer[k - from->prompt.n]);
    if (tokenizer_encode(c->setup->tok, text, strlen(text), &turn, err)) return -1;
    if (turn.n > c->ctx_size - c->max_tokens) {
        token_list_free(&turn);
        return 0;
    }
    c->q[c->n++].prompt = turn;
    set_request(c, from->request.params);
    return 0;
}

static int make_questions(Check *c, Error *err)
{
    const SampleParams greedy = {.top_p = 1, .repetition = 1};
    SampleParams flat = {.temperature = 1, .top_p = 1, .repetition = 1, .seed = 11};
    SampleParams nucleus = {
        .temperature = 0.7f, .top_p = 0.8f, .top_k = 20, .repetition = 1, .seed = 12};
    SampleParams penal = {.temperature = 0.9f,
                          .top_p = 0.95f,
                          .min_p = 0.02f,
                          .presence = 0.5f,
                          .frequency = 0.3f,
                          .repetition = 1.1f,
                          .seed = 13};
    SampleParams greedy_penal = greedy;
    greedy_penal.frequency = 0.4f;
    greedy_penal.repetition = 1.2f;
    const struct {
        int text, min_tokens;
        SampleParams p;
        int is_json;
    } list[] = {{0, 1, greedy, 0},  {1, 1, greedy, 0},       {3, 300, greedy, 0},
                {1, 1, greedy, 1},  {2, 1, greedy_penal, 0}, {1, 1, flat, 0},
                {0, 1, nucleus, 1}, {3, 150, nucleus, 0},    {1, 1, nucleus, 0},
                {2, 70, penal, 0},  {0, 1, penal, 0}};
    int n = sizeof list / sizeof *list, limit = c->setup->limit;
    if (limit <= 0 || limit > n) limit = n;
    for (int k = 0; k < limit; k++) { /* spread over the list */
        int i = k * n / limit;
        if (add_question(c, texts[list[i].text], list[i].min_tokens, list[i].p, err)) return -1;
        if (list[i].is_json) c->q[c->n - 1].request.constraint = forms_object(c->forms);
    }
    return 0;
}

/* After the plain run: its answers are what scripted drafters know. */
static void keep_scripts(Check *c)
{
    for (int i = 0; i < c->n; i++) {
        Question *q = &c->q[i];
        memcpy(q->script_token, q->prompt.id, (size_t)q->prompt.n * sizeof(int32_t));
        memcpy(q->script_token + q->prompt.n, q->answer, (size_t)q->n_answer * sizeof(int32_t));
        q->script = (Script){.token = q->script_token, .n = q->prompt.n + q->n_answer};
    }
}

/*
 * Ends one question's answer in its middle, by a stop id, also where a run of drafts is accepted.
 */
static void add_stop(Check *c)
{
    Question *q = &c->q[c->n > 1]; /* the first may be alone: --limit 1, no room for its turn */
    int at = q->n_answer / 2;
    c->stop_id = q->answer[at];
    q->request.stop_ids = &c->stop_id;
    q->request.n_stop_ids = 1;
    for (int i = 0; i <= at; i++)
        if (q->answer[i] == c->stop_id) {
            q->n_answer = i + 1;
            break;
        }
    q->finish = FINISH_STOP;
}

/* ---- running ---- */

typedef struct {
    int n_tokens, n_steps, n_accepted, n_cached;
    int question, token; /* of the first difference; question -1: none */
} Outcome;

static int open_drafter(const Check *c, const CheckVariant *v, Drafter *d, Error *err)
{
    static const ScriptMode mode[] = {
        [BY_PERFECT] = SCRIPT_PERFECT, [BY_LIAR] = SCRIPT_LIE, [BY_MIXED] = SCRIPT_MIXED};
    Script scripts[MAX_QUESTIONS];
    if (v->draft == BY_NOBODY) return 0;
    if (v->draft == BY_HEAD) return mtp_drafter_open(c->setup->model, d, err);
    if (v->draft == BY_UNION) return union_drafter_open(c->setup->model, d, err);
    if (v->draft == BY_NGRAM || v->draft == BY_SUFFIX) {
        (v->draft == BY_NGRAM ? ngram_drafter_open : suffix_drafter_open)(d);
        return 0;
    }
    for (int i = 0; i < c->n; i++)
        scripts[i] = c->q[i].script;
    return scripted_drafter_open(c->setup->model, mode[v->draft], scripts, c->n, 5, d, err);
}

/* Bytes of a state for every question and of frames of pages for one whole context. */
static int64_t scarce_memory(const Check *c)
{
    const Model *m = c->setup->model;
    int n_rows = c->ctx_size + MAX_TREE_NODES + 1; /* and what a tree takes beyond it */
    KvType type = c->setup->kv_type;
    return memory_frames_for(m, type, c->n, pages_for(n_rows)) *
           (int64_t)memory_frame_bytes(m, type);
}

static Engine *open_engine(const Check *c, const CheckVariant *v, const Drafter *d, Error *err)
{
    EngineOptions o = engine_defaults();
    o.max_seqs = v->together ? c->n : 1;
    o.ctx_size = c->ctx_size;
    o.memory = c->setup->memory;
    o.kv_type = c->setup->kv_type;
    o.allowed = c->setup->allowed;
    o.tree_nodes = v->nodes ? v->nodes : 1;
    o.draft_depth = v->depth;
    o.draft_topk = v->topk ? v->topk : 1;
    o.draft_auto = v->chosen;
    o.draft_vocab = c->setup->draft_vocab;
    if (v->few_ids) o.draft_vocab.n_first = c->setup->model->config.n_vocab / 4;
    o.n_slots = v->slots;
    o.state_mode = v->states;
    if (v->scarce) {
        o.n_slots = c->n;
        o.memory = scarce_memory(c);
        o.reserve = 0;
    }
    if (v->cache)
        o.cache = (CacheOptions){
            .on = 1, .policy = POLICY_LRU, .keep_answers = v->cache == CACHE_ANSWERS};
    if (v->chunk) o.chunk_rows = v->chunk;
    o.drafter = d->self ? d : NULL;
    return engine_open(c->setup->model, &o, err);
}

static void note_difference(Outcome *o, int question, int token)
{
    if (o->question >= 0) return;
    o->question = question;
    o->token = token;
}

/* One token of question i; got counts those of this round. keep: it defines the answer. */
static void take_token(Check *c, int i, int *got, int32_t token, int keep, Outcome *o)
{
    Question *q = &c->q[i];
    int k = (*got)++;
    o->n_tokens++;
    if (keep)
        q->answer[k] = token;
    else if (k >= q->n_answer || q->answer[k] != token)
        note_difference(o, i, k);
}

static void take_end(Check *c, int i, int got, const Event *ev, int keep, Outcome *o)
{
    Question *q = &c->q[i];
    o->n_steps += ev->stats.n_steps;
    o->n_accepted += ev->stats.n_accepted;
    o->n_cached += ev->stats.n_cached;
    if (keep) {
        q->n_answer = got;
        q->finish = ev->finish;
    } else if (got != q->n_answer || ev->finish != q->finish) {
        note_difference(o, i, got);
    }
}

static int drain(Check *c, Engine *e, int keep, int *got, int *n_done, Outcome *o, Error *err)
{
    int ran = engine_step(e, err);
    if (ran < 0) return -1;
    for (const Event *ev; (ev = engine_next_event(e));) {
        int i = (int)ev->id - 1;
        if (ev->type == EVENT_TOKEN) take_token(c, i, &got[i], ev->token, keep, o);
        if (ev->type == EVENT_DONE) {
            take_end(c, i, got[i], ev, keep, o);
            ++*n_done;
        }
    }
    return 0;
}

/* Asks every question once: one after the other, or all together. */
static int run_round(Check *c, Engine *e, const CheckVariant *v, int keep, Outcome *o, Error *err)
{
    int got[MAX_QUESTIONS] = {0}, n_done = c->first;
    for (int i = c->first; i < c->n; i++) {
        EngineRequest r = c->q[i].request;
        r.draft_max = v->draft_max;
        if (engine_submit(e, &r, err)) return -1;
        while (!v->together && n_done <= i)
            if (drain(c, e, keep, got, &n_done, o, err)) return -1;
    }
    while (n_done < c->n)
        if (drain(c, e, keep, got, &n_done, o, err)) return -1;
    return 0;
}

/* What decoding left may differ from a prompt in last bits, where the two are computed apart. */
static int may_differ(const Check *c, const CheckVariant *v)
{
    return v->cache == CACHE_ANSWERS && c->setup->model->backend->prefill_differs;
}

static void print_row(Check *c, const CheckVariant *v, const Outcome *o)
{
    double al = o->n_steps ? 1 + (double)o->n_accepted / o->n_steps : 1;
    const char *verdict = o->question < 0    ? "equal"
                          : may_differ(c, v) ? "differs, as it may"
                                             : "DIFFERENT";
    if (c->setup->json)
        fprintf(c->out,
                "%s{\"variant\": \"%s\", \"tokens\": %d, \"steps\": %d, "
                "\"acceptance_length\": %.4f, \"cached_tokens\": %d, \"equal\": %s}",
                c->n_rows ? ",\n " : "[", v->name, o->n_tokens, o->n_steps, al, o->n_cached,
                o->question < 0 ? "true" : "false");
    else
        fprintf(c->out, "%-44s %7d %7d %7.2f %7d  %s\n", v->name, o->n_tokens, o->n_steps, al,
                o->n_cached, c->n_rows > 1 ? verdict : "(the reference)");
    fflush(c->out);
    c->n_rows++;
}

static int run_variant(Check *c, const CheckVariant *v, int keep, Error *err)
{
    Drafter d = {0};
    Outcome o = {.question = -1};
    int failed = -1;
    if (open_drafter(c, v, &d, err)) return -1;
    Engine *e = open_engine(c, v, &d, err);
    if (e) failed = 0;
    for (int round = 0; !failed && round <= v->rounds; round++)
        failed = run_round(c, e, v, keep, &o, err);
    engine_close(e);
    if (d.self) d.close(d.self);
    if (failed) return -1;
    print_row(c, v, &o);
    if (o.question >= 0 && !may_differ(c, v))
        return error_set(err, ERR_DEVICE, "%s: question %d differs from plain decoding at token %d",
                         v->name, o.question + 1, o.token);
    return 0;
}

static const CheckVariant plain = {.name = "plain decoding, one at a time", .draft_max = -1};
static const CheckVariant plain_turns = {.name = "second turns of the same", .draft_max = -1};

/* Turns that go on after two answers: what a cache is for. */
static int add_turns(Check *c, Error *err)
{
    c->first = c->n;
    for (int i = 0; i < 2 && i < c->first; i++)
        if (add_turn(c, i, texts[1], err)) return -1;
    int failed = run_variant(c, &plain_turns, 1, err);
    c->first = 0;
    return failed;
}

static int run_variants(Check *c, Error *err)
{
    if (run_variant(c, &plain, 1, err) || add_turns(c, err)) return -1;
    keep_scripts(c);
    add_stop(c);
    for (int i = 0; i < n_check_variants; i++) {
        CheckVariant v = check_variants[i];
        int wants_head = v.draft == BY_HEAD || v.draft == BY_UNION;
        if (wants_head && !c->setup->model->has_mtp) continue;
        v.draft_max = v.draft_max == -2 ? 0 : -1;
        if (run_variant(c, &v, 0, err)) return -1;
    }
    return 0;
}

static void print_difference(Check *c, const PromptDifference *d)
{
    if (c->setup->json)
        fprintf(c->out,
                "%s{\"comparison\": \"prompt against decoding\", \"rows\": %d, "
                "\"largest_logprob_difference\": %g, \"mean_kl\": %g}",
                c->n_rows ? ",\n " : "[", d->n_rows, d->largest, d->mean_kl);
    else
        fprintf(
            c->out,
            "prompt against decoding, %d rows: log-probabilities differ by at most %.3g, mean KL "
            "%.3g\n",
            d->n_rows, d->largest, d->mean_kl);
    c->n_rows++;
}

/* How far a prompt's arithmetic is from decoding's; on a backend that has one for both, not at all.
 */
static int compare_prompt(Check *c, Error *err)
{
    PromptDifference d;
    TokenList text = {0};
    const char *said = texts[sizeof texts / sizeof *texts - 1];
    int failed = 0;
    while (!failed && text.n < COMPARED_TOKENS)
        failed = tokenizer_encode(c->setup->tok, said, strlen(said), &text, err);
    int n = c->ctx_size - 1 < COMPARED_TOKENS ? c->ctx_size - 1 : COMPARED_TOKENS;
    if (!failed)
        failed = prompt_difference(c->setup->model, c->setup->kv_type, text.id, n, &d, err);
    token_list_free(&text);
    if (failed) return -1;
    print_difference(c, &d);
    if (isnan(d.largest)) return error_set(err, ERR_DEVICE, "logits of the text are not numbers");
    if (d.largest > 0 && !c->setup->model->backend->prefill_differs)
        return error_set(err, ERR_DEVICE, "a prompt's logits differ from decoding's by %g",
                         d.largest);
    return 0;
}

static int set_sizes(Check *c, Error *err)
{
    const CheckSetup *s = c->setup;
    int limit = s->model->config.ctx_limit;
    c->max_tokens = s->max_tokens > 0 ? s->max_tokens : DEFAULT_TOKENS;
    if (c->max_tokens > limit) c->max_tokens = limit; /* which is too long, as is said below */
    c->ctx_size = s->ctx_size ? s->ctx_size : 512 + c->max_tokens;
    if (c->ctx_size > limit) c->ctx_size = limit;
    if (c->ctx_size < c->max_tokens + MIN_CTX)
        return error_set(err, ERR_LIMIT, "a context of %d is too short to check %d tokens",
                         c->ctx_size, c->max_tokens);
    return 0;
}

int check_run(const CheckSetup *setup, FILE *out, Error *err)
{
    Check *c = mem_alloc(1, sizeof *c);
    c->setup = setup;
    c->out = out;
    if (!setup->json)
        fprintf(out, "%-44s %7s %7s %7s %7s\n", "", "tokens", "steps", "accept", "cached");
    c->forms = forms_open(setup->tok, &setup->model->config, MAX_QUESTIONS, MAX_QUESTIONS, err);
    int failed = !c->forms || set_sizes(c, err) || make_questions(c, err) || run_variants(c, err) ||
                 compare_prompt(c, err);
    if (setup->json && c->n_rows) fprintf(out, "]\n");
    if (!setup->json && !failed)
        fprintf(out, "all equal: no token depends on drafts, company or cache\n");
    for (int i = 0; i < c->n; i++) {
        token_list_free(&c->q[i].prompt);
        mem_free(c->q[i].answer);
        mem_free(c->q[i].script_token);
    }
    forms_close(c->forms);
    mem_free(c);
    return failed ? -1 : 0;
}
