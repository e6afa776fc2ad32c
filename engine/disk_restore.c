/*
 * disk_restore.c: see disk_restore.h.
 *
 * Heads are read twice: for a file's place in the order (a run comes after those that it needs,
 * states last), then to add it. So the tokens of one file at a time are in memory.
 */
#include "engine/disk_restore.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"

typedef struct {
    FolderFile file;
    CacheFileKind kind;
    int first;    /* block; a state's comes after all runs */
    int n_blocks; /* of a run */
    int32_t item;
} Found;

enum { MAX_LOGGED = 20 };

typedef struct {
    DiskFolder *folder;
    const CacheShape *shape;
    Store *store;
    CacheName *name;
    unsigned char *head;
    int n_refused;
} Restore;

/* ---- one file ---- */

static void refuse(Restore *r, CacheName name, const char *why, int is_removed)
{
    char text[CACHE_NAME_BYTES];
    cache_name_print(name, text);
    if (r->n_refused++ < MAX_LOGGED)
        log_warn("disk_cache_ignored file=%s reason=\"%s\" removed=%s", text, why,
                 is_removed ? "yes" : "no");
    if (is_removed) disk_folder_remove(r->folder, name);
}

static CacheFileKind read_head(const Restore *r, CacheName name, CacheFile *file, Error *why)
{
    int fd = disk_folder_read(r->folder, name);
    if (fd < 0) {
        error_set(why, ERR_FILE, "cannot open it: %s", strerror(errno));
        return CACHE_FILE_OTHER; /* it takes its room all the same */
    }
    CacheFileKind kind = cache_file_read_head(r->shape, fd, r->head, file, why);
    close(fd);
    return kind;
}

/* 1 when the file stays, as one of ours or to age. */
static int judge(Restore *r, Found *f)
{
    Error why = {0};
    CacheFile file;
    f->item = -1;
    f->kind = read_head(r, f->file.name, &file, &why);
    if (f->kind != CACHE_FILE_GOOD) {
        int is_kept = f->kind == CACHE_FILE_OTHER;
        refuse(r, f->file.name, why.msg, !is_kept);
        return is_kept;
    }
    f->n_blocks = file.head.has_state ? 0 : (int)file.head.n_pages;
    f->first = file.head.has_state ? r->shape->max_tokens : (int)file.head.first_block;
    return 1;
}

/* An item whose name is what its content asks for, and that the index can use. Or why not. */
static const char *add(const Restore *r, Found *f)
{
    Error why = {0};
    CacheFile file;
    int32_t last;
    if (read_head(r, f->file.name, &file, &why) != CACHE_FILE_GOOD) return "changed meanwhile";
    const CacheHead *h = &file.head;
    int n_before = (int)h->first_block, n = (int)h->n_tokens;
    int64_t bytes = cache_file_room(f->file.bytes);
    const int32_t *own = file.token + n_before * PAGE_TOKENS;
    if (store_match(r->store, h->salt, file.token, n_before * PAGE_TOKENS, &last) < n_before)
        return "what it needs is not there";
    if (!h->has_state) {
        int32_t next;
        if (store_match(r->store, h->salt, file.token, n, &next) > n_before)
            return "another holds the same";
        f->item = store_add_run(r->store, h->salt, last, own, (int)h->n_pages, bytes);
    } else {
        if (store_state(r->store, last, own, n % PAGE_TOKENS) >= 0) return "another holds the same";
        f->item = store_add_state(r->store, last, own, n % PAGE_TOKENS, bytes);
        store_set_ready(r->store, f->item);
    }
    CacheName name = cache_name_of(r->shape, store_item(r->store, f->item).key, (int)h->has_state);
    if (cache_name_equal(name, f->file.name)) return NULL;
    store_drop(r->store, f->item, NULL, NULL);
    f->item = -1;
    return "it has another's name";
}

/* ---- all files ---- */

static int by_first(const void *a, const void *b)
{
    const Found *x = a, *y = b;
    if (x->first != y->first) return x->first < y->first ? -1 : 1;
    return x->file.used < y->file.used ? 1 : x->file.used > y->file.used ? -1 : 0;
}

static int by_use(const void *a, const void *b)
{
    const Found *x = a, *y = b;
    return x->file.used < y->file.used ? -1 : x->file.used > y->file.used;
}

/* Judges the files, the one used last first, until there is no room for more; n of found[]. */
static int take_in(Restore *r, const FolderFile *file, int n_files, int64_t max_bytes, Found *found)
{
    int n = 0, n_blocks = 0, is_full = 0;
    int64_t bytes = 0;
    for (int i = 0; i < n_files; i++) {
        Found *f = &found[n];
        *f = (Found){.file = file[i]};
        is_full = is_full || bytes + cache_file_room(file[i].bytes) > max_bytes;
        if (!is_full && !judge(r, f)) continue;
        is_full = is_full || !store_has_room(r->store, n + 1, n_blocks + f->n_blocks);
        if (is_full) {
            refuse(r, file[i].name, "the cache is full", 1);
            continue;
        }
        bytes += cache_file_room(file[i].bytes);
        n_blocks += f->n_blocks;
        n++;
    }
    return n;
}

void disk_restore(DiskFolder *folder, const CacheShape *shape, Store *store, int64_t max_bytes,
                  CacheName *name)
{
    Restore r = {.folder = folder, .shape = shape, .store = store, .name = name};
    int n_files, n;
    FolderFile *file = disk_folder_list(folder, &n_files);
    Found *found = mem_alloc((size_t)n_files, sizeof *found);
    r.head = mem_alloc(1, cache_file_buffer_bytes(shape));
    n = take_in(&r, file, n_files, max_bytes, found);
    qsort(found, (size_t)n, sizeof *found, by_first);
    for (int i = 0; i < n; i++) {
        const char *why = NULL;
        if (found[i].kind == CACHE_FILE_OTHER)
            found[i].item = store_add_other(store, cache_file_room(found[i].file.bytes));
        else
            why = add(&r, &found[i]);
        if (why) refuse(&r, found[i].file.name, why, 1);
        if (found[i].item >= 0) name[found[i].item] = found[i].file.name;
    }
    qsort(found, (size_t)n, sizeof *found, by_use);
    for (int i = 0; i < n; i++)
        if (found[i].item >= 0) store_use(store, found[i].item);
    if (r.n_refused > MAX_LOGGED)
        log_warn("disk_cache_ignored files=%d more of them", r.n_refused - MAX_LOGGED);
    mem_free(r.head);
    mem_free(found);
    mem_free(file);
}
