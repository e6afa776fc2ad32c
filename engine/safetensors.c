/*
 * safetensors.c: see safetensors.h.
 *
 * A file is  u64 header length (little endian), a JSON object, the data. The table of all tensors
 * is sorted by name once, so that finding one of 64,196 takes 16 comparisons.
 */
#include "engine/safetensors.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"

enum {
    MAX_HEADER_BYTES = 256 << 20,
    MAX_INDEX_BYTES = 256 << 20,
    MAX_SHARDS = 4096,
};

typedef struct {
    MappedFile map;
    char *path, *name; /* name: without the folder */
} Shard;

struct Safetensors {
    Shard *shard;
    int n_shards;
    Tensor *tensor; /* sorted by name; the names are owned */
    int n, cap;
};

static const struct {
    const char *name;
    size_t bytes;
} types[] = {
    [TENSOR_F32] = {"F32", 4},          [TENSOR_BF16] = {"BF16", 2},
    [TENSOR_F16] = {"F16", 2},          [TENSOR_FP8_E4M3] = {"F8_E4M3", 1},
    [TENSOR_FP8_E5M2] = {"F8_E5M2", 1}, [TENSOR_FP8_E8M0] = {"F8_E8M0", 1},
    [TENSOR_F64] = {"F64", 8},          [TENSOR_C64] = {"C64", 8},
    [TENSOR_I64] = {"I64", 8},          [TENSOR_I32] = {"I32", 4},
    [TENSOR_I16] = {"I16", 2},          [TENSOR_I8] = {"I8", 1},
    [TENSOR_U64] = {"U64", 8},          [TENSOR_U32] = {"U32", 4},
    [TENSOR_U16] = {"U16", 2},          [TENSOR_U8] = {"U8", 1},
    [TENSOR_BOOL] = {"BOOL", 1},
};

const char *tensor_type_name(TensorType type)
{
    return types[type].name;
}

/* "cannot load 'shard': tensor 'name': what". */
static int bad_tensor(const Tensor *t, Error *err, const char *what)
{
    return error_set(err, ERR_FILE, "cannot load '%.80s': tensor '%.80s': %s", t->file, t->name,
                     what);
}

static int bad_file(const char *file, Error *err, const char *what)
{
    return error_set(err, ERR_FILE, "cannot load '%.80s': %s", file, what);
}

/* Fills type and shape; *bytes is their product. */
static int read_shape(Tensor *t, const json_t *spec, size_t *bytes, Error *err)
{
    const char *dtype = json_string_value(json_object_get(spec, "dtype"));
    const json_t *shape = json_object_get(spec, "shape");
    size_t i = 0, n_types = sizeof types / sizeof *types;
    if (!dtype) return bad_tensor(t, err, "has no dtype");
    while (i < n_types && strcmp(dtype, types[i].name) != 0)
        i++;
    if (i == n_types) return bad_tensor(t, err, "dtype is not a known one");
    if (!json_is_array(shape)) return bad_tensor(t, err, "has no shape");
    if (json_array_size(shape) > MAX_TENSOR_DIMS)
        return bad_tensor(t, err, "has more than 8 dimensions");
    t->type = (TensorType)i;
    t->n_dims = (int)json_array_size(shape);
    *bytes = types[i].bytes;
    for (int d = 0; d < t->n_dims; d++) {
        const json_t *v = json_array_get(shape, (size_t)d);
        json_int_t size = json_integer_value(v);
        if (!json_is_integer(v) || size < 0)
            return bad_tensor(t, err, "shape must hold integers from 0");
        if (size && *bytes > (size_t)INT64_MAX / (size_t)size)
            return bad_tensor(t, err, "shape overflows");
        t->dim[d] = size;
        *bytes *= (size_t)size;
    }
    return 0;
}

/* data, data_size: the file after its header. */
static int read_tensor(Tensor *t, const json_t *spec, const unsigned char *data, size_t data_size,
                       Error *err)
{
    size_t bytes = 0;
    if (!json_is_object(spec)) return bad_tensor(t, err, "must be a JSON object");
    if (read_shape(t, spec, &bytes, err)) return -1;
    const json_t *range = json_object_get(spec, "data_offsets");
    const json_t *lo = json_array_get(range, 0), *hi = json_array_get(range, 1);
    json_int_t begin = json_integer_value(lo), end = json_integer_value(hi);
    if (json_array_size(range) != 2 || !json_is_integer(lo) || !json_is_integer(hi))
        return bad_tensor(t, err, "data_offsets must be two integers");
    if (begin < 0 || begin > end) return bad_tensor(t, err, "data_offsets run backwards");
    if ((size_t)end > data_size)
        return error_set(err, ERR_FILE,
                         "cannot load '%.80s': tensor '%.80s' ends at byte %lld of the data, the "
                         "file has %zu",
                         t->file, t->name, (long long)end, data_size);
    if ((size_t)(end - begin) != bytes)
        return error_set(err, ERR_FILE,
                         "cannot load '%.80s': tensor '%.80s' has %lld bytes, its shape needs %zu",
                         t->file, t->name, (long long)(end - begin), bytes);
    t->data = data + begin;
    t->bytes = bytes;
    return 0;
}

static int check_metadata(const char *file, const json_t *meta, Error *err)
{
    const char *key;
    json_t *v;
    if (!json_is_object(meta)) return bad_file(file, err, "'__metadata__' must be an object");
    json_object_foreach((json_t *)(size_t)meta, key, v)
    {
        if (!json_is_string(v)) return bad_file(file, err, "'__metadata__' must hold strings");
    }
    return 0;
}

/* By place in the file; empty tensors before the one that starts where they lie. */
static int by_place(const void *a, const void *b)
{
    const Tensor *x = a, *y = b;
    if (x->data != y->data) return x->data < y->data ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const Tensor *)a)->name, ((const Tensor *)b)->name);
}

/*
 * Tensors from first on must cover the data exactly: whatever else is in there, nobody described
 * it.
 */
static int check_cover(Safetensors *st, int first, const char *file, const unsigned char *data,
                       size_t size, Error *err)
{
    const unsigned char *at = data;
    Tensor *t = st->tensor; /* NULL when the file holds none */
    if (st->n > first) qsort(t + first, (size_t)(st->n - first), sizeof *t, by_place);
    for (int i = first; i < st->n; i++) {
        if (t[i].data < at)
            return error_set(err, ERR_FILE, "cannot load '%.60s': tensor '%.60s' overlaps '%.60s'",
                             file, t[i].name, t[i - 1].name);
        if (t[i].data > at)
            return error_set(err, ERR_FILE,
                             "cannot load '%.80s': %zu bytes before tensor '%.80s' belong to no "
                             "tensor",
                             file, (size_t)(t[i].data - at), t[i].name);
        at += t[i].bytes;
    }
    if (at != data + size)
        return error_set(err, ERR_FILE,
                         "cannot load '%.80s': its last %zu bytes belong to no tensor", file,
                         (size_t)(data + size - at));
    return 0;
}

static Tensor *push_tensor(Safetensors *st, const char *name, const Shard *s)
{
    if (st->n == st->cap) {
        st->cap = st->cap ? 2 * st->cap : 64;
        st->tensor = mem_realloc(st->tensor, (size_t)st->cap, sizeof *st->tensor);
    }
    Tensor *t = &st->tensor[st->n++];
    *t = (Tensor){.name = mem_strdup(name), .file = s->name, .written_ns = s->map.written_ns};
    return t;
}

static int read_header(Safetensors *st, const Shard *s, const json_t *header, size_t header_end,
                       Error *err)
{
    const unsigned char *data = s->map.data + header_end;
    size_t size = s->map.size - header_end;
    int first = st->n;
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(size_t)header, key, v)
    {
        if (!strcmp(key, "__metadata__")) {
            if (check_metadata(s->name, v, err)) return -1;
        } else if (read_tensor(push_tensor(st, key, s), v, data, size, err)) {
            return -1;
        }
    }
    return check_cover(st, first, s->name, data, size, err);
}

/* Maps path as the next shard and adds its tensors to the table. The shard array has room. */
static int add_file(Safetensors *st, const char *path, Error *err)
{
    Shard *s = &st->shard[st->n_shards];
    const char *slash = strrchr(path, '/');
    if (mapped_file_open(&s->map, path, err)) return -1;
    s->path = mem_strdup(path);
    s->name = mem_strdup(slash ? slash + 1 : path);
    st->n_shards++;
    if (s->map.size < 8) return bad_file(s->name, err, "the file is shorter than 8 bytes");
    if (!memcmp(s->map.data, "version ", 8)) /* no length of a header */
        return bad_file(s->name, err,
                        "it is a pointer of Git LFS: 'git lfs pull' gets the weights");
    uint64_t n = 0;
    for (int i = 7; i >= 0; i--)
        n = n << 8 | s->map.data[i];
    if (n > MAX_HEADER_BYTES)
        return error_set(err, ERR_LIMIT,
                         "cannot load '%.80s': header of %llu bytes, the limit is %d", s->name,
                         (unsigned long long)n, MAX_HEADER_BYTES);
    if (n > s->map.size - 8) return bad_file(s->name, err, "the file ends inside its header");
    if (!n || s->map.data[8] != '{')
        return bad_file(s->name, err, "its header is not a JSON object");
    json_error_t je;
    json_t *header =
        json_loadb((const char *)s->map.data + 8, (size_t)n, JSON_REJECT_DUPLICATES, &je);
    if (!header)
        return error_set(err, ERR_FILE, "cannot load '%.80s': header byte %d: %.120s", s->name,
                         je.position, je.text);
    int rc = read_header(st, s, header, 8 + (size_t)n, err);
    json_decref(header);
    return rc;
}

static int sort_names(Safetensors *st, Error *err)
{
    if (st->n) qsort(st->tensor, (size_t)st->n, sizeof *st->tensor, by_name);
    for (int i = 1; i < st->n; i++)
        if (!by_name(&st->tensor[i - 1], &st->tensor[i]))
            return error_set(err, ERR_FILE,
                             "cannot load '%.60s': tensor '%.80s' is also in '%.60s'",
                             st->tensor[i].file, st->tensor[i].name, st->tensor[i - 1].file);
    return 0;
}

/* Collects the shard names of weight_map, each once; every name must stay inside the folder. */
static int list_shards(const json_t *weight_map, json_t *names, const char *index, Error *err)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(size_t)weight_map, key, v)
    {
        const char *file = json_string_value(v);
        if (!file || !*file || strchr(file, '/') || !strcmp(file, ".") || !strcmp(file, ".."))
            return error_set(err, ERR_FILE,
                             "%s: tensor '%.60s' is said to be in '%.60s', which is no file name",
                             index, key, file ? file : "not a string");
        if (json_object_set_new(names, file, json_true()))
            return error_set(err, ERR_FILE, "%s: bad file name for tensor '%.60s'", index, key);
    }
    if (json_object_size(names) <= MAX_SHARDS) return 0;
    return error_set(err, ERR_LIMIT, "%s: %zu shards, the limit is %d", index,
                     json_object_size(names), MAX_SHARDS);
}

/* Every tensor of the index must be where the index says. */
static int check_index(const Safetensors *st, const json_t *weight_map, Error *err)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(size_t)weight_map, key, v)
    {
        const Tensor *t = safetensors_find(st, key);
        if (!t || strcmp(t->file, json_string_value(v)) != 0)
            return error_set(err, ERR_FILE,
                             "cannot load '%.60s': tensor '%.80s' of the index is not in it",
                             json_string_value(v), key);
    }
    return 0;
}

static int open_shards(Safetensors *st, const char *dir, const json_t *weight_map, json_t *names,
                       const char *index, Error *err)
{
    const char *file;
    json_t *v;
    if (!json_is_object(weight_map) || !json_object_size(weight_map))
        return error_set(err, ERR_FILE, "%s: 'weight_map' must be an object with entries", index);
    if (list_shards(weight_map, names, index, err)) return -1;
    st->shard = mem_alloc(json_object_size(names), sizeof *st->shard);
    json_object_foreach(names, file, v)
    {
        char *path = path_join(dir, file);
        int rc = add_file(st, path, err);
        mem_free(path);
        if (rc) return -1;
    }
    return sort_names(st, err) || check_index(st, weight_map, err) ? -1 : 0;
}

Safetensors *safetensors_open_file(const char *path, Error *err)
{
    Safetensors *st = mem_alloc(1, sizeof *st);
    st->shard = mem_alloc(1, sizeof *st->shard);
    if (!add_file(st, path, err) && !sort_names(st, err)) return st;
    safetensors_close(st);
    return NULL;
}

static Safetensors *open_index(const char *dir, const char *path, const char *name, Error *err)
{
    json_t *root = json_read_file(path, MAX_INDEX_BYTES, err);
    if (!root) return NULL;
    json_t *names = json_object();
    Safetensors *st = mem_alloc(1, sizeof *st);
    if (open_shards(st, dir, json_object_get(root, "weight_map"), names, name, err)) {
        safetensors_close(st);
        st = NULL;
    }
    json_decref(names);
    json_decref(root);
    return st;
}

/*
 * Whether the index, beside a file that could be all there is, has that one and others, all of them
 * there: the MTP head is a file of its own in what compressed-tensors writes. Any other index is
 * what was left of a model in shards before it became one file.
 */
static int has_more_files(const char *dir, const char *index, const char *single)
{
    Error ignored;
    json_t *root = json_read_file(index, MAX_INDEX_BYTES, &ignored), *names = json_object(), *v;
    const char *file;
    int rc = root ? list_shards(json_object_get(root, "weight_map"), names, index, &ignored) : -1;
    int has_more = !rc && json_object_size(names) > 1 && json_object_get(names, single);
    json_object_foreach(names, file, v)
    {
        has_more = has_more && file_is_in(dir, file);
    }
    json_decref(names);
    json_decref(root);
    return has_more;
}

const char *tensor_of_head(const char *name)
{
    const char *at = strncmp(name, "mtp.", 4) ? strstr(name, ".mtp.") : name;
    return at ? strstr(at, "mtp.") + 4 : NULL;
}

static int has_head(const Safetensors *st)
{
    for (int i = 0; i < st->n; i++)
        if (tensor_of_head(st->tensor[i].name)) return 1;
    return 0;
}

static int is_open(const Safetensors *st, const char *name)
{
    for (int i = 0; i < st->n_shards; i++)
        if (!strcmp(st->shard[i].name, name)) return 1;
    return 0;
}

/* Of the tensors from first on those of a head. */
static void keep_head(Safetensors *st, int first)
{
    int n = first;
    for (int i = first; i < st->n; i++) {
        if (tensor_of_head(st->tensor[i].name))
            st->tensor[n++] = st->tensor[i];
        else
            mem_free((void *)(size_t)st->tensor[i].name);
    }
    st->n = n;
}

/*
 * Who quantizes or tunes a model without its MTP head often puts that beside it, in a file that no
 * index names. It is read where the others have none; what else it has, a copy of the embedding for
 * one, is not.
 */
static int add_head(Safetensors *st, const char *dir, Error *err)
{
    static const char *const names[] = {"mtp.safetensors", "model_mtp.safetensors",
                                        "model-mtp.safetensors"};
    for (int i = 0; i < 3 && !has_head(st); i++) {
        if (!file_is_in(dir, names[i]) || is_open(st, names[i])) continue;
        char *path = path_join(dir, names[i]);
        st->shard = mem_realloc(st->shard, (size_t)st->n_shards + 1, sizeof *st->shard);
        int first = st->n, failed = add_file(st, path, err);
        mem_free(path);
        if (failed) return -1;
        keep_head(st, first);
        if (sort_names(st, err)) return -1;
    }
    return 0;
}

Safetensors *safetensors_open(const char *dir, Error *err)
{
    static const char single_name[] = "model.safetensors";
    static const char index_name[] = "model.safetensors.index.json";
    char *single = path_join(dir, single_name), *index = path_join(dir, index_name);
    int has_single = file_is_in(dir, single_name), has_index = file_is_in(dir, index_name);
    Safetensors *st = NULL;
    if (has_single && !(has_index && has_more_files(dir, index, single_name)))
        st = safetensors_open_file(single, err);
    else if (has_index)
        st = open_index(dir, index, index_name, err);
    else
        error_set(err, ERR_FILE, "'%.120s' has neither model.safetensors nor %s", dir, index_name);
    mem_free(index);
    mem_free(single);
    if (!st || !add_head(st, dir, err)) return st;
    safetensors_close(st);
    return NULL;
}

void safetensors_close(Safetensors *st)
{
    if (!st) return;
    for (int i = 0; i < st->n; i++)
        mem_free((void *)(size_t)st->tensor[i].name);
    for (int i = 0; i < st->n_shards; i++) {
        mapped_file_close(&st->shard[i].map);
        mem_free(st->shard[i].path);
        mem_free(st->shard[i].name);
    }
    mem_free(st->tensor);
    mem_free(st->shard);
    mem_free(st);
}

const Tensor *safetensors_find(const Safetensors *st, const char *name)
{
    Tensor key = {.name = name};
    return st->n ? bsearch(&key, st->tensor, (size_t)st->n, sizeof key, by_name) : NULL;
}

int safetensors_count(const Safetensors *st)
{
    return st->n;
}

const Tensor *safetensors_at(const Safetensors *st, int i)
{
    return &st->tensor[i];
}

int safetensors_shards(const Safetensors *st)
{
    return st->n_shards;
}

const char *safetensors_path(const Safetensors *st, int shard)
{
    return st->shard[shard].path;
}

int safetensors_place(const Safetensors *st, const Tensor *t, size_t *offset)
{
    int i = 0;
    while (t->file != st->shard[i].name) /* the very string */
        i++;
    *offset = (size_t)(t->data - st->shard[i].map.data);
    return i;
}
