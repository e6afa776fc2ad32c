/*
 * test_page.c: what / gives to people and to programs, and the page's files; see
 * tests/page/test_page.py for the page itself.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "server/page.h"
#include "tests/analyzer.h"
#include "tests/served.h"

#define BROWSER "Accept: text/html,application/xhtml+xml,*/*;q=0.8\r\n"

static HttpReply get(const Served *s, const char *path, const char *headers)
{
    return http_exchange(s->port, "GET", path, headers, "");
}

/* A reply that has no body; nothing may come in its place. */
static HttpReply bodiless(const Served *s, const char *method, const char *path,
                          const char *headers)
{
    HttpReply r;
    StrBuf rest = {0};
    int fd = http_connect(s->port);
    http_send(fd, method, path, headers, "");
    assert_int_equal(http_read(fd, &rest, 1, &r), 0);
    assert_int_equal(rest.len, 0);
    close(fd);
    strbuf_free(&rest);
    return r;
}

static void assert_header(const HttpReply *r, const char *name, const char *want)
{
    const char *value = http_header(r, name);
    if (!value || !strstr(value, want)) fail_msg("%s: %s", name, value ? value : "absent");
}

/* A program that looks who is there, whatever it accepts but HTML. */
static void assert_json(const Served *s, const char *headers)
{
    HttpReply r = get(s, "/", headers);
    assert_int_equal(r.status, 200);
    assert_string_equal(strbuf_str(&r.body), "{\"name\":\"offshoot\",\"version\":\"0.1.0\"}");
    assert_header(&r, "Content-Type", "application/json");
    assert_header(&r, "Vary", "Accept");
    http_reply_free(&r);
}

static void test_root(void **state)
{
    (void)state;
    Served *s = served_start(NULL);
    assert_json(s, "");
    assert_json(s, "Accept: */*\r\n");
    assert_json(s, "Accept: application/json\r\n");
    HttpReply page = get(s, "/", BROWSER);
    assert_int_equal(page.status, 200);
    assert_header(&page, "Content-Type", "text/html; charset=utf-8");
    assert_header(&page, "Vary", "Accept");
    assert_header(&page, "Cache-Control", "no-cache");
    assert_header(&page, "Content-Security-Policy", "default-src 'none'; script-src 'self';");
    assert_header(&page, "X-Content-Type-Options", "nosniff");
    assert_non_null(strstr(strbuf_str(&page.body), "<title>Offshoot</title>"));
    http_reply_free(&page);
    page = bodiless(s, "HEAD", "/", "");
    assert_int_equal(page.status, 200);
    http_reply_free(&page);
    json_decref(served_post(s, "/", "{}", 405));
    assert_int_equal(served_stop(s), 0);
}

/* All files of the folder come as they are; who has them already is sent nothing. */
static void check_file(const Served *s, const PageFile *f, const char *type)
{
    char path[64], source[64], tag[32], known[64], length[32];
    MappedFile file;
    Error err = {0};
    snprintf(path, sizeof path, "/page/%s", f->name);
    snprintf(source, sizeof source, "server/page/%s", f->name);
    assert_int_equal(mapped_file_open(&file, source, &err), 0);
    HttpReply r = get(s, path, "");
    assert_int_equal(r.status, 200);
    assert_header(&r, "Content-Type", type);
    assert_int_equal(r.body.len, file.size);
    assert_memory_equal(r.body.data, file.data, file.size);
    snprintf(tag, sizeof tag, "%s", http_header(&r, "ETag"));
    snprintf(known, sizeof known, "If-None-Match: \"x\", %s\r\n", tag);
    snprintf(length, sizeof length, "%zu", r.body.len);
    http_reply_free(&r);
    r = bodiless(s, "HEAD", path, "");
    assert_int_equal(r.status, 200);
    assert_header(&r, "Content-Length", length);
    http_reply_free(&r);
    r = bodiless(s, "GET", path, known);
    assert_int_equal(r.status, 304);
    assert_null(http_header(&r, "Content-Length"));
    assert_header(&r, "ETag", tag);
    http_reply_free(&r);
    mapped_file_close(&file);
}

static int ends_in(const char *name, const char *end)
{
    size_t n = strlen(name), n_end = strlen(end);
    return n > n_end && !strcmp(name + n - n_end, end);
}

static void test_files(void **state)
{
    (void)state;
    static const char *const types[][2] = {{".html", "text/html; charset=utf-8"},
                                           {".css", "text/css; charset=utf-8"},
                                           {".js", "text/javascript; charset=utf-8"},
                                           {".svg", "image/svg+xml"}};
    int seen[4] = {0}, n = 0;
    size_t bytes = 0;
    Served *s = served_start(NULL);
    for (const PageFile *f = page_files; f->name; f++, n++)
        for (int t = 0; t < 4; t++) {
            if (!ends_in(f->name, types[t][0])) continue;
            check_file(s, f, types[t][1]);
            bytes += f->size;
            seen[t]++;
        }
    assert_true(seen[0] == 1 && seen[1] == 1 && seen[2] > 1 && seen[3] == 1);
    assert_int_equal(seen[0] + seen[1] + seen[2] + seen[3], n);
    assert_true(bytes < 60 << 10); /* the whole page */
    HttpReply r = get(s, "/page/../page.html", "");
    assert_int_equal(r.status, 404);
    http_reply_free(&r);
    r = get(s, "/page/none.js", "");
    assert_int_equal(r.status, 404);
    http_reply_free(&r);
    assert_int_equal(served_stop(s), 0);
}

/* Neither a key nor a model is needed for the page, which asks for the one and waits for the other.
 */
static void test_open_and_early(void **state)
{
    (void)state;
    ServedOptions o = served_defaults();
    o.api_key = "secret";
    o.not_loaded = 1;
    Served *s = served_start(&o);
    assert_json(s, "");
    HttpReply r = get(s, "/", BROWSER);
    assert_int_equal(r.status, 200);
    http_reply_free(&r);
    r = get(s, "/page/page.js", "");
    assert_int_equal(r.status, 200);
    http_reply_free(&r);
    r = get(s, "/v1/models", "");
    assert_int_equal(r.status, 401);
    http_reply_free(&r);
    served_load(s, 1);
    assert_int_equal(served_stop(s), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_root),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_open_and_early),
    };
    return cmocka_run_group_tests(tests, served_open_model, served_close_model);
}
