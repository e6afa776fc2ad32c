/* checkpoint.c: see checkpoint.h. */
#include "tests/checkpoint.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include <dirent.h>
#include <jansson.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "engine/safetensors.h"

const char *scratch_dir(const char *name)
{
    static char dir[256];
    mkdir("build", 0777);
    mkdir("build/tests", 0777);
    snprintf(dir, sizeof dir, "build/tests/%s", name);
    mkdir(dir, 0777);
    DIR *d = opendir(dir);
    if (!d) fail_msg("cannot make %s", dir);
    for (struct dirent *e; d && (e = readdir(d));)
        if (e->d_name[0] != '.') unlink(scratch_path(dir, e->d_name));
    if (d) closedir(d);
    return dir;
}

const char *scratch_path(const char *dir, const char *name)
{
    static char path[4][512];
    static int at;
    at = (at + 1) % 4;
    snprintf(path[at], sizeof path[at], "%s/%s", dir, name);
    return path[at];
}

static FILE *create(const char *path)
{
    FILE *f = fopen(path, "wb");
    if (!f) {
        fail_msg("cannot write %s", path);
        exit(1); /* never reached; the analyzers do not know fail_msg */
    }
    return f;
}

static void finish(FILE *f)
{
    assert_int_equal(ferror(f), 0);
    assert_int_equal(fclose(f), 0);
}

void scratch_write(const char *path, const void *data, size_t n)
{
    FILE *f = create(path);
    if (n) fwrite(data, 1, n, f);
    finish(f);
}

static void write_header(FILE *f, const char *text)
{
    uint64_t n = strlen(text);
    for (int i = 0; i < 8; i++)
        fputc((int)(n >> 8 * i & 255), f);
    fputs(text, f);
}

static void write_zeros(FILE *f, size_t n)
{
    while (n--)
        fputc(0, f);
}

void scratch_safetensors(const char *path, const char *header, size_t n)
{
    FILE *f = create(path);
    write_header(f, header);
    write_zeros(f, n);
    finish(f);
}

/* Sets or removes one dotted path; objects on the way are made. */
static void change(json_t *root, const char *path, const char *value)
{
    char part[128];
    for (const char *dot; (dot = strchr(path, '.')); path = dot + 1) {
        snprintf(part, sizeof part, "%.*s", (int)(dot - path), path);
        if (!json_object_get(root, part)) json_object_set_new(root, part, json_object());
        root = json_object_get(root, part);
    }
    if (*value) {
        json_t *v = json_loads(value, JSON_DECODE_ANY, NULL);
        if (!v) fail_msg("bad JSON in the test: %s", value);
        json_object_set_new(root, path, v);
    } else {
        json_object_del(root, path);
    }
}

void config_write(const char *dir, const char *name, const char *from, const char *const *changes)
{
    json_t *root = from ? json_load_file(from, 0, NULL) : json_object();
    if (!root) fail_msg("cannot read %s", from);
    for (; *changes; changes += 2)
        change(root, changes[0], changes[1]);
    assert_int_equal(json_dump_file(root, scratch_path(dir, name), 0), 0);
    json_decref(root);
}

static CheckpointTensor *add(Checkpoint *c, const char *name)
{
    CheckpointTensor *t = checkpoint_get(c, name);
    if (t) {
        mem_free(t->data);
        mem_free(t->name);
    } else {
        c->tensor = mem_realloc(c->tensor, (size_t)c->n + 1, sizeof *c->tensor);
        t = &c->tensor[c->n++];
    }
    *t = (CheckpointTensor){.name = mem_strdup(name)};
    return t;
}

void checkpoint_read(Checkpoint *c, const char *dir)
{
    Error err;
    Safetensors *st = safetensors_open(dir, &err);
    if (!st) fail_msg("%s", err.msg);
    *c = (Checkpoint){0};
    for (int i = 0; i < safetensors_count(st); i++) {
        const Tensor *from = safetensors_at(st, i);
        CheckpointTensor *t = add(c, from->name);
        snprintf(t->dtype, sizeof t->dtype, "%s", tensor_type_name(from->type));
        t->n_dims = from->n_dims;
        memcpy(t->dim, from->dim, sizeof t->dim);
        t->bytes = from->bytes;
        t->data = mem_alloc(t->bytes, 1);
        memcpy(t->data, from->data, t->bytes);
    }
    safetensors_close(st);
}

CheckpointTensor *checkpoint_get(const Checkpoint *c, const char *name)
{
    for (int i = 0; i < c->n; i++)
        if (!strcmp(c->tensor[i].name, name)) return &c->tensor[i];
    return NULL;
}

void checkpoint_drop(Checkpoint *c, const char *name)
{
    CheckpointTensor *t = checkpoint_get(c, name);
    if (!t) {
        fail_msg("no tensor %s to drop", name);
        exit(1);
    }
    mem_free(t->name);
    mem_free(t->data);
    *t = c->tensor[--c->n];
}

CheckpointTensor *checkpoint_put(Checkpoint *c, const char *name, const char *dtype, int64_t d0,
                                 int64_t d1, int64_t d2)
{
    const int64_t dim[] = {d0, d1, d2};
    CheckpointTensor *t = add(c, name);
    snprintf(t->dtype, sizeof t->dtype, "%s", dtype);
    t->bytes = strstr(dtype, "64") ? 8 : strstr(dtype, "32") ? 4 : strchr(dtype, '8') ? 1 : 2;
    for (; t->n_dims < 3 && dim[t->n_dims] >= 0; t->n_dims++) {
        t->dim[t->n_dims] = dim[t->n_dims];
        t->bytes *= (size_t)dim[t->n_dims];
    }
    t->data = mem_alloc(t->bytes, 1);
    return t;
}

void checkpoint_rename(Checkpoint *c, const char *from, const char *to)
{
    size_t n = strlen(from);
    for (int i = 0; i < c->n; i++) {
        char *old = c->tensor[i].name, name[256];
        if (strncmp(old, from, n) != 0) continue;
        snprintf(name, sizeof name, "%s%s", to, old + n);
        c->tensor[i].name = mem_strdup(name);
        mem_free(old);
    }
}

static json_t *spec(const char *dtype, int n_dims, const int64_t *dim, size_t begin, size_t end)
{
    json_t *shape = json_array();
    for (int i = 0; i < n_dims; i++)
        json_array_append_new(shape, json_integer(dim[i]));
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", dtype, "shape", shape, "data_offsets",
                     (json_int_t)begin, (json_int_t)end);
}

void checkpoint_write(const Checkpoint *c, const char *path, int part, int n_parts, int shift)
{
    json_t *header = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    size_t at = (size_t)shift;
    if (shift) json_object_set_new(header, "shift", spec("U8", 1, &(int64_t){shift}, 0, at));
    for (int i = part; i < c->n; i += n_parts) {
        const CheckpointTensor *t = &c->tensor[i];
        size_t end = at + t->bytes;
        json_object_set_new(header, t->name, spec(t->dtype, t->n_dims, t->dim, at, end));
        at = end;
    }
    /* Padded like real files, so that data start at a multiple of 8 (plus shift). */
    char *text = json_dumps(header, JSON_COMPACT), *padded = NULL;
    int n = (int)(strlen(text) + 7) / 8 * 8;
    assert_true(asprintf(&padded, "%-*s", n, text) == n);
    FILE *f = create(path);
    write_header(f, padded);
    write_zeros(f, (size_t)shift);
    for (int i = part; i < c->n; i += n_parts)
        fwrite(c->tensor[i].data, 1, c->tensor[i].bytes, f);
    finish(f);
    free(padded);
    free(text);
    json_decref(header);
}

const char *checkpoint_model(const Checkpoint *c, const char *config, const char *key,
                             const char *text, int shift)
{
    char name[64];
    snprintf(name, sizeof name, "%.40s-model", program_invocation_short_name);
    const char *dir = scratch_dir(name);
    checkpoint_write(c, scratch_path(dir, "model.safetensors"), 0, 1, shift);
    config_write(dir, "config.json", config, (const char *[]){key, text, NULL});
    return dir;
}

void checkpoint_free(Checkpoint *c)
{
    for (int i = 0; i < c->n; i++) {
        mem_free(c->tensor[i].name);
        mem_free(c->tensor[i].data);
    }
    mem_free(c->tensor);
    *c = (Checkpoint){0};
}
