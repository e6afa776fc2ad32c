/* load_cpu.c: see load_cpu.h. */
#include "bench/load_cpu.h"

#include <time.h>

#include "base/mem.h"
#include "bench/load_floor.h"
#include "bench/load_phase.h"

enum { ROUNDS = 7, LONG_BYTES = 8000 };

/* The short request is what the others are compared with. */
enum { REQUEST, CHAT, PROMPT };

const struct LoadCost load_costs[N_LOAD_COSTS] = {
    {"a completion request", "request", 100},
    {"a chat request", "chat_request", 100},
    {"a prompt token", "prompt_token", 1},
    {"a streamed token, one stream", "token", 10},
    {"the same, eight streams", "token_of_8", 10},
    {"a streamed token, one, no drafts", "token_undrafted", 10},
    {"the same, eight streams", "token_undrafted_of_8", 10},
};

#define ONE_TOKEN "{\"max_tokens\": 1, \"temperature\": 0}"
#define STREAM    "\"max_tokens\": 128, \"temperature\": 0, \"ignore_eos\": true"
#define DRAFTED   "{" STREAM "}"
#define UNDRAFTED "{" STREAM ", \"speculative.n_max\": 0}"

static const struct {
    int chat, streamed, n_conns;
    int n; /* requests in a round: so many that a new connection is lost among them */
    const char *fields;
} kinds[N_LOAD_COSTS] = {
    {0, 0, 1, 60, ONE_TOKEN}, {1, 0, 1, 60, ONE_TOKEN}, {0, 0, 1, 4, ONE_TOKEN},
    {0, 1, 1, 2, DRAFTED},    {0, 1, 8, 8, DRAFTED},    {0, 1, 1, 2, UNDRAFTED},
    {0, 1, 8, 8, UNDRAFTED},
};

/* Of one kind, per request. */
typedef struct {
    double us[ROUNDS];
    double n_prompt, n_tokens, n_reads; /* reads that brought the client events */
} Cost;

/* The kernel's part, by the round. */
typedef struct {
    double request[ROUNDS], piece_of_1[ROUNDS], piece_of_8[ROUNDS];
} Floors;

static double cpu_us(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int run(const LoadTarget *target, LoadCases *cases, const LoadPlan *plan, LoadResult *r,
               Error *err)
{
    load_phase_run(target, cases, plan, r);
    long n_bad = load_result_bad(r);
    if (!n_bad) return 0;
    return error_set(err, ERR_DEVICE, "%ld of %d requests for the CPU figures went wrong", n_bad,
                     plan->n_requests);
}

static int run_round(Cost *cost, int round, const LoadTarget *target, clockid_t clock,
                     LoadCases *cases, LoadResult *r, Error *err)
{
    for (int i = 0; i < N_LOAD_COSTS; i++) {
        int n = kinds[i].n;
        LoadPlan plan = {.n_conns = kinds[i].n_conns,
                         .n_requests = n,
                         .first = i,
                         .n_cases = 1,
                         .streamed_percent = kinds[i].streamed ? 100 : 0};
        if (cases->list[i].left_out) continue;
        double before = cpu_us(clock);
        if (run(target, cases, &plan, r, err)) return -1;
        cost[i].us[round] = (cpu_us(clock) - before) / n;
        cost[i].n_prompt = (double)r->n_prompt / n;
        cost[i].n_tokens = (double)r->n_tokens / n;
        cost[i].n_reads = (double)(r->first_token.n + r->between.n) / n;
    }
    return 0;
}

static int run_floors(Floors *f, int round, Error *err)
{
    return load_floor_request(&f->request[round], err) ||
           load_floor_piece(1, &f->piece_of_1[round], err) ||
           load_floor_piece(8, &f->piece_of_8[round], err);
}

/* The least disturbed round: what else runs on the machine can only add, by evicting caches. */
static double least(const double *us)
{
    double least = us[0];
    for (int i = 1; i < ROUNDS; i++)
        if (us[i] < least) least = us[i];
    return least;
}

/* What n of something add to a request; 0 when there was none. */
static double each(double us, double request_us, double n)
{
    return n > 0 ? (us - request_us) / n : 0;
}

static void sum_up(LoadCpu *cpu, const Cost *cost, const Floors *floors)
{
    const Cost *request = &cost[REQUEST];
    double request_us = least(request->us);
    for (int i = 0; i < N_LOAD_COSTS; i++) {
        const Cost *c = &cost[i];
        double us = least(c->us), n_more = c->n_tokens - request->n_tokens;
        if (i == REQUEST || i == CHAT) {
            cpu->us[i] = us;
            cpu->kernel[i] = least(floors->request);
        } else if (i == PROMPT) {
            cpu->us[i] = each(us, request_us, c->n_prompt - request->n_prompt);
        } else {
            double piece = least(kinds[i].n_conns > 1 ? floors->piece_of_8 : floors->piece_of_1);
            cpu->us[i] = each(us, request_us, n_more);
            /* The first piece stands for the reply that is subtracted. */
            cpu->kernel[i] = each(piece * c->n_reads, piece, n_more);
        }
    }
}

int load_cpu_measure(LoadCpu *cpu, const LoadTarget *target, pthread_t thread, Error *err)
{
    clockid_t clock;
    LoadCases cases = {0};
    Cost cost[N_LOAD_COSTS] = {0};
    Floors floors = {0};
    LoadResult *r = mem_alloc(1, sizeof *r);
    if (pthread_getcpuclockid(thread, &clock)) {
        mem_free(r);
        return error_set(err, ERR_DEVICE, "the server's thread has no CPU clock");
    }
    char *text = load_cases_text(LONG_BYTES);
    for (int i = 0; i < N_LOAD_COSTS; i++)
        load_cases_add_prompt(&cases, load_costs[i].name, kinds[i].chat,
                              i == PROMPT ? text : "Hello", kinds[i].fields);
    mem_free(text);
    LoadPlan alone = {.n_conns = 1,
                      .n_requests = 2 * N_LOAD_COSTS,
                      .n_cases = N_LOAD_COSTS,
                      .order = CASES_COLLECT};
    int rc = run(target, &cases, &alone, r, err);
    for (int i = 0; !rc && i < ROUNDS; i++)
        rc = run_round(cost, i, target, clock, &cases, r, err) || run_floors(&floors, i, err);
    if (!rc) sum_up(cpu, cost, &floors);
    load_cases_free(&cases);
    mem_free(r);
    return rc ? -1 : 0;
}
