/* streams.c: see streams.h. */
#include "tests/ptx/streams.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void append(Work **first, Work **last, Work w)
{
    Work *copy = malloc(sizeof *copy);
    if (!copy) abort();
    *copy = w;
    copy->next = NULL;
    if (*first)
        (*last)->next = copy;
    else
        *first = copy;
    *last = copy;
}

static void drop(Work *w)
{
    if (w->graph) graph_release(w->graph);
    free(w->owned);
    free(w);
}

void stream_queue(Stream *s, Work w)
{
    if (s->capture) {
        append(&s->capture->first, &s->capture->last, w);
    } else {
        w.number = ++s->queued;
        append(&s->first, &s->last, w);
    }
}

/* What a copy or fill touches of the device must still be there when it runs. */
static void check(const void *at, size_t bytes)
{
    char text[128];
    if (!device_memory_reserved((uintptr_t)at) || device_memory_has_range(at, bytes)) return;
    fprintf(stderr, "cuda: a copy of %zu bytes runs at %p: %s\n", bytes, at,
            device_memory_describe((uintptr_t)at, text));
    abort();
}

static void settle(void)
{
    simt_flush();
    races_settle();
}

static void run(const Work *w)
{
    switch (w->kind) {
    case WORK_LAUNCH:
        ptx_launch(w->entry, w->grid, w->block, w->dynamic_bytes, w->owned, w->early);
        return;
    case WORK_WAIT:
        settle();
        stream_run(w->other, w->until);
        return;
    case WORK_GRAPH:
        for (const Work *in = w->graph->first; in; in = in->next)
            run(in);
        return;
    case WORK_CALL:
        settle();
        w->call(w->owned);
        return;
    case WORK_COPY:
        settle();
        check(w->to, w->bytes);
        check(w->from, w->bytes);
        memcpy(device_memory_bytes((uintptr_t)w->to), device_memory_bytes((uintptr_t)w->from),
               w->bytes);
        return;
    case WORK_FILL:
        settle();
        check(w->to, w->bytes);
        memset(device_memory_bytes((uintptr_t)w->to), w->value, w->bytes);
    }
}

void stream_run(Stream *s, uint64_t number)
{
    while (s->first && s->done < number) {
        Work *w = s->first;
        s->first = w->next;
        run(w);
        s->done = w->number;
        drop(w);
    }
    settle();
}

Graph *graph_new(void)
{
    Graph *g = calloc(1, sizeof *g);
    if (!g) abort();
    g->holders = 1;
    return g;
}

void graph_hold(Graph *g)
{
    g->holders++;
}

void graph_release(Graph *g)
{
    if (--g->holders) return;
    for (Work *w = g->first, *next; w; w = next) {
        next = w->next;
        drop(w);
    }
    free(g);
}
