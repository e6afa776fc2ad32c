/* loader_memory.c: where a model's tensors are: see loader.h and loader_parts.h. */
#include "engine/loader_parts.h"

#include "base/log.h"
#include "base/mem.h"

enum {
    FLOAT_ALIGN = 16, /* floats: 64 bytes */
    FLOAT_CHUNK = 1 << 16,
    PLACE_ALIGN = 256,
    PLACE_CHUNK = 32 << 20,
};

/* A host gives pages as they are written, and ends who writes more than it has. */
static void warn_if_scarce(Loader *l, size_t bytes)
{
    Backend *be = l->own->backend;
    if (!be->is_host) return;
    if (!l->placed) l->left = be->free_bytes(be);
    int is_said = l->placed > l->left;
    l->placed += bytes;
    if (!is_said && l->placed > l->left)
        log_warn("weights_scarce asked=%zu left=%zu: the system may end the process", l->placed,
                 l->left);
}

void *loader_block(Loader *l, size_t count, size_t size)
{
    Owned *own = l->own;
    if (!l->saver) warn_if_scarce(l, count * size); /* a saver frees what is large */
    if (own->n_blocks == own->cap_blocks) {
        own->cap_blocks = own->cap_blocks ? 2 * own->cap_blocks : 16;
        own->block = mem_realloc(own->block, (size_t)own->cap_blocks, sizeof *own->block);
    }
    return own->block[own->n_blocks++] = mem_alloc(count, size);
}

float *loader_floats(Loader *l, size_t n)
{
    FloatChunk *c = &l->own->floats;
    size_t rounded = (n + FLOAT_ALIGN - 1) / FLOAT_ALIGN * FLOAT_ALIGN;
    if (rounded > FLOAT_CHUNK / 4) return loader_block(l, rounded, sizeof(float));
    if (rounded > c->left)
        *c = (FloatChunk){loader_block(l, FLOAT_CHUNK, sizeof(float)), FLOAT_CHUNK};
    float *at = c->at;
    c->at += rounded;
    c->left -= rounded;
    return at;
}

/* A block of backend memory that lives as long as the model. */
static void *new_placed(Loader *l, size_t bytes)
{
    Owned *own = l->own;
    warn_if_scarce(l, bytes);
    void *mem = own->backend->alloc(own->backend, bytes, l->err);
    if (!mem) return NULL;
    if (own->n_placed == own->cap_placed) {
        own->cap_placed = own->cap_placed ? 2 * own->cap_placed : 16;
        own->placed = mem_realloc(own->placed, (size_t)own->cap_placed, sizeof *own->placed);
    }
    return own->placed[own->n_placed++] = mem;
}

void *loader_room(Loader *l, size_t bytes)
{
    PlaceChunk *c = &l->own->chunk;
    size_t rounded = (bytes + PLACE_ALIGN - 1) / PLACE_ALIGN * PLACE_ALIGN;
    if (rounded > PLACE_CHUNK / 4) return new_placed(l, rounded);
    if (rounded > c->left) {
        unsigned char *mem = new_placed(l, PLACE_CHUNK);
        if (!mem) return NULL;
        *c = (PlaceChunk){mem, PLACE_CHUNK};
    }
    void *at = c->at;
    c->at += rounded;
    c->left -= rounded;
    return at;
}

/* A copy in backend memory, wherever that is. */
static const void *place_copy(Loader *l, const void *host, size_t bytes)
{
    Backend *be = l->own->backend;
    void *at = loader_room(l, bytes);
    if (at) be->upload(be, at, host, bytes);
    return at;
}

const void *loader_place(Loader *l, const void *host, size_t bytes)
{
    return l->own->backend->is_host ? host : place_copy(l, host, bytes);
}

const float *loader_place_floats(Loader *l, const float *host, size_t n)
{
    return loader_place(l, host, n * sizeof *host);
}

const void *loader_place_matrix(Loader *l, const unsigned char *data, size_t bytes, size_t align)
{
    l->bytes += bytes;
    int fits = (uintptr_t)data % align == 0;
    return fits ? loader_place(l, data, bytes) : place_copy(l, data, bytes);
}

const void *loader_place_tensor(Loader *l, const Tensor *t, size_t align)
{
    if (l->own->backend->is_host) return loader_place_matrix(l, t->data, t->bytes, align);
    void *at = loader_room(l, t->bytes);
    l->bytes += t->bytes;
    if (at) transfers_add(&l->transfers, l->own->st, t, at);
    return at;
}

/* All but the first blocks of either memory. */
static void free_after(Owned *own, int n_blocks, int n_placed)
{
    while (own->n_blocks > n_blocks)
        mem_free(own->block[--own->n_blocks]);
    while (own->n_placed > n_placed)
        own->backend->free(own->backend, own->placed[--own->n_placed]);
}

LoaderMark loader_mark(const Loader *l)
{
    return (LoaderMark){*l, *l->own};
}

void loader_undo(Loader *l, const LoaderMark *mark)
{
    Owned *own = l->own;
    free_after(own, mark->own.n_blocks, mark->own.n_placed);
    own->n_params = mark->own.n_params;
    own->file_bytes = mark->own.file_bytes;
    own->floats = mark->own.floats;
    own->chunk = mark->own.chunk;
    l->placed = mark->loader.placed;
    l->bytes = mark->loader.bytes;
    l->widened = mark->loader.widened;
    l->unpacked = mark->loader.unpacked;
    l->transfers.n = mark->loader.transfers.n;
    l->transfers.bytes = mark->loader.transfers.bytes;
}

void owned_close(Owned *own)
{
    free_after(own, 0, 0);
    mem_free(own->block);
    mem_free(own->placed);
    safetensors_close(own->st);
}
