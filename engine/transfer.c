/*
 * transfer.c: see transfer.h.
 *
 * A buffer goes from `free` to a reader, which fills it with the next piece of the files, to
 * `filled`, to the caller, which uploads, waits, and frees it. One mutex guards all that; the
 * content of a buffer belongs to who has taken it.
 */
#include "engine/transfer.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/thread.h"

enum {
    PIECE_BYTES = 16 << 20,
    MAX_THREADS = 8,
    MAX_BUFFERS = 2 * MAX_THREADS, /* each thread fills one while another is uploaded */
};

/* Moves [first, end), which follow each other in one file closely enough for one read. */
typedef struct {
    size_t first, end;
} Piece;

typedef struct {
    const Transfers *ts;
    const Safetensors *st;
    int *fd;
    Piece *piece;
    size_t n_pieces;
    unsigned char *buffer[MAX_BUFFERS];
    int n_buffers;

    pthread_mutex_t mutex;
    pthread_cond_t changed;
    size_t next_piece;
    int free[MAX_BUFFERS], n_free;
    int filled[MAX_BUFFERS], n_filled;
    size_t piece_of[MAX_BUFFERS];
    int stopped; /* by an error */
    Error error;
} Run;

static void push(Transfers *ts, Move move)
{
    if (ts->n == ts->cap) {
        ts->cap = ts->cap ? 2 * ts->cap : 64;
        ts->move = mem_realloc(ts->move, ts->cap, sizeof *ts->move);
    }
    ts->move[ts->n++] = move;
}

void transfers_add(Transfers *ts, const Safetensors *st, const Tensor *t, void *to)
{
    Move move = {.to = to};
    size_t left = t->bytes;
    move.shard = safetensors_place(st, t, &move.offset);
    ts->bytes += left;
    for (; left; left -= move.bytes) {
        move.bytes = left < PIECE_BYTES ? left : PIECE_BYTES;
        push(ts, move);
        move.offset += move.bytes;
        move.to += move.bytes;
    }
}

void transfers_free(Transfers *ts)
{
    mem_free(ts->move);
    *ts = (Transfers){0};
}

static int by_place(const void *a, const void *b)
{
    const Move *x = a, *y = b;
    if (x->shard != y->shard) return x->shard < y->shard ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static size_t end_of(const Move *m)
{
    return m->offset + m->bytes;
}

/* Sorts the moves and groups them; what lies between two of a piece is read for nothing. */
static void make_pieces(Run *r, Transfers *ts)
{
    qsort(ts->move, ts->n, sizeof *ts->move, by_place);
    r->piece = mem_alloc(ts->n, sizeof *r->piece);
    for (size_t i = 0, end; i < ts->n; i = end) {
        const Move *first = &ts->move[i], *m = first + 1;
        for (end = i + 1; end < ts->n; end++, m++)
            if (m->shard != first->shard || end_of(m) - first->offset > PIECE_BYTES) break;
        r->piece[r->n_pieces++] = (Piece){i, end};
    }
}

/* ---- reading ---- */

static int read_all(int fd, unsigned char *out, size_t n, size_t offset)
{
    while (n) {
        ssize_t got = pread(fd, out, n, (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return got < 0 ? errno : ENODATA;
        out += got;
        offset += (size_t)got;
        n -= (size_t)got;
    }
    return 0;
}

static void stop(Run *r, const Error *why)
{
    if (!r->stopped) r->error = *why;
    r->stopped = 1;
    pthread_cond_broadcast(&r->changed);
}

/* A buffer and a piece for it; 0 when there is nothing left to read. Holds the mutex. */
static int take_piece(Run *r, int *buffer)
{
    while (!r->stopped && r->next_piece < r->n_pieces && !r->n_free)
        pthread_cond_wait(&r->changed, &r->mutex);
    if (r->stopped || r->next_piece == r->n_pieces) return 0;
    *buffer = r->free[--r->n_free];
    r->piece_of[*buffer] = r->next_piece++;
    return 1;
}

static void *read_pieces(void *arg)
{
    Run *r = arg;
    int buffer;
    pthread_mutex_lock(&r->mutex);
    while (take_piece(r, &buffer)) {
        const Piece *p = &r->piece[r->piece_of[buffer]];
        const Move *first = &r->ts->move[p->first], *last = &r->ts->move[p->end - 1];
        pthread_mutex_unlock(&r->mutex);
        int failed = read_all(r->fd[first->shard], r->buffer[buffer], end_of(last) - first->offset,
                              first->offset);
        Error why = {0};
        if (failed)
            error_set(&why, ERR_FILE, "cannot read '%s': %s", safetensors_path(r->st, first->shard),
                      failed == ENODATA ? "it has become shorter" : strerror(failed));
        pthread_mutex_lock(&r->mutex);
        if (failed) stop(r, &why);
        r->filled[r->n_filled++] = buffer;
        pthread_cond_broadcast(&r->changed);
    }
    pthread_mutex_unlock(&r->mutex);
    return NULL;
}

/* ---- uploading ---- */

static int upload_piece(const Run *r, Backend *be, int buffer, Error *err)
{
    const Piece *p = &r->piece[r->piece_of[buffer]];
    const Move *first = &r->ts->move[p->first];
    for (size_t i = p->first; i < p->end; i++) {
        const Move *m = &r->ts->move[i];
        be->upload(be, m->to, r->buffer[buffer] + (m->offset - first->offset), m->bytes);
    }
    return be->sync(be, err); /* the buffer will be filled again */
}

static void upload_pieces(Run *r, Backend *be)
{
    pthread_mutex_lock(&r->mutex);
    for (size_t done = 0; done < r->n_pieces && !r->stopped;) {
        if (!r->n_filled) {
            pthread_cond_wait(&r->changed, &r->mutex);
            continue;
        }
        int buffer = r->filled[--r->n_filled];
        pthread_mutex_unlock(&r->mutex);
        Error why = {0};
        int failed = upload_piece(r, be, buffer, &why);
        pthread_mutex_lock(&r->mutex);
        if (failed) stop(r, &why);
        r->free[r->n_free++] = buffer;
        done++;
        pthread_cond_broadcast(&r->changed);
    }
    pthread_mutex_unlock(&r->mutex);
}

/* ---- the whole ---- */

static int open_files(Run *r, Error *err)
{
    const Safetensors *st = r->st;
    int n = safetensors_shards(st);
    r->fd = mem_alloc((size_t)n, sizeof *r->fd);
    for (int i = 0; i < n; i++)
        r->fd[i] = -1;
    for (int i = 0; i < n; i++) {
        const char *path = safetensors_path(st, i);
        r->fd[i] = open(path, O_RDONLY | O_CLOEXEC);
        if (r->fd[i] < 0)
            return error_set(err, ERR_FILE, "cannot open '%s': %s", path, strerror(errno));
        posix_fadvise(r->fd[i], 0, 0, POSIX_FADV_SEQUENTIAL);
    }
    return 0;
}

static int open_buffers(Run *r, Backend *be, int n_threads, Error *err)
{
    size_t most = 2 * (size_t)n_threads;
    int n = (int)(r->n_pieces < most ? r->n_pieces : most);
    for (; r->n_buffers < n; r->n_buffers++) {
        int i = r->n_buffers;
        r->buffer[i] = be->host_alloc(be, PIECE_BYTES, err);
        if (!r->buffer[i]) return -1;
        r->free[r->n_free++] = i;
    }
    return 0;
}

static int run_threads(Run *r, Backend *be, int n_threads, Error *err)
{
    pthread_t thread[MAX_THREADS];
    int n = 0;
    Error why = {0};
    while (n < n_threads && !thread_start(&thread[n], read_pieces, r, "load", &why))
        n++;
    if (n > 0) upload_pieces(r, be);
    for (int i = 0; i < n; i++)
        pthread_join(thread[i], NULL);
    if (!n) stop(r, &why);
    return r->stopped ? error_set(err, r->error.code, "%s", r->error.msg) : 0;
}

int transfers_run(Transfers *ts, const Safetensors *st, Backend *be, int n_threads, Error *err)
{
    Run r = {.ts = ts,
             .st = st,
             .mutex = PTHREAD_MUTEX_INITIALIZER,
             .changed = PTHREAD_COND_INITIALIZER};
    assert(n_threads > 0);
    if (!ts->n) return 0;
    if (n_threads > MAX_THREADS) n_threads = MAX_THREADS;
    make_pieces(&r, ts);
    int failed = open_files(&r, err) || open_buffers(&r, be, n_threads, err) ||
                 run_threads(&r, be, n_threads, err);
    for (int i = 0; i < r.n_buffers; i++)
        be->host_free(be, r.buffer[i]);
    for (int i = 0; r.fd && i < safetensors_shards(st); i++)
        if (r.fd[i] >= 0) close(r.fd[i]);
    mem_free(r.fd);
    mem_free(r.piece);
    return failed ? -1 : 0;
}
