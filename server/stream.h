/*
 * stream.h: server-sent events: "data: {json}\n\n", no \r: clients cut at exactly these bytes. The
 * completion routes name no events, those of Anthropic's API and of responses do.
 */
#ifndef OFFSHOOT_SERVER_STREAM_H
#define OFFSHOOT_SERVER_STREAM_H

#include "base/strbuf.h"
#include "server/http.h"

typedef struct StreamPulse StreamPulse;

typedef struct Stream Stream;
struct Stream {
    Exchange *ex;        /* NULL: the client is gone or has all */
    int started;         /* the headers are out: an error is an event from now on */
    StrBuf pending;      /* events that go out together */
    const char *silence; /* the message that says that all is well; NULL: a comment */
    StreamPulse *pulse;
    double sent_ms;
    Stream *prev, *next; /* in the pulse */
};

/* Adds one event; takes the reference. */
void stream_add(Stream *s, json_t *event);

/* The same for who prints it himself: on one line, between these two. */
StrBuf *stream_begin_event(Stream *s);
StrBuf *stream_begin_named(Stream *s, const char *name); /* with "event: name" before it */
void stream_end_event(Stream *s);

/* Adds a whole message as it is. */
void stream_add_text(Stream *s, const char *text);

/* Sends what was added, the headers before the first. */
void stream_flush(Stream *s);

/* Sends what was added, and ends the exchange. */
void stream_end(Stream *s);

/*
 * Keeps a stream alive: whenever nothing was sent for the pulse's time, silence is, for proxies
 * that close what is silent. So from here on headers may go out, and an error may have to be an
 * event.
 */
void stream_keep_alive(Stream *s, StreamPulse *pulse);

/* Forgets the stream; it ends no exchange. */
void stream_close(Stream *s);

/* One timer for all streams. seconds 0: nothing is ever sent. */
StreamPulse *stream_pulse_open(struct event_base *base, int seconds);
void stream_pulse_close(StreamPulse *pulse);

#endif
