/* test_automaton.c: the suffix automaton against a look at all places of the text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "drafts/automaton.h"
#include "tests/near.h"

enum { MAX_TEXT = 400, MAX_ALPHABET = 50 };

/* The longest end of text[0..n) that also ends before n. */
static int longest_before(const int32_t *text, int n)
{
    int best = 0;
    for (int end = 1; end < n; end++) {
        int k = 0;
        while (k < end && text[end - 1 - k] == text[n - 1 - k])
            k++;
        if (k > best) best = k;
    }
    return best;
}

/* How often the last len tokens of text[0..n) were followed by token. */
static int followed(const int32_t *text, int n, int len, int32_t token)
{
    int count = 0;
    for (int at = len; at < n; at++)
        count += text[at] == token &&
                 !memcmp(text + at - len, text + n - len, (size_t)len * sizeof *text);
    return count;
}

/* The state's edges lead to what followed the match, as often as it did. */
static void assert_followers(const Automaton *a, const int32_t *text, int n, int32_t state)
{
    int left = 0, len = a->state[state].len;
    for (int at = len; at < n; at++)
        left += !memcmp(text + at - len, text + n - len, (size_t)len * sizeof *text);
    for (int32_t i = a->state[state].edge; i >= 0; i = a->edge[i].next) {
        assert_int_equal(a->edge[i].from, state);
        int want = followed(text, n, len, a->edge[i].token);
        assert_int_equal(a->state[a->edge[i].to].count, want);
        left -= want;
    }
    assert_int_equal(left, 0); /* nothing else followed */
}

static void check_text(Automaton *a, const int32_t *text, int n, int checks_counts)
{
    automaton_clear(a);
    assert_int_equal(automaton_match(a), 0);
    for (int i = 0; i < n; i++) {
        automaton_add(a, text[i]);
        int32_t match = automaton_match(a);
        assert_int_equal(a->state[match].len, longest_before(text, i + 1));
        for (; match > 0 && checks_counts; match = a->state[match].link)
            assert_followers(a, text, i + 1, match);
    }
}

/* Alphabets of few and of many tokens: long ends that are alike, and short ones. */
static void test_random_texts(void **state)
{
    (void)state;
    Rng rng = rng_new(71);
    Automaton a;
    automaton_open(&a, MAX_TEXT);
    for (int round = 0; round < 60; round++) {
        int32_t text[MAX_TEXT];
        int alphabet = 2 + rng_int(&rng, round % 2 ? 3 : MAX_ALPHABET);
        int n = 1 + rng_int(&rng, MAX_TEXT / 2);
        for (int i = 0; i < n; i++)
            text[i] = rng_int(&rng, alphabet) * 100003; /* ids far apart */
        check_text(&a, text, n, 1);
    }
    automaton_close(&a);
}

/* A text that quotes itself, as answers quote their prompts. */
static void test_quotes(void **state)
{
    (void)state;
    Rng rng = rng_new(72);
    Automaton a;
    automaton_open(&a, MAX_TEXT);
    for (int round = 0; round < 40; round++) {
        int32_t text[MAX_TEXT];
        int n = 0;
        while (n < 20)
            text[n++] = rng_int(&rng, 1000);
        while (n < MAX_TEXT) {
            int from = rng_int(&rng, n), len = 1 + rng_int(&rng, 30);
            for (int i = 0; i < len && n < MAX_TEXT && from + i < n; i++)
                text[n++] = text[from + i];
            if (n < MAX_TEXT) text[n++] = rng_int(&rng, 1000);
        }
        check_text(&a, text, n, round < 8);
    }
    automaton_close(&a);
}

/* The texts with the most states and the most edges fill the memory and do not overflow it. */
static void test_worst_texts(void **state)
{
    (void)state;
    Automaton a;
    int32_t text[MAX_TEXT];
    automaton_open(&a, MAX_TEXT);
    for (int i = 0; i < MAX_TEXT; i++)
        text[i] = i > 0; /* abbb...: 2n - 1 states */
    check_text(&a, text, MAX_TEXT, 0);
    assert_int_equal(a.n_states, 2 * MAX_TEXT - 1);
    text[MAX_TEXT - 1] = 2; /* abbb...bc: 3n - 4 edges */
    check_text(&a, text, MAX_TEXT, 0);
    assert_int_equal(a.n_edges, 3 * MAX_TEXT - 4);
    for (int i = 0; i < MAX_TEXT; i++)
        text[i] = 7;
    check_text(&a, text, MAX_TEXT, 0);
    automaton_close(&a);
    automaton_open(&a, 1);
    check_text(&a, text, 1, 1);
    automaton_close(&a);
}

/* Edges before this one in its chain. */
static int n_before(const Automaton *a, int32_t edge)
{
    int n = 0;
    for (int32_t i = a->edge[edge].chain; i >= 0; i = a->edge[i].chain)
        n++;
    return n;
}

static int longest_chain(const Automaton *a)
{
    int longest = 0;
    for (int32_t i = 0; i < a->n_edges; i++)
        if (n_before(a, i) >= longest) longest = n_before(a, i) + 1;
    return longest;
}

/* Of tokens that are new to text[0..n) one whose edge after it comes in the longest chain. */
static int32_t worst_token(Automaton *a, const int32_t *text, int n)
{
    int32_t worst = 0;
    int most = -1;
    for (int k = 0; k < 500; k++) {
        int32_t token = n + MAX_TEXT * (1 + 7919 * k % 600);
        automaton_clear(a);
        for (int i = 0; i < n; i++)
            automaton_add(a, text[i]);
        int32_t from = a->last;
        automaton_add(a, token);
        int chain = n_before(a, a->state[from].edge);
        if (chain > most) most = chain, worst = token;
    }
    return worst;
}

/* Tokens that are chosen so that edges share one automaton's chain share none of others', where by
 * chance alone some may be alike. */
static void test_chosen_tokens(void **state)
{
    (void)state;
    enum { N = 40 };
    Automaton a;
    int32_t text[N] = {0};
    int shortest = N;
    automaton_open(&a, N);
    for (int n = 1; n < N; n++)
        text[n] = worst_token(&a, text, n);
    automaton_close(&a);
    for (int i = 0; i < 4; i++) {
        automaton_open(&a, N);
        check_text(&a, text, N, 1);
        if (longest_chain(&a) < shortest) shortest = longest_chain(&a);
        automaton_close(&a);
    }
    assert_in_range(shortest, 1, N / 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_texts),
        cmocka_unit_test(test_quotes),
        cmocka_unit_test(test_worst_texts),
        cmocka_unit_test(test_chosen_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
