/* prefix_lists.c: what --capacity, --policy and --alpha of `bench prefix` name. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/options.h"
#include "bench/prefix.h"

static const double MAX_CAPACITY = 1e15, MAX_FIXED_ALPHA = 100;

/* Calls each() with every part of a list with commas, in a buffer that it may keep nothing of. */
static int each_item(const char *option, const char *list,
                     int (*each)(PrefixBench *b, const char *item, Error *err), PrefixBench *b,
                     Error *err)
{
    for (const char *at = list;; at++) {
        char item[32];
        size_t n = strcspn(at, ",");
        if (!n || n >= sizeof item)
            return error_set(err, ERR_INPUT, "%s is '%.60s', which is no list", option, list);
        memcpy(item, at, n);
        item[n] = 0;
        if (each(b, item, err)) return -1;
        at += n;
        if (!*at) return 0;
    }
}

static int add_capacity(PrefixBench *b, const char *item, Error *err)
{
    int64_t bytes;
    if (options_read_bytes(item, &bytes) || bytes < 1 || (double)bytes > MAX_CAPACITY)
        return error_set(err, ERR_INPUT, "--capacity has '%s', expected sizes such as 512M,4G",
                         item);
    if (b->n_capacities == MAX_CAPACITIES)
        return error_set(err, ERR_LIMIT, "--capacity has more than %d sizes", MAX_CAPACITIES);
    b->capacity[b->n_capacities++] = (double)bytes;
    return 0;
}

static int add_policy(PrefixBench *b, Policy policy, Error *err)
{
    if (b->n_policies == MAX_POLICIES)
        return error_set(err, ERR_LIMIT, "more than %d policies", MAX_POLICIES);
    b->policy[b->n_policies++] = policy;
    return 0;
}

static int add_alpha(PrefixBench *b, const char *item, Error *err)
{
    char *end;
    if (!strcmp(item, "tune"))
        return add_policy(b, (Policy){.kind = CACHE_TUNED, .name = "flop tuned"}, err);
    Policy p = {.kind = CACHE_FLOP, .alpha = strtod(item, &end)};
    if (*end || !(p.alpha >= 0 && p.alpha <= MAX_FIXED_ALPHA))
        return error_set(err, ERR_INPUT, "--alpha has '%s', expected tune or 0 to %g", item,
                         MAX_FIXED_ALPHA);
    snprintf(p.name, sizeof p.name, "flop %.4g", p.alpha);
    return add_policy(b, p, err);
}

static int add_blocks(PrefixBench *b, const char *item, Error *err)
{
    enum { MAX_BLOCK = 1 << 20 };
    char *end;
    if (b->real)
        return error_set(err, ERR_INPUT,
                         "--policy has '%s', which exists only simulated: not with --real", item);
    long n = strtol(item + strlen("block"), &end, 10);
    if (*end || n < 1 || n > MAX_BLOCK)
        return error_set(err, ERR_INPUT, "--policy has '%s', expected block1 to block%d", item,
                         MAX_BLOCK);
    Policy p = {.kind = CACHE_BLOCKS, .block_tokens = (int)n};
    snprintf(p.name, sizeof p.name, "block %ld", n);
    return add_policy(b, p, err);
}

static int add_policies(PrefixBench *b, const char *item, Error *err)
{
    if (!strcmp(item, "none"))
        return add_policy(b, (Policy){.kind = CACHE_NONE, .name = "none"}, err);
    if (!strcmp(item, "lru")) return add_policy(b, (Policy){.kind = CACHE_LRU, .name = "lru"}, err);
    if (!strcmp(item, "flop")) return each_item("--alpha", b->alphas, add_alpha, b, err);
    if (!strncmp(item, "block", strlen("block"))) return add_blocks(b, item, err);
    return error_set(err, ERR_INPUT, "--policy has '%s', expected none, block32, lru or flop",
                     item);
}

int prefix_read_policies(PrefixBench *b, const char *policies, const char *alphas, Error *err)
{
    b->alphas = alphas;
    return each_item("--policy", policies, add_policies, b, err);
}

int prefix_read_capacities(PrefixBench *b, const char *capacities, Error *err)
{
    return each_item("--capacity", capacities, add_capacity, b, err);
}

/*
 * In whole megabytes; the longest request fits all of them, with the rows that drafts may take, and
 * so does what each policy needs.
 */
void prefix_default_capacities(PrefixBench *b, const double *shares, int n)
{
    enum { STATES = 4, DRAFT_ROWS = 128 };
    double all = policy_all_bytes(&b->run);
    double least = b->trace.longest * b->shape.kv_bytes + STATES * b->shape.state_bytes;
    if (b->real) least += DRAFT_ROWS * b->shape.kv_bytes;
    for (int i = 0; i < b->n_policies; i++)
        least = fmax(least, policy_least_bytes(&b->shape, &b->policy[i]));
    for (int i = 0; i < n; i++) {
        double bytes = all * shares[i];
        bytes = ceil((bytes > least ? bytes : least) / 1e6) * 1e6;
        if (b->n_capacities && b->capacity[b->n_capacities - 1] == bytes) continue;
        b->capacity[b->n_capacities++] = bytes;
    }
}
