/*
 * available.h: how much memory this process could take now, and where it lies; how many
 * processors it could use.
 */
#ifndef OFFSHOOT_BASE_AVAILABLE_H
#define OFFSHOOT_BASE_AVAILABLE_H

#include <stdint.h>

/* Where Linux says so; another place in tests. */
typedef struct {
    const char *meminfo; /* "/proc/meminfo" */
    const char *groups;  /* "/proc/self/cgroup" */
    const char *root;    /* "/sys/fs/cgroup"; version 1 has folders there, "memory", "cpu" */
} SystemFiles;

/*
 * Bytes that could be taken without swapping: MemAvailable, in which files that are cached count as
 * free, but for those in memory alone (tmpfs); and no more than any control group of this process,
 * a container's for one, leaves of its limit, reckoned the same way. What the system does not say
 * is no limit; -1 if it says nothing.
 */
int64_t memory_available(void);
int64_t memory_available_in(const SystemFiles *files);

/*
 * Processors that this process may run on, and no more than the time that its control groups give,
 * rounded up: who keeps more busy is stopped for the rest of each period. n: those it may run on.
 */
int cpus_available(void);
int cpus_available_in(const SystemFiles *files, int n);

/*
 * 1 if all memory is as near to every processor (one NUMA node). Where it is not, who touches
 * memory first decides where it lies. online: the kernel's list of nodes, "0" or "0-1".
 */
int memory_is_one_node(void);
int memory_is_one_node_in(const char *online);

#endif
