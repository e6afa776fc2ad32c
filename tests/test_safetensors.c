/*
 * test_safetensors.c: files that tell the truth, and every way of lying that we could think of.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/strbuf.h"
#include "engine/safetensors.h"
#include "tests/checkpoint.h"

static void expect_error(Safetensors *st, const Error *err, const char *file, const char *says)
{
    if (st) fail_msg("loaded, expected: %s", says);
    if (!strstr(err->msg, says) || !strstr(err->msg, file))
        fail_msg("'%s' should say \"%s\" and name %s", err->msg, says, file);
}

static void test_small_file(void **state)
{
    (void)state;
    Error err = {0};
    const char *path = scratch_path(scratch_dir("safetensors"), "w.safetensors");
    scratch_safetensors(path,
                        "{\"__metadata__\":{\"format\":\"pt\"},"
                        "\"b\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[4,16]},"
                        "\"none\":{\"dtype\":\"F64\",\"shape\":[3,0],\"data_offsets\":[4,4]},"
                        "\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
                        "\"c\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[16,17]}}   ",
                        17);
    Safetensors *st = safetensors_open_file(path, &err);
    if (!st) fail_msg("%s", err.msg);
    assert_int_equal(safetensors_count(st), 4);
    assert_string_equal(safetensors_at(st, 0)->name, "a");
    assert_int_equal(safetensors_at(st, 0)->n_dims, 0);
    assert_int_equal(safetensors_at(st, 0)->bytes, 4);
    const Tensor *b = safetensors_find(st, "b");
    assert_ptr_equal(b, safetensors_at(st, 1));
    assert_int_equal(b->type, TENSOR_BF16);
    assert_int_equal(b->dim[0], 2);
    assert_int_equal(b->dim[1], 3);
    assert_int_equal(b->data - safetensors_find(st, "a")->data, 4);
    assert_string_equal(b->file, "w.safetensors");
    assert_int_equal(safetensors_find(st, "c")->type, TENSOR_U8);
    assert_int_equal(safetensors_find(st, "none")->bytes, 0);
    assert_null(safetensors_find(st, "__metadata__"));
    assert_null(safetensors_find(st, "ab"));
    safetensors_close(st);

    scratch_safetensors(path, "{}", 0);
    st = safetensors_open_file(path, &err);
    assert_non_null(st);
    assert_int_equal(safetensors_count(st), 0);
    assert_null(safetensors_find(st, "a"));
    safetensors_close(st);

    assert_string_equal(tensor_type_name(TENSOR_FP8_E4M3), "F8_E4M3");
    assert_string_equal(tensor_type_name(TENSOR_FP8_E8M0), "F8_E8M0");
    assert_string_equal(tensor_type_name(TENSOR_BOOL), "BOOL");
}

/* A tensor of each type, though few are of use. */
static void test_types(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int bytes;
    } types[] = {{"F32", 4},     {"BF16", 2}, {"F16", 2}, {"F8_E4M3", 1}, {"F8_E5M2", 1},
                 {"F8_E8M0", 1}, {"F64", 8},  {"C64", 8}, {"I64", 8},     {"I32", 4},
                 {"I16", 2},     {"I8", 1},   {"U64", 8}, {"U32", 4},     {"U16", 2},
                 {"U8", 1},      {"BOOL", 1}};
    const char *path = scratch_path(scratch_dir("safetensors"), "w.safetensors");
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        char header[96];
        Error err = {0};
        int bytes = 3 * types[i].bytes;
        snprintf(header, sizeof header,
                 "{\"x\":{\"dtype\":\"%s\",\"shape\":[3],\"data_offsets\":[0,%d]}}", types[i].name,
                 bytes);
        scratch_safetensors(path, header, (size_t)bytes);
        Safetensors *st = safetensors_open_file(path, &err);
        if (!st) fail_msg("%s", err.msg);
        assert_string_equal(tensor_type_name(safetensors_at(st, 0)->type), types[i].name);
        safetensors_close(st);
    }
}

/* A header for one tensor x; the data have 16 bytes. */
#define X(dtype, shape, range)                                                                     \
    "{\"x\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" range "}}"
#define F(name, range) "\"" name "\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":" range "}"

static const struct {
    const char *header, *says;
} lies[] = {
    {"[]", "header is not a JSON object"},
    {" {}", "header is not a JSON object"},
    {"", "header is not a JSON object"},
    {"{", "header byte"},
    {"{}{}", "header byte"},
    {"{\"x\":1,\"x\":2}", "duplicate"},
    {"{\"__metadata__\":[]}", "'__metadata__' must be an object"},
    {"{\"__metadata__\":{\"a\":1}}", "'__metadata__' must hold strings"},
    {"{\"x\":[]}", "'x': must be a JSON object"},
    {"{\"x\":{}}", "'x': has no dtype"},
    {X("7", "[4]", "[0,16]"), "'x': has no dtype"},
    {X("\"F33\"", "[4]", "[0,16]"), "'x': dtype is not a known one"},
    {X("\"F32\"", "4", "[0,16]"), "'x': has no shape"},
    {X("\"F32\"", "[-4]", "[0,16]"), "'x': shape must hold"},
    {X("\"F32\"", "[4.0]", "[0,16]"), "'x': shape must hold"},
    {X("\"F32\"", "[\"4\"]", "[0,16]"), "'x': shape must hold"},
    {X("\"F32\"", "[1,1,1,1,1,1,1,1,4]", "[0,16]"), "'x': has more than 8 dimensions"},
    {X("\"F32\"", "[4294967296,4294967296]", "[0,16]"), "'x': shape overflows"},
    {X("\"F32\"", "[4611686018427387905]", "[0,4]"), "'x': shape overflows"},
    {X("\"F32\"", "[99999999999999999999]", "[0,16]"), "header byte"},
    {X("\"F32\"", "[4]", "[0]"), "'x': data_offsets must be"},
    {X("\"F32\"", "[4]", "[0,16,16]"), "'x': data_offsets must be"},
    {X("\"F32\"", "[4]", "[0,\"16\"]"), "'x': data_offsets must be"},
    {X("\"F32\"", "[4]", "{}"), "'x': data_offsets must be"},
    {X("\"F32\"", "[4]", "[16,0]"), "'x': data_offsets run backwards"},
    {X("\"F32\"", "[4]", "[-16,0]"), "'x': data_offsets run backwards"},
    {X("\"F32\"", "[5]", "[0,20]"), "'x' ends at byte 20 of the data, the file has 16"},
    {X("\"F32\"", "[3]", "[0,16]"), "'x' has 16 bytes, its shape needs 12"},
    {X("\"BF16\"", "[4]", "[0,16]"), "'x' has 16 bytes, its shape needs 8"},
    {X("\"F32\"", "[2]", "[4,16]"), "'x' has 12 bytes, its shape needs 8"},
    {X("\"F32\"", "[3]", "[0,12]"), "its last 4 bytes belong to no tensor"},
    {X("\"F32\"", "[1,1,1,1,1,1,1,3]", "[0,12]"), "its last 4 bytes belong to no tensor"},
    {X("\"F32\"", "[3]", "[4,16]"), "4 bytes before tensor 'x' belong to no tensor"},
    {"{}", "its last 16 bytes belong to no tensor"},
    {"{" F("x", "[0,8]") "," F("y", "[4,12]") "}", "tensor 'y' overlaps 'x'"},
    {"{" F("x", "[0,8]") "," F("y", "[0,8]") "}", "overlaps"},
    {"{" F("y", "[8,16]") "," F("x", "[4,12]") "}", "4 bytes before tensor 'x'"},
};

static void test_lies(void **state)
{
    (void)state;
    const char *path = scratch_path(scratch_dir("safetensors"), "w.safetensors");
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        Error err = {0};
        scratch_safetensors(path, lies[i].header, 16);
        expect_error(safetensors_open_file(path, &err), &err, "'w.safetensors'", lies[i].says);
    }
    static const struct {
        const char *bytes, *says;
    } lengths[] = {
        {"\377\377\377\377\377\377\377\377{}", "the limit is 268435456"},
        {"\2\0\0\0\0\0\0\1{}", "header of 72057594037927938 bytes, the limit is"},
        {"version https:", "a pointer of Git LFS"},
        {"\1\0\0\20\0\0\0\0{}", "header of 268435457 bytes, the limit is"},
        {"\3\0\0\0\0\0\0\0{}", "ends inside its header"},
        {"\0\0\0\0\0\0\0\0{}", "not a JSON object"},
    };
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        Error err = {0};
        scratch_write(path, lengths[i].bytes, 10);
        expect_error(safetensors_open_file(path, &err), &err, "'w.safetensors'", lengths[i].says);
    }
}

/* A file of three tensors; its bytes, owned by the caller. */
static unsigned char *small_file(const char *path, size_t *size)
{
    scratch_safetensors(path,
                        "{\"__metadata__\":{\"format\":\"pt\"}," F("x", "[0,8]") "," F(
                            "y", "[8,16]") ",\"z\":{\"dtype\":\"F8_E4M3\",\"shape\":[1,2],"
                                           "\"data_offsets\":[16,18]}}",
                        18);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    unsigned char *bytes = mem_alloc(4096, 1);
    *size = fread(bytes, 1, 4096, f);
    fclose(f);
    return bytes;
}

static void test_truncated(void **state)
{
    (void)state;
    size_t size;
    const char *path = scratch_path(scratch_dir("safetensors"), "w.safetensors");
    unsigned char *bytes = small_file(path, &size);
    for (size_t n = 0; n <= size; n++) {
        Error err = {0};
        scratch_write(path, bytes, n);
        Safetensors *st = safetensors_open_file(path, &err);
        if (n < size)
            expect_error(st, &err, "w.safetensors", "");
        else
            assert_non_null(st);
        safetensors_close(st);
    }
    mem_free(bytes);
}

/* Flipped bits in length and header: an error or a table whose every byte can be read. */
static void test_flipped(void **state)
{
    (void)state;
    enum { ROUNDS = 4000 };
    unsigned seed = 1, n_loaded = 0;
    volatile unsigned sum = 0;
    size_t size;
    const char *path = scratch_path(scratch_dir("safetensors"), "w.safetensors");
    unsigned char *bytes = small_file(path, &size), *copy = mem_alloc(size, 1);
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    for (int round = 0; round < ROUNDS; round++) {
        memcpy(copy, bytes, size);
        for (int flips = 1 + rand_r(&seed) % 3; flips; flips--)
            copy[(size_t)rand_r(&seed) % (size - 18)] ^= (unsigned char)(1 << rand_r(&seed) % 8);
        Error err = {0};
        rewind(f); /* in place: thousands of new files would be slow */
        fwrite(copy, 1, size, f);
        fflush(f);
        Safetensors *st = safetensors_open_file(path, &err);
        if (!st && !*err.msg) fail_msg("round %d failed without a message", round);
        for (int i = 0; st && i < safetensors_count(st); i++)
            for (size_t b = 0; b < safetensors_at(st, i)->bytes; b++)
                sum += safetensors_at(st, i)->data[b];
        n_loaded += st != NULL;
        safetensors_close(st);
    }
    fclose(f);
    (void)sum; /* it was read for the sanitizers */
    assert_true(n_loaded > 0 && n_loaded < ROUNDS);
    mem_free(copy);
    mem_free(bytes);
}

/* The tensors in three shards, and their index. */
static void write_shards(const Checkpoint *c, const char *dir)
{
    FILE *f = fopen(scratch_path(dir, "model.safetensors.index.json"), "wb");
    assert_non_null(f);
    fprintf(f, "{\"metadata\":{\"total_size\":1},\"weight_map\":{");
    for (int i = 0; i < c->n; i++)
        fprintf(f, "%s\"%s\":\"s%d.safetensors\"", i ? "," : "", c->tensor[i].name, i % 3);
    fprintf(f, "}}");
    fclose(f);
    for (int i = 0; i < 3; i++) {
        char name[32];
        snprintf(name, sizeof name, "s%d.safetensors", i);
        checkpoint_write(c, scratch_path(dir, name), i, 3, 0);
    }
}

static void test_shards(void **state)
{
    (void)state;
    static const char golden[] = "tests/data/golden/qwen3-next";
    Checkpoint c;
    Error err = {0};
    const char *dir = scratch_dir("safetensors");
    checkpoint_read(&c, golden);
    write_shards(&c, dir);
    Safetensors *whole = safetensors_open(golden, &err), *parts = safetensors_open(dir, &err);
    if (!whole || !parts) fail_msg("%s", err.msg);
    assert_int_equal(safetensors_count(whole), safetensors_count(parts));
    for (int i = 0; i < safetensors_count(whole); i++) {
        const Tensor *a = safetensors_at(whole, i), *b = safetensors_find(parts, a->name);
        assert_ptr_equal(b, safetensors_at(parts, i));
        assert_int_equal(a->type, b->type);
        assert_int_equal(a->n_dims, b->n_dims);
        assert_memory_equal(a->dim, b->dim, sizeof a->dim);
        assert_int_equal(a->bytes, b->bytes);
        assert_memory_equal(a->data, b->data, a->bytes);
    }
    safetensors_close(whole);
    safetensors_close(parts);

    checkpoint_write(&c, scratch_path(dir, "s1.safetensors"), 0, 3, 0); /* the tensors of s0 */
    expect_error(safetensors_open(dir, &err), &err, "safetensors'", "is also in 's");
    unlink(scratch_path(dir, "s1.safetensors"));
    expect_error(safetensors_open(dir, &err), &err, "s1.safetensors", "cannot open");
    checkpoint_free(&c);
}

/* model.safetensors and an index: the file alone, unless the index has it and others. */
static void test_file_beside_index(void **state)
{
    (void)state;
    static const struct {
        const char *index;
        int n_files;
    } rows[] = {
        {"{\"weight_map\":{\"x\":\"model.safetensors\",\"y\":\"mtp\"}}", 2},
        {"{\"weight_map\":{\"y\":\"mtp\",\"x\":\"model.safetensors\"}}", 2},
        {"{\"weight_map\":{\"x\":\"model.safetensors\"}}", 1},
        {"{\"weight_map\":{\"z\":\"model.safetensors\"}}", 1},
        {"{\"weight_map\":{\"x\":\"model.safetensors\",\"y\":\"none\"}}", 1},
        {"{\"weight_map\":{\"x\":\"s1\",\"y\":\"s2\"}}", 1},
        {"{\"weight_map\":{\"y\":\"mtp\",\"z\":\"other\"}}", 1},
        {"{\"weight_map\":{\"x\":\"mtp\",\"y\":\"mtp\"}}", 1},
        {"{\"weight_map\":{\"x\":\"model.safetensors\",\"y\":\"../mtp\"}}", 1},
        {"{\"weight_map\":[\"x\"]}", 1},
        {"{", 1},
    };
    const char *dir = scratch_dir("safetensors");
    scratch_safetensors(scratch_path(dir, "model.safetensors"), "{" F("x", "[0,8]") "}", 8);
    scratch_safetensors(scratch_path(dir, "mtp"), "{" F("y", "[0,8]") "}", 8);
    scratch_safetensors(scratch_path(dir, "other"), "{" F("z", "[0,8]") "}", 8);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Error err = {0};
        scratch_write(scratch_path(dir, "model.safetensors.index.json"), rows[i].index,
                      strlen(rows[i].index));
        Safetensors *st = safetensors_open(dir, &err);
        if (!st) fail_msg("%s: %s", rows[i].index, err.msg);
        assert_int_equal(safetensors_shards(st), rows[i].n_files);
        assert_non_null(safetensors_find(st, "x"));
        assert_true(!!safetensors_find(st, "y") == (rows[i].n_files == 2));
        safetensors_close(st);
    }
}

/* The MTP head's own file is read, named by an index or not, where the others have no head. */
static void test_head_beside(void **state)
{
    (void)state;
    static const char
        one[] = "{\"weight_map\":{\"x\":\"a.safetensors\"}}",
        named[] = "{\"weight_map\":{\"x\":\"a.safetensors\",\"mtp.y\":\"mtp.safetensors\"}}",
        other[] = "{\"weight_map\":{\"x\":\"a.safetensors\",\"y\":\"mtp.safetensors\"}}";
    static const struct {
        const char *x, *index, *head, *y;
        int n_files;
    } rows[] = {
        {"model.safetensors", NULL, "mtp.safetensors", "mtp.y", 2},
        {"model.safetensors", NULL, "model_mtp.safetensors", "mtp.y", 2},
        {"model.safetensors", NULL, "model-mtp.safetensors", "language_model.mtp.y", 2},
        {"model.safetensors", NULL, "mtp-old.safetensors", "mtp.y", 1},
        {"a.safetensors", one, "mtp.safetensors", "mtp.y", 2},
        {"a.safetensors", named, "mtp.safetensors", "mtp.y", 2},
        {"a.safetensors", other, "mtp.safetensors", "y", 2},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char header[100];
        const char *dir = scratch_dir("safetensors"), *index = rows[i].index;
        scratch_safetensors(scratch_path(dir, rows[i].x), "{" F("x", "[0,8]") "}", 8);
        snprintf(header, sizeof header,
                 "{\"%s\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", rows[i].y);
        scratch_safetensors(scratch_path(dir, rows[i].head), header, 8);
        if (index)
            scratch_write(scratch_path(dir, "model.safetensors.index.json"), index, strlen(index));
        Error err = {0};
        Safetensors *st = safetensors_open(dir, &err);
        if (!st) fail_msg("row %zu: %s", i, err.msg);
        assert_int_equal(safetensors_shards(st), rows[i].n_files);
        assert_non_null(safetensors_find(st, "x"));
        assert_true(!!safetensors_find(st, rows[i].y) == (rows[i].n_files == 2));
        safetensors_close(st);
    }

    Error err = {0};
    const char *dir = scratch_dir("safetensors");
    scratch_safetensors(scratch_path(dir, "model.safetensors"), "{" F("mtp.x", "[0,8]") "}", 8);
    scratch_safetensors(scratch_path(dir, "mtp.safetensors"), "{" F("mtp.x", "[0,8]") "}", 8);
    Safetensors *st = safetensors_open(dir, &err);
    assert_non_null(st);
    assert_int_equal(safetensors_shards(st), 1);
    safetensors_close(st);
    scratch_safetensors(scratch_path(dir, "model.safetensors"), "{" F("x", "[0,8]") "}", 8);
    scratch_safetensors(scratch_path(dir, "mtp.safetensors"),
                        "{" F("mtp.x", "[0,8]") "," F("x", "[8,16]") "}", 16);
    st = safetensors_open(dir, &err);
    if (!st) fail_msg("%s", err.msg);
    assert_int_equal(safetensors_count(st), 2);
    assert_string_equal(safetensors_find(st, "x")->file, "model.safetensors");
    assert_string_equal(safetensors_find(st, "mtp.x")->file, "mtp.safetensors");
    safetensors_close(st);
    scratch_write(scratch_path(dir, "mtp.safetensors"), "version https://git-lfs", 23);
    expect_error(safetensors_open(dir, &err), &err, "'mtp.safetensors'", "Git LFS");
}

static void test_index_lies(void **state)
{
    (void)state;
    static const struct {
        const char *index, *says;
    } wrong[] = {
        {"", "model.safetensors.index.json"},
        {"[]", "'weight_map' must be an object with entries"},
        {"{}", "'weight_map' must be an object with entries"},
        {"{\"weight_map\":{}}", "'weight_map' must be an object with entries"},
        {"{\"weight_map\":[\"a\"]}", "'weight_map' must be an object with entries"},
        {"{\"weight_map\":{\"x\":7}}", "tensor 'x' is said to be in 'not a string'"},
        {"{\"weight_map\":{\"x\":\"\"}}", "tensor 'x' is said to be in ''"},
        {"{\"weight_map\":{\"x\":\"..\"}}", "tensor 'x' is said to be in '..'"},
        {"{\"weight_map\":{\"x\":\"../a\"}}", "tensor 'x' is said to be in '../a'"},
        {"{\"weight_map\":{\"x\":\"/etc/passwd\"}}", "tensor 'x' is said to be in '/etc"},
        {"{\"weight_map\":{\"x\":\"none\"}}", "safetensors/none"},
        {"{\"weight_map\":{\"x\":\"a\",\"w\":\"a\"}}", "'a': tensor 'w' of the index"},
        {"{\"weight_map\":{\"x\":\"b\",\"y\":\"a\"}}", "of the index is not in it"},
        {"{\"weight_map\":{\"x\":\"a\",\"x\":\"b\"}}", "'b': tensor 'x' of the index"},
    };
    const char *dir = scratch_dir("safetensors");
    Error err = {0};
    expect_error(safetensors_open(dir, &err), &err, dir, "has neither model.safetensors nor");
    scratch_safetensors(scratch_path(dir, "a"), "{" F("x", "[0,8]") "}", 8);
    scratch_safetensors(scratch_path(dir, "b"), "{" F("y", "[0,8]") "}", 8);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        err = (Error){0};
        scratch_write(scratch_path(dir, "model.safetensors.index.json"), wrong[i].index,
                      strlen(wrong[i].index));
        expect_error(safetensors_open(dir, &err), &err, "", wrong[i].says);
    }
    StrBuf many = {0};
    strbuf_puts(&many, "{\"weight_map\":{");
    for (int i = 0; i <= 4096; i++)
        strbuf_printf(&many, "%s\"t%d\":\"s%d\"", i ? "," : "", i, i);
    strbuf_puts(&many, "}}");
    scratch_write(scratch_path(dir, "model.safetensors.index.json"), many.data, many.len);
    assert_null(safetensors_open(dir, &err));
    assert_int_equal(err.code, ERR_LIMIT);
    assert_non_null(strstr(err.msg, "4097 shards, the limit is 4096"));
    strbuf_free(&many);
    static const char right[] = "{\"weight_map\":{\"x\":\"a\",\"y\":\"b\"}}";
    scratch_write(scratch_path(dir, "model.safetensors.index.json"), right, sizeof right - 1);
    Safetensors *st = safetensors_open(dir, &err);
    assert_non_null(st);
    assert_string_equal(safetensors_find(st, "y")->file, "b");
    safetensors_close(st);
}

/* As many tensors as a 35B mixture in FP8 has; quadratic anything would be felt here. */
static void test_many(void **state)
{
    (void)state;
    enum { N = 64196, ENTRY = 96 };
    char *header = mem_alloc(N + 2, ENTRY), name[32];
    size_t at = 0;
    header[at++] = '{';
    for (int i = 0; i < N; i++)
        at +=
            (size_t)snprintf(header + at, ENTRY,
                             "%s\"t.%d\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%d,%d]}",
                             i ? "," : "", i, N - 1 - i, N - i);
    header[at++] = '}';
    Error err = {0};
    const char *path = scratch_path(scratch_dir("safetensors"), "w.safetensors");
    scratch_safetensors(path, header, N);
    mem_free(header);
    Safetensors *st = safetensors_open_file(path, &err);
    if (!st) fail_msg("%s", err.msg);
    assert_int_equal(safetensors_count(st), N);
    const unsigned char *base = safetensors_find(st, "t.64195")->data;
    for (int i = 0; i < N; i++) {
        snprintf(name, sizeof name, "t.%d", i);
        assert_int_equal(safetensors_find(st, name)->data - base, N - 1 - i);
    }
    safetensors_close(st);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small_file),  cmocka_unit_test(test_types),
        cmocka_unit_test(test_lies),        cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_flipped),     cmocka_unit_test(test_shards),
        cmocka_unit_test(test_index_lies),  cmocka_unit_test(test_file_beside_index),
        cmocka_unit_test(test_head_beside), cmocka_unit_test(test_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
