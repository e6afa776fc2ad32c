/* pattern_parse.c: patterns to trees, by recursive descent; see pattern_parts.h. */
#include "text/pattern_parts.h"

#include <string.h>

#include "base/mem.h"
#include "text/utf8.h"

static int parse_choice(PatternParser *p);

static int add_node(PatternTree *t, PatternKind kind)
{
    if (t->n == t->cap) {
        t->cap = t->cap ? 2 * t->cap : 16;
        t->node = mem_realloc(t->node, (size_t)t->cap, sizeof *t->node);
    }
    t->node[t->n] = (PatternNode){.kind = kind, .child = -1, .next = -1};
    return t->n++;
}

static int at_char(const PatternParser *p, char c)
{
    return p->at < p->len && p->text[p->at] == c;
}

static int skip(PatternParser *p, const char *text)
{
    size_t n = strlen(text);
    if (p->len - p->at < n || memcmp(p->text + p->at, text, n) != 0) return 0;
    p->at += n;
    return 1;
}

/* A number at *at, or -1; one over the limit is given as the limit and one. */
static int number(const PatternParser *p, size_t *at)
{
    int n = -1;
    for (; *at < p->len && p->text[*at] >= '0' && p->text[*at] <= '9'; ++*at) {
        n = 10 * (n < 0 ? 0 : n) + p->text[*at] - '0';
        if (n > PATTERN_MAX_REPEAT) n = PATTERN_MAX_REPEAT + 1;
    }
    return n;
}

/* {m}, {m,} or {m,n} at p: its length in bytes; 0: it is something else. */
static size_t braces(const PatternParser *p, int *min, int *max)
{
    size_t at = p->at + 1;
    *min = *max = number(p, &at);
    if (*min < 0) return 0;
    if (at < p->len && p->text[at] == ',') {
        at++;
        *max = number(p, &at);
        if (*max < 0) *max = REPEAT_FOREVER;
    }
    return at < p->len && p->text[at] == '}' ? at + 1 - p->at : 0;
}

/* The quantifier at p: its length in bytes, without the '?' that makes it lazy; 0: there is none.
 */
static size_t quantifier(const PatternParser *p, int *min, int *max)
{
    *max = REPEAT_FOREVER;
    switch (p->at < p->len ? p->text[p->at] : 0) {
    case '*':
        *min = 0;
        return 1;
    case '+':
        *min = 1;
        return 1;
    case '?':
        *min = 0;
        *max = 1;
        return 1;
    case '{':
        return braces(p, min, max);
    default:
        return 0;
    }
}

/* The node, or it repeated when a quantifier follows. */
static int parse_repeat(PatternParser *p, int node)
{
    int min, max;
    size_t n = quantifier(p, &min, &max);
    if (!n) return node;
    if (min > PATTERN_MAX_REPEAT || max > PATTERN_MAX_REPEAT)
        return error_set(p->err, ERR_LIMIT, "repeat of more than %d at %zu", PATTERN_MAX_REPEAT,
                         p->at);
    if (max != REPEAT_FOREVER && max < min)
        return error_set(p->err, ERR_INPUT, "bad repeat range at %zu", p->at);
    p->at += n;
    if (at_char(p, '?')) p->at++;
    int repeat = add_node(p->tree, PATTERN_REPEAT);
    PatternNode *r = &p->tree->node[repeat];
    r->child = node;
    r->min = min;
    r->max = max;
    return repeat;
}

/* The name of (?<name> or Python's (?P<name>, without which it is no group of ours. */
static int skip_name(PatternParser *p)
{
    size_t from = p->at;
    for (; p->at < p->len; p->at++) {
        char c = p->text[p->at], letter = (char)(c | 0x20);
        if ((letter < 'a' || letter > 'z') && (c < '0' || c > '9') && c != '_' && c != '$') break;
    }
    return p->at > from && skip(p, ">");
}

static int parse_group(PatternParser *p)
{
    size_t from = p->at++;
    if (p->depth == PATTERN_MAX_NESTING)
        return error_set(p->err, ERR_LIMIT, "more than %d groups in each other at %zu",
                         PATTERN_MAX_NESTING, from);
    if (skip(p, "?=") || skip(p, "?!") || skip(p, "?<=") || skip(p, "?<!"))
        return error_set(p->err, ERR_INPUT, "look-around is not supported, at %zu", from);
    int has_name = skip(p, "?<") || skip(p, "?P<");
    if (has_name ? !skip_name(p) : at_char(p, '?') && !skip(p, "?:"))
        return error_set(p->err, ERR_INPUT, "unknown kind of group at %zu", from);
    p->depth++;
    int node = parse_choice(p);
    p->depth--;
    if (node >= 0 && !skip(p, ")"))
        return error_set(p->err, ERR_INPUT, "unclosed group at %zu", from);
    return node;
}

/* {,n} is itself in ECMA-262, and up to n times in Python. */
static int has_no_least(const PatternParser *p)
{
    size_t at = p->at + 2;
    if (p->len - p->at < 2 || memcmp(p->text + p->at, "{,", 2) != 0) return 0;
    number(p, &at);
    return at < p->len && p->text[at] == '}';
}

/* One code point, or one of a set. */
static int parse_set(PatternParser *p)
{
    CodeSet set = {0};
    uint32_t code = 0;
    int rc = 1, n_char;
    if (p->is_whole && has_no_least(p))
        return error_set(p->err, ERR_INPUT, "a repeat needs its least number, as {0,n}, at %zu",
                         p->at);
    if (at_char(p, '[')) {
        rc = pattern_parse_class(p, &set);
    } else if (at_char(p, '\\')) {
        rc = pattern_parse_escape(p, 0, &set, &code);
    } else if (skip(p, ".")) {
        code_set_add_kind(&set, '.');
        rc = 0;
    } else {
        code = (uint32_t)utf8_decode(p->text + p->at, &n_char);
        p->at += (size_t)n_char;
    }
    if (rc == 1) code_set_add(&set, code, code);
    if (rc < 0) {
        code_set_free(&set);
        return -1;
    }
    code_set_normalise(&set);
    int node = add_node(p->tree, PATTERN_SET);
    p->tree->node[node].set = set;
    return node;
}

static int parse_term(PatternParser *p)
{
    int min, max;
    if (quantifier(p, &min, &max))
        return error_set(p->err, ERR_INPUT, "dangling quantifier at %zu", p->at);
    if (skip(p, "^") || skip(p, "\\A")) return add_node(p->tree, PATTERN_AT_START);
    if (skip(p, "$") || skip(p, "\\Z") || skip(p, "\\z")) return add_node(p->tree, PATTERN_AT_END);
    int node = at_char(p, '(') ? parse_group(p) : parse_set(p);
    return node < 0 ? -1 : parse_repeat(p, node);
}

static void add_child(PatternTree *t, int parent, int *last, int child)
{
    if (*last < 0)
        t->node[parent].child = child;
    else
        t->node[*last].next = child;
    *last = child;
}

static int parse_sequence(PatternParser *p)
{
    int sequence = add_node(p->tree, PATTERN_SEQUENCE), last = -1;
    while (p->at < p->len && !at_char(p, '|') && !at_char(p, ')')) {
        int node = parse_term(p);
        if (node < 0) return -1;
        add_child(p->tree, sequence, &last, node);
    }
    return sequence;
}

static int parse_choice(PatternParser *p)
{
    int choice = add_node(p->tree, PATTERN_CHOICE), last = -1;
    do {
        int node = parse_sequence(p);
        if (node < 0) return -1;
        add_child(p->tree, choice, &last, node);
    } while (skip(p, "|"));
    return choice;
}

int pattern_parse(PatternTree *tree, const char *text, size_t len, int is_whole, Error *err)
{
    PatternParser p = {.text = text, .len = len, .is_whole = is_whole, .tree = tree, .err = err};
    if (len > PATTERN_MAX_BYTES)
        return error_set(err, ERR_LIMIT, "pattern has %zu bytes, the limit is %d", len,
                         PATTERN_MAX_BYTES);
    size_t n_valid = utf8_check(text, len);
    if (n_valid < len) return error_set(err, ERR_INPUT, "invalid UTF-8 at %zu", n_valid);
    tree->root = parse_choice(&p);
    if (tree->root < 0) return -1;
    if (p.at < len) return error_set(err, ERR_INPUT, "unbalanced ')' at %zu", p.at);
    return 0;
}

void pattern_tree_anchor(PatternTree *tree)
{
    int sequence = add_node(tree, PATTERN_SEQUENCE), last = -1;
    add_child(tree, sequence, &last, add_node(tree, PATTERN_AT_START));
    add_child(tree, sequence, &last, tree->root);
    add_child(tree, sequence, &last, add_node(tree, PATTERN_AT_END));
    tree->root = sequence;
}

void pattern_tree_free(PatternTree *tree)
{
    for (int i = 0; i < tree->n; i++)
        code_set_free(&tree->node[i].set);
    mem_free(tree->node);
    *tree = (PatternTree){0};
}
