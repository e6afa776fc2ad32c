/*
 * options.c: see options.h.
 *
 * The command line is walked twice: once for --config alone, so that the file is applied before
 * everything else, then for the rest. Each value goes through set_value, wherever it comes from.
 */
#include "base/options.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"

enum {
    HELP_COLUMN = 30,
    HELP_WIDTH = 80,
    MAX_NAME = 40,
    MAX_CONFIG_BYTES = 1 << 20,
};

static const unsigned ANY_COMMAND = ~0U; /* a file may have options of all */

/* Strings that options point to. */
static char **owned;
static int n_owned;

static const char *own_string(const char *text, size_t len)
{
    char *copy = mem_realloc(NULL, len + 1, 1);
    memcpy(copy, text, len);
    copy[len] = 0;
    owned = mem_realloc(owned, (size_t)n_owned + 1, sizeof *owned);
    owned[n_owned++] = copy;
    return copy;
}

void options_free(void)
{
    for (int i = 0; i < n_owned; i++)
        mem_free(owned[i]);
    mem_free(owned);
    owned = NULL;
    n_owned = 0;
}

/* ---- names ---- */

/* The row that command takes, else one of another command. */
static const Option *find_option(const Option *table, unsigned command, const char *name,
                                 size_t len)
{
    const Option *foreign = NULL;
    for (const Option *o = table; o->name; o++) {
        if (strlen(o->name) != len || memcmp(o->name, name, len) != 0) continue;
        if (o->commands & command) return o;
        if (o->commands) foreign = o;
    }
    return foreign;
}

/* What we call an option of command that others call so, or NULL. */
static const char *our_name(const Option *table, unsigned command, const char *theirs)
{
    for (const Option *o = table; o->name; o++) {
        if (o->commands || strcmp(o->name, theirs) != 0) continue;
        const Option *ours = find_option(table, command, o->help, strlen(o->help));
        return ours && ours->commands & command ? o->help : NULL;
    }
    return NULL;
}

/* Edits (insert, delete, replace) that turn a into b, which is shorter than MAX_NAME. */
static int edit_distance(const char *a, const char *b)
{
    int row[MAX_NAME + 1];
    int n = (int)strlen(b);
    for (int j = 0; j <= n; j++)
        row[j] = j;
    for (int i = 1; a[i - 1]; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            int best = diagonal + (a[i - 1] != b[j - 1]);
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[n];
}

/* The nearest name a user of command may have meant, or NULL. */
static const char *nearest_name(const Option *table, unsigned command, const char *name)
{
    const char *best = NULL;
    int limit = (int)strlen(name) / 3 + 2;
    for (const Option *o = table; o->name; o++) {
        if (!(o->commands & command) || strlen(o->name) >= MAX_NAME) continue;
        int d = edit_distance(name, o->name);
        if (d < limit) {
            limit = d;
            best = o->name;
        }
    }
    return best;
}

/* dash is "--" on the command line and "" in a file, where says which line of which file. */
static int unknown_option(const Option *table, unsigned command, const char *where,
                          const char *dash, const char *name, size_t len, Error *err)
{
    char word[MAX_NAME * 2];
    snprintf(word, sizeof word, "%.*s", (int)(len < MAX_NAME ? len : MAX_NAME), name);
    const char *ours = our_name(table, command, word), *near = nearest_name(table, command, word);
    if (ours)
        return error_set(err, ERR_INPUT, "%sunknown option '%s%s'; here it is '%s%s'", where, dash,
                         word, dash, ours);
    if (near)
        return error_set(err, ERR_INPUT, "%sunknown option '%s%s'; did you mean '%s%s'?", where,
                         dash, word, dash, near);
    return error_set(err, ERR_INPUT, "%sunknown option '%s%s'", where, dash, word);
}

/* ---- values ---- */

/* A whole number with nothing around it. */
static int read_int(const char *text, int64_t *out)
{
    char *end;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (end == text || *end || errno || isspace((unsigned char)*text)) return -1;
    *out = v;
    return 0;
}

int options_read_bytes(const char *text, int64_t *out)
{
    char digits[24], *end;
    size_t n = strspn(text, "0123456789");
    if (!n || n >= sizeof digits) return -1;
    memcpy(digits, text, n);
    digits[n] = 0;
    errno = 0;
    long long v = strtoll(digits, &end, 10);
    if (errno) return -1;

    const char *unit = text + n;
    static const char prefixes[] = "KMG";
    const char *p = *unit ? strchr(prefixes, *unit) : NULL;
    int shift = p ? 10 * (int)(p - prefixes + 1) : 0;
    if (p) unit++;
    if (p && !strcmp(unit, "iB")) unit += 2;
    if (*unit || v > INT64_MAX >> shift) return -1;
    *out = (int64_t)v << shift;
    return 0;
}

static int read_number(const char *text, double *out)
{
    char *end;
    double v = strtod(text, &end);
    if (end == text || *end || !isfinite(v) || isspace((unsigned char)*text)) return -1;
    *out = v;
    return 0;
}

/* Index of text in "a|b|c", or -1. */
static int choice_index(const char *choices, const char *text)
{
    size_t len = strlen(text);
    int i = 0;
    for (const char *c = choices; c; i++) {
        size_t n = strcspn(c, "|");
        if (n == len && !memcmp(c, text, n)) return i;
        c = c[n] ? c + n + 1 : NULL;
    }
    return -1;
}

/* "a|b|c" as "a, b or c". */
static void choice_list(const char *choices, char *out, size_t size)
{
    size_t used = 0;
    for (const char *c = choices; c && used < size;) {
        size_t n = strcspn(c, "|");
        const char *next = c[n] ? c + n + 1 : NULL;
        const char *join = !next ? "" : strchr(next, '|') ? ", " : " or ";
        used += (size_t)snprintf(out + used, size - used, "%.*s%s", (int)n, c, join);
        c = next;
    }
}

static int bad_value(const Option *o, const char *where, const char *value, Error *err)
{
    char want[160];
    switch (o->type) {
    case OPTION_INT:
    case OPTION_INT64:
        snprintf(want, sizeof want, "a whole number from %.0f to %.0f", o->lo, o->hi);
        break;
    case OPTION_BYTES:
        snprintf(want, sizeof want, "a number of bytes from %.0f to %.0f, such as 512M or 4G",
                 o->lo, o->hi);
        break;
    case OPTION_NUMBER:
        snprintf(want, sizeof want, "a number from %g to %g%s%s", o->lo, o->hi,
                 o->choices ? ", or " : "", o->choices ? o->choices : "");
        break;
    case OPTION_CHOICE:
        choice_list(o->choices, want, sizeof want);
        break;
    default:
        snprintf(want, sizeof want, "on or off");
    }
    return error_set(err, ERR_INPUT, "%s%s is '%.40s', must be %s", where, o->name, value, want);
}

/* Checks value and stores it, unless store is 0. */
static int set_value(const Option *o, const char *where, const char *value, int store, Error *err)
{
    int64_t i = 0;
    double d = 0;
    int bad = 0;
    switch (o->type) {
    case OPTION_INT:
    case OPTION_INT64:
        bad = read_int(value, &i) || (double)i < o->lo || (double)i > o->hi;
        break;
    case OPTION_BYTES:
        bad = options_read_bytes(value, &i) || (double)i < o->lo || (double)i > o->hi;
        break;
    case OPTION_NUMBER:
        if (o->choices && !strcmp(value, o->choices))
            d = NAN;
        else
            bad = read_number(value, &d) || d < o->lo || d > o->hi;
        break;
    case OPTION_CHOICE:
        i = choice_index(o->choices, value);
        bad = i < 0;
        break;
    case OPTION_SWITCH:
        i = choice_index("off|on", value);
        bad = i < 0;
        break;
    case OPTION_STRING:
        break;
    }
    if (bad) return bad_value(o, where, value, err);
    if (!store) return 0;
    if (o->type == OPTION_STRING)
        *(const char **)o->value = own_string(value, strlen(value));
    else if (o->type == OPTION_NUMBER)
        *(double *)o->value = d;
    else if (o->type == OPTION_INT64 || o->type == OPTION_BYTES)
        *(int64_t *)o->value = i;
    else
        *(int *)o->value = (int)i;
    return 0;
}

/* ---- the config file ---- */

/* Cuts blanks at both ends of *text[0..*len). */
static void trim(const char **text, size_t *len)
{
    while (*len && isspace((unsigned char)**text))
        (*text)++, (*len)--;
    while (*len && isspace((unsigned char)(*text)[*len - 1]))
        (*len)--;
}

/* Length of a line without its comment. */
static size_t without_comment(const char *line, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (line[i] == '#' && (i == 0 || isspace((unsigned char)line[i - 1]))) return i;
    return len;
}

static int read_config_line(const Option *table, unsigned command, const char *where,
                            const char *line, size_t len, Error *err)
{
    len = without_comment(line, len);
    trim(&line, &len);
    if (!len) return 0;

    const char *equals = memchr(line, '=', len);
    if (!equals) return error_set(err, ERR_INPUT, "%sexpected 'name = value'", where);
    const char *name = line, *text = equals + 1;
    size_t name_len = (size_t)(equals - line), text_len = len - name_len - 1;
    trim(&name, &name_len);
    trim(&text, &text_len);

    const Option *o = find_option(table, command, name, name_len);
    if (!o) return unknown_option(table, ANY_COMMAND, where, "", name, name_len, err);
    if (!strcmp(o->name, "config"))
        return error_set(err, ERR_INPUT, "%sa config file cannot name another", where);

    char *value = mem_realloc(NULL, text_len + 1, 1);
    memcpy(value, text, text_len);
    value[text_len] = 0;
    int rc = set_value(o, where, value, (o->commands & command) != 0, err);
    mem_free(value);
    return rc;
}

static int read_config(const Option *table, unsigned command, const char *path, Error *err)
{
    MappedFile file;
    if (mapped_file_open(&file, path, err)) return -1;
    int rc = 0, line = 1;
    const char *text = (const char *)file.data;
    static const char mark[] = "\xef\xbb\xbf"; /* as editors on Windows begin a file */
    size_t at = file.size >= 3 && !memcmp(text, mark, 3) ? 3 : 0;
    if (file.size > MAX_CONFIG_BYTES || (file.size && memchr(text, 0, file.size)))
        rc = error_set(err, ERR_FILE, "'%s' is not a config file", path);
    for (; !rc && at < file.size; line++) {
        char where[160];
        snprintf(where, sizeof where, "'%.100s' line %d: ", path, line);
        const char *newline = memchr(text + at, '\n', file.size - at);
        size_t len = newline ? (size_t)(newline - text) - at : file.size - at;
        rc = read_config_line(table, command, where, text + at, len, err);
        at += len + 1;
    }
    mapped_file_close(&file);
    return rc;
}

/* ---- the command line ---- */

typedef struct {
    const Option *option; /* NULL: a word that is no option */
    const char *value;    /* or the word */
} Word;

/* An option starts with "--"; a word like -x is a slip, but -1 or a lone - is text. */
static int is_option(const char *word)
{
    return word[0] == '-' && (word[1] == '-' || isalpha((unsigned char)word[1]));
}

/* What others take for on, off or neither: no prompt, when it stands behind a switch. */
static int is_like_switch(const char *word)
{
    static const char *const words[] = {"true", "false", "yes", "no", "1",
                                        "0",    "auto",  "on",  "off"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strcasecmp(word, words[i])) return 1;
    return 0;
}

/* The value of a switch: the next word, if it is on or off; else on. NULL and an error. */
static const char *switch_value(const Option *o, const char *next, int *i, Error *err)
{
    if (next && choice_index("off|on", next) >= 0) {
        ++*i;
        return next;
    }
    if (!next || !is_like_switch(next)) return "on";
    error_set(err, ERR_INPUT, "'--%s' takes on or off, not '%s'", o->name, next);
    return NULL;
}

/* Reads the word at argv[*i] and its value, moves *i past both. */
static int next_word(const Option *table, unsigned command, int argc, char **argv, int *i,
                     Word *word, Error *err)
{
    const char *text = argv[(*i)++];
    *word = (Word){NULL, text};
    if (!is_option(text)) return 0;
    if (text[1] != '-')
        return error_set(err, ERR_INPUT, "unknown option '%.40s'; options are spelled --name",
                         text);

    const char *name = text + 2;
    size_t len = strcspn(name, "=");
    const Option *o = find_option(table, command, name, len);
    if (!o) return unknown_option(table, command, "", "--", name, len, err);
    if (!(o->commands & command))
        return error_set(err, ERR_INPUT, "'--%s' is an option of another command", o->name);

    word->option = o;
    const char *next = *i < argc ? argv[*i] : NULL;
    if (name[len] == '=')
        word->value = name + len + 1;
    else if (o->type == OPTION_SWITCH)
        word->value = switch_value(o, next, i, err);
    else if (!next || !strncmp(next, "--", 2))
        return error_set(err, ERR_INPUT, "'--%s' needs a value", o->name);
    else
        word->value = argv[(*i)++];
    return word->value ? 0 : -1;
}

int options_parse(const Option *table, unsigned command, int argc, char **argv, const char **rest,
                  int *n_rest, Error *err)
{
    Word word;
    *n_rest = 0;
    const Option *config = find_option(table, command, "config", strlen("config"));
    const char *path = NULL;
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0;) {
        if (next_word(table, command, argc, argv, &i, &word, err)) return -1;
        if (word.option && word.option == config) path = word.value;
    }
    if (path && read_config(table, command, path, err)) return -1;

    int i = 0;
    while (i < argc && strcmp(argv[i], "--") != 0) {
        if (next_word(table, command, argc, argv, &i, &word, err)) return -1;
        if (!word.option)
            rest[(*n_rest)++] = word.value;
        else if (set_value(word.option, "--", word.value, 1, err))
            return -1;
    }
    for (i++; i < argc; i++)
        rest[(*n_rest)++] = argv[i];
    return 0;
}

/* ---- help ---- */

/* Writes " (default x)" unless the help speaks of a default itself or there is nothing to say. */
static void default_text(const Option *o, char *out, size_t size)
{
    out[0] = 0;
    if (strstr(o->help, "default")) return;
    const char *choice = o->choices;
    switch (o->type) {
    case OPTION_INT:
        snprintf(out, size, " (default %d)", *(const int *)o->value);
        break;
    case OPTION_INT64:
    case OPTION_BYTES:
        snprintf(out, size, " (default %" PRId64 ")", *(const int64_t *)o->value);
        break;
    case OPTION_NUMBER:
        if (isnan(*(const double *)o->value))
            snprintf(out, size, " (default %s)", o->choices);
        else
            snprintf(out, size, " (default %g)", *(const double *)o->value);
        break;
    case OPTION_STRING:
        if (*(const char *const *)o->value)
            snprintf(out, size, " (default %s)", *(const char *const *)o->value);
        break;
    case OPTION_SWITCH:
        if (*(const int *)o->value) snprintf(out, size, " (default on)");
        break;
    case OPTION_CHOICE:
        for (int i = *(const int *)o->value; i > 0; i--)
            choice += strcspn(choice, "|") + 1;
        snprintf(out, size, " (default %.*s)", (int)strcspn(choice, "|"), choice);
        break;
    }
}

/* Prints text from column on, broken at blanks before HELP_WIDTH. */
static void print_wrapped(const char *text, int column, FILE *out)
{
    while (*text) {
        size_t n = strlen(text);
        size_t room = (size_t)(HELP_WIDTH - column);
        if (n > room) {
            n = room;
            while (n > 1 && text[n] != ' ')
                n--;
        }
        fprintf(out, "%.*s\n", (int)n, text);
        text += n;
        text += strspn(text, " ");
        if (*text) fprintf(out, "%*s", column, "");
    }
}

void options_help(const Option *table, unsigned command, FILE *out)
{
    for (const Option *o = table; o->name; o++) {
        if (!(o->commands & command) || !o->help) continue;
        const char *arg = o->arg ? o->arg : o->type == OPTION_CHOICE ? o->choices : "";
        int used = fprintf(out, "  --%s%s%s", o->name, *arg ? " " : "", arg);
        if (used >= HELP_COLUMN - 1) {
            fputc('\n', out);
            used = 0;
        }
        fprintf(out, "%*s", HELP_COLUMN - used, "");
        char by_default[64], text[320];
        default_text(o, by_default, sizeof by_default);
        snprintf(text, sizeof text, "%s%s", o->help, by_default);
        print_wrapped(text, HELP_COLUMN, out);
    }
}
