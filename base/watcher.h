/*
 * watcher.h: what watches an answer's kept tokens, one by one, on the engine thread.
 *
 * Stop strings and reply parsers know text; the engine knows tokens. A Watcher joins them: the
 * engine shows it each token in order before the token is let out. It must not allocate.
 */
#ifndef OFFSHOOT_BASE_WATCHER_H
#define OFFSHOOT_BASE_WATCHER_H

#include <stdint.h>

typedef enum {
    WATCH_GO,    /* everything so far may be sent */
    WATCH_HELD,  /* some text is held back: a stop string may have begun */
    WATCH_STOP,  /* the answer ends with this token */
    WATCH_FORCE, /* the request's forced tokens follow this one */
} WatchVerdict;

typedef struct {
    void *self; /* NULL: nothing is watched */
    WatchVerdict (*token)(void *self, int32_t token);
} Watcher;

#endif
