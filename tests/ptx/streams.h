/*
 * streams.h: streams, events and graphs of the stand-in for the CUDA runtime.
 *
 * What is queued runs when somebody waits for it and not before, so that who forgets to wait reads
 * what was there. One lock for all (cudart_host.c); numbers count a stream's work from 1.
 */
#ifndef OFFSHOOT_TESTS_PTX_STREAMS_H
#define OFFSHOOT_TESTS_PTX_STREAMS_H

#include "tests/ptx/ptx_run.h"

typedef enum { WORK_LAUNCH, WORK_COPY, WORK_FILL, WORK_WAIT, WORK_GRAPH, WORK_CALL } WorkKind;

typedef struct Stream Stream;
typedef struct Graph Graph;
typedef struct Work Work;

struct Work {
    WorkKind kind;
    uint64_t number;
    Work *next;
    /* launch */
    const PtxEntry *entry;
    SimtDim grid;
    unsigned block;
    uint32_t dynamic_bytes;
    int early;
    /* copy, fill; owned: a launch's or a call's parameters */
    void *to;
    const void *from;
    size_t bytes;
    int value;
    unsigned char *owned;
    /* wait */
    Stream *other;
    uint64_t until;
    Graph *graph;
    void (*call)(void *owned); /* a library's kernel: by memory that is the device's */
};

/* Work in its order; whoever holds one counts. */
struct Graph {
    Work *first, *last;
    int holders;
};

struct Stream {
    Work *first, *last;
    uint64_t queued, done;
    Graph *capture; /* where work goes instead while it is captured */
    int invalid;    /* the capture */
};

/* Takes w.owned. Into the graph of a stream that is captured. */
void stream_queue(Stream *s, Work w);
/* A library's call, from any thread: takes arg, a block of malloc's. */
void stream_call(Stream *s, void (*call)(void *arg), void *arg);
/* Runs what the stream has up to this number. */
void stream_run(Stream *s, uint64_t number);

Graph *graph_new(void);
void graph_hold(Graph *g);
void graph_release(Graph *g);

#endif
