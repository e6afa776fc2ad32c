/* oniguruma.c: see oniguruma.h. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/oniguruma.h"

#include <pcre2.h>
#include <string.h>

#include "text/utf8.h"

/* From 10.40 on \p{Han} is of Script_Extensions, and \p{sc:Han} of Script, as all names were
 * before. */
enum { SAYS_SCRIPT = PCRE2_MAJOR > 10 || PCRE2_MINOR >= 40 };

/*
 * What an escape means to Oniguruma, with which the vocabularies were made, where PCRE2 means
 * something else by it; as members of a class. PCRE2's \s has U+180E, which left White_Space in
 * Unicode 6.3 (and it knows that property by name from 10.40 on), its \w numbers of all kinds and
 * no marks, its \h are blanks and its \v are line ends. White space and all else go from a property
 * to a property, so that a hyphen beside them stays one.
 */
#define SPACE "\\p{Z}\\x09-\\x0d\\x{85}\\p{Zl}"
#define NO_SPACE                                                                                   \
    "\\p{L}\\x00-\\x08\\x0e-\\x1f\\x21-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}" \
    "\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}"                 \
    "\\x{3001}-\\x{10ffff}\\p{L}"
#define HEX    "0-9A-Fa-f"
#define NO_HEX "\\x00-/:-@G-`g-\\x{10ffff}"
#define GRAPH  "\\p{L}\\p{M}\\p{N}\\p{P}\\p{S}\\p{Cf}\\p{Co}"
#define WORD                                                                                       \
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}"      \
    "\\x{1f170}-\\x{1f189}\\p{Pc}"
static const struct {
    char letter;
    const char *members;
} escapes[] = {
    {'s', SPACE}, {'S', NO_SPACE}, {'w', WORD}, {'h', HEX}, {'H', NO_HEX}, {'v', "\\x0b"},
};

/*
 * POSIX classes, within a class. [:alpha:], [:alnum:] and [:lower:] have letters that no property
 * of PCRE2's has.
 */
static const struct {
    const char *name, *members;
} posix_classes[] = {
    {"[:digit:]", "\\p{Nd}"},
    {"[:^digit:]", "\\P{Nd}"},
    {"[:xdigit:]", HEX},
    {"[:^xdigit:]", NO_HEX},
    {"[:cntrl:]", "\\p{Cc}"},
    {"[:^cntrl:]", "\\P{Cc}"},
    {"[:ascii:]", "[:ascii:]"},
    {"[:^ascii:]", "[:^ascii:]"},
    {"[:space:]", SPACE},
    {"[:^space:]", NO_SPACE},
    {"[:blank:]", "\\p{Zs}\\x09\\p{Zs}"},
    {"[:word:]", WORD},
    {"[:upper:]", "\\p{Lu}\\x{2160}-\\x{216f}\\x{24b6}-\\x{24cf}\\x{1f130}-\\x{1f149}"
                  "\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}\\p{Lu}"},
    {"[:punct:]", "\\p{P}\\p{S}"},
    {"[:^punct:]", "\\p{C}\\p{L}\\p{M}\\p{N}\\p{Z}"},
    {"[:graph:]", GRAPH},
    {"[:^graph:]", "\\p{Cc}\\p{Cn}\\p{Z}"},
    {"[:print:]", GRAPH "\\p{Zs}"},
    {"[:^print:]", "\\p{Cc}\\p{Cn}\\p{Zl}\\p{Zp}"},
};

/* The members of \letter; NULL where both mean the same. */
static const char *members_of(char letter)
{
    for (size_t i = 0; i < sizeof escapes / sizeof *escapes; i++)
        if (escapes[i].letter == letter) return escapes[i].members;
    return NULL;
}

#define DIGITS  "0123456789"
#define LETTERS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

/* An expression that is read from p on. */
typedef struct {
    const char *pattern, *p;
    int in_class;
    int branch_begins;  /* nothing of the branch was read but options */
    size_t atom;        /* where in PCRE2's words what was read last begins, but for repeats */
    int after_group;    /* it is the end of a group */
    int after_interval; /* a {n,m} was read last */
    int depth;          /* groups that are open */
    int caseless;       /* one more than depth was at (?i), which ends with its group; or 0 */
} Translation;

/* Bytes of the POSIX class, as [:alpha:], that begins at p; 0: none does. */
static size_t posix_class(const char *p)
{
    if (p[0] != '[' || p[1] != ':') return 0;
    size_t n = 2 + strspn(p + 2, "^abcdefghijklmnopqrstuvwxyz");
    return p[n] == ':' && p[n + 1] == ']' ? n + 2 : 0;
}

/* The members of that of n bytes; NULL: it has others that we do not say to PCRE2. */
static const char *posix_members(const char *p, size_t n)
{
    for (size_t i = 0; i < sizeof posix_classes / sizeof *posix_classes; i++)
        if (n == strlen(posix_classes[i].name) && !strncmp(p, posix_classes[i].name, n))
            return posix_classes[i].members;
    return NULL;
}

/* Of the class that begins at p, [ or [^, and a ] that is its first member. */
static size_t class_start(const char *p)
{
    size_t n = p[1] == '^' ? 2 : 1;
    return n + (p[n] == ']');
}

/*
 * Bytes of the escape that begins at p, where both read it the same or we say it to PCRE2 in
 * another way; 0: they do not. \x80 and above is a byte to Oniguruma, and \pL is pL.
 */
static size_t escape_len(const char *p, int in_class)
{
    static const char hex[] = "0123456789ABCDEFabcdef";
    const char *letters = in_class ? "sSwdDhHvbnrtfae" : "sSwWdDhHvbBnrtfaeAzZ";
    if (p[1] == 'x' && p[2] != '{') return strspn(p + 2, "01234567") && strspn(p + 3, hex) ? 4 : 0;
    if (p[1] && strchr("xpP", p[1])) {
        if (p[2] != '{') return 0;
        size_t n = 3 + (p[1] != 'x' && p[3] == '^');
        n += strspn(p + n, p[1] == 'x' ? hex : LETTERS "_");
        return p[n] == '}' ? n + 1 : 0;
    }
    if (!strspn(p + 1, LETTERS DIGITS)) return p[1] ? 2 : 0;
    return strchr(letters, p[1]) ? 2 : 0;
}

/*
 * \p{..} or \P{..}, of n bytes. General categories have one or two letters; all other names are of
 * scripts, but for these.
 */
static void translate_property(const char *p, size_t n, StrBuf *out)
{
    static const char *const no_scripts[] = {
        "Any}",   "ASCII}",       "White_Space}",        "Uppercase}",
        "Emoji}", "Ideographic}", "Emoji_Presentation}", "Extended_Pictographic}"};
    size_t head = p[3] == '^' ? 4 : 3;
    int is_script = SAYS_SCRIPT && n - head > 3;
    for (size_t i = 0; i < sizeof no_scripts / sizeof *no_scripts; i++)
        if (!strncmp(p + head, no_scripts[i], strlen(no_scripts[i]))) is_script = 0;
    strbuf_printf(out, "%.*s%s%.*s", (int)head, p, is_script ? "sc:" : "", (int)(n - head),
                  p + head);
}

/* One that PCRE2 reads as Oniguruma does, but for names. */
static void copy_escape(const char *p, size_t n, StrBuf *out)
{
    if (p[1] == 'p' || p[1] == 'P')
        translate_property(p, n, out);
    else
        strbuf_add(out, p, n);
}

/* One beyond a class, of n bytes: there \w has the fractions and powers of Latin-1 too. */
static void translate_escape(const char *p, size_t n, StrBuf *out)
{
    const char *members = members_of(p[1]), *word = WORD "\\xb2\\xb3\\xb9\\xbc-\\xbe";
    if (p[1] == 'w' || p[1] == 'W')
        strbuf_printf(out, p[1] == 'w' ? "[%s]" : "[^%s]", word);
    else if (p[1] == 'b')
        strbuf_printf(out, "(?:(?<=[%s])(?![%s])|(?<![%s])(?=[%s]))", word, word, word, word);
    else if (p[1] == 'B')
        strbuf_printf(out, "(?:(?<=[%s])(?=[%s])|(?<![%s])(?![%s]))", word, word, word, word);
    else if (members)
        strbuf_printf(out, "[%s]", members);
    else
        copy_escape(p, n, out);
}

/* Bytes of the options that a group begins with, as (?im-i: has them; 0: there are none. */
static size_t options_len(const char *p)
{
    size_t n = 2 + strspn(p + 2, "im-");
    return n > 2 && (p[n] == ':' || p[n] == ')') ? n + 1 : 0;
}

/* Bytes of what a group begins with; 0: both read it otherwise, or one of them not at all. */
static size_t group_len(const char *p)
{
    static const char *const starts[] = {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!"};
    if (p[1] == '*') return 0;
    if (p[1] != '?') return 1;
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++)
        if (!strncmp(p, starts[i], strlen(starts[i]))) return strlen(starts[i]);
    return options_len(p);
}

/* Bytes of the {n}, {n,}, {,m} or {n,m} that begins at p; 0: none does. */
static size_t interval_len(const char *p)
{
    size_t low = strspn(p + 1, DIGITS), n = 1 + low, high = 0;
    if (p[n] == ',') {
        high = strspn(p + n + 1, DIGITS);
        n += 1 + high;
    }
    return *p == '{' && p[n] == '}' && low + high ? n + 1 : 0;
}

/*
 * Bytes of what stands beyond a class, but for escapes. To Oniguruma {n,m}? alone is of the
 * shortest match: a + behind such a repeat repeats it, and so does the ? of {n}?.
 */
static size_t plain_len(const char *p)
{
    size_t n = interval_len(p);
    if (*p == '(') return group_len(p);
    if (*p == '[') return class_start(p);
    return n ? n + (p[n] == '?' && memchr(p, ',', n)) : 1;
}

/* n bytes of it. */
static void translate_plain(const char *p, size_t n, StrBuf *out)
{
    if (*p == '{') {
        strbuf_puts(out, n == 1 ? "\\{" : p[1] == ',' ? "{0" : "{");
        strbuf_add(out, p + 1, n - 1);
    } else {
        for (size_t i = 0; i < n; i++) /* Oniguruma's m is the s of all others */
            strbuf_add(out, n > 1 && p[i] == 'm' ? "s" : p + i, 1);
    }
}

/* Of what is refused, where the pattern has n bytes of it. */
static int refuse(const Translation *t, size_t n, const char *where, Error *err)
{
    while (n && (t->p[n - 1] & 0x80))
        n--;
    return error_set(err, ERR_FILE, "split regex: %.*s%s is not supported (byte %zu)", (int)n, t->p,
                     where, (size_t)(t->p - t->pattern));
}

/*
 * Whether what begins at p is another text, too, to Oniguruma alone where case does not matter: a
 * class has both cases of its members whatever they are by, and two letters are a ligature or ß.
 */
static int has_other_cases(const char *p, int in_class)
{
    static const char *const pairs[] = {"ff", "fi", "fl", "ss", "st"};
    if (in_class) return *p == '[' || (*p == '\\' && strchr("pPH", p[1]));
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if ((p[0] | 0x20) == pairs[i][0] && (p[1] | 0x20) == pairs[i][1]) return 1;
    return 0;
}

/* Groups and their options, of n bytes at t->p. */
static void count_groups(Translation *t, size_t n)
{
    int is_options = t->p[0] == '(' && n > 1 && t->p[n - 1] == ')';
    if (t->p[0] == '(' && !is_options) t->depth++;
    size_t at = strcspn(t->p, "i");
    if (t->p[0] == '(' && at < n && at < strcspn(t->p, "-") && !t->caseless)
        t->caseless = t->depth + 1;
    if (t->p[0] == ')') t->depth--;
    if (t->caseless > t->depth + 1) t->caseless = 0;
}

/* Within a class, at t->p. */
static int translate_member(Translation *t, StrBuf *out, Error *err)
{
    const char *p = t->p, *members = *p == '\\' ? members_of(p[1]) : NULL;
    size_t n = *p == '\\' ? escape_len(p, 1) : *p == '[' ? posix_class(p) : 1;
    if (!n) return refuse(t, *p == '\\' ? 2 : 1, " in a class", err);
    if (!strncmp(p, "&&", 2)) return refuse(t, 2, " in a class", err);
    if (t->caseless && has_other_cases(p, 1)) return refuse(t, n, " in a class under (?i)", err);
    if (*p == '[') members = posix_members(p, n);
    if (*p == '[' && !members) return refuse(t, n, "", err);
    if (members)
        strbuf_puts(out, members);
    else if (*p == '\\')
        copy_escape(p, n, out);
    else
        strbuf_add(out, p, n);
    t->in_class = *p != ']';
    t->p += n;
    return 0;
}

/* Of what out has from `from` on, so that it can be repeated. */
static void make_group(StrBuf *out, size_t from)
{
    strbuf_puts(out, "(?:)");
    memmove(out->data + from + 3, out->data + from, out->len - from - 4);
    memcpy(out->data + from, "(?:", 3);
    out->data[out->len - 1] = ')';
}

/*
 * Beyond a class, at t->p. Options go on to the end of their group; those amid a branch make one of
 * it and of the branches behind, to Oniguruma alone.
 */
static int translate_item(Translation *t, StrBuf *out, Error *err)
{
    const char *p = t->p;
    size_t n = *p == '\\' ? escape_len(p, 0) : plain_len(p);
    int opens = *p == '|' || *p == '(', is_options = opens && n > 1 && p[n - 1] == ')';
    if (!n) return refuse(t, *p == '\\' || !p[2] ? 2 : 3, "", err);
    if (is_options && !t->branch_begins) return refuse(t, n, " amid a branch", err);
    if (t->caseless && has_other_cases(p, 0)) return refuse(t, 2, " under (?i)", err);
    count_groups(t, n);
    if (t->after_interval && (strchr("*+?", *p) || interval_len(p))) {
        if (t->after_group) return refuse(t, 1, " behind the {} of a group", err);
        make_group(out, t->atom);
    } else if (!interval_len(p) && !utf8_is_tail(*p)) {
        t->atom = out->len;
        t->after_group = *p == ')';
    }
    t->after_interval = interval_len(p) == n;
    t->branch_begins = opens;
    t->in_class = *p == '[';
    if (*p == '\\')
        translate_escape(p, n, out);
    else if (t->in_class)
        strbuf_add(out, p, n);
    else
        translate_plain(p, n, out);
    t->p += n;
    return 0;
}

int oniguruma_translate(const char *pattern, StrBuf *out, Error *err)
{
    Translation t = {.pattern = pattern, .p = pattern, .branch_begins = 1};
    while (*t.p)
        if (t.in_class ? translate_member(&t, out, err) : translate_item(&t, out, err)) return -1;
    return 0;
}
