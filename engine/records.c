/* records.c: see records.h. */
#include "engine/records.h"

#include <assert.h>

#include "engine/arrays.h"

/* Floats of a row in each array. */
static size_t channels(const ModelConfig *c)
{
    return (size_t)c->n_channels;
}

static size_t keys(const ModelConfig *c)
{
    return (size_t)c->n_k_heads * c->d_k;
}

static size_t values(const ModelConfig *c)
{
    return (size_t)c->n_v_heads * c->d_v;
}

enum { N_ARRAYS = 8 };

/*
 * Layers are n_rows rows apart though a pass may have more: rows that are not trees' reach into the
 * next layer's part, which is written after them.
 */
static void list_arrays(Records *r, const ModelConfig *c, size_t n_rows, size_t max_rows,
                        BackendArray array[N_ARRAYS])
{
    size_t rows = (n_rows * (size_t)(c->n_recurrent - 1) + max_rows) * sizeof(float);
    size_t ints = n_rows * sizeof(int32_t);
    array[0] = (BackendArray){&r->qkv, rows * channels(c)};
    array[1] = (BackendArray){&r->k, rows * keys(c)};
    array[2] = (BackendArray){&r->v, rows * values(c)};
    array[3] = (BackendArray){&r->decay, rows * (size_t)c->n_v_heads};
    array[4] = (BackendArray){&r->from, ints};
    array[5] = (BackendArray){&r->slot, ints};
    array[6] = (BackendArray){&r->length, ints};
    array[7] = (BackendArray){&r->path, n_rows * ints};
}

size_t records_bytes(const Model *model, int n_rows, int max_rows)
{
    Records r = {0};
    BackendArray array[N_ARRAYS];
    list_arrays(&r, &model->config, (size_t)n_rows, (size_t)max_rows, array);
    return arrays_bytes(array, N_ARRAYS);
}

int records_open(Records *r, const Model *model, int n_rows, int max_rows, Error *err)
{
    BackendArray array[N_ARRAYS];
    assert(model->config.n_recurrent > 0 && n_rows <= max_rows);
    *r = (Records){.model = model, .n_rows = n_rows};
    list_arrays(r, &model->config, (size_t)n_rows, (size_t)max_rows, array);
    r->bytes = arrays_bytes(array, N_ARRAYS);
    if (!arrays_take(model->backend, array, N_ARRAYS, err)) return 0;
    records_close(r);
    return -1;
}

void records_close(Records *r)
{
    BackendArray array[N_ARRAYS];
    if (!r->model) return;
    list_arrays(r, &r->model->config, 0, 0, array);
    arrays_give_back(r->model->backend, array, N_ARRAYS);
    *r = (Records){0};
}

RecordLayer records_layer(const Records *r, int i)
{
    const ModelConfig *c = &r->model->config;
    size_t row = (size_t)i * (size_t)r->n_rows, heads = (size_t)c->n_v_heads;
    return (RecordLayer){.qkv = r->qkv + row * channels(c),
                         .k = r->k + row * keys(c),
                         .v = r->v + row * values(c),
                         .decay = r->decay + row * heads};
}

void records_fold(Records *r, const Memory *mem, const KeptPath *kept, int n)
{
    Backend *be = r->model->backend;
    assert(n <= r->n_rows);
    if (!n) return;
    for (int i = 0; i < n; i++) {
        int32_t length = kept[i].length;
        assert(length <= r->n_rows);
        be->upload(be, r->from + i, &kept[i].slot, sizeof *r->from);
        be->upload(be, r->slot + i, &kept[i].slot, sizeof *r->slot);
        be->upload(be, r->length + i, &length, sizeof length);
        be->upload(be, r->path + (size_t)i * r->n_rows, kept[i].row,
                   (size_t)length * sizeof *r->path);
    }
    records_queue_fold(r, mem, n);
}

void records_queue_fold(const Records *r, const Memory *mem, int n)
{
    const ModelConfig *c = &r->model->config;
    Backend *be = r->model->backend;
    SlotLayer slots = memory_slot_layer(mem, 0);
    be->delta_fold(be, &(DeltaFold){.n = n,
                                    .n_layers = c->n_recurrent,
                                    .n_k_heads = c->n_k_heads,
                                    .n_v_heads = c->n_v_heads,
                                    .d_k = c->d_k,
                                    .d_v = c->d_v,
                                    .width = c->conv_width,
                                    .stride = r->n_rows,
                                    .path = r->path,
                                    .length = r->length,
                                    .from = r->from,
                                    .slot = r->slot,
                                    .layer_rows = r->n_rows,
                                    .qkv = r->qkv,
                                    .k = r->k,
                                    .u = r->v,
                                    .decay = r->decay,
                                    .slots = slots,
                                    .layer_bytes = memory_slot_layer(mem, 1).state_offset -
                                                   slots.state_offset});
}
