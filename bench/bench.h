/*
 * bench.h: the programs behind `offshoot bench NAME`. They print figures.
 */
#ifndef OFFSHOOT_BENCH_BENCH_H
#define OFFSHOOT_BENCH_BENCH_H

#include "server/service.h"

/*
 * `bench accept`: answers a jsonl of prompts with and without drafts (of a fixed shape, a chain of
 * three unless the user sets another) and prints, per category, acceptance length, histogram,
 * acceptance by depth, tokens/s both ways. A line of the file is
 * {"category", "turns": [user text, ...], "tools": [...]} or the same with "messages": of these
 * every assistant turn is asked for anew, and the one that the last message waits for, with the
 * file's own history before it.
 */
int bench_accept_run(const Service *s, Error *err);

/*
 * `bench load`: asks our server (in this process, or at --url: then s has settings alone) the same
 * few dozen requests over and over from many connections, streamed and whole, some of which vanish
 * half-way. Fails when an answer is lost, refused or other than the request's answer alone. Prints,
 * per number of connections, speed, latency and memory, and what the server's thread costs.
 */
int bench_load_run(const Service *s, Error *err);

/*
 * Opens an engine with the loaded model as *set says and fills *s with it; the one that was open is
 * closed. For benches that compare settings of the engine.
 */
typedef struct {
    int (*open)(void *ctx, const Settings *set, Service *s, Error *err);
    void *ctx;
} EngineOpener;

/*
 * `bench agent`: replays agent loops, one after another: a jsonl of {"id", "tools", "messages"}, of
 * which every assistant turn is asked for anew, and the one that the last message waits for, with
 * the file's own history before it. Without and with the prefix cache, without and with drafts,
 * each on a fresh server; with --url, once, at a running server of the OpenAI style, whose model is
 * called --model if that is given too.
 */
int bench_agent_run(const Service *s, const EngineOpener *opener, Error *err);

/*
 * `bench shared-prefix`: groups of prompts that begin with the group's own long system prompt, in
 * random order, some at a time; without and with the prefix cache as above. The load is SGLang's
 * generated-shared-prefix: by default 50 groups of 10 prompts, 10,240 + 256 tokens, answers of 128.
 */
int bench_shared_prefix_run(const Service *s, const EngineOpener *opener, Error *err);

/*
 * `bench latency`: one request at a time, plain and with drafts in turns, over --contexts of random
 * tokens: tokens/s with spread, milliseconds a step, acceptance length, and what the bytes of a
 * step allow at the memory's rate, which is measured first. With dummy weights and
 * --synthetic-acceptance it needs a config and a tokenizer alone: that is the length that drafts of
 * the levels that are set have, or of three; deeper ones, where the engine chooses, have more.
 */
int bench_latency_run(const Service *s, Error *err);

/*
 * `bench turn`: what --question-tokens new tokens behind a cached prefix take to the first token,
 * for prefixes of --contexts random tokens: behind one just computed, one that the prefix cache
 * has, and with --cache-dir one that an engine just opened finds on disk. s has all but an engine.
 */
int bench_turn_run(const Service *s, const EngineOpener *opener, Error *err);

/*
 * `bench kernels`: what a pass over 1 to 64 rows takes, and each of its operations: time, bytes,
 * share of the memory's rate, which is measured first. --contexts N: keys before the rows.
 */
int bench_kernels_run(const Service *s, Error *err);

/*
 * `bench masks`: how long it takes to say which tokens of the vocabulary may come next in an answer
 * that has a form, for some forms, along walks by lot. s has settings and a tokenizer alone.
 */
int bench_masks_run(const Service *s, Error *err);

/*
 * `bench prefix`: simulates the prefix cache on a trace of requests (trace.h), several policies
 * side by side in memories of several sizes: hit rates, FLOPs saved, time to first token, as a
 * table, as JSON, and hit rates as a plot. s has settings alone, and a tokenizer where --model is
 * given.
 */
int bench_prefix_run(const Service *s, Error *err);

/*
 * The same with --real: the requests are sent to a server in this process, a fresh one with an
 * engine of its own for each policy and size. Prints what was found in the cache beside what the
 * simulation says of the same requests. Fails when an answer is another than without a cache.
 */
int bench_prefix_real_run(const Service *s, const EngineOpener *opener, Error *err);

#endif
