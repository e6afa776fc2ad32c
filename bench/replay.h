/*
 * replay.h: the same requests, in the same order, to one server after another: without and with the
 * prefix cache, without and with drafts. Each server is fresh, with an engine of its own; with
 * --url there is one, as it is.
 *
 * The answers of the first row are those that the other rows' are compared with. They must be
 * equal, but for what a GPU's cache has of answers (may_differ).
 */
#ifndef OFFSHOOT_BENCH_REPLAY_H
#define OFFSHOOT_BENCH_REPLAY_H

#include "bench/bench.h"
#include "bench/load_phase.h"

enum { MAX_REPLAY_ROWS = 4 };

typedef struct {
    int cache;      /* 0 or 1; -1: the server's own business */
    char draft[16]; /* what drafts: "mtp", "none"; "-": the server's own business */
    int may_differ; /* its answers, from the first row's */
    double seconds;
    LoadTurn *turn; /* [n_turns] */
} ReplayRow;

typedef struct {
    ReplayRow row[MAX_REPLAY_ROWS];
    int n_rows, n_turns;
    int n_left_out; /* requests that do not fit the server's context */
} Replay;

typedef struct {
    LoadCases *cases; /* request k is case k */
    int n_conns;
    int compare_drafts; /* 1: with and without, unless --draft is none */
    int quiet;          /* 1: no table on stdout while it runs */
} ReplayPlan;

/*
 * s has settings alone when they name a URL, else all but an engine, which opener opens. Fails when
 * a request gets no answer. r is zeroed, and to be freed whatever comes back.
 */
int replay_run(Replay *r, const ReplayPlan *plan, const Service *s, const EngineOpener *opener,
               Error *err);
void replay_free(Replay *r);

/* 0, or -1 and an Error when answers differ that must not: to be asked when all is printed. */
int replay_check(const Replay *r, Error *err);

/* --connections as one number, or the bench's own. */
int replay_connections(const Settings *set, int own, int *n_conns, Error *err);

/* Sums over the turns of a row of which pick[k] is 1, or over all. */
typedef struct {
    int n_turns, n_differ;
    long n_prompt, n_tokens, n_cached, n_drafted, n_accepted;
    double decode_ms;         /* from first tokens to ends */
    double first_ms_p[3];     /* to the first token: 50, 95, 99 % */
    double tokens_per_second; /* of one answer after its first token */
    double accepted_length;   /* 1 + accepted / steps */
} ReplaySum;
ReplaySum replay_sum(const Replay *r, int row, const char *pick);

/* A row's name, its settings and its sums; a turn's figures. */
json_t *replay_row_json(const Replay *r, int row);
json_t *replay_turn_json(const LoadTurn *t);

/* The line of a row as in the table. */
void replay_print_name(const ReplayRow *row);

#endif
