/* metrics_page.c: see metrics_page.h. */
#include "tests/metrics_page.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/analyzer.h"

static jmp_buf refused; /* where a bad page leads to, while may_refuse */
static int may_refuse;

static void bad(const Page *p, const char *why)
{
    if (may_refuse) longjmp(refused, 1);
    fail_msg("%s: %.*s", why, (int)strcspn(p->line, "\n"), p->line);
}

static size_t name_length(const char *text, int colon)
{
    size_t n = 0;
    if (isdigit((unsigned char)*text)) return 0;
    while (isalnum((unsigned char)text[n]) || text[n] == '_' || (colon && text[n] == ':'))
        n++;
    return n;
}

/* A quoted label value; out gets it without escapes. Returns the byte after the closing quote. */
static const char *read_label(const Page *p, const char *at, char *out, size_t size)
{
    size_t n = 0;
    if (*at++ != '"') bad(p, "no quote");
    for (; *at != '"'; at++) {
        char c = *at;
        if (c == '\n' || !c) bad(p, "a label does not end");
        if (c == '\\') {
            c = *++at;
            if (c != '\\' && c != '"' && c != 'n') bad(p, "unknown escape");
            if (c == 'n') c = '\n';
        }
        if (n + 1 < size) out[n++] = c;
    }
    out[n] = 0;
    return at + 1;
}

const char *page_read_labels(Page *p, const char *at, char *rest, size_t size, char *le)
{
    size_t used = 0;
    char seen[512] = ",", value[256];
    rest[0] = le[0] = p->model[0] = 0;
    while (*at != '}') {
        size_t n = name_length(at, 0);
        const char *name = at;
        char mark[80];
        if (!n || n > 60 || at[n] != '=') bad(p, "bad label name");
        snprintf(mark, sizeof mark, ",%.*s,", (int)n, name);
        if (strstr(seen, mark)) bad(p, "a label twice");
        snprintf(seen + strlen(seen), sizeof seen - strlen(seen), "%s", mark + 1);
        at = read_label(p, at + n + 1, value, sizeof value);
        if (!strcmp(mark, ",model_name,"))
            snprintf(p->model, sizeof p->model, "%.127s", value);
        else if (!strcmp(mark, ",le,"))
            snprintf(le, 32, "%.31s", value);
        else if (strcmp(mark, ",engine,") != 0)
            used += (size_t)snprintf(rest + used, size - used, "%s%.*s=%s", used ? "," : "", (int)n,
                                     name, value);
        assert_true(used < size);
        if (*at == ',')
            at++;
        else if (*at != '}')
            bad(p, "labels are not parted by commas");
    }
    if (!strstr(seen, ",model_name,engine,")) bad(p, "our labels are missing");
    return at + 1;
}

static void read_bucket(Page *p, const char *series, const char *le, double value)
{
    double bound = strcmp(le, "+Inf") ? strtod(le, NULL) : INFINITY;
    int same = !isnan(p->le) && !strcmp(series, p->series);
    if (!*le) bad(p, "a bucket without le");
    if (same && (bound <= p->le || value < p->bucket)) bad(p, "buckets must rise");
    if (!same && !isnan(p->le)) bad(p, "a series without +Inf");
    p->le = isinf(bound) ? NAN : bound;
    p->bucket = p->infinite = value;
    snprintf(p->series, sizeof p->series, "%.500s", series);
}

/* The family's own name, or for a histogram one of three suffixes. */
static void check_member(Page *p, const char *name, const char *series, const char *le,
                         double value)
{
    const char *type = json_string_value(json_object_get(p->type, p->family));
    size_t n = strlen(p->family);
    if (!type || strncmp(name, p->family, n) != 0) bad(p, "a sample outside of its family");
    const char *suffix = name + n;
    int histogram = !strcmp(type, "histogram");
    if (histogram ? !*suffix : *suffix) bad(p, "a sample outside of its family");
    if (!strcmp(type, "counter") && value < 0) bad(p, "a negative counter");
    if (!histogram) return;
    if (!strcmp(suffix, "_bucket")) {
        read_bucket(p, series, le, value);
        return;
    }
    if (!isnan(p->le) || *le) bad(p, "+Inf is missing");
    if (strcmp(suffix, "_count") != 0 && strcmp(suffix, "_sum") != 0) bad(p, "unknown suffix");
    if (strcmp(series, p->series) != 0) bad(p, "another series");
    if (!strcmp(suffix, "_count") && value != p->infinite) bad(p, "+Inf is not the count");
}

static void read_sample(Page *p)
{
    char name[128], rest[300] = "", le[32] = "", key[512];
    size_t n = name_length(p->line, 1);
    const char *at = p->line + n;
    char *end;
    if (!n || n >= sizeof name) bad(p, "bad name");
    snprintf(name, sizeof name, "%.*s", (int)n, p->line);
    if ((*at == '{') == !strncmp(name, "process_", 8)) bad(p, "only a process has no labels");
    if (*at == '{') at = page_read_labels(p, at + 1, rest, sizeof rest, le);
    if (*at != ' ') bad(p, "no blank before the value");
    double value = strtod(at + 1, &end);
    if (end == at + 1 || *end != '\n') bad(p, "no number");
    int draft_count = !strncmp(name, "vllm:spec_decode", 16);
    if (draft_count && strspn(at + 1, "0123456789") != (size_t)(end - at - 1))
        bad(p, "not a plain integer");
    check_member(p, name, rest, le, value);
    int has_labels = *rest || *le;
    snprintf(key, sizeof key, "%s%s%s%s%s%s%s", name, has_labels ? "{" : "", rest,
             *rest && *le ? "," : "", *le ? "le=" : "", le, has_labels ? "}" : "");
    if (json_object_get(p->value, key)) bad(p, "the same sample twice");
    json_object_set_new(p->value, key, json_real(value));
}

/* HELP and TYPE, in this order, begin a family; there is no other comment. */
static const char *read_family(Page *p)
{
    char type[16] = "", name[128] = "";
    if (!isnan(p->le)) bad(p, "+Inf is missing before");
    if (sscanf(p->line, "# HELP %127s", p->family) != 1) bad(p, "neither HELP nor a sample");
    if (name_length(p->family, 1) != strlen(p->family)) bad(p, "bad name");
    if (p->line[strlen("# HELP ") + strlen(p->family)] != ' ') bad(p, "no help");
    if (json_object_get(p->type, p->family)) bad(p, "a family twice");
    p->line = strchr(p->line, '\n') + 1;
    if (sscanf(p->line, "# TYPE %127s %15s", name, type) != 2 || strcmp(name, p->family) != 0)
        bad(p, "no TYPE after HELP");
    if (strcmp(type, "counter") != 0 && strcmp(type, "gauge") != 0 &&
        strcmp(type, "histogram") != 0)
        bad(p, "unknown type");
    size_t n = strlen(name);
    if (!strcmp(type, "counter") && (n < 6 || strcmp(name + n - 6, "_total") != 0))
        bad(p, "a counter's name ends in _total");
    json_object_set_new(p->type, name, json_string(type));
    return p->line;
}

void page_read(Page *p, const char *text, size_t len)
{
    *p = (Page){.value = json_object(), .type = json_object(), .le = NAN};
    p->line = text;
    if (!len || text[len - 1] != '\n' || strlen(text) != len) bad(p, "the page does not end");
    for (; *p->line; p->line = strchr(p->line, '\n') + 1) {
        if (*p->line == '#')
            p->line = read_family(p);
        else
            read_sample(p);
    }
    if (!isnan(p->le)) bad(p, "+Inf is missing at the end");
}

int page_is_refused(const char *text)
{
    static Page p; /* setjmp spares what is static */
    may_refuse = 1;
    if (!setjmp(refused)) {
        page_read(&p, text, strlen(text));
        may_refuse = 0;
    }
    int is_refused = may_refuse;
    may_refuse = 0;
    page_close(&p);
    return is_refused;
}

void page_close(Page *p)
{
    json_decref(p->value);
    json_decref(p->type);
}

Page page_scrape(const Served *s)
{
    HttpReply r = http_exchange(s->port, "GET", "/metrics", "", "");
    assert_int_equal(r.status, 200);
    assert_string_equal(http_header(&r, "Content-Type"),
                        "text/plain; version=0.0.4; charset=utf-8");
    Page p;
    page_read(&p, strbuf_str(&r.body), r.body.len);
    http_reply_free(&r);
    return p;
}

double page_get(const Page *p, const char *key)
{
    const json_t *v = json_object_get(p->value, key);
    if (!v) fail_msg("there is no %s", key);
    return json_real_value(v);
}

void assert_sample(const Page *p, const char *key, double value)
{
    double v = page_get(p, key);
    if (v != value) fail_msg("%s is %g, not %g", key, v, value);
}

void assert_risen(const Page *before, const Page *after)
{
    const char *family, *key;
    json_t *type, *value;
    json_object_foreach(before->type, family, type)
    {
        if (!strcmp(json_string_value(type), "gauge")) continue;
        json_object_foreach(before->value, key, value)
        {
            if (strncmp(key, family, strlen(family)) != 0) continue;
            if (page_get(after, key) < json_real_value(value))
                fail_msg("%s fell from %g to %g", key, json_real_value(value),
                         page_get(after, key));
        }
    }
}
