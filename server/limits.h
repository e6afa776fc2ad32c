/*
 * limits.h: what the server takes from its clients, in one place. Each is an option of `serve`.
 *
 *     option                default   beyond it
 *     --max-line-bytes        8 KiB   request line: 414
 *     --max-header-bytes     32 KiB   headers of a request: 431
 *     --max-body-bytes       32 MiB   body: 413, before it is sent when its length is told
 *     --max-unsent-bytes      1 MiB   what a stream's reader has not taken: its answer pauses;
 *                                     at HARD_LIMIT (4) times that it is dropped
 *     --max-connections        1024   further ones wait in the system's queue until one ends
 *     --request-timeout        60 s   from a request's first byte to its last: 408
 *     --idle-timeout           75 s   between two requests: the connection is closed
 *     --write-timeout          60 s   nothing taken of what we have to send: it is closed
 *     --drain-timeout          30 s   what running answers get after SIGTERM: they are cut
 *     --sse-keepalive          10 s   silence in a stream: a comment is sent; 0: never
 *
 * Not options: JSON 128 levels deep, and the counts in api_request.h; 10 s behind for a stream's
 * reader while others wait (behind_s); 512 MiB of bodies at once (all_bodies_bytes): 503; 1 GiB
 * that the JSON of bodies takes until they are answered (all_json_bytes): 429; 512 MiB of whole
 * replies over max-unsent-bytes that are not taken (all_replies_bytes): the next one is 503; 32
 * bodies over 64 KiB that wait to be read, 4096 requests that wait for a grammar: 429; 64 KiB of
 * further requests read while one is answered; 2 s for a refused client to stop sending
 * (connection.c); 30 s without a step of the engine while it has work: /health says 503 (stall_s);
 * 5 s for it to answer /health_generate: 503 (order_s); 16 orders to it at once (MAX_ORDERS): 429;
 * 2 MiB of tools, metadata and the like, which /v1/responses repeats (api_responses.c), and 2048
 * tools there, in namespaces too (responses_tools.c): 400.
 */
#ifndef OFFSHOOT_SERVER_LIMITS_H
#define OFFSHOOT_SERVER_LIMITS_H

#include <stdint.h>

typedef struct {
    int64_t line_bytes, header_bytes, body_bytes, all_bodies_bytes, unsent_bytes, all_replies_bytes;
    int max_connections;
    int request_timeout_s, idle_timeout_s, write_timeout_s;
} HttpLimits;

typedef struct {
    HttpLimits http;
    int64_t all_json_bytes;
    int drain_s, keepalive_s, stall_s, behind_s, order_s;
} ServerLimits;

/* An initialiser. */
#define DEFAULT_SERVER_LIMITS                                                                      \
    {                                                                                              \
        .http =                                                                                    \
            {                                                                                      \
                .line_bytes = 8 << 10,                                                             \
                .header_bytes = 32 << 10,                                                          \
                .body_bytes = 32 << 20,                                                            \
                .all_bodies_bytes = 512 << 20,                                                     \
                .unsent_bytes = 1 << 20,                                                           \
                .all_replies_bytes = 512 << 20,                                                    \
                .max_connections = 1024,                                                           \
                .request_timeout_s = 60,                                                           \
                .idle_timeout_s = 75,                                                              \
                .write_timeout_s = 60,                                                             \
            },                                                                                     \
        .all_json_bytes = 1 << 30, .drain_s = 30, .keepalive_s = 10, .stall_s = 30,                \
        .behind_s = 10, .order_s = 5,                                                              \
    }

#endif
