/* stream.c: see stream.h. */
#include "server/stream.h"

#include <string.h>

#include "base/strbuf.h"
#include "server/json_out.h"

void stream_send(Stream *s, json_t *event)
{
    StrBuf text = {0};
    if (!s->started) exchange_stream_start(s->ex, "text/event-stream");
    s->started = 1;
    strbuf_puts(&text, "data: ");
    json_print(event, &text);
    json_decref(event);
    strbuf_puts(&text, "\n\n");
    exchange_stream_send(s->ex, text.data, text.len);
    strbuf_free(&text);
}

void stream_end(Stream *s)
{
    static const char done[] = "data: [DONE]\n\n";
    exchange_stream_send(s->ex, done, strlen(done));
    exchange_stream_end(s->ex);
}
