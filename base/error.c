/* error.c: see error.h. */
#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>

int error_set(Error *err, ErrorCode code, const char *fmt, ...)
{
    if (!err) return -1;
    err->code = code;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    error_make_line(err->msg);
    return -1;
}

static void drop_cut_character(char *text, size_t len)
{
    size_t n = 0; /* bytes behind the last character's first */
    while (n < len && ((unsigned char)text[len - 1 - n] & 0xC0) == 0x80)
        n++;
    if (n == len) return;
    unsigned char first = (unsigned char)text[len - 1 - n];
    size_t more = first < 0xC0 ? 0 : first < 0xE0 ? 1 : first < 0xF0 ? 2 : 3;
    if (n < more) text[len - 1 - n] = 0;
}

void error_make_line(char *text)
{
    char *c = text;
    for (; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
    drop_cut_character(text, (size_t)(c - text));
}

int error_exit_status(ErrorCode code)
{
    static const int status[] = {
        [ERR_NONE] = 1, [ERR_INPUT] = 2, [ERR_LIMIT] = 3,
        [ERR_BUSY] = 4, [ERR_FILE] = 5,  [ERR_DEVICE] = 6,
    };
    return status[code];
}
