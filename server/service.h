/*
 * service.h: what a command needs to answer prompts: an open engine and the text side of its model.
 *
 * main.c opens all of it, and says in which order.
 */
#ifndef OFFSHOOT_SERVER_SERVICE_H
#define OFFSHOOT_SERVER_SERVICE_H

#include "engine/engine.h"
#include "server/settings.h"
#include "text/chat.h"
#include "text/tokenizer.h"
#include "text/tokenizer_config.h"

typedef struct {
    const Settings *settings;
    Engine *engine;
    const Tokenizer *tok;
    ChatTemplate tmpl;
    GenerationDefaults generation; /* the model's */
    const char *model_name;        /* served name */
    const char *device;            /* what the model runs on: "cpu" */
    TokenizerConfig tok_config;
    double weights_s; /* what opening the model took; 0: not known */
} Service;

/*
 * Sampling parameters from the command line's settings over the model's generation_config.json over
 * temperature 1, top-p 1 (do_sample false there means greedy).
 */
SampleParams service_sampling(const Service *s);

/*
 * How long an answer may be: as chosen, or where that is -1 as generation_config.json says; -1: to
 * the context's end.
 */
int service_max_tokens(const Service *s, int chosen);

/* How a prompt is made that asks for nothing else: a new turn, and the settings' thinking. */
ChatOptions service_chat_options(const Settings *settings);

/* Fills *service, which lends what it points to; runs on a thread of its own. 0 or -1. */
typedef struct {
    int (*load)(void *ctx, Service *service, Error *err);
    void *ctx;
} ServiceLoader;

/*
 * `offshoot serve`: listens, loads, serves until SIGTERM, SIGINT or SIGHUP. 0 or -1;
 * SERVE_LEFT_LOADING when it was asked to end while the loader runs, which still does: the process
 * must exit under it.
 */
enum { SERVE_LEFT_LOADING = 1 };
int serve_run(const Settings *settings, const ServiceLoader *loader, Error *err);

/* `offshoot chat`: answers prompt once, or talks with the terminal when prompt is NULL. 0 or -1. */
int chat_run(const Service *s, const char *prompt, Error *err);

#endif
