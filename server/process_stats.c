/* process_stats.c: see process_stats.h. */
#include "server/process_stats.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Fields of /proc/self/stat, counted as in proc(5) from 1. */
enum { STAT_UTIME = 14, STAT_STIME = 15, STAT_STARTTIME = 22, STAT_RSS = 24, N_STAT = 24 };

/* Fields 4.. into field[]; 0, or -1. The name before them may hold blanks and brackets. */
static int read_stat(double field[N_STAT + 1])
{
    char text[1024];
    int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0) return -1;
    text[n] = 0;
    char *at = strrchr(text, ')');
    if (!at || strlen(at) < 4) return -1;
    at += 3; /* blank, state */
    for (int i = 4; i <= N_STAT; i++)
        field[i] = strtod(at, &at);
    return 0;
}

static int count_open_fds(void)
{
    int n = 0;
    DIR *dir = opendir("/proc/self/fd");
    if (!dir) return 0;
    while (readdir(dir))
        n++;
    closedir(dir);
    return n - 3; /* ".", ".." and the folder itself */
}

ProcessStats process_stats(void)
{
    double field[N_STAT + 1] = {0};
    if (read_stat(field)) return (ProcessStats){0};
    return (ProcessStats){
        .resident_bytes = field[STAT_RSS] * (double)sysconf(_SC_PAGESIZE),
        .cpu_s = (field[STAT_UTIME] + field[STAT_STIME]) / (double)sysconf(_SC_CLK_TCK),
        .open_fds = count_open_fds(),
    };
}

double process_age_s(void)
{
    double field[N_STAT + 1] = {0};
    struct timespec up;
    if (read_stat(field) || clock_gettime(CLOCK_BOOTTIME, &up)) return 0;
    double started = field[STAT_STARTTIME] / (double)sysconf(_SC_CLK_TCK);
    double age = (double)up.tv_sec + (double)up.tv_nsec / 1e9 - started;
    return age > 0 ? age : 0;
}
