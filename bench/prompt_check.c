/* prompt_check.c: see prompt_check.h. */
#include "bench/prompt_check.h"

#include <math.h>

#include "base/mem.h"
#include "engine/forward.h"

enum { AS_PROMPT, DECODED, N_WAYS, MAX_ROWS = PROMPT_ROW + PREFILL_BLOCK };

typedef struct {
    const Model *model;
    Memory mem;
    Forward f;
    Batch batch;
    const int32_t *token;
    float *prompt, *decoded; /* host: [PREFILL_BLOCK][n_vocab], [n_vocab] */
} Runs;

static int runs_open(Runs *r, KvType kv_type, int n, Error *err)
{
    size_t row = (size_t)r->model->config.n_vocab * sizeof(float);
    if (memory_open_plain(&r->mem, r->model, kv_type, N_WAYS, N_WAYS * pages_for(n + 1), N_WAYS,
                          n + 1, err) ||
        forward_open(&r->f, r->model, &r->mem, MAX_ROWS, MAX_ROWS, err))
        return -1;
    for (int way = 0; way < N_WAYS; way++) {
        if (memory_reserve(&r->mem, way, n + 1))
            return error_set(err, ERR_LIMIT, "no pages for %d tokens", n + 1);
        memory_clear_slot(&r->mem, way);
    }
    batch_open(&r->batch, MAX_ROWS);
    r->prompt = mem_alloc(PREFILL_BLOCK, row);
    r->decoded = mem_alloc(1, row);
    return 0;
}

static void runs_close(Runs *r)
{
    mem_free(r->prompt);
    mem_free(r->decoded);
    batch_close(&r->batch);
    forward_close(&r->f);
    memory_close(&r->mem);
}

/* Tokens [from, from + n) one way, in its own sequence and slot; their logits to out. */
static void run(Runs *r, int way, int from, int n, float *out)
{
    Backend *be = r->model->backend;
    Batch *b = &r->batch;
    size_t vocab = (size_t)r->model->config.n_vocab;
    batch_clear(b);
    if (way == AS_PROMPT && be->prefill_differs) batch_begin_prompt(b);
    int row0 = b->n;
    for (int i = 0; i < n; i++) {
        int pos = from + i, parent = i ? row0 + i - 1 : -1;
        batch_add(b, r->token[pos], pos, way, parent, way, way, pos, pos + 1);
        b->logit_row[b->n_logits++] = row0 + i;
    }
    forward_pass(&r->f, b);
    be->download(be, out, r->f.logits + (size_t)row0 * vocab, (size_t)n * vocab * sizeof(float));
}

/* log(sum(exp(x))) */
static double log_sum(const float *x, int n)
{
    double max = (double)x[0], sum = 0;
    for (int i = 1; i < n; i++)
        max = fmax(max, (double)x[i]);
    for (int i = 0; i < n; i++)
        sum += exp((double)x[i] - max);
    return max + log(sum);
}

static void add_row(const float *prompt, const float *decoded, int vocab, PromptDifference *d)
{
    double of_prompt = log_sum(prompt, vocab), of_decoded = log_sum(decoded, vocab), kl = 0;
    for (int i = 0; i < vocab; i++) {
        double p = (double)prompt[i] - of_prompt, q = (double)decoded[i] - of_decoded;
        double off = fabs(p - q);
        kl += exp(q) * (q - p);
        if (!(off <= d->largest)) d->largest = off; /* NaN too */
    }
    d->mean_kl += kl;
    d->n_rows++;
}

int prompt_difference(const Model *model, KvType kv_type, const int32_t *token, int n,
                      PromptDifference *out, Error *err)
{
    Runs r = {.model = model, .token = token};
    int vocab = model->config.n_vocab, failed = runs_open(&r, kv_type, n, err);
    *out = (PromptDifference){0};
    for (int from = 0; !failed && from < n; from += PREFILL_BLOCK) {
        int rows = n - from < PREFILL_BLOCK ? n - from : PREFILL_BLOCK;
        run(&r, AS_PROMPT, from, rows, r.prompt);
        for (int i = 0; i < rows; i++) {
            run(&r, DECODED, from + i, 1, r.decoded);
            add_row(r.prompt + (size_t)i * (size_t)vocab, r.decoded, vocab, out);
        }
        failed = model->backend->sync(model->backend, err);
    }
    if (out->n_rows) out->mean_kl /= out->n_rows;
    runs_close(&r);
    return failed ? -1 : 0;
}
