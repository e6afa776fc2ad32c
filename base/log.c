/* log.c: see log.h. A line is built whole and written by one call, so lines never mix. */
#include "base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static atomic_int threshold = LOG_LEVEL_INFO;
static const char *const names[] = {"error", "warn", "info", "debug"};

void log_set_level(LogLevel level)
{
    atomic_store(&threshold, (int)level);
}

void log_event(LogLevel level, const char *fmt, ...)
{
    if ((int)level > atomic_load(&threshold)) return;
    char line[1024];
    struct timespec now;
    struct tm utc;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    size_t n = strftime(line, sizeof line, "%Y-%m-%dT%H:%M:%S", &utc);
    n += (size_t)snprintf(line + n, sizeof line - n, ".%03ldZ %s ", now.tv_nsec / 1000000,
                          names[level]);
    va_list ap;
    va_start(ap, fmt);
    int m = vsnprintf(line + n, sizeof line - n - 1, fmt, ap);
    va_end(ap);
    if (m > 0) n += (size_t)m;
    if (n > sizeof line - 2) n = sizeof line - 2;
    line[n] = '\n';
    fwrite(line, 1, n + 1, stderr);
}
