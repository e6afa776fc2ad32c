/* lost_file.c: see lost_file.h. What a signal's handler calls is safe there: signal-safety(7). */
#include "base/lost_file.h"

#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

enum { LINE_BYTES = 4096 + 128 }; /* of a path and what is before it */

static int exit_status;

/* The number at *s, in hexadecimal; *s behind it. */
static uintptr_t take_hex(const char **s)
{
    static const char digits[] = "0123456789abcdef";
    uintptr_t n = 0;
    for (const char *d; **s && (d = strchr(digits, **s)); ++*s)
        n = n * 16 + (uintptr_t)(d - digits);
    return n;
}

/* Of a line "FIRST-END MODE ... /PATH" the path, when it maps `at`. */
static const char *path_if_maps(const char *line, uintptr_t at)
{
    uintptr_t first = take_hex(&line);
    if (*line++ != '-') return NULL;
    uintptr_t end = take_hex(&line);
    return at >= first && at < end ? strchr(line, '/') : NULL;
}

/* The next line of fd in `line`, cut to its size; 0 at the end. */
static int take_line(int fd, char *line, size_t size)
{
    size_t n = 0;
    char c = 0;
    while (c != '\n' && read(fd, &c, 1) == 1)
        if (c != '\n' && n + 1 < size) line[n++] = c;
    line[n] = '\0';
    return n > 0;
}

/* In one piece, for others write there too. */
static void say(const char *path)
{
    static const char before[] = "offshoot: '",
                      behind[] = "' is not what it was when it was opened: it was cut, or its "
                                 "disk fails\n";
    char text[LINE_BYTES + sizeof before + sizeof behind];
    char *end = stpcpy(stpcpy(stpcpy(text, before), path), behind);
    ssize_t n = write(STDERR_FILENO, text, (size_t)(end - text));
    (void)n; /* nobody is left to tell */
}

static void on_lost(int signal_number, siginfo_t *info, void *context)
{
    (void)context;
    char line[LINE_BYTES];
    const char *path = NULL;
    int fd = info->si_code == BUS_ADRERR ? open("/proc/self/maps", O_RDONLY | O_CLOEXEC) : -1;
    while (fd >= 0 && !path && take_line(fd, line, sizeof line))
        path = path_if_maps(line, (uintptr_t)info->si_addr);
    if (!path) { /* another fault, which comes again and ends the process as it would have */
        signal(signal_number, SIG_DFL);
        return;
    }
    say(path);
    _exit(exit_status);
}

void lost_file_ends_process(int status)
{
    struct sigaction action = {.sa_sigaction = on_lost, .sa_flags = SA_SIGINFO};
    exit_status = status;
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, NULL);
}
