/* reply_tools.c: see reply_tools.h. Tools and parameters are sorted by name and found by halving.
 */
#include "text/reply_tools.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/schema.h"

typedef struct {
    char *text;
    size_t len;
} Name;

typedef struct {
    Name name; /* first, as in Tool: one comparison for both */
    unsigned types;
} Param;

typedef struct {
    Name name;
    Param *param; /* [n_params] */
    int n_params;
} Tool;

struct ReplyTools {
    Tool *tool; /* [n] */
    int n;
};

/* ---- types of a schema ---- */

/* Strings of a list, until all is known that a parameter may be. */
enum { TYPE_WORD = 128 };

typedef struct {
    const json_t *root;
    int steps_left;
} Walk;

static unsigned schema_types(Walk *w, const json_t *schema, int depth);

static unsigned type_of_name(const char *name)
{
    static const struct {
        const char *name;
        unsigned type;
    } rows[] = {{"string", TYPE_STRING},   {"integer", TYPE_INTEGER}, {"number", TYPE_NUMBER},
                {"boolean", TYPE_BOOLEAN}, {"null", TYPE_NULL},       {"object", TYPE_OBJECT},
                {"array", TYPE_ARRAY}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (!strcmp(name, rows[i].name)) return rows[i].type;
    return 0;
}

static unsigned named_type(const json_t *name)
{
    return json_is_string(name) ? type_of_name(json_string_value(name)) : 0;
}

static unsigned value_type(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return TYPE_OBJECT;
    case JSON_ARRAY:
        return TYPE_ARRAY;
    case JSON_STRING:
        return TYPE_WORD;
    case JSON_INTEGER:
        return TYPE_INTEGER;
    case JSON_REAL:
        return TYPE_NUMBER;
    case JSON_NULL:
        return TYPE_NULL;
    default:
        return TYPE_BOOLEAN;
    }
}

/* All that a list names, or that its values are of. */
static unsigned types_of_list(Walk *w, const json_t *list, unsigned (*type_of)(const json_t *item))
{
    unsigned types = 0;
    size_t i;
    json_t *item;
    json_array_foreach((json_t *)list, i, item)
    {
        if (w->steps_left-- <= 0) return 0;
        types |= type_of(item);
    }
    return types;
}

/* A branch that says nothing takes anything, a string too. */
static unsigned types_of_any(Walk *w, const json_t *list, int depth)
{
    unsigned types = 0;
    size_t i;
    json_t *item;
    json_array_foreach((json_t *)list, i, item)
    {
        unsigned branch = schema_types(w, item, depth + 1);
        types |= branch ? branch : TYPE_STRING;
    }
    return types;
}

static unsigned types_of_all(Walk *w, const json_t *list, int depth)
{
    unsigned types = ~0u, words = 0;
    size_t i;
    json_t *item;
    json_array_foreach((json_t *)list, i, item)
    {
        unsigned part = schema_types(w, item, depth + 1);
        if (part & TYPE_NUMBER) part |= TYPE_INTEGER;
        if (part & TYPE_WORD) words = TYPE_WORD, part |= TYPE_STRING;
        if (part) types &= part;
    }
    if (types == ~0u) return 0;
    return types & TYPE_STRING && words ? (types & ~(unsigned)TYPE_STRING) | words : types;
}

/* What `type` says, where it is there. */
static unsigned declared_types(Walk *w, const json_t *schema, const json_t *type)
{
    int is_list = json_object_get(schema, "const") || json_object_get(schema, "enum");
    unsigned types = json_is_array(type) ? types_of_list(w, type, named_type) : named_type(type);
    return types & TYPE_STRING && is_list ? (types & ~(unsigned)TYPE_STRING) | TYPE_WORD : types;
}

static unsigned types_said(Walk *w, const json_t *schema, int depth)
{
    const json_t *type = json_object_get(schema, "type"), *v;
    if (json_is_string(type) || json_is_array(type)) return declared_types(w, schema, type);
    if ((v = json_object_get(schema, "const"))) return value_type(v);
    if (json_is_array(v = json_object_get(schema, "enum"))) return types_of_list(w, v, value_type);
    if (json_is_string(v = json_object_get(schema, "$ref")))
        return schema_types(w, schema_target(w->root, json_string_value(v)), depth + 1);
    if (json_is_array(v = json_object_get(schema, "anyOf"))) return types_of_any(w, v, depth);
    if (json_is_array(v = json_object_get(schema, "oneOf"))) return types_of_any(w, v, depth);
    if (json_is_array(v = json_object_get(schema, "allOf"))) return types_of_all(w, v, depth);
    const char *implied = schema_implied_type(schema);
    return implied ? type_of_name(implied) : 0;
}

static unsigned schema_types(Walk *w, const json_t *schema, int depth)
{
    if (depth > MAX_TYPES_DEPTH || w->steps_left-- <= 0 || !json_is_object(schema)) return 0;
    unsigned types = types_said(w, schema, depth);
    return types && json_is_true(json_object_get(schema, "nullable")) ? types | TYPE_NULL : types;
}

static unsigned param_types(Walk *w, const json_t *schema)
{
    unsigned types = schema_types(w, schema, 0), others = types & ~(unsigned)TYPE_WORD;
    return types & TYPE_WORD && !others ? TYPE_STRING : others;
}

/* ---- the table ---- */

static Name copy_name(const char *text, size_t len)
{
    Name name = {mem_alloc(len + 1, 1), len};
    memcpy(name.text, text, len);
    return name;
}

static int compare_names(const void *a, const void *b)
{
    const Name *x = a, *y = b;
    int order = memcmp(x->text, y->text, x->len < y->len ? x->len : y->len);
    return order ? order : (x->len > y->len) - (x->len < y->len);
}

/* properties: of root, or of what root refers to. */
static const json_t *find_properties(const json_t *root)
{
    const json_t *ref, *at = root;
    for (int i = 0; i < MAX_TYPES_DEPTH && json_is_string(ref = json_object_get(at, "$ref")); i++)
        at = schema_target(root, json_string_value(ref));
    return json_object_get(at, "properties");
}

static void read_params(Tool *t, const json_t *root, int *steps_left)
{
    json_t *properties = (json_t *)find_properties(root), *schema;
    const char *key;
    Walk walk = {root, *steps_left};
    t->param = mem_alloc(json_object_size(properties), sizeof *t->param);
    json_object_foreach(properties, key, schema) t->param[t->n_params++] =
        (Param){copy_name(key, strlen(key)), param_types(&walk, schema)};
    *steps_left = walk.steps_left;
    qsort(t->param, (size_t)t->n_params, sizeof *t->param, compare_names);
}

ReplyTools *reply_tools_open(const json_t *tools)
{
    ReplyTools *t = mem_alloc(1, sizeof *t);
    int steps_left = MAX_SCHEMA_STEPS;
    size_t i;
    json_t *entry;
    t->tool = mem_alloc(json_array_size(tools), sizeof *t->tool);
    json_array_foreach((json_t *)tools, i, entry)
    {
        const json_t *f = json_object_get(entry, "function"), *name = json_object_get(f, "name");
        if (!json_is_string(name)) continue;
        Tool *tool = &t->tool[t->n++];
        tool->name = copy_name(json_string_value(name), json_string_length(name));
        read_params(tool, json_object_get(f, "parameters"), &steps_left);
    }
    qsort(t->tool, (size_t)t->n, sizeof *t->tool, compare_names);
    return t;
}

void reply_tools_close(ReplyTools *t)
{
    if (!t) return;
    for (int i = 0; i < t->n; i++) {
        for (int k = 0; k < t->tool[i].n_params; k++)
            mem_free(t->tool[i].param[k].name.text);
        mem_free(t->tool[i].param);
        mem_free(t->tool[i].name.text);
    }
    mem_free(t->tool);
    mem_free(t);
}

int reply_tools_find(const ReplyTools *t, const char *name, size_t len)
{
    Name key = {(char *)name, len};
    const Tool *found = bsearch(&key, t->tool, (size_t)t->n, sizeof *found, compare_names);
    return found ? (int)(found - t->tool) : -1;
}

int reply_tools_param(const ReplyTools *t, int tool, const char *name, size_t len)
{
    if (tool < 0) return -1;
    const Tool *of = &t->tool[tool];
    Name key = {(char *)name, len};
    const Param *found =
        bsearch(&key, of->param, (size_t)of->n_params, sizeof *found, compare_names);
    return found ? (int)(found - of->param) : -1;
}

unsigned reply_tools_types(const ReplyTools *t, int tool, int param)
{
    return tool < 0 || param < 0 ? 0 : t->tool[tool].param[param].types;
}

int reply_tools_max_params(const ReplyTools *t)
{
    int most = 0;
    for (int i = 0; i < t->n; i++)
        if (t->tool[i].n_params > most) most = t->tool[i].n_params;
    return most;
}
