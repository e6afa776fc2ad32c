/* request_head.c: see request_head.h. */
#include "server/request_head.h"

#include <string.h>

/* RFC 9110 section 5.6.2: what names are made of. */
static int is_token_char(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c && strchr("!#$%&'*+-.^_`|~", c));
}

static size_t name_len(const char *line, size_t len)
{
    size_t n = 0;
    while (n < len && is_token_char(line[n]))
        n++;
    return n;
}

static int is_good_request_line(const char *line, size_t len)
{
    static const char version[] = " HTTP/1.";
    size_t n = sizeof version; /* with the last digit */
    return len > n && !memcmp(line + len - n, version, n - 1) &&
           (line[len - 1] == '0' || line[len - 1] == '1');
}

static int is_good_header(const char *line, size_t len)
{
    size_t n = name_len(line, len);
    return n && n < len && line[n] == ':';
}

/* A line is whole; n without its end. 1: the blank line, -1: not fit to be read, else 0. */
static int end_line(HeadScan *scan, const char *line, size_t n)
{
    if (!scan->n_line) {
        scan->n_line = n;
        return is_good_request_line(line, n) ? 0 : -1;
    }
    if (!n) return 1;
    return is_good_header(line, n) ? 0 : -1;
}

HeadResult head_scan(HeadScan *scan, const char *data, size_t len, size_t max_line,
                     size_t max_headers)
{
    while (scan->n_seen < len) {
        size_t at = scan->n_seen++;
        unsigned char c = (unsigned char)data[at];
        int after_cr = at > scan->line_start && data[at - 1] == '\r';
        if (c == '\n') {
            if (!after_cr) return HEAD_BAD;
            int last = end_line(scan, data + scan->line_start, at - 1 - scan->line_start);
            if (last) return last > 0 ? HEAD_WHOLE : HEAD_BAD;
            scan->line_start = at + 1;
        } else if (after_cr || (c < ' ' && c != '\t' && c != '\r') || c == 0x7f) {
            return HEAD_BAD;
        }
        if (!scan->n_line && at >= max_line + 1) return HEAD_LONG_LINE;
        if (scan->n_line && at - scan->n_line > max_headers) return HEAD_TOO_LARGE;
    }
    return HEAD_MORE;
}

static int names_framing(const char *name, size_t n)
{
    static const char *const names[] = {"Content-Length", "Transfer-Encoding", "Expect"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strlen(names[i]) == n && !strncasecmp(names[i], name, n)) return 1;
    return 0;
}

/* The mark is the high bit of the first letter, which no name has. */
enum { MARK = 0x80 };

void head_mark(char *head, size_t len)
{
    char *end = head + len;
    for (char *line = head; line < end;) {
        if (names_framing(line, name_len(line, (size_t)(end - line)))) *line |= (char)MARK;
        char *next = memchr(line, '\n', (size_t)(end - line));
        line = next ? next + 1 : end;
    }
}

void head_unmark(struct evkeyvalq *headers)
{
    for (struct evkeyval *h = headers->tqh_first; h; h = h->next.tqe_next)
        h->key[0] &= (char)~MARK;
}

int head_closes(const struct evkeyvalq *headers)
{
    static const char blanks[] = ", \t";
    for (const struct evkeyval *h = headers->tqh_first; h; h = h->next.tqe_next) {
        if (strcasecmp(h->key, "Connection") != 0) continue;
        for (const char *at = h->value; *at;) {
            size_t n = strcspn(at, blanks);
            if (n == strlen("close") && !strncasecmp(at, "close", n)) return 1;
            at += n + strspn(at + n, blanks);
        }
    }
    return 0;
}

/* Digits alone. -1 for anything else. */
static int read_length(const char *text, uint64_t *length)
{
    *length = 0;
    if (!*text) return -1;
    for (; *text; text++) {
        if (*text < '0' || *text > '9') return -1;
        uint64_t digit = (uint64_t)(*text - '0');
        *length = *length > (UINT64_MAX - digit) / 10 ? UINT64_MAX : *length * 10 + digit;
    }
    return 0;
}

int head_framing(const struct evkeyvalq *headers, int is_http_1_0, BodyFraming *framing)
{
    int n_lengths = 0, n_codings = 0;
    *framing = (BodyFraming){.kind = BODY_NONE};
    for (const struct evkeyval *h = headers->tqh_first; h; h = h->next.tqe_next) {
        uint64_t length;
        if (!strcasecmp(h->key, "Content-Length")) {
            if (read_length(h->value, &length)) return -1;
            if (n_lengths++ && length != framing->length) return -1;
            *framing = (BodyFraming){length ? BODY_LENGTH : BODY_NONE, length};
        } else if (!strcasecmp(h->key, "Transfer-Encoding")) {
            if (is_http_1_0 || n_codings++ || strcasecmp(h->value, "chunked") != 0) return -1;
        }
    }
    if (n_codings && n_lengths) return -1;
    if (n_codings) framing->kind = BODY_CHUNKED;
    return 0;
}
