/*
 * served.h: the demo model behind a real server in this process, on a free port.
 */
#ifndef OFFSHOOT_TESTS_SERVED_H
#define OFFSHOOT_TESTS_SERVED_H

#include <pthread.h>

#include "server/server.h"
#include "tests/http_client.h"

typedef struct {
    int max_seqs, max_waiting; /* 0: 4, 16 */
    int ctx_size;              /* 0: the model's */
    int plain;                 /* 1: no drafter */
    const Drafter *drafter;    /* instead of the model's own; the test's, who closes it */
    int draft;                 /* what the settings say that it is */
    CacheOptions cache;        /* off */
    const char *cache_dir;     /* NULL: none */
    const char *api_key, *cors;
    const char *model_name;               /* NULL: "demo" */
    int strict_model, default_max_tokens; /* as the options; 0 of the latter: as without it */
    int model_max_tokens;                 /* of its generation_config.json; 0: not said there */
    int messages_thinking;                /* auto, on, off */
    ServerLimits limits;
    int takeover;   /* a port: the server takes the place of the one there */
    int not_loaded; /* 1: served_start comes back while the loader waits for served_load */
} ServedOptions;

/* Defaults, with a drain of 2 s. */
ServedOptions served_defaults(void);

typedef struct {
    Settings settings;
    Service service;
    EngineOptions engine_options;
    Drafter drafter;
    Server *server;
    pthread_mutex_t lock;
    pthread_cond_t may_load;
    enum { LOAD_WAIT, LOAD_WELL, LOAD_BADLY } load;
    pthread_t thread;
    int joined;
    int port;
    int rc; /* of server_run */
    Error err;
} Served;

/* Opens the model once for all tests of a program, and closes it: cmocka's group functions. */
int served_open_model(void **state);
int served_close_model(void **state);

/* Makes the model's outputs NaN, or whole again; while no server runs. */
void served_break_model(int broken);

/*
 * From now on the device fails (or not any more). The first call is to be made, with 0, while no
 * server runs; further ones at any time.
 */
void served_lose_device(int lost);

Served *served_start(const ServedOptions *options);

/* The server that all tests of a program share, where they do. */
extern Served *served;

/* It and its model, with the defaults: cmocka's group functions; or with options of its own. */
int served_open(void **state);
int served_open_with(const ServedOptions *options);
int served_close(void **state);

/* With not_loaded: lets the loader end, well or with ERR_FILE. */
void served_load(Served *s, int well);

/* Fails after a minute. */
void served_wait_ready(const Served *s);

/* The engine alone, in a Served without a server; served_close_engine checks its pools. */
Served *served_open_engine(const ServedOptions *options);
void served_close_engine(Served *s);

/* Waits for the end of server_run, which somebody else has caused. */
void served_join(Served *s);

/*
 * Stops the server (unless it has ended by itself) and checks that the engine's pools are whole
 * again. Frees s; returns server_run's result.
 */
int served_stop(Served *s);

/* Waits until no answer is live; fails after a minute. */
void served_wait_idle(const Served *s);

/*
 * A client that POSTs body, whose answer does not end, and leaves once it is live, or its stream
 * has begun; waits until the server has noticed.
 */
void served_leave(const Served *s, const char *path, const char *body, int is_stream);

/* Takes body; its text with more fields, JSON without braces, a comma behind each. */
char *served_body(json_t *body, const char *fields);

/* POSTs a JSON text and returns the reply's JSON; fails when the status is another. */
json_t *served_post(const Served *s, const char *path, const char *body, int status);

/* The reply of /v1/completions to a body that is built as printf does. */
json_t *served_complete(const Served *s, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* served_post for a body whose "stream" is true: the events. */
json_t *served_events(const Served *s, const char *path, const char *body);
json_t *served_named_events(const Served *s, const char *path, const char *body);

/* A value deep in a reply: served_at(reply, "choices.0.text"). NULL when there is none. */
const json_t *served_at(const json_t *value, const char *path);

/* The same for a text and an integer that must be there. */
const char *served_text_at(const json_t *value, const char *path);
long served_int_at(const json_t *value, const char *path);

void served_expect_text(const json_t *value, const char *path, const char *text);

/* The reply is an error object of this type, with the four keys that one has. */
void served_expect_error(const HttpReply *r, const char *type);

/* A plain request works: whatever came before has broken nothing. */
void served_expect_alive(const Served *s);

#endif
