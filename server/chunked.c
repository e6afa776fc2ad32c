/* chunked.c: see chunked.h. */
#include "server/chunked.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_LINE = 4096, MAX_TRAILERS = 16 << 10, MAX_SIZE_DIGITS = 15 };

enum { READ_SIZE, READ_DATA, READ_DATA_END, READ_TRAILERS };

/* The next line without its end, to be freed; NULL and *result when there is none. */
static char *read_line(struct evbuffer *in, size_t *len, ChunkedResult *result)
{
    struct evbuffer_ptr end = evbuffer_search(in, "\n", 1, NULL);
    *result = CHUNKED_MORE;
    if (end.pos < 0 ? evbuffer_get_length(in) > MAX_LINE : end.pos > MAX_LINE)
        *result = CHUNKED_BAD;
    if (end.pos < 0 || *result == CHUNKED_BAD) return NULL;
    char *line = evbuffer_readln(in, len, EVBUFFER_EOL_CRLF_STRICT);
    /* A bare LF before the first CR LF: what was read is longer than the line that ends with it. */
    if (line && *len + 1 == (size_t)end.pos && !memchr(line, '\r', *len)) return line;
    free(line);
    *result = CHUNKED_BAD;
    return NULL;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* "1f" or "1f;extension". -1 when it is no size. */
static int parse_size(const char *line, uint64_t *size)
{
    int n = 0;
    *size = 0;
    for (; hex_digit(line[n]) >= 0; n++) {
        if (n == MAX_SIZE_DIGITS) return -1;
        *size = *size << 4 | (uint64_t)hex_digit(line[n]);
    }
    return n && (!line[n] || line[n] == ';' || line[n] == ' ' || line[n] == '\t') ? 0 : -1;
}

static ChunkedResult read_size(ChunkedReader *r, struct evbuffer *in, uint64_t max_body)
{
    size_t len;
    ChunkedResult result;
    char *line = read_line(in, &len, &result);
    if (!line) return result;
    int bad = parse_size(line, &r->n_left);
    free(line);
    if (bad) return CHUNKED_BAD;
    r->n_body += r->n_left; /* 60 bits each, and the sum is checked each time: it cannot wrap */
    if (r->n_body > max_body) return CHUNKED_TOO_LARGE;
    r->state = r->n_left ? READ_DATA : READ_TRAILERS;
    return CHUNKED_WHOLE;
}

static ChunkedResult read_data(ChunkedReader *r, struct evbuffer *in, struct evbuffer *out)
{
    size_t n = evbuffer_get_length(in);
    if (n > r->n_left) n = (size_t)r->n_left;
    evbuffer_remove_buffer(in, out, n);
    r->n_left -= n;
    if (r->n_left) return CHUNKED_MORE;
    r->state = READ_DATA_END;
    return CHUNKED_WHOLE;
}

static ChunkedResult read_data_end(ChunkedReader *r, struct evbuffer *in)
{
    char end[2];
    ssize_t n = evbuffer_copyout(in, end, sizeof end);
    if ((n > 0 && end[0] != '\r') || (n > 1 && end[1] != '\n')) return CHUNKED_BAD;
    if (n < 2) return CHUNKED_MORE;
    evbuffer_drain(in, sizeof end);
    r->state = READ_SIZE;
    return CHUNKED_WHOLE;
}

/* CHUNKED_WHOLE after the blank line alone. */
static ChunkedResult read_trailers(ChunkedReader *r, struct evbuffer *in)
{
    for (;;) {
        size_t len;
        ChunkedResult result;
        char *line = read_line(in, &len, &result);
        if (!line) return result;
        free(line);
        if (!len) return CHUNKED_WHOLE;
        r->n_trailers += len;
        if (r->n_trailers > MAX_TRAILERS) return CHUNKED_BAD;
    }
}

ChunkedResult chunked_read(ChunkedReader *r, struct evbuffer *in, struct evbuffer *out,
                           uint64_t max_body)
{
    ChunkedResult result = CHUNKED_WHOLE;
    while (result == CHUNKED_WHOLE) {
        switch (r->state) {
        case READ_SIZE:
            result = read_size(r, in, max_body);
            break;
        case READ_DATA:
            result = read_data(r, in, out);
            break;
        case READ_DATA_END:
            result = read_data_end(r, in);
            break;
        default:
            return read_trailers(r, in);
        }
    }
    return result;
}
