/* stream.c: see stream.h. */
#include "server/stream.h"

#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "server/json_out.h"

struct StreamPulse {
    struct event *timer; /* pending while there are streams */
    double silence_ms;   /* 0: nothing is sent */
    Stream *streams;
};

static const struct timeval TICK = {.tv_sec = 1};

StrBuf *stream_begin_named(Stream *s, const char *name)
{
    strbuf_printf(&s->pending, "event: %s\n", name);
    return stream_begin_event(s);
}

StrBuf *stream_begin_event(Stream *s)
{
    strbuf_puts(&s->pending, "data: ");
    return &s->pending;
}

void stream_end_event(Stream *s)
{
    strbuf_puts(&s->pending, "\n\n");
}

void stream_add(Stream *s, json_t *event)
{
    json_write(stream_begin_event(s), "o", event);
    stream_end_event(s);
}

void stream_add_text(Stream *s, const char *text)
{
    strbuf_puts(&s->pending, text);
}

static void send_bytes(Stream *s, const char *data, size_t len)
{
    if (!s->started) exchange_stream_start(s->ex, "text/event-stream");
    s->started = 1;
    s->sent_ms = clock_ms();
    exchange_stream_send(s->ex, data, len);
}

void stream_flush(Stream *s)
{
    if (!s->pending.len) return;
    send_bytes(s, s->pending.data, s->pending.len);
    strbuf_clear(&s->pending);
}

void stream_end(Stream *s)
{
    stream_flush(s);
    exchange_stream_end(s->ex);
    stream_close(s);
}

void stream_close(Stream *s)
{
    strbuf_free(&s->pending);
    s->ex = NULL;
    if (!s->pulse) return;
    if (s->prev) s->prev->next = s->next;
    if (s->next) s->next->prev = s->prev;
    if (s->pulse->streams == s) s->pulse->streams = s->next;
    s->pulse = NULL;
    s->prev = s->next = NULL;
}

/* ---- keeping streams alive ---- */

void stream_keep_alive(Stream *s, StreamPulse *pulse)
{
    if (pulse->silence_ms <= 0) return;
    s->pulse = pulse;
    s->sent_ms = clock_ms();
    s->next = pulse->streams;
    if (s->next) s->next->prev = s;
    pulse->streams = s;
    if (!evtimer_pending(pulse->timer, NULL)) event_add(pulse->timer, &TICK);
}

/* A message of its own: events that wait in pending are whole, and come after it. */
static void say_nothing(Stream *s)
{
    const char *text = s->silence ? s->silence : ": keep-alive\n\n";
    send_bytes(s, text, strlen(text));
}

static void on_tick(evutil_socket_t fd, short what, void *arg)
{
    StreamPulse *pulse = arg;
    double now = clock_ms();
    (void)fd;
    (void)what;
    for (Stream *s = pulse->streams; s; s = s->next)
        if (s->ex && now - s->sent_ms >= pulse->silence_ms) say_nothing(s);
    if (pulse->streams) event_add(pulse->timer, &TICK);
}

StreamPulse *stream_pulse_open(struct event_base *base, int seconds)
{
    StreamPulse *pulse = mem_alloc(1, sizeof *pulse);
    pulse->timer = evtimer_new(base, on_tick, pulse);
    pulse->silence_ms = seconds * 1e3;
    return pulse;
}

void stream_pulse_close(StreamPulse *pulse)
{
    if (!pulse) return;
    event_free(pulse->timer);
    mem_free(pulse);
}
