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
    error_mask_controls(err->msg);
    return -1;
}

void error_mask_controls(char *text)
{
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
}

int error_exit_status(ErrorCode code)
{
    static const int status[] = {
        [ERR_NONE] = 1, [ERR_INPUT] = 2, [ERR_LIMIT] = 3,
        [ERR_BUSY] = 4, [ERR_FILE] = 5,  [ERR_DEVICE] = 6,
    };
    return status[code];
}
