/*
 * hub_folder.c: see hub_folder.h. The cache is as huggingface_hub documents it: a folder
 * models--owner--repository, in which refs/main holds the commit that snapshots/COMMIT is of.
 */
#include "base/hub_folder.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/strbuf.h"

enum { MAX_HUB_NAME = 96, MAX_REF_BYTES = 128 };

static const char name_chars[] =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";

/* One slash, and neither part could leave the folder that it names. */
static int is_hub_name(const char *name)
{
    size_t owner = strspn(name, name_chars);
    const char *repository = name + owner + 1;
    return owner > 0 && name[owner] == '/' && *repository && *name != '.' && *repository != '.' &&
           strlen(name) <= MAX_HUB_NAME && repository[strspn(repository, name_chars)] == 0;
}

static int is_folder(const char *path)
{
    struct stat st;
    return !stat(path, &st) && S_ISDIR(st.st_mode);
}

/* NULL without a home. */
static char *hub_cache(void)
{
    static const struct {
        const char *variable, *below;
    } places[] = {{"HF_HUB_CACHE", NULL},
                  {"HF_HOME", "hub"},
                  {"XDG_CACHE_HOME", "huggingface/hub"},
                  {"HOME", ".cache/huggingface/hub"}};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const char *at = getenv(places[i].variable);
        if (!at || !*at) continue;
        return places[i].below ? path_join(at, places[i].below) : mem_strdup(at);
    }
    return NULL;
}

/* The commit of a repository's main, or "": a word that names a file. */
static void read_main(const char *repository, char commit[MAX_REF_BYTES + 1])
{
    MappedFile file;
    char *path = path_join(repository, "refs/main");
    *commit = 0;
    if (!mapped_file_open_up_to(&file, path, MAX_REF_BYTES, NULL)) {
        memcpy(commit, file.data ? (const char *)file.data : "", file.size);
        commit[file.size] = 0;
        commit[strspn(commit, name_chars)] = 0;
        if (*commit == '.') *commit = 0;
        mapped_file_close(&file);
    }
    mem_free(path);
}

/* Of a repository's folder; NULL when it is not there. */
static char *main_snapshot(const char *repository)
{
    char commit[MAX_REF_BYTES + 1];
    read_main(repository, commit);
    if (!*commit) return NULL;
    char *snapshots = path_join(repository, "snapshots");
    char *path = path_join(snapshots, commit);
    mem_free(snapshots);
    if (is_folder(path)) return path;
    mem_free(path);
    return NULL;
}

/* cache/models--owner--repository */
static char *repository_path(const char *cache, const char *name)
{
    size_t owner = strcspn(name, "/");
    StrBuf s = {0};
    strbuf_printf(&s, "%s/models--%.*s--%s", cache, (int)owner, name, name + owner + 1);
    char *path = mem_strdup(strbuf_str(&s));
    strbuf_free(&s);
    return path;
}

char *hub_folder(const char *name, int *of_hub, Error *err)
{
    struct stat st;
    *of_hub = 0;
    if (!lstat(name, &st) || !is_hub_name(name)) return mem_strdup(name);

    char *cache = hub_cache(), *folder = NULL;
    if (cache) {
        char *repository = repository_path(cache, name);
        folder = main_snapshot(repository);
        mem_free(repository);
    }
    *of_hub = folder != NULL;
    if (!folder)
        error_set(err, ERR_FILE, "there is no folder '%s', nor that model in %s (hf download %s)",
                  name, cache ? cache : "the Hugging Face cache", name);
    mem_free(cache);
    return folder;
}
