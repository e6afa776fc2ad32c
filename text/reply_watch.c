/* reply_watch.c: see reply_watch.h. */
#include "text/reply_watch.h"

#include "base/mem.h"
#include "text/stop.h"

struct ReplyWatch {
    ReplyScan *scan;
    StopMatcher *matcher; /* NULL: no stop strings */
    int n_unwatched;
    int single_call, n_calls;
    int stopped;
};

static void watch_event(void *self, ScanEvent event, const char *text, size_t len)
{
    ReplyWatch *w = self;
    if (event == SCAN_CONTENT) {
        if (w->matcher && !w->n_unwatched && !w->stopped)
            w->stopped = stop_matcher_text(w->matcher, text, len);
        return;
    }
    if (w->matcher && event != SCAN_REASONING_END) stop_matcher_break(w->matcher);
    if (!w->single_call) return;
    if (event == SCAN_CALL || event == SCAN_CALL_JSON) w->stopped |= w->n_calls++ > 0;
    if (event == SCAN_CALL_CLOSED) w->stopped = 1;
}

ReplyWatch *reply_watch_open(const ReplyOptions *options, Error *err)
{
    StopMatcher *matcher = NULL;
    if (options->n_stop) {
        matcher = stop_matcher_open(options->stop, options->n_stop, err);
        if (!matcher) return NULL;
    }
    ReplyWatch *w = mem_alloc(1, sizeof *w);
    w->matcher = matcher;
    w->n_unwatched = options->n_unwatched;
    w->single_call = options->single_call;
    w->scan = reply_scan_open(&options->scan, (ScanSink){w, watch_event});
    return w;
}

void reply_watch_close(ReplyWatch *w)
{
    if (!w) return;
    reply_scan_close(w->scan);
    stop_matcher_close(w->matcher);
    mem_free(w);
}

int reply_watch_in_think(const ReplyWatch *w)
{
    return reply_scan_in_think(w->scan);
}

static WatchVerdict watch_token(void *self, int32_t token)
{
    ReplyWatch *w = self;
    if (!w->stopped) reply_scan_token(w->scan, token);
    if (w->n_unwatched) w->n_unwatched--;
    if (w->stopped) return WATCH_STOP;
    int held = reply_scan_held(w->scan) || (w->matcher && stop_matcher_held(w->matcher));
    return held ? WATCH_HELD : WATCH_GO;
}

Watcher reply_watch_watcher(ReplyWatch *w)
{
    return (Watcher){w, watch_token};
}
