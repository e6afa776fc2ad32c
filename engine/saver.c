/* saver.c: see saver.h. */
#include "engine/saver.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/strbuf.h"

enum {
    /* Of a tensor's entry beside its name: type, up to 8 dimensions, two offsets. */
    ENTRY_BYTES = 256,
    ENTRIES_OF_ONE = 4, /* a matrix becomes two at most, with scales each (loader_split) */
    PAGE = 4096,        /* where the data begin: matrices are multiples of 64 bytes */
};

static const char WEIGHTS[] = "model.safetensors", INDEX[] = "model.safetensors.index.json",
                  UNFINISHED[] = "model.safetensors.part", CONFIG[] = "config.json";

struct Saver {
    char *dir, *unfinished; /* the folder; the file's path until it is whole */
    char *from;             /* where the other files come from */
    int made_dir;           /* by us */
    FILE *file;
    json_t *header;
    size_t room, at;     /* bytes of the header's text and its length; next byte of the data */
    const Tensor **kept; /* as they are */
    int n_kept, cap_kept;
};

static int cannot_write(const char *path, Error *err)
{
    return error_set(err, ERR_FILE, "cannot write '%.160s': %s", path, strerror(errno));
}

static int is_copied(const Saver *s, const char *name)
{
    static const char *const weights[] = {
        ".safetensors", ".safetensors.index.json", ".bin", ".pt", ".pth", ".gguf", ".part"};
    struct stat st;
    if (*name == '.' || !strcmp(name, CONFIG)) return 0;
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++)
        if (text_ends_with(name, weights[i])) return 0;
    char *path = path_join(s->from, name);
    int is_file = stat(path, &st) || S_ISREG(st.st_mode); /* no folder, for one */
    mem_free(path);
    return is_file;
}

/* Calls act with the name of each file that comes along, until it gives other than 0. */
static int each_file(const Saver *s, int (*act)(const Saver *s, const char *name, Error *err),
                     Error *err)
{
    DIR *dir = opendir(s->from);
    if (!dir) return error_set(err, ERR_FILE, "cannot open '%.160s': %s", s->from, strerror(errno));
    int rc = 0;
    for (struct dirent *entry; !rc && (entry = readdir(dir)) != NULL;)
        if (is_copied(s, entry->d_name)) rc = act(s, entry->d_name, err);
    closedir(dir);
    return rc;
}

static int check_name(const Saver *s, const char *name, Error *err)
{
    if (!file_is_in(s->dir, name)) return 0;
    return error_set(err, ERR_INPUT, "'%.120s' holds '%.60s' already", s->dir, name);
}

/* What cannot be read is said now, not when all is computed; a link that leads nowhere, too. */
static int check_copy(const Saver *s, const char *name, Error *err)
{
    char *from = path_join(s->from, name);
    int failed = access(from, R_OK);
    if (failed) error_set(err, ERR_FILE, "cannot open '%.160s': %s", from, strerror(errno));
    mem_free(from);
    return failed ? -1 : check_name(s, name, err);
}

/* Nothing that lies there is written over. */
static int check_free(const Saver *s, Error *err)
{
    if (file_is_in(s->dir, WEIGHTS) || file_is_in(s->dir, INDEX))
        return error_set(err, ERR_INPUT, "'%.160s' holds weights already", s->dir);
    return check_name(s, CONFIG, err) || each_file(s, check_copy, err) ? -1 : 0;
}

static int open_folder(Saver *s, Error *err)
{
    if (check_free(s, err)) return -1;
    s->made_dir = !mkdir(s->dir, 0777);
    if (!s->made_dir && errno != EEXIST) return cannot_write(s->dir, err);
    char *path = path_join(s->dir, UNFINISHED);
    s->file = fopen(path, "wb");
    s->unfinished = path;
    return s->file ? 0 : cannot_write(path, err);
}

Saver *saver_open(const char *dir, const char *from, Error *err)
{
    Saver *s = mem_alloc(1, sizeof *s);
    s->dir = mem_strdup(dir);
    s->from = mem_strdup(from);
    s->header = json_object();
    if (!open_folder(s, err)) return s;
    saver_close(s);
    return NULL;
}

void saver_begin(Saver *s, const Safetensors *from)
{
    size_t bytes = sizeof(uint64_t);
    for (int i = 0; i < safetensors_count(from); i++)
        bytes += ENTRIES_OF_ONE * (strlen(safetensors_at(from, i)->name) + ENTRY_BYTES);
    bytes = (bytes + PAGE - 1) / PAGE * PAGE;
    s->room = bytes - sizeof(uint64_t);
}

static int write_bytes(Saver *s, const void *data, size_t n, Error *err)
{
    return n && fwrite(data, n, 1, s->file) != 1 ? cannot_write(s->unfinished, err) : 0;
}

/* The data follow the room for the header; nothing is written there until the end. */
static int begin_data(Saver *s, Error *err)
{
    long at = (long)(sizeof(uint64_t) + s->room);
    return fseek(s->file, at, SEEK_SET) ? cannot_write(s->unfinished, err) : 0;
}

int saver_add(Saver *s, const SavedTensor *t, const void *const *piece, int n_pieces, size_t bytes,
              Error *err)
{
    if (!s->at && begin_data(s, err)) return -1;
    for (int i = 0; i < n_pieces; i++)
        if (write_bytes(s, piece[i], bytes, err)) return -1;
    json_t *shape = json_array();
    for (int d = 0; d < t->n_dims; d++)
        json_array_append_new(shape, json_integer(t->dim[d]));
    size_t end = s->at + (size_t)n_pieces * bytes;
    json_t *entry = json_pack("{s:s, s:o, s:[I, I]}", "dtype", t->dtype, "shape", shape,
                              "data_offsets", (json_int_t)s->at, (json_int_t)end);
    s->at = end;
    return json_object_set_new(s->header, t->name, entry)
               ? error_set(err, ERR_FILE, "cannot save tensor '%.160s'", t->name)
               : 0;
}

void saver_keep(Saver *s, const Tensor *t)
{
    if (s->n_kept == s->cap_kept) {
        s->cap_kept = s->cap_kept ? 2 * s->cap_kept : 64;
        s->kept = mem_realloc((void *)s->kept, (size_t)s->cap_kept, sizeof(const Tensor *));
    }
    s->kept[s->n_kept++] = t;
}

void saver_drop(Saver *s, const Tensor *t)
{
    int i = s->n_kept - 1; /* it came just now */
    while (s->kept[i] != t)
        i--;
    s->kept[i] = s->kept[--s->n_kept];
}

/* Last: they have any size, and what came before is aligned. */
static int add_kept(Saver *s, Error *err)
{
    for (int i = 0; i < s->n_kept; i++) {
        const Tensor *t = s->kept[i];
        SavedTensor saved = {.dtype = tensor_type_name(t->type), .n_dims = t->n_dims};
        snprintf(saved.name, sizeof saved.name, "%s", t->name);
        memcpy(saved.dim, t->dim, sizeof saved.dim);
        if (saver_add(s, &saved, (const void *const[]){t->data}, 1, t->bytes, err)) return -1;
        mapped_file_forget(t->data, t->bytes);
    }
    return 0;
}

static int write_header(Saver *s, Error *err)
{
    unsigned char length[sizeof(uint64_t)], *text = mem_alloc(s->room + 1, 1);
    memset(text, ' ', s->room);
    size_t n = json_dumpb(s->header, (char *)text, s->room, JSON_COMPACT);
    assert(n > 0 && n <= s->room);
    for (size_t i = 0; i < sizeof length; i++)
        length[i] = (unsigned char)((uint64_t)s->room >> 8 * i);
    rewind(s->file);
    int failed = write_bytes(s, length, sizeof length, err) || write_bytes(s, text, s->room, err);
    mem_free(text);
    return failed ? -1 : 0;
}

/* ---- the files beside the weights ---- */

static int copy_bytes(const char *from, const char *to, Error *err)
{
    MappedFile map;
    if (mapped_file_open(&map, from, err)) return -1;
    FILE *out = fopen(to, "wb");
    int failed = !out || (map.size && fwrite(map.data, map.size, 1, out) != 1);
    if (out) failed |= fclose(out) != 0;
    mapped_file_close(&map);
    return failed ? cannot_write(to, err) : 0;
}

static int copy_file(const Saver *s, const char *name, Error *err)
{
    char *from = path_join(s->from, name), *to = path_join(s->dir, name);
    int failed = copy_bytes(from, to, err);
    mem_free(from);
    mem_free(to);
    return failed;
}

static int remove_file(const Saver *s, const char *name, Error *err)
{
    char *path = path_join(s->dir, name);
    (void)err;
    unlink(path); /* it may not have come so far */
    mem_free(path);
    return 0;
}

static int write_config(const Saver *s, QuantType made, Error *err)
{
    char *old = path_join(s->from, CONFIG), *new = path_join(s->dir, CONFIG);
    json_t *config = json_read_file(old, MAX_CONFIG_BYTES, err);
    int failed = !config ? -1 : 0;
    if (config) {
        json_object_set_new(config, "quantization_config",
                            json_pack("{s:s}", "quant_method", quant_method(made)));
        if (json_dump_file(config, new, JSON_INDENT(2))) failed = cannot_write(new, err);
    }
    json_decref(config);
    mem_free(old);
    mem_free(new);
    return failed;
}

int saver_finish(Saver *s, QuantType made, int64_t *bytes, Error *err)
{
    if (add_kept(s, err) || write_header(s, err) || each_file(s, copy_file, err) ||
        write_config(s, made, err))
        return -1;
    FILE *file = s->file;
    s->file = NULL;
    int failed = fflush(file) || fsync(fileno(file));
    if (fclose(file) || failed) return cannot_write(s->unfinished, err);
    char *path = path_join(s->dir, WEIGHTS);
    failed = rename(s->unfinished, path) ? cannot_write(path, err) : 0;
    mem_free(path);
    if (failed) return -1;
    mem_free(s->unfinished);
    s->unfinished = NULL;
    *bytes = (int64_t)(s->at);
    return 0;
}

void saver_close(Saver *s)
{
    if (!s) return;
    if (s->file) fclose(s->file);
    if (s->unfinished) {
        unlink(s->unfinished);
        remove_file(s, CONFIG, NULL);
        each_file(s, remove_file, NULL);
        if (s->made_dir) rmdir(s->dir); /* where nothing else is in it */
    }
    mem_free((void *)s->kept);
    mem_free(s->unfinished);
    mem_free(s->dir);
    mem_free(s->from);
    json_decref(s->header);
    mem_free(s);
}
