/*
 * fuzz_safetensors.c: a checkpoint folder, its headers and its index.
 *
 * Input: one model.safetensors as it is; or, when it is a JSON object, a folder: names to contents,
 * where {"header": ..., "size": N} is a shard of N data bytes and anything else a JSON file. The
 * second form lets mutations reach what lies behind a header's length.
 */
#include "tests/fuzz/fuzz.h"

#include "engine/safetensors.h"

enum { MAX_DATA = 4096 };

static void write_shard(const char *name, const json_t *header, json_int_t size)
{
    static const char zeros[MAX_DATA];
    if (size < 0) size = 0;
    fuzz_file_safetensors(name, header, zeros, size < MAX_DATA ? (size_t)size : MAX_DATA);
}

static int write_folder(json_t *folder)
{
    const char *name;
    json_t *file;
    if (!json_is_object(folder)) return -1;
    json_object_foreach(folder, name, file)
    {
        const json_t *header = json_object_get(file, "header");
        if (header)
            write_shard(name, header, json_integer_value(json_object_get(file, "size")));
        else
            fuzz_file_json(name, file);
    }
    return 0;
}

/* What safetensors.h promises of every tensor. */
static void check_tensor(const Safetensors *st, const Tensor *t)
{
    size_t sum = 0, n = 1;
    FUZZ_CHECK(safetensors_find(st, t->name) == t);
    FUZZ_CHECK(t->n_dims <= MAX_TENSOR_DIMS);
    for (size_t i = 0; i < t->bytes; i++)
        sum += t->data[i];
    for (int d = 0; d < t->n_dims; d++)
        n *= (size_t)t->dim[d];
    FUZZ_CHECK(sum <= 255 * t->bytes);
    FUZZ_CHECK(t->bytes >= n || !t->bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    Error err = {0};
    json_t *folder = json_loadb((const char *)data, size, 0, NULL);
    if (write_folder(folder)) fuzz_file("model.safetensors", data, size);
    Safetensors *st = safetensors_open(FUZZ_DIR, &err);
    FUZZ_CHECK(st || *err.msg);
    for (int i = 0; st && i < safetensors_count(st); i++)
        check_tensor(st, safetensors_at(st, i));
    safetensors_close(st);
    json_decref(folder);
    fuzz_files_clear();
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
    return fuzz_mutate_json(data, size, max_size, seed);
}
