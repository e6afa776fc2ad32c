/*
 * test_stable.c: what of a prompt the next one begins with again: said before it is known, and then
 * compared with prompts that really follow.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include <string.h>

#include "base/strbuf.h"
#include "tests/textdata.h"
#include "tests/tokenized.h"
#include "text/chat.h"
#include "text/encoder.h"

static Tokenizer *toks[2];
static Error err;

static int open_all(void **state)
{
    (void)state;
    toks[0] = tokenizer_open("models/demo/tokenizer.json", &err);
    toks[1] = open_big_tokenizer();
    return toks[0] && toks[1] ? 0 : -1;
}

static int close_all(void **state)
{
    (void)state;
    tokenizer_close(toks[0]);
    tokenizer_close(toks[1]);
    return 0;
}

/* ---- prompts ---- */

typedef struct {
    StrBuf text;
    ChatMarks marks;
    TokenList ids;
    int n_stable;
} Prompt;

/* Tokens of text, and how many of them are stable where it is left at `mark`; slice by slice. */
static TokenList encode(const Tokenizer *tok, const char *text, size_t len, const TextSpan *plain,
                        int n_plain, size_t mark, size_t slice, int *n_stable)
{
    TokenList list = {0};
    int more = 1;
    Encoder *e = encoder_open(tok, text, len, plain, n_plain, &list, &err);
    if (!e) fail_msg("%s", err.msg);
    encoder_mark(e, mark);
    while (more) {
        size_t budget = slice;
        more = encoder_some(e, &budget, &err);
        if (more < 0) fail_msg("%s", err.msg);
    }
    *n_stable = encoder_stable(e);
    encoder_close(e);
    return list;
}

static void prompt_free(Prompt *p)
{
    strbuf_free(&p->text);
    chat_marks_free(&p->marks);
    token_list_free(&p->ids);
}

/* 0 when the template refuses the messages. */
static int make_prompt(Prompt *p, const ChatTemplate *t, const Tokenizer *tok,
                       const json_t *messages, const json_t *tools, const ChatOptions *options)
{
    *p = (Prompt){0};
    if (chat_render(t, messages, tools, options, &p->text, &p->marks, &err)) {
        prompt_free(p);
        return 0;
    }
    p->ids = encode(tok, strbuf_str(&p->text), p->text.len, p->marks.client, p->marks.n_client,
                    p->marks.n_stable, SIZE_MAX, &p->n_stable);
    return 1;
}

static int begins_with(const TokenList *list, const int32_t *id, int n)
{
    return !n || (list->n >= n && !memcmp(list->id, id, (size_t)n * sizeof *id));
}

/* ---- the tokenizer's part ---- */

static void random_text(uint64_t *seed, StrBuf *out)
{
    static const char *const parts[] = {"a",
                                        "in",
                                        "the",
                                        " ",
                                        "  ",
                                        "\n",
                                        "\r\n",
                                        "\t",
                                        "7",
                                        "2026",
                                        "'",
                                        "'ll",
                                        ".",
                                        "!?",
                                        "e",
                                        "\xCC\x81",
                                        "\xCC\xA7",
                                        "\xE4\xBD\xA0",
                                        "\xE3\x80\x80",
                                        "\xC2\xA0",
                                        "\xF0\x9F\x91\x8D",
                                        "\xE1\x84\x80",
                                        "\xE1\x85\xA1",
                                        "<|im_end|>",
                                        "<think>"};
    for (uint64_t n = random_next(seed) % 9; n; n--)
        strbuf_puts(out, parts[random_next(seed) % (sizeof parts / sizeof *parts)]);
}

static int is_ascii(const StrBuf *text)
{
    for (size_t i = 0; i < text->len; i++)
        if (text->data[i] & 0x80) return 0;
    return 1;
}

/*
 * Whatever is added to a text, it begins with the stable tokens; and they are nearly all. Marked in
 * its midst a longer text says the same or, where form C may change it, less.
 */
static void test_texts(void **state)
{
    uint64_t seed = 20261122;
    long n_all = 0, n_kept = 0;
    (void)state;
    for (int round = 0; round < 4000; round++) {
        const Tokenizer *tok = toks[round % 2];
        StrBuf text = {0}, more = {0};
        int n_stable, n_again;
        random_text(&seed, &text);
        size_t len = text.len;
        random_text(&seed, &more);
        TokenList ids = encode(tok, strbuf_str(&text), len, NULL, 0, len, SIZE_MAX, &n_stable);
        strbuf_add(&text, strbuf_str(&more), more.len);
        TokenList longer =
            encode(tok, strbuf_str(&text), text.len, NULL, 0, len, 1 + round % 7, &n_again);
        /* A mark that joins the letter before the last piece: nobody writes that. */
        int joins = strstr(strbuf_str(&text), "\xCC") != NULL;
        if (!joins && !begins_with(&longer, ids.id, n_stable))
            fail_msg("%d of %d tokens, '%.*s' and '%s'", n_stable, ids.n, (int)len,
                     strbuf_str(&text), strbuf_str(&more));
        if (n_again > n_stable) fail_msg("%d of %d, '%s'", n_again, n_stable, strbuf_str(&text));
        if (is_ascii(&text)) assert_int_equal(n_again, n_stable);
        n_all += ids.n;
        n_kept += n_stable;
        token_list_free(&ids);
        token_list_free(&longer);
        strbuf_free(&text);
        strbuf_free(&more);
    }
    assert_true(n_kept > n_all / 2);
}

static void test_places(void **state)
{
    static const struct {
        const char *text;
        size_t mark;
        int n; /* of the small tokenizer, whose tokens these are */
    } rows[] = {
        {"", 0, 0},
        {"1 2", 3, 2},
        {"1 2", 2, 1},
        {"1 2", 1, 0},
        {"1  2", 3, 1},
        {"1  !", 2, 1}, /* " !" is a piece, and yet the first blank may have grown */
        {"1  !", 3, 1},
        {"1  !", 4, 2},
        {"1 \n\n \n", 6, 1}, /* blanks are one piece */
        {"1<|im_end|>", 11, 2},
        {"1<|im_end|>", 5, 0}, /* within an added token */
        {"1<|im_end|>2", 11, 2},
        {"1<|im_end|>2", 12, 2},
        {"1<|im_end|>2 3", 14, 4},
        {"<|im_end|>\n<think>\n", 11, 1},
        {"1 e\xCC\x81 2", 2, 0}, /* within a stretch that form C changes */
        {"<|im_end|>e\xCC\x81 2", 11, 1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (size_t slice = 1; slice < 50; slice += 7) {
            int n;
            TokenList ids = encode(toks[0], rows[i].text, strlen(rows[i].text), NULL, 0,
                                   rows[i].mark, slice, &n);
            if (n != rows[i].n) fail_msg("'%s' at %zu: %d", rows[i].text, rows[i].mark, n);
            token_list_free(&ids);
        }
}

/* A mark may stand behind an added token that is found in the normalised text. */
static void test_normalised_tokens(void **state)
{
    static const int n_stable[] = {0, 0, 0, 0, 2, 2, 2, 4, 5}; /* by the mark */
    (void)state;
    json_t *root = small_json();
    small_set(root, "added_tokens/1", "{\"id\": 257, \"content\": \"x>\", \"normalized\": true}");
    Tokenizer *tok = small_open(root, &err);
    if (!tok) fail_msg("%s", err.msg);
    for (size_t mark = 0; mark < sizeof n_stable / sizeof *n_stable; mark++) {
        int n;
        TokenList ids = encode(tok, "1x>2x>3!", 8, NULL, 0, mark, 1 + mark, &n);
        assert_int_equal(ids.n, 6);
        if (n != n_stable[mark]) fail_msg("%d at %zu", n, mark);
        token_list_free(&ids);
    }
    tokenizer_close(tok);
    json_decref(root);
}

/* ---- the template's part ---- */

static json_t *parse(const char *text)
{
    json_error_t je;
    json_t *value = json_loads(text, JSON_ALLOW_NUL, &je);
    if (!value) fail_msg("%s in %s", je.text, text);
    return value;
}

static json_t *with(const json_t *messages, const char *more)
{
    json_t *all = json_copy((json_t *)messages), *list = parse(more);
    json_array_extend(all, list);
    json_decref(list);
    return all;
}

#define CALL     "\"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": {\"a\": \"b c\"}}}]"
#define RESULT   "{\"role\": \"tool\", \"content\": \"42\"}"
#define QUESTION "{\"role\": \"user\", \"content\": \"And now?\"}"

/* How conversations go on, after which a tool's answer keeps the last question the last. */
static const struct {
    const char *messages;
    int is_question, thinks;
} next_turns[] = {
    {"[{\"role\": \"assistant\", \"content\": \"Hello\"}, " QUESTION "]", 1, 0},
    {"[{\"role\": \"assistant\", \"content\": \"\\n\\nHello\"}, " QUESTION "]", 1, 0},
    {"[{\"role\": \"assistant\", \"content\": \" 1\"}, " QUESTION "]", 1, 0},
    {"[{\"role\": \"assistant\", \"content\": \"<think>\\nHm.\\n</think>\\n\\nNo\"}, " QUESTION "]",
     1, 1},
    {"[{\"role\": \"assistant\", \"content\": null}, " QUESTION "]", 1, 0},
    {"[{\"role\": \"assistant\", \"content\": \"\", " CALL "}, " RESULT "]", 0, 0},
    {"[{\"role\": \"assistant\", \"content\": \"Let me see\", " CALL "}, " RESULT ", " RESULT "]",
     0, 0},
    {"[{\"role\": \"assistant\", \"reasoning_content\": \"Hm.\", " CALL "}, " RESULT "]", 0, 1},
    {"[{\"role\": \"assistant\", \"content\": \"No\", " CALL "}, " RESULT
     ", {\"role\": \"assistant\", \"content\": \"42!\"}]",
     0, 0},
    {"[" QUESTION "]", 1, 0}, /* the answer is dropped */
};
enum { N_NEXT = sizeof next_turns / sizeof *next_turns };

static int is_role(const json_t *message, const char *role)
{
    const char *name = json_string_value(json_object_get(message, "role"));
    return name && !strcmp(name, role);
}

/* A user's message that is not wholly results of tools. */
static int is_question(const json_t *message)
{
    char *text = json_dumps(message, JSON_ENCODE_ANY);
    int wraps = strstr(text, "<tool_response>") && strstr(text, "</tool_response>");
    free(text);
    return is_role(message, "user") && !wraps;
}

static int knows_thinking(const ChatTemplate *t)
{
    return t->family != CHAT_QWEN3_NEXT && t->family != CHAT_QWEN3_CODER;
}

static int keeps_thinking(const NamedTemplate *named)
{
    return named->t.family == CHAT_QWEN38 || named->preserve_thinking == 1;
}

static ChatOptions options_of(const NamedTemplate *named, int thinking)
{
    return (ChatOptions){.add_generation_prompt = 1,
                         .enable_thinking = thinking,
                         .preserve_thinking = named->preserve_thinking};
}

/*
 * Whether the end of the messages is rendered otherwise once a question follows: answers after the
 * last one show their reasoning until then, and the other thinking family shows an empty one with
 * the very last message.
 */
static int in_a_loop(const NamedTemplate *named, const json_t *messages)
{
    size_t n = json_array_size(messages);
    if (!knows_thinking(&named->t) || keeps_thinking(named)) return 0;
    while (n-- && !is_question(json_array_get(messages, n)))
        if (is_role(json_array_get(messages, n), "assistant")) return 1;
    return 0;
}

static void check_turn(int family, const Tokenizer *tok, const json_t *messages,
                       const json_t *tools, int thinking, int *n_checked)
{
    const NamedTemplate *named = &named_templates[family];
    ChatOptions options = options_of(named, thinking);
    const ChatTemplate *t = &named->t;
    Prompt p, next;
    if (!make_prompt(&p, t, tok, messages, tools, &options)) return;
    /* All of it is stable: it ends with an added token. */
    int n_head, unused;
    TokenList head = encode(tok, strbuf_str(&p.text), p.marks.n_stable, p.marks.client,
                            p.marks.n_client, 0, SIZE_MAX, &unused);
    n_head = head.n;
    assert_int_equal(p.n_stable, n_head);
    token_list_free(&head);
    const json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    for (int i = 0; i < N_NEXT; i++) {
        if (next_turns[i].is_question && in_a_loop(named, messages)) continue;
        if (t->family == CHAT_QWEN3_NEXT_THINKING && is_role(last, "assistant")) continue;
        /* Reasoning that was switched off is not there later, either. */
        if (next_turns[i].thinks && keeps_thinking(named) && !thinking) continue;
        json_t *longer = with(messages, next_turns[i].messages);
        if (!make_prompt(&next, t, tok, longer, tools, &options)) fail_msg("%s", err.msg);
        if (!begins_with(&next.ids, p.ids.id, p.n_stable))
            fail_msg("%s: %d tokens of\n%s\nare not in\n%s", named->name, p.n_stable,
                     strbuf_str(&p.text), strbuf_str(&next.text));
        ++*n_checked;
        prompt_free(&next);
        json_decref(longer);
    }
    prompt_free(&p);
}

static void check_vectors(const char *path, int least)
{
    json_t *lines = read_json_lines(path), *line;
    json_t *tools = parse("[{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]");
    int n_checked = 0;
    size_t i;
    json_array_foreach(lines, i, line)
    {
        const json_t *messages = json_object_get(line, "messages");
        if (!json_is_string(json_object_get(line, "text"))) continue;
        for (int family = 0; family < N_TEMPLATES; family++) {
            const Tokenizer *tok = toks[(i + (size_t)family) % 2];
            check_turn(family, tok, messages, json_object_get(line, "tools"), -1, &n_checked);
            check_turn(family, tok, messages, i % 2 ? tools : NULL, (int)i / 2 % 2, &n_checked);
        }
    }
    if (n_checked < least) fail_msg("%d turns of %s", n_checked, path);
    json_decref(tools);
    json_decref(lines);
}

static void test_turns(void **state)
{
    (void)state;
    check_vectors("tests/data/chat/chat_vectors.jsonl", 1000);
    check_vectors("tests/data/chat/random_vectors.jsonl", 5000);
}

/* After a loop of calls the next question finds what was stable before the loop. */
static void test_loop_then_question(void **state)
{
    (void)state;
    for (int family = 0; family < N_TEMPLATES; family++) {
        ChatOptions options = {.add_generation_prompt = 1, .enable_thinking = -1};
        json_t *first = parse("[{\"role\": \"system\", \"content\": \"Be brief.\"}, " QUESTION "]");
        json_t *all =
            with(first, "[{\"role\": \"assistant\", \"content\": \"\", " CALL "}, " RESULT
                        ", {\"role\": \"assistant\", \"content\": \"42\"}, " QUESTION "]");
        Prompt p, q;
        assert_true(make_prompt(&p, &named_templates[family].t, toks[0], first, NULL, &options));
        assert_true(make_prompt(&q, &named_templates[family].t, toks[0], all, NULL, &options));
        assert_true(begins_with(&q.ids, p.ids.id, p.n_stable));
        prompt_free(&p);
        prompt_free(&q);
        json_decref(first);
        json_decref(all);
    }
}

/* Tokens of text up to `at`, as the encoder counts them. */
static int turn_at(const char *text, size_t len, size_t at, size_t slice)
{
    TokenList list = {0};
    int more = 1;
    Encoder *e = encoder_open(toks[0], text, len, NULL, 0, &list, &err);
    if (!e) fail_msg("%s", err.msg);
    encoder_mark_turn(e, at);
    while (more) {
        size_t budget = slice;
        more = encoder_some(e, &budget, &err);
    }
    int n = encoder_turn(e);
    encoder_close(e);
    token_list_free(&list);
    return n;
}

/* Another conversation begins with the same system turn, and with the same tokens. */
static void test_system_turn(void **state)
{
    (void)state;
    json_t *tools = parse("[{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]");
    json_t *plain = parse("[" QUESTION "]");
    json_t *system = parse("[{\"role\": \"system\", \"content\": \"Be brief.\"}, " QUESTION "]");
    json_t *other = parse("[{\"role\": \"system\", \"content\": \"Be brief.\"},"
                          " {\"role\": \"user\", \"content\": \"Else?\"}]");
    for (int family = 0; family < N_TEMPLATES; family++) {
        const ChatTemplate *t = &named_templates[family].t;
        ChatOptions options = options_of(&named_templates[family], 1);
        Prompt p, q, none;
        assert_true(make_prompt(&p, t, toks[0], system, tools, &options));
        assert_true(make_prompt(&q, t, toks[0], other, tools, &options));
        size_t at = p.marks.n_system;
        int n = turn_at(strbuf_str(&p.text), p.text.len, at, 1 + (size_t)family);
        assert_true(n > 2 && p.ids.id[n - 1] == p.ids.id[0]); /* a turn begins */
        assert_int_equal(q.marks.n_system, at);
        assert_true(begins_with(&q.ids, p.ids.id, n));
        assert_memory_equal(p.text.data + at, "user\n", 5);
        assert_int_equal(turn_at(strbuf_str(&p.text), p.text.len, at + 1, 3), 0);
        assert_true(make_prompt(&none, t, toks[0], plain, NULL, &options));
        if (t->family != CHAT_QWEN38) assert_int_equal(none.marks.n_system, 0);
        prompt_free(&p);
        prompt_free(&q);
        prompt_free(&none);
    }
    json_decref(tools);
    json_decref(plain);
    json_decref(system);
    json_decref(other);
}

/* A turn that is left open: what follows a <think> is not stable, anything else is. */
static void test_open_turn(void **state)
{
    (void)state;
    for (int family = 0; family < N_TEMPLATES; family++) {
        const NamedTemplate *named = &named_templates[family];
        const ChatTemplate *t = &named->t;
        ChatOptions options = options_of(named, -1), open = options;
        int stays = !knows_thinking(t) || keeps_thinking(named);
        open.add_generation_prompt = 0, open.continue_final = 1;
        json_t *messages =
            parse("[" QUESTION ", {\"role\": \"assistant\", \"content\": \"One, two\"}]");
        json_t *longer =
            parse("[" QUESTION
                  ", {\"role\": \"assistant\", \"content\": \"One, twofold\"}, " QUESTION "]");
        Prompt p, q;
        assert_true(make_prompt(&p, t, toks[0], messages, NULL, &open));
        assert_true(make_prompt(&q, t, toks[0], longer, NULL, &options));
        assert_true(begins_with(&q.ids, p.ids.id, p.n_stable));
        assert_int_equal(p.marks.n_stable == p.text.len, stays);
        assert_int_equal(p.marks.answer_changes, !stays);
        prompt_free(&p);
        prompt_free(&q);
        json_decref(messages);
        json_decref(longer);
    }
}

/* ---- answers ---- */

/* An answer as it is generated and as a client sends it back. */
typedef struct {
    int thinking, calls, sends_reasoning;
} Kind;

static void generated(const ChatTemplate *t, Kind k, StrBuf *out)
{
    if (k.thinking) strbuf_puts(out, "Hm.\n</think>\n\n");
    strbuf_puts(out, "Well");
    if (!k.calls) return;
    strbuf_puts(out, chat_calls_are_xml(t->family)
                         ? "\n\n<tool_call>\n<function=f>\n<parameter=a>\nb c\n</parameter>\n"
                           "</function>\n</tool_call>"
                         : "\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"b c\"}}\n"
                           "</tool_call>");
}

static json_t *came_back(const json_t *messages, Kind k)
{
    char text[400];
    snprintf(text, sizeof text, "[{\"role\": \"assistant\", \"content\": \"Well\"%s%s}, %s]",
             k.thinking && k.sends_reasoning ? ", \"reasoning_content\": \"Hm.\"" : "",
             k.calls ? ", " CALL : "", k.calls ? RESULT : QUESTION);
    return with(messages, text);
}

/* What is said of the answer before it is made is what its next prompt shows. */
static int check_answer(const NamedTemplate *named, const json_t *messages, const json_t *tools,
                        Kind k)
{
    const ChatTemplate *t = &named->t;
    ChatOptions options = options_of(named, k.thinking);
    Prompt p, next;
    assert_true(make_prompt(&p, t, toks[0], messages, tools, &options));
    generated(t, k, &p.text);
    json_t *longer = came_back(messages, k);
    assert_true(make_prompt(&next, t, toks[0], longer, tools, &options));
    int same = next.text.len > p.text.len &&
               !memcmp(strbuf_str(&next.text), strbuf_str(&p.text), p.text.len);
    if (same == p.marks.answer_changes)
        fail_msg("%d:\n%s\nthen\n%s", same, strbuf_str(&p.text), strbuf_str(&next.text));
    prompt_free(&p);
    prompt_free(&next);
    json_decref(longer);
    return same;
}

/*
 * Tools mean calls, no tools mean questions. Of a client that does not send reasoning back this is
 * known from the second answer on.
 */
static void test_answers(void **state)
{
    json_t *tools = parse("[{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]");
    int n_same = 0;
    (void)state;
    for (int family = 0; family < N_TEMPLATES; family++) {
        const NamedTemplate *named = &named_templates[family];
        for (int bits = 0; bits < 8; bits++) {
            Kind k = {bits & 1, bits >> 1 & 1, bits >> 2};
            if (!knows_thinking(&named->t)) k.thinking = 0;
            if (named->t.family == CHAT_QWEN3_NEXT_THINKING || named->t.always_thinks)
                k.thinking = 1;
            json_t *first = parse("[" QUESTION "]"), *second = came_back(first, k);
            int known = !k.thinking || k.sends_reasoning || !(k.calls || keeps_thinking(named));
            if (known) n_same += check_answer(named, first, k.calls ? tools : NULL, k);
            n_same += check_answer(named, second, k.calls ? tools : NULL, k);
            json_decref(first);
            json_decref(second);
        }
    }
    assert_true(n_same > 60);
    json_decref(tools);
}

/* ---- what came back ---- */

static int same_text(const char *a, const char *b)
{
    TokenList x = {0}, y = {0};
    if (tokenizer_encode(toks[0], a, strlen(a), &x, &err)) fail_msg("%s", err.msg);
    for (const char *c = b; *c; c++) /* byte by byte: never the same tokens */
        token_list_add(&y, byte_token(toks[0], (unsigned char)*c));
    int same = tokenizer_same_text(toks[0], x.id, x.n, y.id, y.n);
    assert_int_equal(tokenizer_same_text(toks[0], y.id, y.n, x.id, x.n), same);
    token_list_free(&x);
    token_list_free(&y);
    return same;
}

/* Whether two lists of tokens are the same words, cut in another way. */
static void test_same_text(void **state)
{
    (void)state;
    assert_true(same_text("the restaurant", "the restaurant"));
    assert_true(same_text("the restaurant", "the rest"));
    assert_true(same_text("the", "the restaurant"));
    assert_true(same_text("\xE4\xBD\xA0", "\xE4\xBD"));
    assert_true(same_text("a<|im_end|>", "a<|im_end|>b"));
    assert_false(same_text("the restaurant", "the rests"));
    assert_false(same_text("the restaurant", "The restaurant"));
    assert_false(same_text("a<|im_end|>", "a\n"));
    assert_false(same_text("", "a"));
    int32_t unknown = tokenizer_size(toks[0]), a = byte_token(toks[0], 'a');
    assert_false(tokenizer_same_text(toks[0], &unknown, 1, &a, 1));
    assert_true(tokenizer_same_text(toks[0], (int32_t[]){unknown, a}, 2, &a, 1));
    assert_false(tokenizer_same_text(toks[0], &a, 0, &a, 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts),
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_normalised_tokens),
        cmocka_unit_test(test_turns),
        cmocka_unit_test(test_loop_then_question),
        cmocka_unit_test(test_system_turn),
        cmocka_unit_test(test_open_turn),
        cmocka_unit_test(test_answers),
        cmocka_unit_test(test_same_text),

    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
