/*
 * error.h: errors as values.
 *
 * A function that can fail returns 0 or -1 and fills the Error handed in last. The world being
 * wrong (a bad file, a bad request, a full queue) is an Error; we being wrong is an assert.
 */
#ifndef OFFSHOOT_BASE_ERROR_H
#define OFFSHOOT_BASE_ERROR_H

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    ERR_NONE,
    ERR_INPUT,  /* the caller's data is wrong: bad JSON, a bad option, an unknown token */
    ERR_LIMIT,  /* the data is fine but too large for a named limit */
    ERR_BUSY,   /* full or taken just now; worth trying again */
    ERR_FILE,   /* a file is missing, short or lies about its content */
    ERR_DEVICE, /* the compute device is gone, or memory is */
} ErrorCode;

typedef struct {
    ErrorCode code;
    char msg[240]; /* one line, no full stop, fit to show to a user */
} Error;

/* Fills *err unless it is NULL. Always returns -1, so failing is one line at the call site. */
int error_set(Error *err, ErrorCode code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/*
 * Control characters (from a file, a client) become '?': a line stays one, and moves no cursor. Of
 * a UTF-8 character that was cut off at the end nothing is left.
 */
void error_make_line(char *text);

/* Of a process that such an error ends. */
int error_exit_status(ErrorCode code);

#ifdef __cplusplus
}
#endif

#endif
