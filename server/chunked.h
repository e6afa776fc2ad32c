/*
 * chunked.h: takes a chunked body (RFC 9112 section 7.1) apart as its bytes come.
 *
 * Every line ends with CR LF, sizes are plain hexadecimal digits; extensions and trailers are read
 * and dropped.
 */
#ifndef OFFSHOOT_SERVER_CHUNKED_H
#define OFFSHOOT_SERVER_CHUNKED_H

#include <stdint.h>

#include <event2/buffer.h>

typedef enum { CHUNKED_MORE, CHUNKED_WHOLE, CHUNKED_BAD, CHUNKED_TOO_LARGE } ChunkedResult;

/* Zeroed: at the start of a body. */
typedef struct {
    int state;
    uint64_t n_left;   /* of the chunk that is being read */
    uint64_t n_body;   /* all chunks announced so far */
    size_t n_trailers; /* bytes of the trailers */
} ChunkedReader;

/*
 * Moves what has come from in to out; in keeps what cannot be used yet, and what follows the body.
 * TOO_LARGE as soon as the sizes announced pass max_body.
 */
ChunkedResult chunked_read(ChunkedReader *r, struct evbuffer *in, struct evbuffer *out,
                           uint64_t max_body);

#endif
