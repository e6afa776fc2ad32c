/*
 * accept.c: acceptance length and speed, by category. See bench.h.
 *
 * Every prompt is answered twice in a row on the same engine, drafting on and off, so that both are
 * measured under the same conditions; their tokens must be equal, and the report says whether they
 * were.
 */
#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "bench/bench.h"
#include "bench/json_lines.h"
#include "bench/json_report.h"
#include "text/detokenizer.h"
#include "text/utf8.h"

enum { MAX_CATEGORIES = 64, DEFAULT_ANSWER = 128, NAME_COLUMN = 20 };

/* Sums over the answers of a category. */
typedef struct {
    char *name;
    int n_answers, n_different;
    long n_prompt, n_tokens, n_steps, n_steps_drafted, n_drafted, n_accepted;
    long hist[MAX_TREE_NODES], tried[MAX_TREE_NODES], accepted[MAX_TREE_NODES];
    long n_decoded;             /* tokens that steps gave, the same in both runs */
    double with_ms, without_ms; /* decoding */
} Totals;

typedef struct {
    const Service *s;
    SampleParams params;
    EngineStatus status;
    int max_tokens, show_progress;
    Totals category[MAX_CATEGORIES], all;
    int n_categories, n_skipped;
    int32_t *answer[2]; /* tokens without and with drafts */
    int n_answer[2];
} Bench;

/* NULL and an Error for one more than there is room for. */
static Totals *category(Bench *b, const char *name, Error *err)
{
    for (int i = 0; i < b->n_categories; i++)
        if (!strcmp(b->category[i].name, name)) return &b->category[i];
    if (b->n_categories == MAX_CATEGORIES) {
        error_set(err, ERR_LIMIT, "more than %d categories", MAX_CATEGORIES);
        return NULL;
    }
    Totals *t = &b->category[b->n_categories++];
    t->name = mem_strdup(name);
    return t;
}

static int answer(Bench *b, const TokenList *prompt, int draft, RequestStats *stats, Error *err)
{
    int room = b->status.ctx_size - prompt->n, max = room < b->max_tokens ? room : b->max_tokens;
    EngineRequest r = {.id = 1,
                       .prompt = prompt->id,
                       .n_prompt = prompt->n,
                       .max_tokens = max,
                       .params = b->params,
                       .n_logprobs = -1,
                       .draft_max = draft ? -1 : 0};
    b->n_answer[draft] = 0;
    if (engine_submit(b->s->engine, &r, err)) return -1;
    for (int done = 0; !done;) {
        if (engine_step(b->s->engine, err) < 0) return -1;
        for (const Event *ev; (ev = engine_next_event(b->s->engine));) {
            if (ev->type == EVENT_TOKEN) b->answer[draft][b->n_answer[draft]++] = ev->token;
            if (ev->type != EVENT_DONE) continue;
            done = 1;
            *stats = ev->stats;
        }
    }
    return 0;
}

static void add(Totals *t, const RequestStats *with, const RequestStats *without, int different)
{
    t->n_answers++;
    t->n_different += different;
    t->n_prompt += with->n_prompt;
    t->n_tokens += with->n_generated;
    t->n_decoded += with->n_generated ? with->n_generated - 1 : 0;
    t->n_steps += with->n_steps;
    t->n_steps_drafted += with->n_steps_drafted;
    t->n_drafted += with->n_drafted;
    t->n_accepted += with->n_accepted;
    t->with_ms += with->decode_ms;
    t->without_ms += without->decode_ms;
    for (int i = 0; i < MAX_TREE_NODES; i++) {
        t->hist[i] += with->accepted_hist[i];
        t->tried[i] += with->depth_tried[i];
        t->accepted[i] += with->depth_accepted[i];
    }
}

/* The last two answers, with drafts and without, are of the category called name. */
static int count(Bench *b, const char *name, const RequestStats *with, const RequestStats *without,
                 Error *err)
{
    assert(!without->n_steps_drafted);
    int n = b->n_answer[0];
    int different =
        n != b->n_answer[1] || memcmp(b->answer[0], b->answer[1], (size_t)n * sizeof(int32_t)) != 0;
    Totals *t = category(b, name, err);
    if (!t) return -1;
    add(t, with, without, different);
    add(&b->all, with, without, different);
    return 0;
}

/* Appends the answer without its end token as an assistant message. */
static void append_answer(const Bench *b, json_t *messages)
{
    Detokenizer d;
    StrBuf text = {0};
    detokenizer_init(&d, b->s->tok, 0);
    for (int i = 0; i < b->n_answer[1]; i++)
        detokenizer_push(&d, b->answer[1][i], &text);
    detokenizer_finish(&d, &text);
    json_t *content = json_stringn(strbuf_str(&text), text.len);
    json_array_append_new(messages,
                          json_pack("{s:s, s:o}", "role", "assistant", "content", content));
    strbuf_free(&text);
}

/* One prompt, both ways. Prompts that leave no room for an answer are counted and skipped. */
static int measure(Bench *b, const char *name, const json_t *messages, const json_t *tools,
                   Error *err)
{
    StrBuf text = {0};
    TokenList prompt = {0};
    RequestStats with, without;
    ChatOptions o = service_chat_options(b->s->settings);
    int failed = chat_render(&b->s->tmpl, messages, tools, &o, &text, NULL, err) ||
                 tokenizer_encode(b->s->tok, strbuf_str(&text), text.len, &prompt, err);
    b->n_answer[1] = 0;
    if (!failed && prompt.n >= b->status.ctx_size) {
        b->n_skipped++;
    } else if (!failed) {
        int drafts_first = b->all.n_answers & 1;
        failed = answer(b, &prompt, drafts_first, drafts_first ? &with : &without, err) ||
                 answer(b, &prompt, !drafts_first, drafts_first ? &without : &with, err) ||
                 count(b, name, &with, &without, err);
    }
    strbuf_free(&text);
    token_list_free(&prompt);
    return failed;
}

static int measure_turns(Bench *b, const char *name, const json_t *turns, const json_t *tools,
                         Error *err)
{
    json_t *messages = json_array();
    int failed = 0;
    size_t i;
    json_t *turn;
    json_array_foreach(turns, i, turn)
    {
        json_array_append_new(messages, json_pack("{s:s, s:O}", "role", "user", "content", turn));
        failed = measure(b, name, messages, tools, err);
        if (failed) break;
        append_answer(b, messages);
    }
    json_decref(messages);
    return failed;
}

/* Each answer that something goes before, and the one that the last message waits for. */
static int measure_messages(Bench *b, const char *name, const json_t *messages, const json_t *tools,
                            Error *err)
{
    json_t *history = json_array();
    int failed = 0;
    size_t i, n = json_array_size(messages);
    json_t *m;
    json_array_foreach(messages, i, m)
    {
        if (i && json_lines_is_answer(m)) failed = measure(b, name, history, tools, err);
        if (failed) break;
        json_array_append(history, m);
    }
    if (!failed && n && !json_lines_is_answer(json_array_get(messages, n - 1)))
        failed = measure(b, name, history, tools, err);
    json_decref(history);
    return failed;
}

static int measure_case(Bench *b, const json_t *line, Error *err)
{
    const char *name = json_string_value(json_object_get(line, "category"));
    const json_t *turns = json_object_get(line, "turns");
    const json_t *messages = json_object_get(line, "messages");
    json_t *tools;
    if (!name) name = "all prompts";
    if (json_lines_tools(line, &tools, err)) return -1;
    if (json_is_array(turns)) return measure_turns(b, name, turns, tools, err);
    if (json_is_array(messages)) return measure_messages(b, name, messages, tools, err);
    return error_set(err, ERR_INPUT, "neither 'turns' nor 'messages' is an array");
}

static void show_progress(const Bench *b, int line)
{
    if (!b->show_progress) return;
    double al = b->all.n_steps ? 1 + (double)b->all.n_accepted / (double)b->all.n_steps : 1;
    fprintf(stderr, "\r%d prompts, %d answers, acceptance length %.2f ", line, b->all.n_answers,
            al);
}

static int measure_line(void *ctx, int number, const json_t *line, Error *err)
{
    Bench *b = ctx;
    int n_before = b->all.n_answers + b->n_skipped;
    int failed = measure_case(b, line, err);
    if (!failed && b->all.n_answers + b->n_skipped == n_before)
        failed = error_set(err, ERR_INPUT, "it has no answer to measure");
    show_progress(b, number);
    return failed;
}

static int measure_file(Bench *b, const char *path, Error *err)
{
    int failed = json_lines_read(path, b->s->settings->limit, measure_line, b, err);
    if (b->show_progress) fprintf(stderr, "\r%60s\r", "");
    return failed;
}

/* ---- the report ---- */

static double ratio(double a, double b)
{
    return b > 0 ? a / b : 0;
}

static double acceptance_length(const Totals *t)
{
    return 1 + ratio((double)t->n_accepted, (double)t->n_steps);
}

static double per_second(const Totals *t, double ms)
{
    return ratio((double)t->n_decoded * 1000, ms);
}

static void print_line(const Totals *t)
{
    int shown = (int)utf8_check(t->name, strnlen(t->name, NAME_COLUMN));
    double speed = per_second(t, t->with_ms), plain = per_second(t, t->without_ms);
    printf("%-*.*s %7d %8ld %8ld %7.2f %9.1f %9.1f %8.2f\n", NAME_COLUMN, shown, t->name,
           t->n_answers, t->n_tokens, t->n_steps, acceptance_length(t), speed, plain,
           ratio(speed, plain));
}

static void print_depths(const Totals *t)
{
    printf("\nacceptance by depth:     ");
    for (int i = 1; i < MAX_TREE_NODES; i++)
        if (t->tried[i])
            printf("  %d: %.3f", i, ratio((double)t->accepted[i], (double)t->tried[i]));
    printf("  (where the depth before was accepted)\nthe same as vLLM counts: ");
    for (int i = 1; i < MAX_TREE_NODES; i++)
        if (t->tried[i])
            printf("  %d: %.3f", i, ratio((double)t->accepted[i], (double)t->n_steps_drafted));
    printf("  (of all steps that had drafts)");
}

static void print_details(const Totals *t)
{
    printf("\nsteps by drafts accepted:");
    for (int i = 0; i < MAX_TREE_NODES; i++)
        if (t->hist[i]) printf("  %d: %ld", i, t->hist[i]);
    if (t->n_steps_drafted) print_depths(t);
    printf("\nacceptance length %.3f (1 + accepted drafts / all steps); as vLLM counts, over the "
           "steps "
           "that had drafts: %.3f; as SGLang, tokens / steps: %.3f\n",
           acceptance_length(t), 1 + ratio((double)t->n_accepted, (double)t->n_steps_drafted),
           ratio((double)t->n_tokens, (double)t->n_steps));
}

static void print_head(const Bench *b)
{
    const Settings *set = b->s->settings;
    const EngineStatus *e = &b->status;
    printf("model: %s; temperature %g\n", b->s->model_name, (double)b->params.temperature);
    if (e->drafter)
        printf("drafts: %s, %d levels, top-k %d, %d nodes\n", e->drafter, e->draft_depth,
               set->draft_topk, set->tree_nodes);
    if (e->draft_vocab) printf("draft vocabulary: %d of %d ids\n", e->draft_vocab, e->n_vocab);
}

static void print_table(const Bench *b)
{
    print_head(b);
    printf("%-*s %7s %8s %8s %7s %9s %9s %8s\n", NAME_COLUMN, "category", "answers", "tokens",
           "steps", "accept", "tokens/s", "plain", "speed-up");
    for (int i = 0; i < b->n_categories; i++)
        print_line(&b->category[i]);
    if (b->n_categories > 1) print_line(&b->all);
    print_details(&b->all);
    printf("answers with drafts that differ from those without: %d of %d\n", b->all.n_different,
           b->all.n_answers);
    if (b->n_skipped) printf("prompts too long for the context, skipped: %d\n", b->n_skipped);
}

static json_t *series(const long *count, int from)
{
    json_t *list = json_array();
    int last = MAX_TREE_NODES - 1;
    while (last > from && !count[last])
        last--;
    for (int i = from; i <= last; i++)
        json_array_append_new(list, json_integer(count[i]));
    return list;
}

static json_t *totals_json(const Totals *t)
{
    return json_pack(
        "{s:s, s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:o, s:o, s:o, s:f, s:f}", "category",
        t->name, "answers", t->n_answers, "different", t->n_different, "prompt_tokens",
        (json_int_t)t->n_prompt, "tokens", (json_int_t)t->n_tokens, "steps", (json_int_t)t->n_steps,
        "steps_with_drafts", (json_int_t)t->n_steps_drafted, "drafted", (json_int_t)t->n_drafted,
        "accepted", (json_int_t)t->n_accepted, "acceptance_length", acceptance_length(t),
        "steps_by_accepted", series(t->hist, 0), "depth_tried", series(t->tried, 1),
        "depth_accepted", series(t->accepted, 1), "tokens_per_second", per_second(t, t->with_ms),
        "tokens_per_second_plain", per_second(t, t->without_ms));
}

static void print_json(const Bench *b)
{
    json_t *list = json_array();
    for (int i = 0; i < b->n_categories; i++)
        json_array_append_new(list, totals_json(&b->category[i]));
    const Settings *set = b->s->settings;
    const EngineStatus *e = &b->status;
    json_t *report =
        json_pack("{s:s, s:f, s:s?, s:i, s:i, s:i, s:i, s:i, s:o, s:o, s:i}", "model",
                  b->s->model_name, "temperature", (double)b->params.temperature, "drafter",
                  e->drafter, "draft_depth", e->draft_depth, "draft_topk", set->draft_topk,
                  "tree_nodes", set->tree_nodes, "vocab", e->n_vocab, "draft_vocab", e->draft_vocab,
                  "categories", list, "all", totals_json(&b->all), "skipped", b->n_skipped);
    json_report_print(report);
}

int bench_accept_run(const Service *s, Error *err)
{
    const Settings *set = s->settings;
    const char *path = json_lines_path(set->prompts, "bench/prompts/small.jsonl", err);
    if (!path) return -1;
    Bench *b = mem_alloc(1, sizeof *b);
    b->s = s;
    engine_status(s->engine, &b->status);
    b->params = service_sampling(s);
    if (set->seed < 0) b->params.seed = 1; /* the same draws in both runs, and in the next one */
    b->max_tokens = set->max_tokens > 0 ? set->max_tokens : DEFAULT_ANSWER;
    if (b->max_tokens > b->status.ctx_size) b->max_tokens = b->status.ctx_size;
    b->show_progress = isatty(STDERR_FILENO);
    b->all.name = mem_strdup("all");
    for (int i = 0; i < 2; i++)
        b->answer[i] = mem_alloc((size_t)b->max_tokens, sizeof(int32_t));
    int failed = measure_file(b, path, err);
    if (!failed && !b->all.n_answers)
        failed = error_set(err, ERR_INPUT,
                           "'%s' gave no answer to measure; prompts too long for the context of "
                           "%d tokens: %d",
                           path, b->status.ctx_size, b->n_skipped);
    if (!failed && set->json) print_json(b);
    if (!failed && !set->json) print_table(b);
    if (!failed && b->all.n_different)
        failed = error_set(err, ERR_DEVICE, "%d answers with drafts differ from those without",
                           b->all.n_different);
    for (int i = 0; i < 2; i++)
        mem_free(b->answer[i]);
    for (int i = 0; i < b->n_categories; i++)
        mem_free(b->category[i].name);
    mem_free(b->all.name);
    mem_free(b);
    return failed ? -1 : 0;
}
