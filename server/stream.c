/* stream.c: see stream.h. */
#include "server/stream.h"

#include "server/json_out.h"

void stream_add(Stream *s, json_t *event)
{
    strbuf_puts(&s->pending, "data: ");
    json_print(event, &s->pending);
    json_decref(event);
    strbuf_puts(&s->pending, "\n\n");
}

void stream_flush(Stream *s)
{
    if (!s->pending.len) return;
    if (!s->started) exchange_stream_start(s->ex, "text/event-stream");
    s->started = 1;
    exchange_stream_send(s->ex, s->pending.data, s->pending.len);
    strbuf_clear(&s->pending);
}

void stream_end(Stream *s)
{
    strbuf_puts(&s->pending, "data: [DONE]\n\n");
    stream_flush(s);
    strbuf_free(&s->pending);
    exchange_stream_end(s->ex);
}
