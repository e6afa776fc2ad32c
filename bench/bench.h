/*
 * bench.h: the programs behind `offshoot bench NAME`. They print figures.
 */
#ifndef OFFSHOOT_BENCH_BENCH_H
#define OFFSHOOT_BENCH_BENCH_H

#include "server/service.h"

/*
 * `bench accept`: answers a jsonl of prompts with and without drafts and prints, per category,
 * acceptance length, histogram, acceptance by depth, tokens/s both ways. A line of the file is
 * {"category", "turns": [user text, ...]} or {"category", "messages": [...], "tools": [...]}; of
 * the latter every assistant turn is asked for anew, with the file's own history before it.
 */
int bench_accept_run(const Service *s, Error *err);

/*
 * `bench load`: asks our server (in this process, or at --url: then s has settings alone) the same
 * few dozen requests over and over from many connections, streamed and whole, some of which vanish
 * half-way. Fails when an answer is lost, refused or other than the request's answer alone. Prints,
 * per number of connections, speed, latency and memory, and what the server's thread costs.
 */
int bench_load_run(const Service *s, Error *err);

#endif
