/* disk_case.c: see disk_case.h. */
#include "tests/disk_case.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/log.h"
#include "base/mem.h"

const DiskShape disk_case_shape = {.fingerprint = "a model",
                                   .page_bytes = PREFIX_PAGE_BYTES,
                                   .state_bytes = PREFIX_STATE_BYTES,
                                   .max_tokens = PREFIX_MAX};

int disk_case_quiet(void **state)
{
    (void)state;
    log_set_level(LOG_LEVEL_ERROR);
    return 0;
}

Disk *disk_case_open(const char *path, int64_t max_bytes)
{
    Error err = {0};
    Disk *d = disk_open(path, max_bytes, &disk_case_shape, &err);
    if (!d) fail_msg("%s", err.msg);
    return d;
}

int disk_case_wait(Disk *d, int job)
{
    DiskDone done;
    assert_int_equal(disk_next(d, &done, 1), 1);
    assert_int_equal(done.job, job);
    assert_int_equal(disk_next(d, &done, 1), 0);
    return done.ok;
}

int disk_case_save(Disk *d, const Prefix *p, TierRefused *why)
{
    PrefixBytes b;
    int first = disk_first_new(d, p->salt, p->token, p->n);
    prefix_fill(p, p->n, &b);
    for (int i = 0; i < first; i++)
        memset(b.page[i], 0, PREFIX_PAGE_BYTES); /* not to be looked at */
    int job = disk_save(d, p->salt, p->token, p->n, first, (const void *const *)b.page + first,
                        b.state, why);
    return job < 0 ? -1 : disk_case_wait(d, job);
}

void disk_case_must_save(Disk *d, const Prefix *p)
{
    TierRefused why = N_TIER_REFUSED;
    if (disk_case_save(d, p, &why) != 1) fail_msg("%d tokens are not saved: %d", p->n, (int)why);
}

int disk_case_found(const Disk *d, const Prefix *p)
{
    return disk_find(d, p->salt, p->token, p->n);
}

int disk_case_load(Disk *d, const Prefix *p, int n, int first)
{
    PrefixBytes b;
    prefix_clear(&b);
    int job = disk_load(d, p->salt, p->token, n, first, b.page + first, b.state);
    assert_true(job >= 0);
    if (!disk_case_wait(d, job)) return 0;
    prefix_check(p, n, first, &b);
    return 1;
}

Prefix disk_case_prefix(int n, int32_t kind)
{
    Prefix p = {.salt = 5, .n = n};
    for (int i = 0; i < n; i++)
        p.token[i] = 1000 * kind + i;
    return p;
}

int disk_case_count(const char *path, const char *ending, int64_t *bytes)
{
    DIR *dir = opendir(path);
    int n = 0;
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));) {
        size_t length = strlen(e->d_name), end = strlen(ending);
        struct stat st;
        if (e->d_name[0] == '.' || !strcmp(e->d_name, "offshoot.lock")) continue;
        if (length < end || strcmp(e->d_name + length - end, ending)) continue;
        assert_int_equal(fstatat(dirfd(dir), e->d_name, &st, AT_SYMLINK_NOFOLLOW), 0);
        if (bytes) *bytes += (st.st_size + 4095) / 4096 * 4096;
        n++;
    }
    closedir(dir);
    return n;
}

const char *disk_case_file(const char *path, const char *ending)
{
    static char out[512];
    DIR *dir = opendir(path);
    assert_non_null(dir);
    assert_int_equal(disk_case_count(path, ending, NULL), 1);
    for (struct dirent *e; (e = readdir(dir));) {
        size_t length = strlen(e->d_name), end = strlen(ending);
        if (length > end && !strcmp(e->d_name + length - end, ending))
            snprintf(out, sizeof out, "%s/%s", path, e->d_name);
    }
    closedir(dir);
    return out;
}

unsigned char *disk_case_read(const char *path, size_t *size)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    unsigned char *bytes = mem_alloc(1 << 16, 1);
    *size = fread(bytes, 1, 1 << 16, f);
    fclose(f);
    return bytes;
}
