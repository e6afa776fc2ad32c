/* available.c: see available.h. */
#include "base/available.h"

#include <inttypes.h>
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

/* What a group leaves of its limit; -1 where it has none ("max", or no such file). */
static int64_t left_in_group(const char *group)
{
    int64_t most = number_of_group(group, "memory.max", ""),
            taken = number_of_group(group, "memory.current", ""),
            cached = number_of_group(group, "memory.stat", "file "),
            shared = number_of_group(group, "memory.stat", "shmem "); /* of these: not freed */
    if (most < 0 || taken < 0) return -1;
    if (shared > 0) cached -= shared;
    if (cached > 0) taken -= cached < taken ? cached : taken;
    return taken < most ? most - taken : 0;
}

/* The group of this process, "/a/b" in a line "0::/a/b". */
static int find_group(const MemoryFiles *files, char path[MAX_PATH])
{
    char line[MAX_PATH / 2];
    int found = 0;
    FILE *f = fopen(files->groups, "r");
    if (!f) return 0;
    while (!found && fgets(line, sizeof line, f)) {
        if (strncmp(line, "0::/", 4) != 0) continue;
        line[strcspn(line, "\n")] = 0;
        snprintf(path, MAX_PATH, "%s%s", files->root, line + 3);
        found = 1;
    }
    fclose(f);
    return found;
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < 0 || (b >= 0 && b < a) ? b : a;
}

int64_t memory_available_in(const MemoryFiles *files)
{
    char group[MAX_PATH];
    int64_t kib = number_in(files->meminfo, "MemAvailable:");
    int64_t left = kib < 0 ? -1 : kib * 1024;
    if (!find_group(files, group)) return left;
    size_t root = strlen(files->root);
    for (;;) { /* the group and all around it */
        left = smaller(left, left_in_group(group));
        char *slash = strrchr(group, '/');
        if (!slash || (size_t)(slash - group) < root) return left;
        *slash = 0;
    }
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

int64_t memory_available(void)
{
    return memory_available_in(
        &(MemoryFiles){"/proc/meminfo", "/proc/self/cgroup", "/sys/fs/cgroup"});
}
