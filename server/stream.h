/*
 * stream.h: server-sent events as the completion routes frame them: "data: {json}\n\n", at the end
 * "data: [DONE]\n\n". No event names, no \r: clients cut at exactly these bytes.
 */
#ifndef OFFSHOOT_SERVER_STREAM_H
#define OFFSHOOT_SERVER_STREAM_H

#include "server/http.h"

typedef struct {
    Exchange *ex;
    int started; /* the headers are out: an error is an event from now on */
} Stream;

/* Sends one event, the headers before the first. Takes the reference. */
void stream_send(Stream *s, json_t *event);

/* Sends [DONE] and ends the exchange. */
void stream_end(Stream *s);

#endif
