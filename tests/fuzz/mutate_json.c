/*
 * mutate_json.c: see fuzz.h.
 *
 * Bytes changed at random are hardly ever JSON, so they test jansson and not us. Here the input is
 * parsed, a few places in it are changed, and it is written again; every fourth time, and when it
 * does not parse, libFuzzer's own mutations are used.
 */
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

static const char *const values[] = {
    "null",
    "true",
    "false",
    "0",
    "1",
    "-1",
    "2",
    "9223372036854775807",
    "-9223372036854775808",
    "0.5",
    "-0.0",
    "1e-320",
    "1e308",
    "\"\"",
    "\"0\"",
    "\"\\u0000\"",
    "\"\\u00e9\\u0301\\ud83d\\ude00\"",
    "\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"",
    "[]",
    "{}",
    "[[[[]]]]",
    "[\"a\",1]",
    "{\"a\":{}}",
};

static uint64_t state;

static size_t below(size_t n)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return n ? (size_t)(state >> 11) % n : 0;
}

/* One value in its container: under key of an object, or at index of an array. */
typedef struct {
    json_t *parent; /* NULL: the whole input */
    char key[64];
    size_t index;
    json_t *value;
} Place;

static size_t count(const json_t *v)
{
    size_t n = 1, i;
    const char *key;
    json_t *child;
    json_array_foreach(v, i, child) n += count(child);
    json_object_foreach((json_t *)(size_t)v, key, child) n += count(child);
    return n;
}

/* Walks to the value with number *left, depth first; 1 when *p is it. */
static int walk(json_t *v, size_t *left, Place *p)
{
    size_t i;
    const char *key;
    json_t *child;
    if (!*left) {
        p->value = v;
        return 1;
    }
    --*left;
    json_array_foreach(v, i, child)
    {
        Place at = {.parent = v, .index = i};
        if (!*left) *p = at;
        if (walk(child, left, p)) return 1;
    }
    json_object_foreach(v, key, child)
    {
        Place at = {.parent = v};
        strncpy(at.key, key, sizeof at.key - 1);
        if (!*left) *p = at;
        if (walk(child, left, p)) return 1;
    }
    return 0;
}

static Place choose(json_t *root)
{
    Place p = {0};
    size_t left = below(count(root));
    walk(root, &left, &p);
    return p;
}

/* A number or string that is near this one; else something quite different. */
static json_t *changed(const json_t *v, size_t max_size)
{
    if (json_is_integer(v) && below(4)) {
        uint64_t i = (uint64_t)json_integer_value(v), near = below(5) - 2;
        uint64_t power = (uint64_t)1 << below(64);
        const uint64_t next[] = {i + near, i * near, i * power, power + near};
        return json_integer((json_int_t)next[below(4)]);
    }
    if (json_is_string(v) && below(4)) {
        size_t len = json_string_length(v);
        uint8_t *text = mem_alloc(max_size, 1);
        if (len > max_size) len = max_size;
        memcpy(text, json_string_value(v), len);
        len = LLVMFuzzerMutate(text, len, max_size < 4 * len + 8 ? max_size : 4 * len + 8);
        json_t *string = json_stringn((char *)text, len);
        mem_free(text);
        if (string) return string;
    }
    return json_loads(values[below(sizeof values / sizeof *values)],
                      JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
}

/* Puts value, whose reference it takes, in the place of another. */
static void replace(const Place *p, json_t *value)
{
    if (json_is_array(p->parent))
        json_array_set_new(p->parent, p->index, value);
    else
        json_object_set_new(p->parent, p->key, value);
}

static void erase(const Place *p)
{
    if (json_is_array(p->parent))
        json_array_remove(p->parent, p->index);
    else
        json_object_del(p->parent, p->key);
}

static void change(json_t *root, size_t max_size)
{
    Place p = choose(root), other = choose(root);
    if (!p.parent || !other.value) return;
    json_t *copy = json_deep_copy(other.value);
    switch (below(7)) {
    case 0:
        erase(&p);
        break;
    case 1: /* the same value under another key, or twice in a list */
        if (json_is_array(p.parent))
            json_array_insert(p.parent, p.index, p.value);
        else
            json_object_set(p.parent, other.key, p.value);
        break;
    case 2:
        if (json_is_object(p.value) && other.key[0])
            json_object_set(p.value, other.key, copy);
        else if (json_is_array(p.value))
            json_array_append(p.value, copy);
        break;
    case 3:
        replace(&p, json_incref(copy));
        break;
    default:
        replace(&p, changed(p.value, max_size));
        break;
    }
    json_decref(copy);
}

size_t fuzz_mutate_json(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
    state = seed * 2654435761ULL + 1;
    json_t *root = json_loadb((const char *)data, size, JSON_ALLOW_NUL | JSON_DECODE_ANY, NULL);
    size_t len = 0, n = 1 + below(3);
    if (root && below(4)) {
        for (size_t i = 0; i < n; i++)
            change(root, max_size);
        len = json_dumpb(root, (char *)data, max_size, JSON_COMPACT | JSON_ENCODE_ANY);
    }
    json_decref(root);
    return len && len <= max_size ? len : LLVMFuzzerMutate(data, size, max_size);
}
