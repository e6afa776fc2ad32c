/*
 * stream.h: server-sent events as the completion routes frame them: "data: {json}\n\n", at the end
 * "data: [DONE]\n\n". No event names, no \r: clients cut at exactly these bytes.
 */
#ifndef OFFSHOOT_SERVER_STREAM_H
#define OFFSHOOT_SERVER_STREAM_H

#include "base/strbuf.h"
#include "server/http.h"

typedef struct {
    Exchange *ex;
    int started;    /* the headers are out: an error is an event from now on */
    StrBuf pending; /* events that go out together */
} Stream;

/* Adds one event; takes the reference. */
void stream_add(Stream *s, json_t *event);

/* Sends what was added, the headers before the first. */
void stream_flush(Stream *s);

/* Sends what was added and [DONE], and ends the exchange. */
void stream_end(Stream *s);

#endif
