/*
 * log.c: see log.h. A line is built whole and written by one call, so lines never mix.
 *
 * stderr stays as it was given to us, for others share it: whether it takes a line is asked before.
 */
#include "base/log.h"

#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/error.h"

enum {
    LINE_SIZE = 1024,
    TIME_AND_LEVEL = 32, /* and the line's end; the longest is "2026-01-01T00:00:00.000Z error " */
};

static atomic_int threshold = LOG_LEVEL_INFO;
static atomic_int n_lost; /* lines, since the last one that was written */
static const char *const names[] = {"error", "warn", "info", "debug"};

void log_set_level(LogLevel level)
{
    atomic_store(&threshold, (int)level);
}

/* A pipe that is writable takes a page, which is more than a line; so does a socket. */
static int would_block(void)
{
    struct pollfd out = {.fd = fileno(stderr), .events = POLLOUT};
    return !poll(&out, 1, 0);
}

static void write_line(LogLevel level, const char *message)
{
    char line[LINE_SIZE];
    struct timespec now;
    struct tm utc;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    size_t n = strftime(line, sizeof line, "%Y-%m-%dT%H:%M:%S", &utc);
    n += (size_t)snprintf(line + n, sizeof line - n, ".%03ldZ %s %s", now.tv_nsec / 1000000,
                          names[level], message);
    line[n] = '\n';
    fwrite(line, 1, n + 1, stderr);
}

void log_event(LogLevel level, const char *fmt, ...)
{
    char message[LINE_SIZE - TIME_AND_LEVEL] = "", lost[48];
    if ((int)level > atomic_load(&threshold)) return;
    if (would_block()) {
        atomic_fetch_add(&n_lost, 1);
        return;
    }
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    error_make_line(message);
    int n = atomic_exchange(&n_lost, 0);
    snprintf(lost, sizeof lost, "log_lost lines=%d", n);
    if (n) write_line(LOG_LEVEL_WARN, lost);
    write_line(level, message);
}
