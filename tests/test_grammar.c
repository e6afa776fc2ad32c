/*
 * test_grammar.c: masks say what steps do; states fork along a tree; whatever is let through is an
 * instance of the schema.
 */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <setjmp.h>
#include <cmocka.h>

#include "base/mem.h"
#include "base/strbuf.h"
#include "tests/grammar_case.h"
#include "tests/instance.h"
#include "tests/textdata.h"
#include "text/grammar_mask.h"

static const char *const schemas[] = {
    "true",
    "{'type':'object'}",
    "{'type':'string'}",
    "{'type':'string','minLength':3,'maxLength':9}",
    "{'type':'string','pattern':'^([a-z]+ )*[A-Z\xc3\xa9]{1,5}$'}",
    "{'type':'object','properties':{'when':{'type':'string','format':'date-time'},"
    "'id':{'type':'string','format':'uuid'}},'required':['when']}",
    "{'type':'integer','minimum':-200,'maximum':31}",
    "{'enum':['red','rose','blue',1,12,null,1.5,{'a':[1,2]}]}",
    "{'type':'object','properties':{'name':{'type':'string','maxLength':20},'age':{'type':"
    "'integer','minimum':0,'maximum':130},'tags':{'type':'array','items':{'enum':['a','b']},"
    "'maxItems':3},'mail':{'type':['string','null']}},'required':['name','tags'],"
    "'additionalProperties':false}",
    "{'anyOf':[{'type':'object','properties':{'k':{'const':'a'},'v':{'type':'number'}},"
    "'required':['k','v'],'additionalProperties':false},{'type':'object','properties':{'k':"
    "{'const':'b'},'w':{'$ref':'#'}},'required':['k'],'additionalProperties':false}]}",
    "{'type':'object','properties':{'a':{'type':'integer'},'ab':{'type':'null'}},"
    "'additionalProperties':{'type':'boolean'}}",
    "{'type':'array','prefixItems':[{'type':'string','maxLength':2},{'type':'integer'}],"
    "'items':{'type':'boolean'},'minItems':2,'maxItems':4}",
    "{'type':'number','minimum':-0.35,'exclusiveMaximum':12.5}",
};
enum { N_SCHEMAS = sizeof schemas / sizeof *schemas };

static Grammar *grammar(int i)
{
    Error err = {0};
    Grammar *g = grammar_of(schemas[i], 1, &err);
    if (!g) print_error("%s: %s\n", schemas[i], err.msg);
    assert_non_null(g);
    return g;
}

/* A token that may follow, by chance: mostly one that is no blank, so that answers come to an end.
 */
static int32_t pick(uint64_t *seed, const uint64_t *mask, int wants_end)
{
    int n = 0;
    int32_t found = -1;
    if (wants_end && mask_has(mask, grammar_case->end)) return grammar_case->end;
    for (int32_t id = 0; id < grammar_case->n_vocab; id++)
        if (mask_has(mask, id) && random_next(seed) % (uint64_t)++n == 0) found = id;
    return found;
}

static const char closers[] = "\"}]0123456789e:, AZ-T";

/* One of these bytes, where it may follow, so that a text ends that has become long. */
static int32_t pick_closer(uint64_t *seed, const uint64_t *mask)
{
    int32_t found = -1;
    int n = 0;
    for (size_t i = 0; i < sizeof closers - 1; i++) {
        int32_t id = grammar_case->byte[(unsigned char)closers[i]];
        if (mask_has(mask, id) && random_next(seed) % (uint64_t)++n == 0) found = id;
        if (mask_has(mask, id) && strchr("\"}]", closers[i])) return id;
    }
    return found;
}

static void add_bytes(StrBuf *text, int32_t id)
{
    size_t len;
    const char *bytes = tokenizer_bytes(grammar_case->tok, id, &len);
    strbuf_add(text, bytes, len);
}

/* An answer of tokens by chance. */
static void write_answer(const Grammar *g, uint64_t *seed, StrBuf *text)
{
    GrammarAnswer a = answer_of(grammar_case, g, 1);
    Constraint c = grammar_constraint(&a);
    enum { LONG = 60, TOO_LONG = 4000 };
    for (int n = 0; n < TOO_LONG; n++) {
        assert_int_equal(c.allowed(&a, 0, grammar_case->mask), 0);
        int32_t id = n > LONG ? pick_closer(seed, grammar_case->mask) : -1;
        if (n > LONG && mask_has(grammar_case->mask, grammar_case->end)) id = grammar_case->end;
        if (id < 0) id = pick(seed, grammar_case->mask, random_next(seed) % 4 == 0);
        assert_true(id >= 0);
        if (id == grammar_case->end) {
            /* the end that comes for want of anything else is no end of an answer */
            int rc = c.step(&a, 0, grammar_case->end, 0);
            if (rc) print_error("stuck behind %s\n", strbuf_str(text));
            assert_int_equal(rc, 0);
            return;
        }
        assert_int_equal(c.step(&a, 0, id, 0), 0);
        add_bytes(text, id);
    }
    fail_msg("no end: %.200s ... %s", strbuf_str(text), text->data + text->len - 200);
}

static void test_instances(void **state)
{
    uint64_t seed = 11;
    (void)state;
    for (int i = 0; i < N_SCHEMAS; i++) {
        Grammar *g = grammar(i);
        json_t *schema = schema_json(schemas[i]);
        for (int n = 0; n < 60; n++) {
            StrBuf text = {0};
            json_error_t e;
            write_answer(g, &seed, &text);
            json_t *value = json_loadb(strbuf_str(&text), text.len, JSON_DECODE_ANY, &e);
            const char *wrong = value ? instance_error(schema, schema, value) : e.text;
            if (wrong) print_error("%s\n%s\n%s\n", schemas[i], strbuf_str(&text), wrong);
            assert_null(wrong);
            json_decref(value);
            strbuf_free(&text);
        }
        json_decref(schema);
        grammar_free(g);
    }
}

/* ---- masks ---- */

/* For each id: it is in the mask if and only if the grammar takes it. */
static void check_mask(const Grammar *g, GrammarAnswer *a, int node, const StrBuf *text)
{
    Constraint c = grammar_constraint(a);
    c.allowed(a, node, grammar_case->mask);
    for (int32_t id = 0; id < grammar_case->n_vocab; id++) {
        int takes =
            tokenizer_has(grammar_case->tok, id) && c.step(a, node, id, CASE_NODES - 1) == 0;
        if (takes != mask_has(grammar_case->mask, id))
            print_error("%llu: token %d %s behind %s\n", (unsigned long long)g->id, (int)id,
                        takes ? "is masked" : "is let through", strbuf_str(text));
        assert_int_equal(takes, mask_has(grammar_case->mask, id));
    }
}

static void test_masks(void **state)
{
    uint64_t seed = 5;
    (void)state;
    for (int i = 0; i < N_SCHEMAS; i++) {
        Grammar *g = grammar(i);
        for (int n = 0; n < 2; n++) {
            GrammarAnswer a = answer_of(grammar_case, g, 0);
            Constraint c = grammar_constraint(&a);
            StrBuf text = {0};
            for (int at = 0; at < 25; at++) {
                check_mask(g, &a, 0, &text);
                c.allowed(&a, 0, grammar_case->mask);
                int32_t id = pick(&seed, grammar_case->mask, 0);
                if (id < 0 || id == grammar_case->end) break;
                assert_int_equal(c.step(&a, 0, id, 0), 0);
                add_bytes(&text, id);
            }
            strbuf_free(&text);
        }
        grammar_free(g);
    }
}

/*
 * Along strings with bounds, from where these are further away than a token is long to where they
 * are met: masks say what steps do, those of states that others stand for and of long tokens too.
 */
static void test_masks_of_bounds(void **state)
{
    static const char *const bounded[][2] = {
        {"{'type':'string','minLength':38,'maxLength':84}", "\""},
        {"{'type':'string','minLength':79}", "\""},
        {"{'type':'string','maxLength':90,'pattern':'^[a-y]*(xyz){0,2}$'}", "\""},
        {"{'type':'string','maxLength':95,'pattern':'^[a-z]{90,}$'}", "\""},
        {"{'type':'string','pattern':'^.{60,85}$'}", "\""},
        {"{'type':'string','pattern':'^([a-z ]|aa!){0,80}$'}", "\""},
        {"{'type':'array','items':{'type':'string','maxLength':40},'maxItems':2}", "[\""},
        {"{'type':'object'}", "{\""},
        {"{'type':'object','properties':{'abbabbabbabbabbabbabbabbabbabbabba':{},'abba':{}}}",
         "{\""},
    };
    (void)state;
    for (size_t i = 0; i < sizeof bounded / sizeof *bounded; i++) {
        Error err = {0};
        Grammar *g = grammar_of(bounded[i][0], 1, &err);
        if (!g) fail_msg("%s", err.msg);
        GrammarAnswer a = answer_of(grammar_case, g, 0);
        Constraint c = grammar_constraint(&a);
        StrBuf text = {0};
        int n = 0, rc = 0;
        for (const char *at = bounded[i][1]; *at; at++)
            assert_int_equal(c.step(&a, 0, grammar_case->byte[(unsigned char)*at], 0), 0);
        for (; n < 100 && !rc; n++) {
            check_mask(g, &a, 0, &text);
            strbuf_puts(&text, n % 3 ? "b" : "a");
            rc = c.step(&a, 0, grammar_case->byte[(unsigned char)text.data[n]], 0);
        }
        assert_true(n > 40);
        strbuf_free(&text);
        grammar_free(g);
    }
}

/* Strings that come back to different calls, each by other letters: none gets another's way. */
static void test_masks_of_ends(void **state)
{
    Error err = {0};
    (void)state;
    Grammar *g = grammar_of("{'anyOf':[{'type':'array','maxItems':4,'items':{'type':'string',"
                            "'pattern':'^[a-cx-z]*$'}},{'type':'array','maxItems':5,'items':"
                            "{'type':'string','pattern':'^[m-p]*$'}}]}",
                            1, &err);
    if (!g) fail_msg("%s", err.msg);
    GrammarAnswer a = answer_of(grammar_case, g, 0);
    Constraint c = grammar_constraint(&a);
    StrBuf text = {0};
    for (const char *at = "[\""; *at; at++) {
        assert_int_equal(c.step(&a, 0, grammar_case->byte[(unsigned char)*at], 0), 0);
        strbuf_add(&text, at, 1);
    }
    check_mask(g, &a, 0, &text);
    strbuf_free(&text);
    grammar_free(g);
}

/* Many grammars whose states look alike: none gets what another's mask was. */
static void test_masks_of_many(void **state)
{
    (void)state;
    for (int i = 0; i < 200; i++) {
        Error err = {0};
        Grammar *g = grammar_of("{'type':'string','pattern':'^\\u0022\\\\\\\\$'}", 1, &err);
        assert_non_null(g);
        GrammarAnswer a = answer_of(grammar_case, g, 0);
        Constraint c = grammar_constraint(&a);
        StrBuf text = {0};
        for (const char *at = "\"\\\"\\\\"; *at; at++) {
            strbuf_add(&text, at, 1);
            assert_int_equal(c.step(&a, 0, grammar_case->byte[(unsigned char)*at], 0), 0);
            check_mask(g, &a, 0, &text);
        }
        strbuf_free(&text);
        grammar_free(g);
    }
}

/* At the deepest level nothing begins that would need another one. */
static void test_deepest_level(void **state)
{
    Error err = {0};
    (void)state;
    for (int offset = 0; offset < 2; offset++) {
        const char *n = "{'type':'object','properties':{'c':{'type':'array','items':{'$ref':"
                        "'#/$defs/n'}}},'required':['c'],'additionalProperties':false}";
        char schema[600];
        snprintf(schema, sizeof schema,
                 "{'$ref':'#/$defs/%c','$defs':{'n':%s,'m':{'type':'array',"
                 "'items':{'$ref':'#/$defs/n'}}}}",
                 offset ? 'm' : 'n', n);
        Grammar *g = grammar_of(schema, 1, &err);
        assert_non_null(g);
        GrammarAnswer a = answer_of(grammar_case, g, 0);
        Constraint c = grammar_constraint(&a);
        static const char deeper[] = "[{\"c\":";
        int at = offset ? 0 : 1, n_more = 0;
        while (!c.step(&a, 0, grammar_case->byte[(unsigned char)deeper[at]], 1)) {
            c.step(&a, 0, grammar_case->byte[(unsigned char)deeper[at]], 0);
            at = (at + 1) % 6;
            n_more++;
        }
        assert_int_equal(at, 1); /* in a list, which may be empty */
        assert_true(n_more > 150);
        assert_int_equal(c.step(&a, 0, grammar_case->byte[']'], 0), 0);
        grammar_free(g);
    }
}

/* There a name that would need one does not begin, be it declared or not. */
static void test_deepest_names(void **state)
{
    static const char *const lists[] = {
        "{'type':'object','properties':{'v':{'$ref':'#'},'w':{'type':'null'}},"
        "'additionalProperties':false}",
        "{'type':'object','properties':{'v':{'$ref':'#'},'w':{'type':'null'}},"
        "'additionalProperties':{'$ref':'#'}}"};
    static const char deeper[] = "{\"v\":", last[] = "{\"";
    (void)state;
    for (int i = 0; i < 2; i++) {
        Error err = {0};
        Grammar *g = grammar_of(lists[i], 1, &err);
        assert_non_null(g);
        GrammarAnswer a = answer_of(grammar_case, g, 0);
        Constraint c = grammar_constraint(&a);
        for (int level = 1; level < MAX_GRAMMAR_LEVELS; level++)
            for (const char *at = deeper; *at; at++)
                assert_int_equal(c.step(&a, 0, grammar_case->byte[(unsigned char)*at], 0), 0);
        for (const char *at = last; *at; at++)
            assert_int_equal(c.step(&a, 0, grammar_case->byte[(unsigned char)*at], 0), 0);
        assert_int_equal(c.step(&a, 0, grammar_case->byte['v'], 1), -1);
        assert_int_equal(c.step(&a, 0, grammar_case->byte['x'], 1), -1);
        assert_int_equal(c.step(&a, 0, grammar_case->byte['w'], 1), 0);
        grammar_free(g);
    }
}

/* ---- trees ---- */

enum { TREE = CASE_NODES };

/* The mask behind the tokens on the way to a node, computed on their own as another sequence. */
static void mask_alone(const Grammar *g, const int32_t *kept, int n_kept, const int32_t *parent,
                       const int32_t *token, int node)
{
    int32_t path[TREE];
    int depth = 0;
    for (int i = node; i > 0; i = parent[i])
        path[depth++] = token[i];
    GrammarAnswer a = answer_of(grammar_case, g, 1);
    Constraint c = grammar_constraint(&a);
    for (int i = 0; i < n_kept; i++)
        assert_int_equal(c.step(&a, 0, kept[i], 0), 0);
    while (depth--)
        assert_int_equal(c.step(&a, 0, path[depth], 0), 0);
    c.allowed(&a, 0, grammar_case->allowed);
}

/* Trees by chance, of which a path is kept, over and over: each node's mask is that of its path. */
static void test_forks(void **state)
{
    uint64_t seed = 3;
    (void)state;
    for (int s = 0; s < N_SCHEMAS; s++) {
        Grammar *g = grammar(s);
        GrammarAnswer a = answer_of(grammar_case, g, 0);
        Constraint c = grammar_constraint(&a);
        int32_t kept[256], n_kept = 0;
        for (int round = 0; round < 6; round++) {
            int32_t parent[TREE] = {-1}, token[TREE] = {0};
            int n = 1;
            for (int i = 1; i < TREE; i++) {
                parent[n] = (int32_t)(random_next(&seed) % (uint64_t)n);
                c.allowed(&a, parent[n], grammar_case->mask);
                token[n] = pick(&seed, grammar_case->mask, 0);
                if (token[n] < 0 || token[n] == grammar_case->end) continue;
                assert_int_equal(c.step(&a, parent[n], token[n], n), 0);
                n++;
            }
            int last = n - 1, depth = 0;
            for (int i = 0; i < n; i++) {
                c.allowed(&a, i, grammar_case->mask);
                mask_alone(g, kept, n_kept, parent, token, i);
                assert_memory_equal(grammar_case->mask, grammar_case->allowed,
                                    grammar_case->n_words * sizeof *grammar_case->mask);
            }
            if (last == 0) break;
            for (int i = last; i > 0; i = parent[i])
                depth++;
            n_kept += depth;
            for (int i = last, at = n_kept; i > 0; i = parent[i])
                kept[--at] = token[i];
            assert_int_equal(c.step(&a, parent[last], token[last], 0), 0);
        }
        grammar_free(g);
    }
}

/* A list of lists of numbers, in n ways that are told apart late: all of them are followed at once.
 */
static Grammar *grammar_of_many_ways(int n)
{
    StrBuf text = {0};
    Error err = {0};
    for (int i = 0; i < n; i++)
        strbuf_printf(&text,
                      "%s{'type':'array','minItems':9,'items':{'type':'array','items':{'type':"
                      "'integer','minimum':0,'maximum':%d},'maxItems':3}}",
                      i ? "," : "{'anyOf':[", 1000000 + i);
    strbuf_puts(&text, "]}");
    Grammar *g = grammar_of(text.data, 1, &err);
    if (!g) fail_msg("%s", err.msg);
    strbuf_free(&text);
    return g;
}

/*
 * Of many ways at once each draft's state is large; all the same it is that of its path, however
 * many others there are. The same grammar compiled again has masks of its own.
 */
static void test_many_ways(void **state)
{
    uint64_t seed = 7;
    (void)state;
    Grammar *g = grammar_of_many_ways(80), *other = grammar_of_many_ways(80);
    GrammarAnswer a = answer_of(grammar_case, g, 0);
    Constraint c = grammar_constraint(&a);
    int32_t kept[] = {grammar_case->byte['[']}, parent[TREE] = {-1}, token[TREE] = {0};
    int n = 1;
    assert_int_equal(c.step(&a, 0, kept[0], 0), 0);
    for (int i = 0; i < 400 && n < TREE; i++) {
        parent[n] = (int32_t)(random_next(&seed) % (uint64_t)n);
        c.allowed(&a, parent[n], grammar_case->mask);
        token[n] = pick(&seed, grammar_case->mask, 0);
        n += !c.step(&a, parent[n], token[n], n);
    }
    assert_true(n > 10);
    for (int i = 0; i < n; i++) {
        c.allowed(&a, i, grammar_case->mask);
        mask_alone(other, kept, 1, parent, token, i);
        assert_memory_equal(grammar_case->mask, grammar_case->allowed,
                            grammar_case->n_words * sizeof *grammar_case->mask);
    }
    grammar_free(g);
    grammar_free(other);
}

/* ---- many ways ---- */

/* anyOf of n objects, each with a string k and a number of its own; first is the string's schema.
 */
static Grammar *objects_of(const char *first, int n, Error *err)
{
    StrBuf text = {0};
    for (int i = 0; i < n; i++)
        strbuf_printf(&text,
                      "%s{'type':'object','properties':{'k':%s,'z%d':{'type':'integer'}},"
                      "'required':['k','z%d'],'additionalProperties':false}",
                      i ? "," : "{'anyOf':[", first, i, i);
    strbuf_puts(&text, "]}");
    Grammar *g = grammar_of(text.data, 1, err);
    strbuf_free(&text);
    return g;
}

static Grammar *strings_told_apart(int n)
{
    StrBuf text = {0};
    Error err = {0};
    add_strings_told_apart(&text, n, "'maxLength':1000");
    Grammar *g = grammar_of(text.data, 1, &err);
    if (!g) fail_msg("%s", err.msg);
    strbuf_free(&text);
    return g;
}

/* Of many alternatives the last is followed as the first. */
static void test_last_way(void **state)
{
    Error err = {0};
    (void)state;
    Grammar *g = objects_of("{'type':'string'}", MAX_GRAMMAR_WAYS, &err);
    assert_non_null(g);
    assert_int_equal(grammar_takes(grammar_case, g, "{\"k\": \"a\", \"z0\": 1}"), 1);
    assert_int_equal(grammar_takes(grammar_case, g, "{\"k\": \"a\", \"z1023\": 1}"), 1);
    assert_int_equal(grammar_takes(grammar_case, g, "{\"k\": \"a\", \"z1024\": 1}"), 0);
    grammar_free(g);
}

static void test_too_many_ways(void **state)
{
    Error err = {0};
    (void)state;
    assert_null(objects_of("{'type':'string'}", MAX_GRAMMAR_WAYS + 1, &err));
    assert_int_equal(err.code, ERR_LIMIT);
    assert_non_null(strstr(err.msg, "schema: there are more than 1024 alternatives"));
}

/* Schemas of which each is two ways to the next: 2^n in all. */
static Grammar *doubled(int n, Error *err)
{
    StrBuf text = {0};
    strbuf_puts(&text, "{'$ref':'#/$defs/d0','$defs':{");
    for (int i = 0; i < n; i++)
        strbuf_printf(&text, "'d%d':{'anyOf':[{'$ref':'#/$defs/d%d'},{'$ref':'#/$defs/d%d'}]},", i,
                      i + 1, i + 1);
    strbuf_printf(&text, "'d%d':{'type':'null'}}}", n);
    Grammar *g = grammar_of(text.data, 1, err);
    strbuf_free(&text);
    return g;
}

/* Lists of lists of nulls, which may be of n lengths. */
static Grammar *lists_of(int n, Error *err)
{
    StrBuf text = {0};
    strbuf_puts(&text, "{'type':'array','items':{'anyOf':[{'anyOf':[");
    for (int i = 0; i < n; i++)
        strbuf_printf(&text, "%s{'type':'array','items':{'type':'null'},'minItems':%d}",
                      !i         ? ""
                      : i % 1000 ? ","
                                 : "]},{'anyOf':[",
                      i % 1000);
    strbuf_puts(&text, "]}]}}");
    Grammar *g = grammar_of(text.data, 1, err);
    strbuf_free(&text);
    return g;
}

/* Ways that cannot all be followed are an error: where the answer begins, or when it gets there. */
static void test_ways_cut(void **state)
{
    Error err = {0};
    (void)state;
    Grammar *g = doubled(8, &err);
    assert_int_equal(grammar_takes(grammar_case, g, "null"), 1);
    grammar_free(g);
    assert_null(doubled(25, &err));
    assert_int_equal(err.code, ERR_LIMIT);
    if (!strstr(err.msg, "more ways than can be followed")) fail_msg("%s", err.msg);
    g = lists_of(MAX_GRAMMAR_THREADS, &err);
    if (!g) fail_msg("%s", err.msg);
    GrammarAnswer a = answer_of(grammar_case, g, 0);
    Constraint c = grammar_constraint(&a);
    int32_t bracket = grammar_case->byte['['];
    assert_int_equal(c.allowed(&a, 0, grammar_case->mask), 0);
    assert_true(mask_has(grammar_case->mask, bracket));
    assert_int_equal(c.step(&a, 0, bracket, 1), CONSTRAINT_FULL);
    assert_int_equal(c.step(&a, 0, bracket, 0), CONSTRAINT_FULL);
    assert_int_equal(c.allowed(&a, 0, grammar_case->mask), -1);
    grammar_free(g);
}

/* Lists in lists in three ways each: as many are followed at any depth. */
static void test_ambiguous_nesting(void **state)
{
    enum { DEEP = 60 };
    Error err = {0};
    (void)state;
    Grammar *g = grammar_of("{'anyOf':[{'type':'array','items':{'$ref':'#'}},{'type':'array',"
                            "'items':{'$ref':'#'},'maxItems':2},{'type':'array','items':{'$ref':"
                            "'#'},'maxItems':5},{'type':'null'}]}",
                            1, &err);
    assert_non_null(g);
    StrBuf text = {0};
    for (int i = 0; i < DEEP; i++)
        strbuf_puts(&text, "[null, null, null, ");
    strbuf_puts(&text, "[]");
    for (int i = 0; i < DEEP; i++)
        strbuf_puts(&text, "]");
    assert_int_equal(grammar_takes(grammar_case, g, text.data), 1);
    strbuf_free(&text);
    grammar_free(g);
}

/* ---- steps ---- */

typedef struct {
    GrammarWalk walk;
    GrammarState state, next;
} Walked;

/* Behind text. */
static Walked *walk_to(const Grammar *g, const char *text)
{
    Walked *k = mem_alloc(1, sizeof *k);
    k->walk = (GrammarWalk){.g = g,
                            .frame = mem_alloc(MAX_GRAMMAR_FRAMES, sizeof *k->walk.frame),
                            .n_frames = 1,
                            .finder = grammar_finder_open(),
                            .most_steps = UINT64_MAX};
    k->walk.most = MAX_TOKEN_FRAMES;
    grammar_begin(&k->walk, g->start, &k->state);
    for (; *text; text++) {
        grammar_byte(&k->walk, &k->state, (uint8_t)*text, &k->next);
        grammar_copy(&k->state, &k->next);
    }
    k->walk.most = k->walk.n_frames + MAX_TOKEN_FRAMES;
    k->walk.n_steps = 0;
    return k;
}

static void walk_free(Walked *k)
{
    grammar_finder_close(k->walk.finder);
    mem_free(k->walk.frame);
    mem_free(k);
}

/* Strings alike are one thread, though each goes on in its own way; its mask takes as many steps.
 */
static void test_strings_alike(void **state)
{
    enum { MANY = 500 };
    static const char *const strings[] = {"{'type':'string'}",
                                          "{'type':'string','pattern':'^[^0]*$'}"};
    Error err = {0};
    GrammarMasks *m = grammar_masks_open(grammar_case->vocab, &err);
    (void)state;
    for (int i = 0; i < 2; i++) {
        uint64_t n_steps[2];
        for (int k = 0; k < 2; k++) {
            Grammar *g = objects_of(strings[i], k ? MANY : 1, &err);
            Walked *in = walk_to(g, "{\"k\": \"ab");
            assert_int_equal(in->state.n, 1);
            assert_int_equal(grammar_mask(m, &in->walk, &in->state, grammar_case->mask), 0);
            n_steps[k] = in->walk.n_steps;
            walk_free(in);
            grammar_free(g);
        }
        assert_true(n_steps[1] < n_steps[0] + 100 * MANY);
    }
    grammar_masks_close(m);
}

/* The mask of a state is kept, however many threads it has. */
static void test_large_masks_are_kept(void **state)
{
    Error err = {0};
    (void)state;
    Grammar *g = objects_of("{'type':'string'}", 1000, &err);
    GrammarMasks *m = grammar_masks_open(grammar_case->vocab, &err);
    Walked *in = walk_to(g, "{");
    assert_true(in->state.n > 1000);
    assert_int_equal(grammar_mask(m, &in->walk, &in->state, grammar_case->mask), 0);
    assert_true(in->walk.n_steps > 1000);
    in->walk.n_steps = 0;
    assert_int_equal(grammar_mask(m, &in->walk, &in->state, grammar_case->allowed), 0);
    assert_int_equal(in->walk.n_steps, 0);
    assert_memory_equal(grammar_case->mask, grammar_case->allowed,
                        grammar_case->n_words * sizeof *grammar_case->mask);
    walk_free(in);
    grammar_masks_close(m);
    grammar_free(g);
}

static int has_mask_in(GrammarMasks *m, Walked *in, uint64_t most_steps)
{
    in->walk.most_steps = most_steps;
    return grammar_mask(m, &in->walk, &in->state, grammar_case->mask) == 0;
}

/* As many steps are enough for a mask beside one of near tokens that is kept as for the first. */
static void test_steps_beside_kept_masks(void **state)
{
    enum { MANY = 1000 };
    StrBuf text = {0};
    Error err = {0};
    uint64_t too_few = 0, enough = 1 << 20;
    (void)state;
    /* behind the string's end only a long token takes many steps */
    for (int i = 0; i < MANY; i++)
        strbuf_printf(&text,
                      "%s{'type':'array','prefixItems':[{'type':'string','maxLength':80},{'enum':["
                      "'bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb%d']}],'minItems':2,'items':false}",
                      i ? "," : "{'anyOf':[", i);
    strbuf_puts(&text, "]}");
    Grammar *g = grammar_of(text.data, 1, &err);
    if (!g) fail_msg("%s", err.msg);
    Walked *in = walk_to(g, "[\"");
    while (enough - too_few > 1) {
        GrammarMasks *m = grammar_masks_open(grammar_case->vocab, &err);
        uint64_t most = (too_few + enough) / 2;
        *(has_mask_in(m, in, most) ? &enough : &too_few) = most;
        grammar_masks_close(m);
    }
    GrammarMasks *m = grammar_masks_open(grammar_case->vocab, &err);
    assert_true(has_mask_in(m, in, enough));
    assert_true(has_mask_in(m, in, enough));
    grammar_masks_close(m);
    walk_free(in);
    grammar_free(g);
    strbuf_free(&text);
}

/* A mask that takes too many steps is none, the root's or a draft's; the state is there. */
static void test_too_many_steps(void **state)
{
    (void)state;
    Grammar *g = strings_told_apart(600);
    GrammarAnswer a = answer_of(grammar_case, g, 0);
    Constraint c = grammar_constraint(&a);
    assert_int_equal(c.allowed(&a, 0, grammar_case->mask), 0);
    assert_int_equal(c.step(&a, 0, grammar_case->byte['"'], 1), 0);
    assert_int_equal(c.allowed(&a, 1, grammar_case->mask), -1);
    assert_int_equal(c.step(&a, 0, grammar_case->byte['"'], 0), 0);
    assert_int_equal(c.allowed(&a, 0, grammar_case->mask), -1);
    grammar_free(g);
}

/* The other sequence's masks take the place of all that are kept. */
static void forget_masks(void)
{
    enum { MANY = 1500 };
    Error err = {0};
    Grammar *g = grammar_of("{'type':'string','maxLength':4000}", 1, &err);
    GrammarAnswer a = answer_of(grammar_case, g, 1);
    Constraint c = grammar_constraint(&a);
    assert_int_equal(c.step(&a, 0, grammar_case->byte['"'], 0), 0);
    for (int i = 0; i < MANY; i++) {
        assert_int_equal(c.allowed(&a, 0, grammar_case->allowed), 0);
        assert_int_equal(c.step(&a, 0, grammar_case->byte['a'], 0), 0);
    }
    grammar_free(g);
}

/* The masks of a tree's drafts have together as many steps as one. What was made may be again. */
static void test_steps_of_drafts(void **state)
{
    (void)state;
    Grammar *g = strings_told_apart(120);
    GrammarAnswer a = answer_of(grammar_case, g, 0);
    Constraint c = grammar_constraint(&a);
    int32_t letter = grammar_case->byte['a'];
    int n = 1;
    assert_int_equal(c.step(&a, 0, grammar_case->byte['"'], 0), 0);
    for (int round = 0; round < 3; round++) {
        assert_int_equal(c.allowed(&a, 0, grammar_case->mask), 0);
        for (n = 1; n < TREE; n++) {
            assert_int_equal(c.step(&a, n - 1, letter, n), 0);
            if (c.allowed(&a, n, grammar_case->mask)) break;
        }
        assert_in_range(n, 2, 8);
        forget_masks();
        assert_int_equal(c.allowed(&a, 1, grammar_case->mask), 0);
        for (int i = 0; i <= n; i++)
            assert_int_equal(c.step(&a, 0, letter, 0), 0);
    }
    grammar_free(g);
}

/* Objects in 1000 ways, each with a list of strings that may be of other types as well. */
static Grammar *lists_of_many_ways(Error *err)
{
    StrBuf text = {0};
    for (int i = 0; i < 1000; i++)
        strbuf_printf(&text,
                      "%s{'type':'object','properties':{'k':{'type':'array','items':{'$ref':"
                      "'#/$defs/c'}},'z%d':{'type':'integer'}},'required':['k','z%d'],"
                      "'additionalProperties':false}",
                      i ? "," : "{'anyOf':[", i, i);
    strbuf_puts(&text, "],'$defs':{'a':{'anyOf':[{'type':'string'},{'type':'null'}]},"
                       "'b':{'anyOf':[{'$ref':'#/$defs/a'},{'type':'boolean'}]},"
                       "'c':{'anyOf':[{'$ref':'#/$defs/b'},{'type':'integer'}]}}}");
    Grammar *g = grammar_of(text.data, 1, err);
    strbuf_free(&text);
    return g;
}

/*
 * The root's mask takes no more steps beside drafts that have taken all the room there is: in a
 * vocabulary of the usual size they would be too many.
 */
static void test_root_beside_drafts(void **state)
{
    Error err = {0};
    Tokenizer *tok = open_big_tokenizer();
    assert_non_null(tok);
    int32_t end = tokenizer_added_id(tok, "<|im_end|>");
    int n_vocab = tokenizer_size(tok), n = 1;
    GrammarVocab *vocab = grammar_vocab_open(tok, n_vocab, &end, 1);
    GrammarCase big = {.pool = grammar_pool_open(vocab, 1, TREE, &err)};
    uint64_t *mask = mem_alloc(((size_t)n_vocab + 63) / 64, sizeof *mask);
    (void)state;
    Grammar *g = lists_of_many_ways(&err);
    assert_non_null(g);
    GrammarAnswer a = answer_of(&big, g, 0);
    Constraint c = grammar_constraint(&a);
    for (const char *at = "{\"k\": [\""; *at; at++)
        assert_int_equal(c.step(&a, 0, byte_token(tok, (unsigned char)*at), 0), 0);
    for (int parent = 0; parent < n; parent++)
        for (const char *at = "\",] a"; *at && n < TREE; at++)
            n += !c.step(&a, parent, byte_token(tok, (unsigned char)*at), n);
    assert_int_equal(c.allowed(&a, 0, mask), 0);
    grammar_free(g);
    mem_free(mask);
    grammar_pool_close(big.pool);
    grammar_vocab_close(vocab);
    tokenizer_close(tok);
}

static int only_the_end(GrammarAnswer *a)
{
    Constraint c = grammar_constraint(a);
    int n = 0;
    c.allowed(a, 0, grammar_case->mask);
    for (int32_t id = 0; id < grammar_case->n_vocab; id++)
        n += mask_has(grammar_case->mask, id);
    return n == 1 && mask_has(grammar_case->mask, grammar_case->end);
}

/* What may not come leaves no state, and no trace in others. */
static void test_wrong_drafts(void **state)
{
    (void)state;
    Grammar *g = grammar(6);
    GrammarAnswer a = answer_of(grammar_case, g, 0);
    Constraint c = grammar_constraint(&a);
    assert_int_equal(c.step(&a, 0, grammar_case->byte['x'], 1), -1);
    assert_int_equal(c.step(&a, 1, grammar_case->byte['1'], 2), -1);
    assert_int_equal(c.step(&a, 0, grammar_case->end, 3), -1);
    assert_int_equal(c.step(&a, 0, grammar_case->n_vocab - 1, 3), -1);
    assert_int_equal(c.step(&a, 0, grammar_case->byte['3'], 4), 0);
    assert_int_equal(c.step(&a, 4, grammar_case->byte['1'], 0), 0);
    assert_true(only_the_end(&a)); /* 31 is the most */
    grammar_free(g);
}

/* Lists in lists, deeper than may be: they end in time. */
static void test_nesting(void **state)
{
    (void)state;
    Grammar *g = grammar(0);
    GrammarAnswer a = answer_of(grammar_case, g, 0);
    Constraint c = grammar_constraint(&a);
    int n = 0;
    while (n < 1000 && c.step(&a, 0, grammar_case->byte['['], 1) == 0) {
        assert_int_equal(c.step(&a, 0, grammar_case->byte['['], 0), 0);
        n++;
    }
    assert_int_equal(n, 64);
    assert_int_equal(c.step(&a, 0, grammar_case->byte['{'], 1), -1);
    assert_int_equal(c.step(&a, 0, grammar_case->byte['1'], 0), 0);
    while (n--)
        assert_int_equal(c.step(&a, 0, grammar_case->byte[']'], 0), 0);
    assert_true(only_the_end(&a));
    grammar_free(g);
}

/* Nothing is allocated once an answer begins. */
static void test_no_allocation(void **state)
{
    (void)state;
    Grammar *g = grammar(8);
    GrammarAnswer a = {.grammar = g, .pool = grammar_case->pool};
    Constraint c = grammar_constraint(&a);
    unsigned long before = mem_count();
    c.begin(&a, 0);
    for (const char *at = "{\"name\": \"x\", \"tags\": [\"a\"]}"; *at; at++) {
        c.allowed(&a, 0, grammar_case->mask);
        assert_int_equal(c.step(&a, 0, grammar_case->byte[(unsigned char)*at], 1), 0);
        assert_int_equal(c.step(&a, 0, grammar_case->byte[(unsigned char)*at], 0), 0);
    }
    assert_true(only_the_end(&a));
    assert_int_equal(mem_count(), before);
    grammar_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_instances),          cmocka_unit_test(test_masks),
        cmocka_unit_test(test_masks_of_bounds),    cmocka_unit_test(test_masks_of_ends),
        cmocka_unit_test(test_masks_of_many),      cmocka_unit_test(test_deepest_level),
        cmocka_unit_test(test_deepest_names),      cmocka_unit_test(test_forks),
        cmocka_unit_test(test_wrong_drafts),       cmocka_unit_test(test_nesting),
        cmocka_unit_test(test_no_allocation),      cmocka_unit_test(test_many_ways),
        cmocka_unit_test(test_last_way),           cmocka_unit_test(test_too_many_ways),
        cmocka_unit_test(test_ways_cut),           cmocka_unit_test(test_ambiguous_nesting),
        cmocka_unit_test(test_strings_alike),      cmocka_unit_test(test_large_masks_are_kept),
        cmocka_unit_test(test_too_many_steps),     cmocka_unit_test(test_steps_of_drafts),
        cmocka_unit_test(test_root_beside_drafts), cmocka_unit_test(test_steps_beside_kept_masks),
    };
    return cmocka_run_group_tests(tests, grammar_case_open, grammar_case_close);
}
