/* served.c: see served.h. */
#include "tests/served.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "drafts/mtp.h"
#include "engine/model.h"
#include "kernels/backend.h"
#include "tests/analyzer.h"

#define DEMO "models/demo"

static Backend *backend;
static Model *model;
static Tokenizer *tok;
static ChatTemplate tmpl;
static TokenizerConfig tok_config;
static uint64_t *allowed;

Served *served;

#ifdef __SANITIZE_THREAD__
/*
 * The loop gathers what it tells epoll (server/serve.c). So it may take out a descriptor that it
 * has closed by then and whose number another thread has: epoll does not know it, and libevent
 * expects that.
 */
const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void)
{
    return "race:epoll_ctl";
}
#endif

int served_open_model(void **state)
{
    Error err = {0};
    ModelConfig config;
    GenerationDefaults generation;
    (void)state;
    log_set_level(getenv("TEST_LOG") ? LOG_LEVEL_DEBUG : LOG_LEVEL_ERROR);
    if (config_load(&config, &generation, DEMO, &err)) fail_msg("%s", err.msg);
    backend = backend_cpu_open(1, NULL, config.n_vocab, &err);
    if (!backend) fail_msg("%s", err.msg);
    model = model_open(DEMO, NULL, backend, &err);
    if (!model) fail_msg("%s", err.msg);
    tok = tokenizer_open(DEMO "/tokenizer.json", &err);
    if (!tok) fail_msg("%s", err.msg);
    if (chat_template_open(&tmpl, DEMO, model->config.model_type, &err)) fail_msg("%s", err.msg);
    if (tokenizer_config_open(&tok_config, DEMO, &err)) fail_msg("%s", err.msg);
    allowed = mem_alloc(((size_t)config.n_vocab + 63) / 64, sizeof *allowed);
    for (int id = 0; id < config.n_vocab; id++)
        if (tokenizer_has(tok, id)) allowed[id / 64] |= UINT64_C(1) << (id % 64);
    return 0;
}

int served_close_model(void **state)
{
    (void)state;
    mem_free(allowed);
    tokenizer_config_close(&tok_config);
    tokenizer_close(tok);
    model_close(model);
    backend->close(backend);
    return 0;
}

ServedOptions served_defaults(void)
{
    ServedOptions o = {.max_seqs = 4, .max_waiting = 16, .limits = DEFAULT_SERVER_LIMITS};
    o.limits.drain_s = 2;
    return o;
}

void served_break_model(int broken)
{
    static float whole;
    float *first = (float *)(size_t)model->final_norm; /* the model's own memory, not the file's */
    if (broken) whole = *first;
    *first = broken ? NAN : whole;
}

static int (*whole_sync)(Backend *be, Error *err);
static atomic_int is_lost;

static int lost_sync(Backend *be, Error *err)
{
    if (!atomic_load(&is_lost)) return whole_sync(be, err);
    return error_set(err, ERR_DEVICE, "the device fell off the bus");
}

void served_lose_device(int lost)
{
    if (!whole_sync) whole_sync = backend->sync;
    atomic_store(&is_lost, lost);
    if (backend->sync != lost_sync) backend->sync = lost_sync; /* the engine's thread reads it */
}

static void *run(void *arg)
{
    Served *s = arg;
    s->rc = server_run(s->server, &s->err);
    return NULL;
}

static void open_engine(Served *s, const ServedOptions *o)
{
    Error err = {0};
    EngineOptions *options = &s->engine_options;
    *options = engine_defaults();
    options->max_seqs = o->max_seqs;
    options->max_waiting = o->max_waiting;
    options->ctx_size = o->ctx_size;
    options->memory = 96 << 20;
    options->allowed = allowed;
    options->cache = o->cache;
    options->cache_dir = o->cache_dir;
    options->disk_cache = 64 << 20;
    if (o->drafter) {
        options->drafter = o->drafter;
    } else if (!o->plain) {
        if (mtp_drafter_open(model, &s->drafter, &err)) fail_msg("%s", err.msg);
        options->drafter = &s->drafter;
    }
    s->service.engine = engine_open(model, options, &err);
    if (!s->service.engine) fail_msg("%s", err.msg);
}

Served *served_open_engine(const ServedOptions *options)
{
    ServedOptions o = options ? *options : served_defaults();
    Served *s = mem_alloc(1, sizeof *s);
    s->settings = (Settings){.model = DEMO,
                             .host = "127.0.0.1",
                             .port = o.takeover,
                             .takeover = o.takeover != 0,
                             .api_key = o.api_key,
                             .cors = o.cors,
                             .limits = o.limits,
                             .max_seqs = o.max_seqs,
                             .max_waiting = o.max_waiting,
                             .draft = o.draft,
                             .messages_thinking = o.messages_thinking,
                             .prefix_cache = o.cache.on ? ON : OFF,
                             .temperature = NAN,
                             .top_p = NAN,
                             .min_p = NAN,
                             .top_k = -1,
                             .seed = -1,
                             .max_tokens = -1,
                             .strict_model = o.strict_model,
                             .default_max_tokens = o.default_max_tokens ? o.default_max_tokens : -1,
                             .thinking = OFF};
    open_engine(s, &o);
    s->service.settings = &s->settings;
    s->service.tok = tok;
    s->service.tmpl = tmpl;
    s->service.generation = model->generation;
    if (o.model_max_tokens) s->service.generation.max_tokens = o.model_max_tokens;
    s->service.model_name = o.model_name ? o.model_name : "demo";
    s->service.device = "cpu";
    s->service.tok_config = tok_config;
    return s;
}

void served_close_engine(Served *s)
{
    EngineStatus status;
    engine_status(s->service.engine, &status);
    if (!is_lost) { /* a lost device takes its memory along */
        assert_int_equal(status.running, 0);
        assert_int_equal(status.waiting, 0);
        /* The cache may go on holding what is in it; a page that two edges share counts twice. */
        assert_int_equal(status.slots_free + status.cache.states, status.slots);
        assert_true(status.pages_free + status.cache.pages >= status.pages);
        if (!s->engine_options.cache.on) assert_int_equal(status.pages_free, status.pages);
    }
    engine_close(s->service.engine);
    if (s->drafter.self) s->drafter.close(s->drafter.self);
    mem_free(s);
}

static int load(void *ctx, Service *service, Error *err)
{
    Served *s = ctx;
    pthread_mutex_lock(&s->lock);
    while (s->load == LOAD_WAIT)
        pthread_cond_wait(&s->may_load, &s->lock);
    int well = s->load == LOAD_WELL;
    pthread_mutex_unlock(&s->lock);
    if (!well) return error_set(err, ERR_FILE, "the file is broken");
    *service = s->service;
    return 0;
}

void served_load(Served *s, int well)
{
    pthread_mutex_lock(&s->lock);
    s->load = well ? LOAD_WELL : LOAD_BADLY;
    pthread_cond_signal(&s->may_load);
    pthread_mutex_unlock(&s->lock);
}

void served_wait_ready(const Served *s)
{
    for (int ms = 0; !server_is_ready(s->server); ms++) {
        if (ms > 60000) fail_msg("not ready");
        usleep(1000);
    }
}

Served *served_start(const ServedOptions *options)
{
    Served *s = served_open_engine(options);
    ServiceLoader loader = {load, s};
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->may_load, NULL);
    s->load = options && options->not_loaded ? LOAD_WAIT : LOAD_WELL;
    s->server = server_open(&s->settings, &loader, &s->err);
    if (!s->server) fail_msg("%s", s->err.msg);
    s->port = options && options->takeover ? options->takeover : server_port(s->server);
    assert_int_equal(pthread_create(&s->thread, NULL, run, s), 0);
    if (s->load == LOAD_WELL) served_wait_ready(s);
    return s;
}

void served_join(Served *s)
{
    if (!s->joined) pthread_join(s->thread, NULL);
    s->joined = 1;
}

int served_stop(Served *s)
{
    server_stop(s->server);
    served_join(s);
    server_close(s->server);
    int rc = s->rc;
    served_close_engine(s);
    return rc;
}

int served_open_with(const ServedOptions *options)
{
    if (served_open_model(NULL)) return -1;
    served = served_start(options);
    return 0;
}

int served_open(void **state)
{
    (void)state;
    return served_open_with(NULL);
}

int served_close(void **state)
{
    assert_int_equal(served_stop(served), 0);
    return served_close_model(state);
}

void served_wait_idle(const Served *s)
{
    for (int ms = 0; server_n_live(s->server); ms += 5) {
        if (ms > 60000) fail_msg("%d answers live on", server_n_live(s->server));
        usleep(5000);
    }
}

void served_leave(const Served *s, const char *path, const char *body, int is_stream)
{
    char some[64];
    int fd = http_connect(s->port);
    http_send(fd, "POST", path, "", body);
    if (is_stream) assert_true(recv(fd, some, sizeof some, 0) > 0);
    while (server_n_live(s->server) < 1)
        usleep(1000);
    close(fd);
    served_wait_idle(s);
}

char *served_body(json_t *body, const char *fields)
{
    StrBuf text = {0};
    strbuf_printf(&text, "{%s\"x\": 0}", fields);
    json_t *more = json_loads(strbuf_str(&text), 0, NULL);
    assert_non_null(more);
    json_object_update_new(body, more);
    char *dumped = json_dumps(body, 0);
    json_decref(body);
    strbuf_free(&text);
    return dumped;
}

json_t *served_post(const Served *s, const char *path, const char *body, int status)
{
    HttpReply r = http_exchange(s->port, "POST", path, "", body);
    if (r.status != status) fail_msg("%s %.300s: %d %s", path, body, r.status, r.body.data);
    json_t *json = json_loadb(r.body.data, r.body.len, JSON_ALLOW_NUL, NULL);
    if (!json) fail_msg("no JSON: %s", r.body.data);
    http_reply_free(&r);
    return json;
}

json_t *served_complete(const Served *s, const char *fmt, ...)
{
    char body[2000];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(body, sizeof body, fmt, ap);
    va_end(ap);
    assert_in_range(n, 0, sizeof body - 1);
    return served_post(s, "/v1/completions", body, 200);
}

static json_t *read_events(const Served *s, const char *path, const char *body,
                           json_t *(*read)(const HttpReply *))
{
    HttpReply r = http_exchange(s->port, "POST", path, "", body);
    if (r.status != 200) fail_msg("%s %.300s: %d %s", path, body, r.status, r.body.data);
    assert_string_equal(http_header(&r, "Content-Type"), "text/event-stream");
    assert_true(r.chunked);
    json_t *events = read(&r);
    http_reply_free(&r);
    return events;
}

json_t *served_events(const Served *s, const char *path, const char *body)
{
    return read_events(s, path, body, http_events);
}

json_t *served_named_events(const Served *s, const char *path, const char *body)
{
    return read_events(s, path, body, http_named_events);
}

const json_t *served_at(const json_t *value, const char *path)
{
    char key[64];
    while (value && *path) {
        size_t n = strcspn(path, ".");
        assert_true(n < sizeof key);
        memcpy(key, path, n);
        key[n] = 0;
        value = json_is_array(value) ? json_array_get(value, strtoul(key, NULL, 10))
                                     : json_object_get(value, key);
        path += n + (path[n] == '.');
    }
    return value;
}

const char *served_text_at(const json_t *value, const char *path)
{
    const char *s = json_string_value(served_at(value, path));
    if (!s) fail_msg("no text at %s", path);
    return s;
}

long served_int_at(const json_t *value, const char *path)
{
    const json_t *v = served_at(value, path);
    if (!json_is_integer(v)) fail_msg("no integer at %s", path);
    return (long)json_integer_value(v);
}

void served_expect_text(const json_t *value, const char *path, const char *text)
{
    const char *s = json_string_value(served_at(value, path));
    if (!s || strcmp(s, text) != 0) fail_msg("%s is %s, not %s", path, s ? s : "absent", text);
}

void served_expect_error(const HttpReply *r, const char *type)
{
    json_t *json = json_loadb(strbuf_str(&r->body), r->body.len, 0, NULL);
    if (!json) fail_msg("no JSON: %s", strbuf_str(&r->body));
    served_expect_text(json, "error.type", type);
    assert_true(*served_text_at(json, "error.message"));
    assert_non_null(served_at(json, "error.param"));
    assert_non_null(served_at(json, "error.code"));
    json_decref(json);
}

void served_expect_alive(const Served *s)
{
    json_t *json = served_complete(s, "{\"prompt\": \"Hello\", \"max_tokens\": 3}");
    served_expect_text(json, "object", "text_completion");
    json_decref(json);
}
