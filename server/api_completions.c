/* api_completions.c: POST /v1/completions. */
#include "server/call.h"

#include <math.h>

#include "base/mem.h"
#include "server/json_out.h"

/* Takes the ids of a prompt, or begins to make them. */
static int begin_prompt(Call *call, int i, int limit, ApiError *err)
{
    ApiPrompt *p = &call->api.prompts[i];
    TokenList *ids = &call->prompt[i];
    if (p->text) {
        ids->limit = limit;
        return encoding_text(&call->encoding, call->server->service->tok, p->text, p->len, 1, ids,
                             "prompt", err);
    }
    *ids = p->ids;
    p->ids = (TokenList){0};
    return 0;
}

static int tokenize(Call *call, int limit, size_t *budget, ApiError *err)
{
    Encoding *e = &call->encoding;
    if (!call->prompt) {
        call->n_prompts = call->api.n_prompts;
        call->prompt = mem_alloc((size_t)call->n_prompts, sizeof *call->prompt);
        call->n_stable = mem_alloc((size_t)call->n_prompts, sizeof *call->n_stable);
    }
    for (; call->n_encoded < call->n_prompts; call->n_encoded++) {
        if (!e->encoder && begin_prompt(call, call->n_encoded, limit, err)) return -1;
        int rc = e->encoder ? encoding_some(e, budget, err) : 0;
        if (rc) return rc;
        /* Of ids, which come as they are, all stay. */
        call->n_stable[call->n_encoded] = call->api.prompts[call->n_encoded].text ? e->n_stable : 0;
    }
    return 0;
}

/* The prompt in front of the answer: as it was given, or what its ids say. */
static void begin(const Call *call, Answer *a)
{
    int i = a->index / call->api.best_of;
    if (!call->api.echo) return;
    const ApiPrompt *p = &call->api.prompts[i];
    if (p->text) {
        answer_echo(a, p->text, p->len);
        return;
    }
    StrBuf text = {0};
    Detokenizer d;
    detokenizer_init(&d, call->server->service->tok, 1);
    for (int t = 0; t < call->prompt[i].n; t++)
        detokenizer_push(&d, call->prompt[i].id[t], &text);
    detokenizer_finish(&d, &text);
    answer_echo(a, strbuf_str(&text), text.len);
    strbuf_free(&text);
}

/*
 * Where two ids have one text, the likelier one stays. A name ends before a NUL: readers such as
 * jansson refuse a reply with one in a name.
 */
static void add_top(json_t *dict, json_t *text, float logprob)
{
    const char *key = json_string_value(text);
    const json_t *before = json_object_get(dict, key);
    if (!before || json_real_value(before) < (double)logprob)
        json_object_set_new(dict, key, json_real(call_logprob(logprob)));
    json_decref(text);
}

/* The k likeliest tokens and always the one that came. */
static json_t *top_logprobs(const Call *call, const TokenProbs *p, int i)
{
    json_t *dict = json_object();
    for (int j = 0; j < p->k; j++) {
        size_t at = (size_t)i * (size_t)p->k + (size_t)j;
        if (p->top_id[at] < 0) break;
        add_top(dict, call_token_text(call, p->top_id[at]), p->top_logprob[at]);
    }
    add_top(dict, call_token_text(call, p->token[i]), p->logprob[i]);
    return dict;
}

typedef void (*WriteEntry)(const Call *call, const TokenProbs *p, int i, StrBuf *out);

static void write_token(const Call *call, const TokenProbs *p, int i, StrBuf *out)
{
    json_write(out, "o", call_token_text(call, p->token[i]));
}

static void write_offset(const Call *call, const TokenProbs *p, int i, StrBuf *out)
{
    (void)call;
    json_write(out, "i", p->offset[i]);
}

static void write_value(const Call *call, const TokenProbs *p, int i, StrBuf *out)
{
    (void)call;
    if (isnan(p->logprob[i]))
        strbuf_puts(out, "null");
    else
        json_write(out, "f", call_logprob(p->logprob[i]));
}

/* Digits as in the list of values, so that the two are equal. */
static void write_tops(const Call *call, const TokenProbs *p, int i, StrBuf *out)
{
    const char *name, *format = "{s:f";
    json_t *value, *dict;
    if (isnan(p->logprob[i])) {
        strbuf_puts(out, "null");
        return;
    }
    dict = top_logprobs(call, p, i);
    json_object_foreach(dict, name, value)
    {
        json_write(out, format, name, json_real_value(value));
        format = ",s:f";
    }
    strbuf_puts(out, "}");
    json_decref(dict);
}

/* The four lists over what is there. */
static void write_logprobs(const Call *call, const Answer *a, StrBuf *out)
{
    static const struct {
        const char *name;
        WriteEntry write;
    } lists[] = {{"{\"tokens\":[", write_token},
                 {"],\"text_offset\":[", write_offset},
                 {"],\"token_logprobs\":[", write_value},
                 {"],\"top_logprobs\":[", write_tops}};
    if (call->api.n_logprobs < 0) {
        strbuf_puts(out, "null");
        return;
    }
    for (size_t k = 0; k < sizeof lists / sizeof *lists; k++) {
        strbuf_puts(out, lists[k].name);
        for (int i = 0; i < a->probs.n; i++) {
            if (i) strbuf_puts(out, ",");
            lists[k].write(call, &a->probs, i, out);
        }
    }
    strbuf_puts(out, "]}");
}

/* Up to the brace that closes it. */
static void write_choice(const Call *call, const Answer *a, int index, StrBuf *out)
{
    StrBuf text = {0};
    answer_text(a, REPLY_CONTENT, &text);
    json_write(out, "{s:i, s:t, s:", "index", index, "text", strbuf_str(&text), text.len,
               "logprobs");
    write_logprobs(call, a, out);
    json_write(out, ",s:s?, s:o", "finish_reason", answer_finish_reason(a), "stop_reason",
               call_stop_reason(a));
    strbuf_free(&text);
}

static void choice(const Call *call, const Answer *a, int index, StrBuf *out)
{
    write_choice(call, a, index, out);
    call_add_prompt_logprobs(call, a, out);
    call_add_ids(call, a, 0, out);
    call_add_trees(call, a, out);
    call_add_prompt_ids(call, a, out);
    strbuf_puts(out, "}");
}

/* One chunk for all that a step brought; tokens whose text is held back wait for it. */
static void stream(Call *call, Answer *a)
{
    int done = a->state == ANSWER_DONE;
    if (!answer_has_text(a) && !done) return;
    a->closed = done;
    StrBuf *out = choices_chunk_begin(call);
    write_choice(call, a, a->index, out);
    call_add_ids(call, a, a->n_ids_taken, out);
    call_add_trees(call, a, out);
    if (!a->opened) call_add_prompt_ids(call, a, out);
    strbuf_puts(out, "}");
    choices_chunk_end(call, 0, done);
    a->opened = 1;
    answer_take_probs(a);
    a->n_ids_taken = a->tokens.n;
    tree_list_clear(&a->trees);
    answer_take(a);
}

static const ApiFormat format = {
    .kind = API_COMPLETION,
    .id_prefix = "cmpl-",
    .object = "text_completion",
    .chunk_object = "text_completion",
    .max_tokens = 16,
    .subject = "your prompt has",
    .tokenize = tokenize,
    .begin = begin,
    .choice = choice,
    .stream = stream,
    .end = choices_end,
    .fail = choices_fail,
    .reply = choices_reply,
};

void api_completions(Server *s, Exchange *ex)
{
    call_begin(s, ex, &format);
}
