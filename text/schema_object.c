/*
 * schema_object.c: objects and lists.
 */
#include <limits.h>
#include <string.h>

#include "base/mem.h"
#include "text/schema_parts.h"

enum { MAX_OTHER_NAME = 256, MAX_ITEMS_BOUND = 1000 };

/* Behind a value inside this one: where that one may not be left out and can not be, nor can this.
 */
static void leave_level(SchemaCompiler *c, int is_needed)
{
    if (c->failed && c->empty_level == c->level && is_needed) c->empty_level--;
    c->level--;
}

static uint32_t inner_at(SchemaCompiler *c, const json_t *schema, const char *step, int index,
                         int is_needed)
{
    c->level++;
    uint32_t part = schema_part_at(c, schema, step, index);
    leave_level(c, is_needed);
    return part;
}

/* ---- objects ---- */

typedef struct {
    const char *name;
    const json_t *schema; /* NULL: as other properties are */
    int is_required;
} Property;

typedef struct {
    Property *property;
    int n;
    int n_to_end; /* the object may end behind so many: all that are required */
    const json_t
        *others; /* the schema of other properties; NULL: any value, where there are some */
    int has_others;
    const char *others_are; /* the keyword that says so of them */
    int names;              /* the automaton of their names; -1: they are any but those known */
    int needs_one;          /* it may not be empty */
} Properties;

/* Names of `required` that are no properties are like others. -1 and an error. */
static int read_required(SchemaCompiler *c, const json_t *required, json_t *known, Properties *p)
{
    json_t *value;
    size_t i;
    json_array_foreach((json_t *)required, i, value)
    {
        const char *name = json_string_value(value);
        if (!name) continue;
        const json_t *at = json_object_get(known, name);
        if (at) {
            p->property[json_integer_value(at)].is_required = 1;
            continue;
        }
        if (!p->has_others && c->strict) {
            schema_empty(c, "\"%.80s\" is required and may not be there", name);
            return -1;
        }
        if (!p->has_others) continue;
        json_object_set_new(known, name, json_integer(p->n));
        p->property[p->n++] = (Property){name, NULL, 1};
    }
    return 0;
}

static int check_name(SchemaCompiler *c, const char *name)
{
    if (strlen(name) <= MAX_SCHEMA_NAME) return 0;
    schema_fail(c, ERR_LIMIT, "a property's name has more than %d bytes", MAX_SCHEMA_NAME);
    return -1;
}

/* A name takes 16 bits. */
static int check_number(SchemaCompiler *c, const Properties *p)
{
    if (p->n <= MAX_SCHEMA_NODES) return 0;
    schema_fail(c, ERR_LIMIT, "an object has more than %d properties", MAX_SCHEMA_NODES);
    return -1;
}

/* 1 if a schema of strings asks for no more than this keyword does, NULL: for nothing. */
static int says_only(const json_t *schema, const char *keyword)
{
    const char *key;
    json_t *value;
    if (!json_is_object(schema)) return !schema || json_is_true(schema);
    json_object_foreach((json_t *)schema, key, value)
    {
        const char *word = json_string_value(value);
        int is_string = !strcmp(key, "type") && word && !strcmp(word, "string");
        if (is_string || !schema_is_constraint(key, value)) continue;
        if (!keyword || strcmp(key, keyword) != 0) return 0;
    }
    return 1;
}

static int lose(SchemaCompiler *c, const char *keyword)
{
    if (!c->strict) return 0;
    schema_fail(c, ERR_INPUT, "keyword \"%s\" is not supported in strict mode", keyword);
    return -1;
}

/* The object's names are no others than these; it has none of its own. */
static int list_names(SchemaCompiler *c, Properties *p, const json_t *names)
{
    const json_t *one = p->others ? p->others : json_true();
    size_t n = json_array_size(names);
    json_t *seen = json_object();
    int rc = 0;
    mem_free(p->property);
    p->property = mem_alloc(n + 1, sizeof *p->property);
    for (size_t i = 0; i < n && !rc; i++) {
        const char *name = json_string_value(json_array_get(names, i));
        if (!name || json_object_get(seen, name)) continue;
        rc = check_name(c, name);
        json_object_set_new(seen, name, json_true());
        p->property[p->n++] = (Property){name, one, 0};
    }
    json_decref(seen);
    p->has_others = 0;
    return rc;
}

/* All names match the pattern that this keyword has. */
static int match_names(SchemaCompiler *c, Properties *p, const char *keyword, const char *pattern)
{
    size_t before = schema_enter(c, keyword, NULL);
    p->names = schema_pattern(c, pattern, strlen(pattern), 0);
    schema_leave(c, before);
    return c->failed ? -1 : 0;
}

/* The only properties are those of one pattern. */
static int read_pattern(SchemaCompiler *c, const json_t *patterns, Properties *p)
{
    void *at = json_object_iter((json_t *)patterns);
    const json_t *value = json_object_iter_value(at);
    if (json_is_false(value)) return 0;
    p->others = json_is_object(value) ? value : NULL;
    p->has_others = 1;
    p->others_are = "patternProperties";
    return match_names(c, p, p->others_are, json_object_iter_key(at));
}

/* What propertyNames leads to; NULL: names are free, or it failed. */
static const json_t *names_schema(SchemaCompiler *c, const json_t *schema)
{
    const json_t *names = json_object_get(schema, "propertyNames");
    for (int i = 0; i < MAX_SCHEMA_DEPTH && says_only(names, "$ref"); i++) {
        const char *ref = json_string_value(json_object_get(names, "$ref"));
        if (!ref) break;
        names = schema_target(c->root, ref);
        if (!names) schema_ref_nowhere(c, ref);
    }
    return names;
}

/* The names that they may be; NULL: others, too. */
static const json_t *listed_names(SchemaCompiler *c, const json_t *names)
{
    const json_t *list = json_object_get(names, "enum"), *one = json_object_get(names, "const");
    if (json_array_size(list) && says_only(names, "enum")) return list;
    if (!json_is_string(one) || !says_only(names, "const")) return NULL;
    json_array_append_new(c->made, json_pack("[O]", one));
    return json_array_get(c->made, json_array_size(c->made) - 1);
}

/*
 * What names may be, where that is followed: an object without properties of its own may have names
 * of one pattern, or of a list.
 */
static int read_names(SchemaCompiler *c, const json_t *schema, Properties *p)
{
    const json_t *names = names_schema(c, schema);
    const json_t *patterns = json_object_get(schema, "patternProperties");
    const json_t *list = listed_names(c, names);
    const char *pattern = json_string_value(json_object_get(names, "pattern"));
    if (c->failed) return -1;
    if (json_object_size(patterns)) {
        int is_all = !p->n && !p->has_others && json_object_size(patterns) == 1;
        return is_all && says_only(names, NULL) ? read_pattern(c, patterns, p)
                                                : lose(c, "patternProperties");
    }
    if (says_only(names, NULL)) return 0;
    if (p->n || !p->has_others) return lose(c, "propertyNames");
    if (list) return list_names(c, p, list);
    if (pattern && says_only(names, "pattern")) return match_names(c, p, "propertyNames", pattern);
    return lose(c, "propertyNames");
}

/* How many properties there are: that there is one, or what their schemas say anyway. */
static int read_counts(SchemaCompiler *c, const json_t *schema, Properties *p)
{
    int least = schema_bound(c, schema, "minProperties", INT_MAX, 0), n_required = 0;
    int most = schema_bound(c, schema, "maxProperties", INT_MAX, INT_MAX);
    const char *lost = NULL;
    for (int i = 0; i < p->n; i++)
        n_required += p->property[i].is_required;
    if (least > 1 && least > n_required) lost = "minProperties";
    if (most < INT_MAX && (p->has_others || most < p->n)) lost = "maxProperties";
    p->needs_one = least > 0;
    if (c->failed || (lost && lose(c, lost))) return -1;
    if (!least || p->n || p->has_others) return 0;
    schema_empty(c, "minProperties is more than there may be");
    return -1;
}

static int read_properties(SchemaCompiler *c, const json_t *schema, Properties *p)
{
    const json_t *list = json_object_get(schema, "properties");
    const json_t *others = json_object_get(schema, "additionalProperties");
    const json_t *required = json_object_get(schema, "required");
    json_t *value, *known = json_object();
    const char *name;
    int rc = 0;
    *p = (Properties){.others = json_is_object(others) ? others : NULL,
                      .has_others = !json_is_false(others),
                      .others_are = "additionalProperties",
                      .names = -1};
    p->property =
        mem_alloc(json_object_size(list) + json_array_size(required) + 1, sizeof *p->property);
    json_object_foreach((json_t *)list, name, value)
    {
        rc |= check_name(c, name);
        if (json_is_false(value)) { /* it may not be there; names of others do not know that */
            if (p->has_others && c->strict && !rc) {
                schema_fail(c, ERR_INPUT,
                            "\"%.80s\" may not be there: that needs additionalProperties false",
                            name);
                rc = -1;
            }
            continue;
        }
        json_object_set_new(known, name, json_integer(p->n));
        p->property[p->n++] = (Property){name, value, 0};
    }
    if (!rc) rc = read_required(c, required, known, p);
    if (!rc) rc = read_names(c, schema, p);
    if (!rc) rc = check_number(c, p);
    if (!rc) rc = read_counts(c, schema, p);
    for (int i = 0; i < p->n; i++)
        if (p->property[i].is_required) p->n_to_end = i + 1;
    json_decref(known);
    return rc;
}

/* What stands after a name: a colon and its value. */
static uint32_t colon(SchemaCompiler *c, uint32_t value, uint32_t next)
{
    return grammar_range(c->b, ':', ':', schema_blank(c, grammar_call(c->b, value, next)));
}

static uint32_t property_value(SchemaCompiler *c, const Property *p, uint32_t other)
{
    if (!p->schema) return other;
    size_t before = schema_enter(c, "properties", p->name);
    c->level++;
    uint32_t value = schema_part(c, p->schema);
    leave_level(c, p->is_required);
    schema_leave(c, before);
    return value;
}

/* Names that are not declared, then next. */
static uint32_t other_names(SchemaCompiler *c, const Properties *p, uint32_t next)
{
    if (p->names < 0) return grammar_string(c->b, -2, 0, MAX_OTHER_NAME, next);
    int shortest = schema_shortest(c, p->names);
    return grammar_string(c->b, p->names, 0, shortest > MAX_OTHER_NAME ? -1 : MAX_OTHER_NAME, next);
}

/* after[k]: property k or a later one may be next, or the end. */
static uint32_t make_names(SchemaCompiler *c, const Properties *p, const uint32_t *after)
{
    size_t n = (size_t)p->n;
    uint32_t others = 0, other = 0;
    if (p->has_others) {
        other = p->others ? inner_at(c, p->others, p->others_are, -1, 0) : schema_any(c);
        others = other_names(c, p, colon(c, other, after[p->n]));
    }
    if (p->names >= 0) return others;
    StrBuf *text = mem_alloc(n + 1, sizeof *text);
    GrammarWord *word = mem_alloc(n + 1, sizeof *word);
    uint8_t *required = mem_alloc(n + 1, 1);
    for (int i = 0; i < p->n; i++) {
        const Property *one = &p->property[i];
        schema_escape(one->name, strlen(one->name), &text[i]);
        strbuf_puts(&text[i], "\"");
        required[i] = (uint8_t)one->is_required;
        word[i] = (GrammarWord){.text = text[i].data,
                                .len = text[i].len,
                                .next = colon(c, property_value(c, one, other), after[i + 1]),
                                .property = i};
    }
    uint32_t names = c->failed ? 0 : grammar_names(c->b, word, p->n, required, others);
    for (size_t i = 0; i < n; i++)
        strbuf_free(&text[i]);
    mem_free(text);
    mem_free(word);
    mem_free(required);
    return names;
}

/* Behind the k-th place where a property may be: its quote, or the end. begins: the first place. */
static uint32_t go_on(SchemaCompiler *c, const Properties *p, uint32_t names, int k, int begins)
{
    uint32_t way[2], end = grammar_range(c->b, '}', '}', 0);
    int n = 0, may_end = k >= p->n_to_end;
    uint32_t first = p->names < 0 ? grammar_name_from(c->b, names, k) : names;
    uint32_t name = grammar_range(c->b, '"', '"', first);
    int may_go_on = k < p->n || p->has_others;
    if (begins) {
        if (may_end && !p->needs_one) way[n++] = end;
        if (may_go_on) way[n++] = name;
        return schema_blank(c, schema_ways(c, way, n));
    }
    if (may_end) way[n++] = schema_blank(c, end);
    if (may_go_on) way[n++] = grammar_range(c->b, ',', ',', schema_blank(c, name));
    return schema_ways(c, way, n);
}

uint32_t schema_object(SchemaCompiler *c, const json_t *schema)
{
    Properties p;
    uint32_t part = 0;
    if (!read_properties(c, schema, &p)) {
        uint32_t *after = mem_alloc((size_t)p.n + 1, sizeof *after);
        for (int k = 0; k <= p.n; k++)
            after[k] = schema_forward(c);
        uint32_t names = make_names(c, &p, after);
        for (int k = 0; k <= p.n && !c->failed; k++)
            schema_set_forward(c, after[k], go_on(c, &p, names, k, 0));
        if (!c->failed)
            part = schema_nested(c, grammar_range(c->b, '{', '{', go_on(c, &p, names, 0, 1)));
        mem_free(after);
    }
    mem_free(p.property);
    return part;
}

/* ---- lists ---- */

typedef struct {
    const json_t *first; /* prefixItems, or NULL */
    int n_first;
    const json_t *items; /* of those behind; NULL: any */
    int lo, hi;          /* how many there are; hi -1: no bound */
} Items;

static Items read_items(SchemaCompiler *c, const json_t *schema)
{
    const json_t *first = json_object_get(schema, "prefixItems");
    const json_t *items = json_object_get(schema, "items");
    Items it = {.lo = schema_bound(c, schema, "minItems", MAX_ITEMS_BOUND, 0),
                .hi = schema_bound(c, schema, "maxItems", MAX_ITEMS_BOUND, -1)};
    if (json_is_array(items)) { /* as prefixItems was written before 2020-12 */
        first = items;
        items = json_object_get(schema, "additionalItems");
    }
    it.first = first;
    it.n_first = (int)json_array_size(first);
    for (int i = 0; i < it.n_first; i++) /* nor can there be more where one can not be */
        if (json_is_false(json_array_get(first, (size_t)i)) && (it.hi < 0 || it.hi > i)) it.hi = i;
    if (it.hi >= 0 && it.n_first > it.hi) it.n_first = it.hi;
    if (json_is_false(items) && (it.hi < 0 || it.hi > it.n_first)) it.hi = it.n_first;
    if (json_is_object(items)) it.items = items;
    return it;
}

/* Behind item i: the list's end, or a comma and what comes then. */
static uint32_t end_or(SchemaCompiler *c, int may_end, uint32_t end, uint32_t more)
{
    uint32_t way[2];
    int n = 0;
    if (may_end) way[n++] = schema_blank(c, end);
    if (more) way[n++] = grammar_range(c->b, ',', ',', schema_blank(c, more));
    return schema_ways(c, way, n);
}

/* All behind the first `n_before` items, of which there is at least one. */
static uint32_t repeat_items(SchemaCompiler *c, const Items *it, uint32_t item, int n_before,
                             uint32_t end)
{
    uint32_t one = grammar_range(c->b, ',', ',', schema_blank(c, grammar_call(c->b, item, 0)));
    return grammar_repeat(c->b, one, n_before, it->lo, it->hi, schema_blank(c, end));
}

uint32_t schema_array(SchemaCompiler *c, const json_t *schema)
{
    Items it = read_items(c, schema);
    uint32_t end = grammar_range(c->b, ']', ']', 0), next = 0, item = 0;
    int has_rest = it.hi < 0 || it.hi > it.n_first;
    if (c->failed) return 0;
    if (it.hi >= 0 && it.lo > it.hi) return schema_empty(c, "minItems is more than there may be");
    if (has_rest)
        item = it.items ? inner_at(c, it.items, "items", -1, it.lo > it.n_first) : schema_any(c);
    if (has_rest) next = grammar_call(c->b, item, repeat_items(c, &it, item, it.n_first + 1, end));
    for (int i = it.n_first - 1; i >= 0 && !c->failed; i--) {
        const json_t *one = json_array_get(it.first, (size_t)i);
        uint32_t part = inner_at(c, one, "prefixItems", i, it.lo > i);
        next = grammar_call(c->b, part, end_or(c, i + 1 >= it.lo, end, next));
    }
    if (c->failed) return 0;
    uint32_t way[2];
    int n = 0;
    if (it.lo == 0) way[n++] = end;
    if (next) way[n++] = next;
    return schema_nested(c, grammar_range(c->b, '[', '[', schema_blank(c, schema_ways(c, way, n))));
}
