/* test_returned.c: answers that come back: the same, cut otherwise, changed; and who is asked. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "server/returned.h"
#include "tests/textdata.h"

static Tokenizer *tok;
static Error err;

static int open_tok(void **state)
{
    (void)state;
    tok = tokenizer_open("models/demo/tokenizer.json", &err);
    return tok ? 0 : -1;
}

static int close_tok(void **state)
{
    (void)state;
    tokenizer_close(tok);
    return 0;
}

static TokenList encode(const char *text)
{
    TokenList list = {0};
    if (tokenizer_encode(tok, text, strlen(text), &list, &err)) fail_msg("%s", err.msg);
    return list;
}

static void add_bytes(TokenList *list, const char *text)
{
    for (; *text; text++)
        token_list_add(list, byte_token(tok, (unsigned char)*text));
}

static void add(Returned *r, uint64_t salt, const char *prompt, const char *answer)
{
    TokenList p = encode(prompt), a = encode(answer);
    returned_add(r, salt, p.id, p.n, a.id, a.n);
    token_list_free(&p);
    token_list_free(&a);
}

/* A prompt of three parts: tokens, then bytes, then tokens. */
static ReturnedHow look(const Returned *r, uint64_t salt, const char *prompt, const char *bytes,
                        const char *rest)
{
    TokenList p = encode(prompt), q = encode(rest);
    add_bytes(&p, bytes);
    for (int i = 0; i < q.n; i++)
        token_list_add(&p, q.id[i]);
    ReturnedHow how = returned_look(r, salt, p.id, p.n);
    token_list_free(&p);
    token_list_free(&q);
    return how;
}

#define Q "<|im_start|>user\nWhere?<|im_end|>\n<|im_start|>assistant\n"
#define U "<|im_end|>\n<|im_start|>user\nAnd?<|im_end|>\n<|im_start|>assistant\n"

static void test_how(void **state)
{
    (void)state;
    Returned *r = returned_open(tok);
    assert_int_equal(look(r, 0, Q "The restaurant" U, "", ""), RETURNED_NONE);
    add(r, 0, Q, "The restaurant");
    assert_int_equal(look(r, 0, Q, "", ""), RETURNED_NONE);
    assert_int_equal(look(r, 0, "Other. " Q "The restaurant" U, "", ""), RETURNED_NONE);
    assert_int_equal(look(r, 7, Q "The restaurant" U, "", ""), RETURNED_NONE);
    assert_int_equal(look(r, 0, Q "The restaurant" U, "", ""), RETURNED_SAME);
    assert_int_equal(look(r, 0, Q "The restaurant", "", ""), RETURNED_SAME);
    assert_int_equal(look(r, 0, Q, "The restaurant", U), RETURNED_RECUT);
    assert_int_equal(look(r, 0, Q "The", " restaurant", U), RETURNED_RECUT);
    assert_int_equal(look(r, 0, Q, "The restaurants", U), RETURNED_RECUT); /* and more behind it */
    assert_int_equal(look(r, 0, Q, "The restaurat", U), RETURNED_CHANGED);
    assert_int_equal(look(r, 0, Q, "the restaurant", U), RETURNED_CHANGED);
    assert_int_equal(look(r, 0, Q "The" U, "", ""), RETURNED_CHANGED);
    assert_int_equal(look(r, 0, Q "The", "", ""), RETURNED_CHANGED);
    returned_close(r);
}

/* Of several answers the best counts, of several prompts the longest. */
static void test_which(void **state)
{
    (void)state;
    Returned *r = returned_open(tok);
    add(r, 0, Q, "Here");
    add(r, 0, Q, "The restaurant");
    add(r, 0, Q, "There");
    assert_int_equal(look(r, 0, Q "The restaurant" U, "", ""), RETURNED_SAME);
    assert_int_equal(look(r, 0, Q "Nowhere" U, "", ""), RETURNED_CHANGED);
    add(r, 0, Q "The restaurant" U, "No");
    assert_int_equal(look(r, 0, Q "The restaurant" U "Yes" U, "", ""), RETURNED_CHANGED);
    assert_int_equal(look(r, 0, Q "The restaurant" U, "No", U), RETURNED_RECUT);
    assert_int_equal(look(r, 0, Q "The restaurant" U "No" U, "", ""), RETURNED_SAME);
    assert_int_equal(look(r, 0, Q "The restaurant" U, "", ""), RETURNED_SAME);
    returned_close(r);
}

/* The oldest are forgotten; of a long answer the beginning counts; an empty one is none. */
static void test_limits(void **state)
{
    enum { LONG = MAX_REMEMBERED_TOKENS + 50 };
    int32_t prompt[2] = {1, 0}, answer[LONG + 2];
    (void)state;
    Returned *r = returned_open(tok);
    for (int i = 0; i <= MAX_REMEMBERED; i++) {
        prompt[1] = i;
        returned_add(r, 0, prompt, 2, (int32_t[]){5}, 1);
        returned_add(r, 0, prompt, 2, (int32_t[]){5}, 0);
    }
    for (int i = 0; i <= MAX_REMEMBERED; i++)
        assert_int_equal(returned_look(r, 0, (int32_t[]){1, i, 5}, 3),
                         i ? RETURNED_SAME : RETURNED_NONE);
    for (int i = 0; i < LONG + 2; i++)
        answer[i] = i + 300;
    returned_add(r, 9, answer, 2, answer + 2, LONG);
    answer[MAX_REMEMBERED_TOKENS + 2] = 5;
    assert_int_equal(returned_look(r, 9, answer, LONG + 2), RETURNED_SAME);
    answer[MAX_REMEMBERED_TOKENS + 1] = 5;
    assert_int_equal(returned_look(r, 9, answer, LONG + 2), RETURNED_CHANGED);
    returned_close(r);
    returned_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_how),
        cmocka_unit_test(test_which),
        cmocka_unit_test(test_limits),
    };
    return cmocka_run_group_tests(tests, open_tok, close_tok);
}
