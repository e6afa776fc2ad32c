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
#include "tests/dfa_shape.h"
#include "tests/grammar_case.h"
#include "tests/instance.h"
#include "tests/textdata.h"
#include "text/grammar_mask.h"
#include "text/grammar_near.h"
#include "text/grammar_vocab.h"

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

/* alike[a][b]: what no string of up to n bytes tells apart, found the slow way. */
enum { NEAR_STATES = 48, NEAR_CLASSES = 2 };
static void tell_apart(const Dfa *d, const uint16_t *left, int n,
                       uint8_t alike[NEAR_STATES][NEAR_STATES])
{
    uint8_t before[NEAR_STATES][NEAR_STATES];
    for (int i = 0; i < NEAR_STATES * NEAR_STATES; i++)
        alike[i / NEAR_STATES][i % NEAR_STATES] =
            d->accepts[i / NEAR_STATES] == d->accepts[i % NEAR_STATES];
    for (; n > 0; n--) {
        memcpy(before, alike, sizeof before);
        for (int i = 0; i < NEAR_STATES * NEAR_STATES * NEAR_CLASSES; i++) {
            int a = i / NEAR_CLASSES / NEAR_STATES, b = i / NEAR_CLASSES % NEAR_STATES;
            int to_a = dfa_next(d, a, i % NEAR_CLASSES), to_b = dfa_next(d, b, i % NEAR_CLASSES);
            int ends_a = to_a == DFA_DEAD || left[to_a] == UINT16_MAX,
                ends_b = to_b == DFA_DEAD || left[to_b] == UINT16_MAX;
            alike[a][b] &= ends_a || ends_b ? ends_a == ends_b : before[to_a][to_b];
        }
    }
}

/* Chains with a few jumps: their states are told apart by strings of many lengths. */
static void test_near_states(void **state)
{
    (void)state;
    uint64_t seed = 11;
    uint16_t next[NEAR_STATES * NEAR_CLASSES], left[NEAR_STATES];
    uint8_t accepts[NEAR_STATES], alike[NEAR_STATES][NEAR_STATES];
    Dfa d = {.n_states = NEAR_STATES, .n_classes = NEAR_CLASSES, .next = next, .accepts = accepts};
    int n_merged = 0;
    for (int t = 0; t < 200; t++) {
        for (int i = 0; i < NEAR_STATES; i++) {
            accepts[i] = i == NEAR_STATES - 1 || random_next(&seed) % 40 == 0;
            left[i] = random_next(&seed) % 40 ? 1 : UINT16_MAX;
            for (int c = 0; c < NEAR_CLASSES; c++)
                next[i * NEAR_CLASSES + c] = (uint16_t)((i + 1) % NEAR_STATES);
            if (random_next(&seed) % 8 == 0)
                next[i * NEAR_CLASSES] = (uint16_t)(random_next(&seed) % NEAR_STATES);
            if (random_next(&seed) % 40 == 0) next[i * NEAR_CLASSES] = DFA_DEAD;
        }
        uint16_t *near = grammar_near_states(&d, left);
        tell_apart(&d, left, NEAR_BYTES, alike);
        for (int i = 0; i < NEAR_STATES; i++) {
            int first = 0;
            while (!alike[i][first])
                first++;
            assert_int_equal(near[i], first);
            n_merged += first < i;
        }
        mem_free(near);
    }
    assert_in_range(n_merged, 200, 200 * NEAR_STATES / 2);
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

/* ---- states ---- */

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
        cmocka_unit_test(test_instances),       cmocka_unit_test(test_masks),
        cmocka_unit_test(test_masks_of_bounds), cmocka_unit_test(test_near_states),
        cmocka_unit_test(test_masks_of_ends),   cmocka_unit_test(test_masks_of_many),
        cmocka_unit_test(test_deepest_level),   cmocka_unit_test(test_deepest_names),
        cmocka_unit_test(test_forks),           cmocka_unit_test(test_wrong_drafts),
        cmocka_unit_test(test_nesting),         cmocka_unit_test(test_no_allocation),
        cmocka_unit_test(test_many_ways),
    };
    return cmocka_run_group_tests(tests, grammar_case_open, grammar_case_close);
}
