/*
 * reply_watch.h: where an answer ends, told on the engine's thread.
 *
 * The same scan as Reply's, over the same tokens: a stop string counts in visible content alone,
 * and with single_call the answer ends after its first call. Ends at the token at which reply_ended
 * turns 1. Takes no memory after it is opened.
 */
#ifndef OFFSHOOT_TEXT_REPLY_WATCH_H
#define OFFSHOOT_TEXT_REPLY_WATCH_H

#include "base/watcher.h"
#include "text/reply.h"

typedef struct ReplyWatch ReplyWatch;

/* options->scan.tok is needed. NULL and an Error for stop strings that stop_matcher_open refuses.
 */
ReplyWatch *reply_watch_open(const ReplyOptions *options, Error *err);
void reply_watch_close(ReplyWatch *w);

/* The tokens so far end within reasoning. */
int reply_watch_in_think(const ReplyWatch *w);

/* A Watcher over w; w must outlive it. */
Watcher reply_watch_watcher(ReplyWatch *w);

#endif
