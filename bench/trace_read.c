/*
 * trace_read.c: files of requests as token ids or as block hashes; see trace.h for the forms.
 *
 * Every line says by its keys what it is, so files may be mixed. A prompt that begins with what the
 * session's request before held shares its parts.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "bench/json_lines.h"
#include "bench/trace_parts.h"

enum {
    BLOCK_TOKENS = 512, /* of Mooncake */
    /* What made tokens stand for, by their seeds' highest bits. */
    SEED_BLOCK = 5,
    SEED_ANSWER = 6,
};

/* Forms may be mixed: each numbers its sessions from a place of its own, conversations from 0. */
static const long ID_SESSIONS = 1L << 40, BLOCK_SESSIONS = 1L << 41;

typedef struct {
    Trace *t;
    TraceText text;
    /* Sessions of the artifact's form by id, open addressing; request -1: no such session. */
    struct {
        long session;
        int request;
    } * last;
    int n_last, cap_last;
    long next_block;    /* Mooncake's blocks are numbered as they are met first */
    int32_t *old, *now; /* [TRACE_MOST] */
} Reader;

/* ---- sessions ---- */

static int *find_last(Reader *r, long session)
{
    unsigned mask = (unsigned)r->cap_last - 1;
    unsigned i = (unsigned)((uint64_t)session * UINT64_C(0x9E3779B97F4A7C15) >> 40) & mask;
    while (r->last[i].request >= 0 && r->last[i].session != session)
        i = (i + 1) & mask;
    r->last[i].session = session;
    return &r->last[i].request;
}

static void grow_last(Reader *r)
{
    Reader wider = *r;
    wider.cap_last = r->cap_last ? 2 * r->cap_last : 256;
    wider.last = mem_alloc((size_t)wider.cap_last, sizeof *wider.last);
    for (int i = 0; i < wider.cap_last; i++)
        wider.last[i].request = -1;
    for (int i = 0; i < r->cap_last; i++)
        if (r->last[i].request >= 0) *find_last(&wider, r->last[i].session) = r->last[i].request;
    mem_free(r->last);
    *r = wider;
}

/* The session's request before, or -1; from now on it is `request`. */
static int swap_last(Reader *r, long session, int request)
{
    if (2 * r->n_last >= r->cap_last) grow_last(r);
    int *at = find_last(r, session), before = *at;
    r->n_last += before < 0;
    *at = request;
    return before;
}

/* ---- Marconi's form ---- */

static int read_ids(const json_t *list, const char *name, int least, int32_t *out, int *n,
                    Error *err)
{
    size_t size = json_array_size(list), i = 0;
    const json_t *v;
    if (!json_is_array(list) || size < (size_t)least || size + (size_t)*n > TRACE_MOST)
        return error_set(err, ERR_INPUT, "'%s' must be a list of %d to %d token ids", name, least,
                         TRACE_MOST - *n);
    json_array_foreach(list, i, v)
    {
        json_int_t id = json_integer_value(v);
        if (!json_is_integer(v) || id < 0 || id > INT32_MAX)
            return error_set(err, ERR_INPUT, "'%s' item %zu is no token id", name, i);
        out[(*n)++] = (int32_t)id;
    }
    return 0;
}

/* The first n tokens of a request, as parts. */
static void copy_parts(const Trace *t, const TraceRequest *from, int n, TraceHistory *h)
{
    for (int p = 0; n > 0; p++) {
        TracePart part = t->part[from->part + (size_t)p];
        if (part.n > n) part.n = n;
        trace_history_add(h, part);
        n -= part.n;
    }
}

static int add_ids(Reader *r, const json_t *line, Error *err)
{
    int n_prompt = 0, n, same = 0, session;
    double ts;
    if (read_ids(json_object_get(line, "input_tokens"), "input_tokens", 1, r->now, &n_prompt, err))
        return -1;
    n = n_prompt;
    if (read_ids(json_object_get(line, "output_tokens"), "output_tokens", 0, r->now, &n, err) ||
        json_get_num(line, "request", "ts", 0, 1e12, 0, &ts, err) ||
        json_get_int(line, "request", "session_id", 0, INT32_MAX, -1, &session, err))
        return -1;

    Trace *t = r->t;
    TraceHistory h = {0};
    int before = swap_last(r, session, t->n);
    if (before >= 0) {
        const TraceRequest *old = &t->request[before];
        int most = old->n_prompt + old->n_answer;
        if (most > n_prompt) most = n_prompt;
        trace_tokens(t, before, r->old);
        while (same < most && r->old[same] == r->now[same])
            same++;
        copy_parts(t, old, same, &h);
    }
    trace_history_add(&h, trace_store(t, r->now + same, n_prompt - same));
    TraceTurn turn = {.ts = ts, .session = ID_SESSIONS + session, .n_new = n - same};
    trace_add(t, &turn, &h, trace_store(t, r->now + n_prompt, n - n_prompt));
    t->n_sessions = r->n_last;
    trace_history_free(&h);
    return 0;
}

/* ---- Mooncake's form ---- */

static int check_hashes(const json_t *list, int n_prompt, Error *err)
{
    size_t want = ((size_t)n_prompt + BLOCK_TOKENS - 1) / BLOCK_TOKENS, i;
    const json_t *v;
    if (json_array_size(list) != want)
        return error_set(err, ERR_INPUT, "'hash_ids' has %zu ids, %d tokens have %zu blocks",
                         json_array_size(list), n_prompt, want);
    json_array_foreach(list, i, v)
    {
        json_int_t id = json_integer_value(v);
        if (!json_is_integer(v) || id < 0 || id > INT32_MAX)
            return error_set(err, ERR_INPUT, "'hash_ids' item %zu is no id", i);
    }
    return 0;
}

/* Tokens of block i of a prompt. */
static int block_tokens(int n_prompt, size_t i)
{
    int left = n_prompt - (int)i * BLOCK_TOKENS;
    return left < BLOCK_TOKENS ? left : BLOCK_TOKENS;
}

static int add_blocks(Reader *r, const json_t *line, Error *err)
{
    const json_t *ids = json_object_get(line, "hash_ids"), *v;
    int n_prompt, n_answer;
    double ms;
    size_t i;
    if (json_get_int(line, "request", "input_length", 1, TRACE_MOST / 2, 0, &n_prompt, err) ||
        json_get_int(line, "request", "output_length", 0, TRACE_MOST / 2, 0, &n_answer, err) ||
        json_get_num(line, "request", "timestamp", 0, 1e15, 0, &ms, err) ||
        check_hashes(ids, n_prompt, err))
        return -1;

    TraceHistory h = {0};
    json_array_foreach(ids, i, v)
    {
        uint64_t seed = ((uint64_t)SEED_BLOCK << 60) + (uint64_t)json_integer_value(v);
        trace_history_add(&h, trace_made(seed, block_tokens(n_prompt, i)));
    }
    long known = r->next_block;
    int n_new = n_answer;
    json_array_foreach(ids, i, v)
    {
        long id = (long)json_integer_value(v);
        if (id < known) continue;
        if (id >= r->next_block) r->next_block = id + 1;
        n_new += block_tokens(n_prompt, i);
    }
    TraceTurn turn = {.ts = ms / 1e3,
                      .session = BLOCK_SESSIONS + r->t->n,
                      .n_stable = n_prompt / BLOCK_TOKENS * BLOCK_TOKENS,
                      .answer_changes = 1,
                      .n_new = n_new};
    trace_add(r->t, &turn, &h,
              trace_made(((uint64_t)SEED_ANSWER << 60) + (uint64_t)r->t->n, n_answer));
    trace_history_free(&h);
    return 0;
}

/* ---- files ---- */

static int add_line(void *reader, int number, const json_t *line, Error *err)
{
    Reader *r = reader;
    (void)number;
    if (json_object_get(line, "input_tokens")) return add_ids(r, line, err);
    if (json_object_get(line, "hash_ids")) return add_blocks(r, line, err);
    if (json_object_get(line, "messages")) return trace_add_messages(r->t, &r->text, line, err);
    if (json_object_get(line, "question")) return trace_add_bfcl(r->t, &r->text, line, err);
    return error_set(err, ERR_INPUT,
                     "neither input_tokens nor hash_ids, messages or question is there");
}

int trace_read(Trace *t, const char *path, const TraceLoad *load, const Tokenizer *tok, Error *err)
{
    int standard = !strcmp(path, "-");
    FILE *f = standard ? stdin : fopen(path, "r");
    if (!f)
        return error_set(err, ERR_FILE, "cannot open '%s': %s; --trace takes a file, chat or agent",
                         path, strerror(errno));
    Reader r = {.t = t, .text = {.tok = tok, .load = load, .state = (uint64_t)load->seed}};
    r.old = mem_alloc(TRACE_MOST, sizeof *r.old);
    r.now = mem_alloc(TRACE_MOST, sizeof *r.now);
    const char *name = standard ? "standard input" : path;
    int n = json_lines_take(f, name, 0, add_line, &r, err);
    if (n >= 0 && !t->n) n = error_set(err, ERR_INPUT, "'%s' holds no request", name);
    mem_free(r.old);
    mem_free(r.now);
    mem_free(r.last);
    if (!standard) fclose(f);
    return n < 0 ? -1 : 0;
}
