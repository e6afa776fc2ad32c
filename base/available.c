/* available.c: see available.h. */
#include "base/available.h"

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

enum { MAX_PATH = 4096 };

/* The number behind a word at the start of a line ("file 4096"); "": of the first line. -1: none.
 */
static int64_t number_in(const char *path, const char *word)
{
    char line[256];
    int64_t found = -1, value;
    size_t len = strlen(word);
    FILE *f = fopen(path, "r");
    if (!f) return -1;
    while (found < 0 && fgets(line, sizeof line, f))
        if (!strncmp(line, word, len) && sscanf(line + len, "%" SCNd64, &value) == 1 && value >= 0)
            found = value;
    fclose(f);
    return found;
}

static int64_t number_of_group(const char *group, const char *file, const char *word)
{
    char path[MAX_PATH + 32];
    snprintf(path, sizeof path, "%s/%s", group, file);
    return number_in(path, word);
}

/* What a group gives of something; -1 where it sets no limit. */
typedef int64_t GroupFn(const char *group);

/* The names of a group's files, and of numbers in the last, for memory. */
typedef struct {
    const char *most, *taken, *stat_cached, *stat_shared;
} MemoryNames;

static int64_t memory_left(const char *group, const MemoryNames *name)
{
    int64_t most = number_of_group(group, name->most, ""),
            taken = number_of_group(group, name->taken, ""),
            cached = number_of_group(group, "memory.stat", name->stat_cached),
            shared = number_of_group(group, "memory.stat", name->stat_shared); /* not freed */
    if (most < 0 || taken < 0) return -1;
    if (shared > 0) cached -= shared;
    if (cached > 0) taken -= cached < taken ? cached : taken;
    return taken < most ? most - taken : 0;
}

static int64_t memory_of_v2(const char *group)
{
    static const MemoryNames name = {"memory.max", "memory.current", "file ", "shmem "};
    return memory_left(group, &name);
}

static int64_t memory_of_v1(const char *group)
{
    static const MemoryNames name = {"memory.limit_in_bytes", "memory.usage_in_bytes",
                                     "total_cache ", "total_shmem "};
    return memory_left(group, &name);
}

/* Microseconds of computing in each period; a part of a processor counts as a whole one. */
static int64_t whole_cpus(int64_t quota, int64_t period)
{
    return quota > 0 && period > 0 ? (quota - 1) / period + 1 : -1;
}

/* "150000 100000", or "max 100000". */
static int64_t cpus_of_v2(const char *group)
{
    char path[MAX_PATH + 32];
    int64_t quota, period;
    snprintf(path, sizeof path, "%s/cpu.max", group);
    FILE *f = fopen(path, "r");
    if (!f) return -1;
    int n = fscanf(f, "%" SCNd64 "%" SCNd64, &quota, &period);
    fclose(f);
    return n == 2 ? whole_cpus(quota, period) : -1;
}

static int64_t cpus_of_v1(const char *group)
{
    return whole_cpus(number_of_group(group, "cpu.cfs_quota_us", ""),
                      number_of_group(group, "cpu.cfs_period_us", ""));
}

/* 1 if the name is in a list like "cpu,cpuacct"; an empty one holds "" alone. */
static int list_has(const char *list, const char *name)
{
    for (;; list++) {
        size_t len = strcspn(list, ",");
        if (len == strlen(name) && !strncmp(list, name, len)) return 1;
        list += len;
        if (!*list) return 0;
    }
}

/*
 * The folder of this process's group: "/a/b" in a line "4:cpu,cpuacct:/a/b" of version 1, which has
 * a tree for each controller, or in "0::/a/b" of version 2, which has one for all (controller "").
 */
static int find_group(const SystemFiles *files, const char *controller, char path[MAX_PATH])
{
    char line[MAX_PATH / 2];
    int found = 0;
    FILE *f = fopen(files->groups, "r");
    if (!f) return 0;
    while (!found && fgets(line, sizeof line, f)) {
        char *list = strchr(line, ':'), *group = list ? strchr(list + 1, ':') : NULL;
        if (!group || group[1] != '/') continue;
        *group++ = 0;
        group[strcspn(group, "\n")] = 0;
        if (!list_has(list + 1, controller)) continue;
        snprintf(path, MAX_PATH, "%s%s%s%s", files->root, *controller ? "/" : "", controller,
                 group);
        found = 1;
    }
    fclose(f);
    return found;
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < 0 || (b >= 0 && b < a) ? b : a;
}

/* The least that the group and all around it give. */
static int64_t least_of_groups(const SystemFiles *files, const char *controller, GroupFn *given)
{
    char group[MAX_PATH];
    int64_t least = -1;
    if (!find_group(files, controller, group)) return -1;
    size_t root = strlen(files->root);
    for (;;) {
        least = smaller(least, given(group));
        char *slash = strrchr(group, '/');
        if (!slash || (size_t)(slash - group) < root) return least;
        *slash = 0;
    }
}

int64_t memory_available_in(const SystemFiles *files)
{
    int64_t kib = number_in(files->meminfo, "MemAvailable:");
    int64_t left = kib < 0 ? -1 : kib * 1024;
    left = smaller(left, least_of_groups(files, "", memory_of_v2));
    return smaller(left, least_of_groups(files, "memory", memory_of_v1));
}

int cpus_available_in(const SystemFiles *files, int n)
{
    int64_t least = smaller(n, least_of_groups(files, "", cpus_of_v2));
    return (int)smaller(least, least_of_groups(files, "cpu", cpus_of_v1));
}

int memory_is_one_node_in(const char *online)
{
    char list[64] = "";
    FILE *f = fopen(online, "r");
    if (!f) return 1; /* a kernel without NUMA */
    if (!fgets(list, sizeof list, f)) list[0] = 0;
    fclose(f);
    return !strpbrk(list, "-,");
}

int memory_is_one_node(void)
{
    return memory_is_one_node_in("/sys/devices/system/node/online");
}

static const SystemFiles of_system = {"/proc/meminfo", "/proc/self/cgroup", "/sys/fs/cgroup"};

int64_t memory_available(void)
{
    return memory_available_in(&of_system);
}

int cpus_available(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set)) return 1;
    return cpus_available_in(&of_system, CPU_COUNT(&set));
}
