/* json_out.c: see json_out.h. */
#include "server/json_out.h"

#include <string.h>

#include "text/utf8.h"

static int add_raw(const char *text, size_t len, void *ctx)
{
    StrBuf *out = ctx;
    strbuf_add(out, text, len);
    return 0;
}

/* Such bytes occur inside strings only, so they need no look at the syntax. s ends with a NUL. */
static void escape_line_ends(const char *s, size_t len, StrBuf *out)
{
    size_t from = 0;
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)s[i];
        const char *escaped = NULL;
        size_t n = 0;
        if (c == 0xC2 && !memcmp(s + i, "\xC2\x85", 2)) {
            escaped = "\\u0085";
            n = 2;
        } else if (c == 0xE2 && !memcmp(s + i, "\xE2\x80\xA8", 3)) {
            escaped = "\\u2028";
            n = 3;
        } else if (c == 0xE2 && !memcmp(s + i, "\xE2\x80\xA9", 3)) {
            escaped = "\\u2029";
            n = 3;
        }
        if (!escaped) continue;
        strbuf_add(out, s + from, i - from);
        strbuf_puts(out, escaped);
        from = i + n;
        i = from - 1;
    }
    strbuf_add(out, s + from, len - from);
}

void json_print(const json_t *value, StrBuf *out)
{
    StrBuf raw = {0};
    json_dump_callback(value, add_raw, &raw,
                       JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
    escape_line_ends(strbuf_str(&raw), raw.len, out);
    strbuf_free(&raw);
}

json_t *json_text_n(const char *text, size_t len)
{
    if (utf8_check(text, len) == len) return json_stringn(text, len);
    StrBuf valid = {0};
    for (size_t i = 0; i < len;) {
        int n = utf8_step((const unsigned char *)text + i, len - i);
        if (n > 0)
            strbuf_add(&valid, text + i, (size_t)n);
        else
            strbuf_puts(&valid, "\xEF\xBF\xBD");
        i += n > 0 ? (size_t)n : n < 0 ? (size_t)-n : len - i;
    }
    json_t *s = json_stringn(valid.data, valid.len);
    strbuf_free(&valid);
    return s;
}

json_t *json_text(const char *text)
{
    return json_text_n(text, strlen(text));
}
