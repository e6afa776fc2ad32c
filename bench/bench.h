/*
 * bench.h: the programs behind `offshoot bench NAME`. They print figures; they judge nothing.
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

#endif
