/*
 * request_head.h: the first look at a request: where its head (request line and headers) ends, and
 * where its body does. Pure; a parser of the rest is evhttp.
 *
 * Stricter than evhttp on purpose: whatever two parsers in a row could read in two ways (bare CR or
 * LF, folded lines, a blank before a colon, two lengths) is refused, for that is how requests get
 * smuggled past a proxy.
 */
#ifndef OFFSHOOT_SERVER_REQUEST_HEAD_H
#define OFFSHOOT_SERVER_REQUEST_HEAD_H

#include <stddef.h>
#include <stdint.h>

#include <event2/keyvalq_struct.h>

typedef enum { HEAD_MORE, HEAD_WHOLE, HEAD_BAD, HEAD_LONG_LINE, HEAD_TOO_LARGE } HeadResult;

/* Where a scan stands, so that bytes are looked at once. Zeroed: at the start. */
typedef struct {
    size_t n_seen;     /* HEAD_WHOLE: the head's length, its blank line included */
    size_t line_start; /* of the line that is being read */
    size_t n_line;     /* length of the request line; 0: not whole yet */
} HeadScan;

/* data[0..len) is all that has come so far. The limits hold for the line and for all headers. */
HeadResult head_scan(HeadScan *scan, const char *data, size_t len, size_t max_line,
                     size_t max_headers);

/*
 * Marks the names of those headers of a whole head that speak of the body, so that evhttp does not
 * know them and leaves the body to us; head_unmark gives them back.
 */
void head_mark(char *head, size_t len);
void head_unmark(struct evkeyvalq *headers);

/* 1 when close is among the options of a Connection header (RFC 9110 section 7.6.1). */
int head_closes(const struct evkeyvalq *headers);

typedef enum { BODY_NONE, BODY_LENGTH, BODY_CHUNKED } BodyKind;

typedef struct {
    BodyKind kind;
    uint64_t length; /* BODY_LENGTH; UINT64_MAX: more than can be counted */
} BodyFraming;

/* 0, or -1 when the headers do not say clearly where the body ends. */
int head_framing(const struct evkeyvalq *headers, int is_http_1_0, BodyFraming *framing);

#endif
