/*
 * agent_loops.h: agent loops from a file, as the requests that replay them.
 *
 * A line is {"id", "tools", "messages"} with the turns of an assistant, its tool calls and their
 * results. What is asked for is each assistant turn that something goes before, and the one that
 * the last message waits for, with the file's own history: so every server gets the same prompts
 * whatever it answers. Tool calls are brought into the API's form: ids are given where they are
 * missing, arguments are text.
 */
#ifndef OFFSHOOT_BENCH_AGENT_LOOPS_H
#define OFFSHOOT_BENCH_AGENT_LOOPS_H

#include "bench/load_cases.h"

typedef struct {
    int loop, turn; /* line of the file and assistant turn in it, from 1 */
    int opens;      /* 1: the loop's first */
    char *call;     /* function that the file's own turn calls first; NULL: none, or no such turn */
} AgentTurn;

/* Request k is cases.list[k] and turn[k]. */
typedef struct {
    LoadCases cases;
    AgentTurn *turn;
    int n_loops, cap;
} AgentLoops;

/*
 * Reads at most limit loops (0: all). fields: a JSON object as text, what a request has beside
 * messages and tools. *a is zeroed, and to be freed whatever comes back.
 */
int agent_loops_read(AgentLoops *a, const char *path, int limit, const char *fields, Error *err);
void agent_loops_free(AgentLoops *a);

#endif
