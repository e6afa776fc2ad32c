/*
 * api_page.c: the built-in page at /, and its files below /page/.
 *
 * The page is for people: who does not ask for HTML, as programs that look whether a server is
 * there, gets a line of JSON. It needs no key and says nothing that does; what it asks for does.
 */
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/version.h"
#include "server/page.h"
#include "server/server_state.h"

static const char root[] = "/", folder[] = "/page/", home[] = "page.html";

static const PageFile *find_file(const char *name)
{
    for (const PageFile *f = page_files; f->name; f++)
        if (!strcmp(f->name, name)) return f;
    return NULL;
}

static const char *content_type(const char *name)
{
    static const char *const types[][2] = {
        {".css", "text/css; charset=utf-8"},
        {".js", "text/javascript; charset=utf-8"},
        {".svg", "image/svg+xml"},
    };
    const char *dot = strrchr(name, '.');
    for (size_t i = 0; dot && i < sizeof types / sizeof *types; i++)
        if (!strcmp(dot, types[i][0])) return types[i][1];
    return "text/html; charset=utf-8";
}

/* A page that shows what a model says loads nothing from elsewhere and is nobody's frame. */
static void add_safety(Exchange *ex)
{
    exchange_add_header(ex, "Content-Security-Policy",
                        "default-src 'none'; script-src 'self'; style-src 'self'; "
                        "connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; "
                        "frame-ancestors 'none'");
    exchange_add_header(ex, "X-Content-Type-Options", "nosniff");
    exchange_add_header(ex, "Referrer-Policy", "no-referrer");
}

/* A browser asks each time and is told in a few bytes that nothing has changed. */
static void send_file(Exchange *ex, const PageFile *f)
{
    char tag[24];
    const char *known = exchange_header(ex, "If-None-Match");
    snprintf(tag, sizeof tag, "\"%016llx\"", (unsigned long long)hash_sum(f->data, f->size));
    exchange_add_header(ex, "ETag", tag);
    exchange_add_header(ex, "Cache-Control", "no-cache");
    add_safety(ex);
    if (known && strstr(known, tag)) {
        exchange_empty(ex, 304);
        return;
    }
    StrBuf text = {0};
    strbuf_add(&text, (const char *)f->data, f->size);
    exchange_text(ex, content_type(f->name), &text);
    strbuf_free(&text);
}

void api_page(Server *s, Exchange *ex)
{
    (void)s;
    const char *path = exchange_path(ex), *accept = exchange_header(ex, "Accept");
    int is_root = !strcmp(path, root);
    if (is_root) exchange_add_header(ex, "Vary", "Accept");
    if (is_root && !(accept && strcasestr(accept, "text/html"))) {
        exchange_json(ex, json_pack("{s:s, s:s}", "name", "offshoot", "version", OFFSHOOT_VERSION));
        return;
    }
    const PageFile *f = find_file(is_root ? home : path + strlen(folder));
    if (f)
        send_file(ex, f);
    else
        exchange_error(ex, 404, NULL, NULL, "the page has no such file");
}
