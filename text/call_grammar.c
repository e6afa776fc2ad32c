/*
 * call_grammar.c: see call_grammar.h.
 */
#include "text/call_grammar.h"

#include <string.h>

#include "base/mem.h"
#include "base/strbuf.h"
#include "text/call_json.h"
#include "text/reply_tools.h"
#include "text/schema_parts.h"

typedef struct {
    SchemaCompiler *c;
    GrammarBuilder *b;
    const CallGrammar *o;
    Error *err;
    ReplyTools *known; /* as who reads the calls knows them */
    int failed;
} Calls;

static uint32_t literal(const Calls *s, const char *text, uint32_t next)
{
    return grammar_literal(s->b, text, strlen(text), next);
}

/* An added token by its text; where the tokenizer has none, the text. */
static uint32_t marker(const Calls *s, const char *text, uint32_t next)
{
    int32_t id = tokenizer_added_id(s->o->tok, text);
    if (id < 0) return literal(s, text, next);
    return grammar_node(s->b, (GrammarNode){.kind = NODE_TOKEN, .lo = id, .next = next});
}

/* ---- the XML form ---- */

#define NEXT_PARAMETER "\n<parameter="

static const char value_end[] = "\n</parameter>\n";

/*
 * A value as it stands: it ends where who reads the call sees its end, with a newline before it or
 * without, and no line of it begins another parameter.
 */
static uint32_t free_text(const Calls *s, uint32_t next)
{
    return grammar_until(s->b, "</parameter>", NEXT_PARAMETER, literal(s, "\n", next));
}

typedef struct {
    const char *name;
    const json_t *schema;
    unsigned types; /* of what its text is read back as */
    uint8_t required;
} Parameter;

/* 1 if a value may be any text where its schema is not followed. */
static int may_be_free(const json_t *schema)
{
    const char *type = json_string_value(json_object_get(schema, "type"));
    if (json_object_get(schema, "anyOf") || json_object_get(schema, "oneOf") ||
        json_object_get(schema, "allOf"))
        return 1;
    return !type || !strcmp(type, "string") || json_is_true(json_object_get(schema, "nullable"));
}

static uint32_t parameter_value(Calls *s, const json_t *root, const Parameter *p, int strict,
                                const char *where, uint32_t next)
{
    static const char *const never[] = {"</parameter>", NEXT_PARAMETER};
    SchemaText as = {.types = p->types, .never = never, .n_never = 2};
    Error err = {0};
    if (!p->schema) return free_text(s, next);
    uint32_t part = schema_text(s->c, root, p->schema, strict, &as, where, &err);
    int is_free = !part && !strict && may_be_free(schema_resolve(root, p->schema));
    if (part == SCHEMA_ANY_TEXT || is_free) return free_text(s, next);
    if (!part && !s->failed) *s->err = err;
    if (!part) s->failed = 1;
    return grammar_call(s->b, part, literal(s, value_end, next));
}

typedef struct {
    Parameter *list;
    int n, n_required;
    int needs_one; /* there may not be none of them */
} Parameters;

/*
 * Parameters in the schema's order, then those that are required and not described. The name of one
 * that is required and may not be there, or NULL.
 */
static const char *read_parameters(const json_t *schema, int strict, Parameters *p)
{
    const json_t *properties = json_object_get(schema, "properties");
    const json_t *required = json_object_get(schema, "required");
    const json_t *others = strict ? json_object_get(schema, "additionalProperties") : NULL;
    size_t most = json_object_size(properties) + json_array_size(required), i;
    json_t *value, *known = json_object();
    const char *name, *lost = NULL;
    p->list = mem_alloc(most + 1, sizeof *p->list);
    json_object_foreach((json_t *)properties, name, value)
    {
        if (json_is_false(value)) continue;
        json_object_set_new(known, name, json_integer(p->n));
        p->list[p->n++] = (Parameter){.name = name, .schema = value};
    }
    json_array_foreach((json_t *)required, i, value)
    {
        name = json_string_value(value);
        const json_t *at = name ? json_object_get(known, name) : NULL;
        int is_described = name && json_object_get(properties, name);
        if (at) p->list[json_integer_value(at)].required = 1;
        if (!name || at) continue;
        if (strict && (is_described || json_is_false(others))) lost = name;
        json_object_set_new(known, name, json_integer(p->n));
        p->list[p->n++] = (Parameter){.name = name, .schema = others, .required = 1};
    }
    for (int k = 0; k < p->n; k++)
        p->n_required += p->list[k].required;
    json_decref(known);
    return lost;
}

/* ---- what is said of all parameters ---- */

static const char *first_of(const json_t *schema, const char *const *keyword)
{
    while (*keyword && !json_object_get(schema, *keyword))
        keyword++;
    return *keyword;
}

/* How many there are: that there is one, or what is so anyway. */
static const char *count_that_is_lost(const json_t *schema, Parameters *p)
{
    const json_t *least = json_object_get(schema, "minProperties");
    const json_t *most = json_object_get(schema, "maxProperties");
    double lo = json_number_value(least), hi = json_number_value(most);
    if (least && (!json_is_number(least) || (lo > p->n_required && (lo > 1 || !p->n))))
        return "minProperties";
    if (most && (!json_is_number(most) || hi < p->n)) return "maxProperties";
    p->needs_one = lo > p->n_required;
    return NULL;
}

/* A keyword of a strict tool's schema that calls of this form do not follow, or NULL. */
static const char *keyword_that_is_lost(const json_t *root, Parameters *p)
{
    static const char *const whole[] = {
        "anyOf", "oneOf", "allOf", "const", "enum", "patternProperties", "propertyNames", NULL};
    static const char *const beside_ref[] = {
        "properties", "required", "minProperties", "maxProperties", "additionalProperties", NULL};
    const json_t *schema = root;
    for (int i = 0; i < MAX_SCHEMA_DEPTH; i++) {
        const char *ref = json_string_value(json_object_get(schema, "$ref"));
        const char *found = schema_not_followed_keyword(schema);
        if (!found) found = first_of(schema, whole);
        if (!found && ref) found = first_of(schema, beside_ref);
        if (found) return found;
        if (!ref) break;
        schema = schema_target(root, ref);
    }
    return count_that_is_lost(schema, p);
}

static int says_object(const json_t *type)
{
    json_t *object = json_string("object"), *one;
    int is_so = !type || json_equal(type, object);
    size_t i;
    json_array_foreach((json_t *)type, i, one)
    {
        is_so |= json_equal(one, object);
    }
    json_decref(object);
    return is_so;
}

static void check_strict(Calls *s, const json_t *root, const json_t *schema, const char *where,
                         const char *lost, Parameters *p)
{
    const char *keyword = keyword_that_is_lost(root, p), *words;
    const char *malformed = schema_malformed_keyword(schema, &words);
    s->failed = 1;
    if (!schema)
        error_set(s->err, ERR_INPUT, "%s: its $ref leads nowhere", where);
    else if (keyword)
        error_set(s->err, ERR_INPUT, "%s: keyword \"%s\" is not supported in strict mode", where,
                  keyword);
    else if (malformed)
        error_set(s->err, ERR_INPUT, "%s: %s must be %s", where, malformed, words);
    else if (lost)
        error_set(s->err, ERR_INPUT, "%s: \"%.80s\" is required and may not be there", where, lost);
    else if (!says_object(json_object_get(schema, "type")))
        error_set(s->err, ERR_INPUT, "%s: its type must be object", where);
    else
        s->failed = 0;
}

static void check_names(Calls *s, const Parameters *p, const char *where)
{
    if (p->n > MAX_SCHEMA_NODES) {
        error_set(s->err, ERR_LIMIT, "%s: there are more than %d", where, MAX_SCHEMA_NODES);
        s->failed = 1;
    }
    for (int i = 0; i < p->n; i++) {
        const char *name = p->list[i].name;
        if (*name && strlen(name) <= MAX_CALL_NAME && !strpbrk(name, "<>\n")) continue;
        error_set(s->err, ERR_INPUT, "%s: \"%.80s\" cannot be the name of a parameter", where,
                  name);
        s->failed = 1;
    }
}

/* All of a function's parameters. A check that fails leaves the Error. */
static void find_parameters(Calls *s, const json_t *function, int strict, const char *where,
                            Parameters *p)
{
    const json_t *root = json_object_get(function, "parameters");
    const json_t *schema = schema_resolve(root, root), *name = json_object_get(function, "name");
    const char *lost = read_parameters(schema, strict, p);
    int tool = reply_tools_find(s->known, json_string_value(name), json_string_length(name));
    for (int i = 0; i < p->n; i++) {
        const char *own = p->list[i].name;
        int param = reply_tools_param(s->known, tool, own, strlen(own));
        p->list[i].types = reply_tools_types(s->known, tool, param);
    }
    if (strict) check_strict(s, root, schema, where, lost, p);
    if (!s->failed) check_names(s, p, where);
}

/* All that stands between a function's name and what comes behind the call. */
static uint32_t xml_parameters(Calls *s, const json_t *function, int strict, const char *where,
                               uint32_t next)
{
    const json_t *root = json_object_get(function, "parameters");
    Parameters p = {0};
    find_parameters(s, function, strict, where, &p);
    int n = p.n;
    GrammarWord *word = mem_alloc((size_t)n + 1, sizeof *word);
    StrBuf *text = mem_alloc((size_t)n + 1, sizeof *text), place = {0};
    uint32_t *after = mem_alloc((size_t)n + 1, sizeof *after);
    uint8_t *required = mem_alloc((size_t)n + 1, 1);
    int ok = !s->failed, may_end = 1;
    for (int k = 0; k <= n; k++)
        after[k] = schema_forward(s->c);
    for (int i = 0; i < n && ok; i++) {
        strbuf_clear(&place);
        strbuf_printf(&place, "%s.properties.%.80s", where, p.list[i].name);
        strbuf_printf(&text[i], "%s>\n", p.list[i].name);
        required[i] = p.list[i].required;
        uint32_t value = parameter_value(s, root, &p.list[i], strict, place.data, after[i + 1]);
        word[i] = (GrammarWord){text[i].data, text[i].len, value, i};
    }
    ok &= !s->failed;
    uint32_t names = ok ? grammar_names(s->b, word, n, required, 0) : 0;
    uint32_t end = literal(s, "</function>\n", next);
    for (int k = n; k >= 0 && ok; k--) {
        uint32_t way[2];
        int n_ways = 0;
        if (k < n) may_end &= !required[k];
        if (may_end && (k || !p.needs_one)) way[n_ways++] = end;
        if (k < n) way[n_ways++] = literal(s, "<parameter=", grammar_name_from(s->b, names, k));
        schema_set_forward(s->c, after[k], schema_ways(s->c, way, n_ways));
    }
    uint32_t first = after[0];
    for (int i = 0; i < n; i++)
        strbuf_free(&text[i]);
    strbuf_free(&place);
    mem_free(p.list);
    mem_free(word);
    mem_free(text);
    mem_free(after);
    mem_free(required);
    return first;
}

/* ---- either form ---- */

/* What stands behind a function's name, to the end of the call. */
static uint32_t call_rest(Calls *s, const json_t *function, uint32_t next)
{
    const json_t *schema = json_object_get(function, "parameters");
    int strict = json_is_true(json_object_get(function, "strict"));
    int is_xml = chat_calls_are_xml(s->o->family), is_followed = strict || s->o->follow;
    char where[192];
    snprintf(where, sizeof where, "the parameters of tool %s",
             json_string_value(json_object_get(function, "name")));
    if (is_xml && !is_followed) return grammar_until(s->b, "</function>\n", NULL, next);
    if (is_xml) return xml_parameters(s, function, strict, where, next);
    next = literal(s, "}\n", next);
    if (!is_followed) return grammar_call(s->b, schema_any_object(s->c), next);
    uint32_t part = schema_object_value(s->c, schema, strict, where, s->err);
    if (!part) s->failed = 1;
    return grammar_call(s->b, part, next);
}

/* From a function's name on. */
static uint32_t any_function(Calls *s, uint32_t next)
{
    const json_t *tools = s->o->tools;
    size_t n = json_array_size(tools), i;
    GrammarWord *word = mem_alloc(n + 1, sizeof *word);
    StrBuf *text = mem_alloc(n + 1, sizeof *text);
    const char *name_end = chat_calls_are_xml(s->o->family) ? ">\n" : "\", \"arguments\": ";
    int n_words = 0;
    json_t *tool;
    json_array_foreach((json_t *)tools, i, tool)
    {
        const json_t *f = json_object_get(tool, "function");
        const char *name = json_string_value(json_object_get(f, "name"));
        if (s->failed) break;
        strbuf_printf(&text[i], "%s%s", name, name_end);
        word[n_words++] = (GrammarWord){text[i].data, text[i].len, call_rest(s, f, next), 0};
    }
    uint32_t part = s->failed || !n_words ? 0 : grammar_words(s->b, word, n_words);
    for (i = 0; i < n; i++)
        strbuf_free(&text[i]);
    mem_free(text);
    mem_free(word);
    return part;
}

uint32_t call_grammar(SchemaCompiler *c, GrammarBuilder *b, const CallGrammar *o, Error *err)
{
    Calls s = {.c = c, .b = b, .o = o, .err = err, .known = reply_tools_open(o->tools)};
    uint32_t behind = schema_forward(c), again = schema_forward(c);
    const char *name = chat_calls_are_xml(o->family) ? "\n<function=" : "\n{\"name\": \"";
    uint32_t call = literal(&s, name, any_function(&s, marker(&s, "</tool_call>", behind)));
    reply_tools_close(s.known);
    if (s.failed) return 0;
    if (!o->forced) {
        int32_t id = tokenizer_added_id(o->tok, "<tool_call>");
        if (id < 0) {
            error_set(err, ERR_INPUT, "tools: strict needs a model whose calls begin with a token");
            return 0;
        }
        uint32_t text =
            grammar_node(b, (GrammarNode){.kind = NODE_FREE, .lo = id, .hi = 1, .next = call});
        schema_set_forward(c, behind, text);
        return text;
    }
    uint32_t first = marker(&s, "<tool_call>", call);
    schema_set_forward(c, again, literal(&s, "\n", first));
    uint32_t way[] = {0, again};
    schema_set_forward(c, behind, grammar_any_of(b, way, o->parallel ? 2 : 1));
    return first;
}

uint32_t grammar_behind_thinking(GrammarBuilder *b, const Tokenizer *tok, uint32_t part)
{
    int32_t id = tokenizer_added_id(tok, "</think>");
    uint32_t second = grammar_any_of(b, (uint32_t[]){part, grammar_range(b, '\n', '\n', part)}, 2);
    uint32_t first = grammar_any_of(b, (uint32_t[]){part, grammar_range(b, '\n', '\n', second)}, 2);
    if (id < 0) return first;
    return grammar_node(b, (GrammarNode){.kind = NODE_FREE, .lo = id, .next = first});
}
