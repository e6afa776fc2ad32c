/* pattern_class.c: escapes and character classes of patterns; see pattern_parts.h. */
#include "text/pattern_parts.h"

#include <string.h>

#include "text/utf8.h"

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* n digits at p; 1, or 0 when there are fewer, and p stays. */
static int hex(PatternParser *p, size_t n, uint32_t *code)
{
    *code = 0;
    if (p->len - p->at < n) return 0;
    for (size_t i = 0; i < n; i++) {
        int digit = hex_digit(p->text[p->at + i]);
        if (digit < 0) return 0;
        *code = *code << 4 | (uint32_t)digit;
    }
    p->at += n;
    return 1;
}

/* What follows \u: HHHH, two of them that are a surrogate pair, or {H...}. 0: none of these. */
static int unicode(PatternParser *p, uint32_t *code)
{
    if (p->at < p->len && p->text[p->at] == '{') {
        size_t n = 0, from = p->at + 1;
        while (from + n < p->len && hex_digit(p->text[from + n]) >= 0)
            n++;
        p->at = from;
        if (n < 1 || n > 6 || !hex(p, n, code)) return 0;
        return p->at < p->len && p->text[p->at++] == '}' && *code <= MAX_CODE;
    }
    uint32_t low = 0;
    if (!hex(p, 4, code)) return 0;
    if (*code < 0xD800 || *code > 0xDBFF) return 1;
    if (p->len - p->at < 6 || memcmp(p->text + p->at, "\\u", 2) != 0) return 1;
    p->at += 2;
    if (!hex(p, 4, &low) || low < 0xDC00 || low > 0xDFFF) return 0;
    *code = 0x10000 + ((*code - 0xD800) << 10) + (low - 0xDC00);
    return 1;
}

/* \xHH and \u; from: where the escape begins. */
static int parse_hex_escape(PatternParser *p, size_t from, char c, uint32_t *code)
{
    if (!(c == 'x' ? hex(p, 2, code) : unicode(p, code)))
        return error_set(p->err, ERR_INPUT, "bad \\%c escape at %zu", c, from);
    if (*code >= 0xD800 && *code <= 0xDFFF)
        return error_set(p->err, ERR_INPUT, "half a surrogate pair at %zu", from);
    return 1;
}

static int refuse(PatternParser *p, size_t from, char c)
{
    if ((c >= '1' && c <= '9') || c == 'k')
        return error_set(p->err, ERR_INPUT, "back-references are not supported, at %zu", from);
    if (c == 'b' || c == 'B')
        return error_set(p->err, ERR_INPUT, "word boundaries are not supported, at %zu", from);
    if (c == 'p' || c == 'P')
        return error_set(p->err, ERR_INPUT, "Unicode properties are not supported, at %zu", from);
    return error_set(p->err, ERR_INPUT, "unknown escape at %zu", from);
}

/* A letter's control character, or the character itself for what may be escaped; 0: neither. */
static uint32_t plain_escape(char c, int in_class)
{
    static const char letters[] = "ntrfv", codes[] = "\n\t\r\f\v";
    static const char signs[] = " !\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";
    const char *letter = c ? strchr(letters, c) : NULL;
    if (letter) return (uint32_t)codes[letter - letters];
    if (in_class && c == 'b') return '\b';
    return c && strchr(signs, c) ? (uint32_t)c : 0;
}

int pattern_parse_escape(PatternParser *p, int in_class, CodeSet *set, uint32_t *code)
{
    size_t from = p->at;
    if (p->len - from < 2)
        return error_set(p->err, ERR_INPUT, "nothing follows the '\\' at %zu", from);
    char c = p->text[from + 1];
    p->at += 2;
    if (c == 'x' || c == 'u') return parse_hex_escape(p, from, c, code);
    if (c && strchr("dDwWsS", c)) {
        code_set_add_kind(set, c);
        return 0;
    }
    *code = plain_escape(c, in_class);
    if (*code) return 1;
    int digit_follows = p->at < p->len && p->text[p->at] >= '0' && p->text[p->at] <= '9';
    return c == '0' && !digit_follows ? 1 : refuse(p, from, c);
}

/* A code point of a class: 1; 0: a set of them, which is added. */
static int class_item(PatternParser *p, CodeSet *set, uint32_t *code)
{
    int n_char;
    if (p->text[p->at] == '\\') return pattern_parse_escape(p, 1, set, code);
    *code = (uint32_t)utf8_decode(p->text + p->at, &n_char);
    p->at += (size_t)n_char;
    return 1;
}

/* One code point, set or range; what follows a set as if it were a range is two of them and '-'. */
static int class_range(PatternParser *p, CodeSet *set)
{
    size_t from = p->at;
    uint32_t lo = 0, hi = 0;
    int first = class_item(p, set, &lo);
    if (first < 0) return -1;
    if (p->len - p->at < 2 || p->text[p->at] != '-' || p->text[p->at + 1] == ']') {
        if (first) code_set_add(set, lo, lo);
        return 0;
    }
    p->at++;
    int last = class_item(p, set, &hi);
    if (last < 0) return -1;
    if (first && last) {
        if (hi < lo) return error_set(p->err, ERR_INPUT, "bad range at %zu", from);
        code_set_add(set, lo, hi);
        return 0;
    }
    code_set_add(set, '-', '-');
    if (first) code_set_add(set, lo, lo);
    if (last) code_set_add(set, hi, hi);
    return 0;
}

int pattern_parse_class(PatternParser *p, CodeSet *set)
{
    size_t from = p->at++;
    int negated = p->at < p->len && p->text[p->at] == '^';
    p->at += (size_t)negated;
    if (p->is_whole && p->at < p->len && p->text[p->at] == ']') /* closes it, or is in it */
        return error_set(p->err, ERR_INPUT, "a ']' that begins a class must be escaped, at %zu",
                         p->at);
    while (p->at < p->len && p->text[p->at] != ']')
        if (class_range(p, set)) return -1;
    if (p->at == p->len) return error_set(p->err, ERR_INPUT, "unclosed class at %zu", from);
    p->at++;
    if (negated) code_set_negate(set);
    return 0;
}
