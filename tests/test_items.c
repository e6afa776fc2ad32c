/*
 * test_items.c: the row of items that an answer's pieces become, whole or as they come; which
 * tokens are in its texts.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "server/items.h"
#include "tests/reply_case.h"
#include "tests/tokenized.h"

enum { MAX_IDS = 16 };

/* What a sink was told. */
typedef struct {
    int by_bytes; /* as it came */
    const ItemRow *row;
    size_t n_content; /* bytes of the texts that have ended */
    StrBuf text;      /* of the item that is open, in pieces */
    StrBuf ended;     /* "0R(text) 1Fname(arguments)~ ": index, kind, and '~' behind what is cut */
    char id[MAX_IDS][25];
    int n_ids;
} Told;

static void add_id(Told *told, const char *id)
{
    assert_int_equal(strspn(id, "0123456789abcdef"), 24);
    for (int i = 0; i < told->n_ids; i++)
        assert_string_not_equal(told->id[i], id);
    memcpy(told->id[told->n_ids++], id, 25);
}

static void begin(void *ctx, const Item *item)
{
    Told *told = ctx;
    assert_int_equal(item->text.len, 0);
    strbuf_clear(&told->text);
}

static void more(void *ctx, const Item *item, const char *text, size_t len)
{
    Told *told = ctx;
    assert_true(len > 0);
    strbuf_add(&told->text, text, len);
    assert_string_equal(strbuf_str(&told->text), strbuf_str(&item->text));
}

static void end(void *ctx, const Item *item)
{
    Told *told = ctx;
    if (told->by_bytes) assert_string_equal(strbuf_str(&told->text), strbuf_str(&item->text));
    if (item->kind == ITEM_TEXT) {
        assert_int_equal(item->from, told->n_content);
        told->n_content += item->text.len;
        assert_int_equal(told->row->n_content, told->n_content);
    }
    strbuf_printf(&told->ended, "%d%c%s(%s)%s ", item->index, "RCF"[item->kind],
                  strbuf_str(&item->name), strbuf_str(&item->text), item -> is_cut ? "~" : "");
    add_id(told, item->id);
    add_id(told, item->call_id);
}

typedef struct {
    ReplyCase reply;
    ReasoningMode reasoning;
    int n_whole; /* calls */
} Case;

/* by_bytes: as they come, else all of it at once, and then nobody is told of beginnings. */
static void check(const Case *c, ReplyTools *tools, int by_bytes)
{
    static const ItemSink all = {begin, more, end}, ends = {.end = end};
    const ItemSink *sink = by_bytes ? &all : &ends;
    ReplyOptions options = case_options(&c->reply, tools);
    ApiRequest api = {.reasoning = c->reasoning};
    Answer a = {.reply = reply_open(&options), .api = &api, .state = ANSWER_RUNNING};
    int is_cut = c->reply.flags & CUT_OFF;
    ItemRow row = {0};
    Told told = {.by_bytes = by_bytes, .row = &row};
    for (const char *p = c->reply.output; *p; p++) {
        if (*p <= N_SCAN_TAGS)
            reply_tag(a.reply, (ScanTag)(*p - 1));
        else
            reply_bytes(a.reply, p, 1);
        if (by_bytes) item_row_take(&row, &a, sink, &told);
    }
    reply_end(a.reply, !is_cut);
    a.state = ANSWER_DONE;
    a.finish = is_cut ? FINISH_LENGTH : FINISH_STOP;
    for (int i = 0; i < 2; i++) /* the second time nothing is new */
        item_row_take(&row, &a, sink, &told);
    if (strcmp(strbuf_str(&told.ended), c->reply.want) != 0)
        fail_msg("%s: %s", c->reply.name, strbuf_str(&told.ended));
    assert_int_equal(row.n_whole, c->n_whole);
    strbuf_free(&told.text);
    strbuf_free(&told.ended);
    item_row_free(&row);
    reply_close(a.reply);
}

#define CITY    CALL "<function=get_weather>\n<parameter=city>\nPar"
#define WEATHER CITY "is\n</parameter>\n</function>" ENDCALL
#define NOW     CALL "<function=now>\n</function>" ENDCALL
#define PARIS   "Fget_weather({\"city\": \"Paris\"}) "
#define PAR     "Fget_weather({\"city\": \"Par)~ "

static void test_rows(void **state)
{
    (void)state;
    static const Case cases[] = {
        {{"every kind", IN_THINK, "a" ENDTHINK "b" WEATHER "\n" NOW,
          "0R(a) 1C(b) 2" PARIS "3Fnow({}) "},
         REASONING_SEPARATE,
         2},
        {{"hidden", IN_THINK, "a" ENDTHINK "b", "0C(b) "}, REASONING_HIDDEN, 0},
        {{"blanks alone", 0, " \n" WEATHER " \t\r\n", "0" PARIS}, REASONING_SEPARATE, 1},
        {{"blanks before a text", 0, " \n b" NOW "c" NOW " \n d",
          "0C( \n b) 1Fnow({}) 2C(c) 3Fnow({}) 4C( \n d) "},
         REASONING_SEPARATE,
         2},
        {{"blanks that are not held", NO_TOOLS | KEEP_THINK, "\n" THINK "a", "0C(\n<think>a) "},
         REASONING_IN_CONTENT,
         0},
        {{"blanks before a call", 0, " \n" NOW "b", "0Fnow({}) 1C(b) "}, REASONING_SEPARATE, 1},
        {{"a cut call", CUT_OFF, NOW CITY, "0Fnow({}) 1" PAR}, REASONING_SEPARATE, 1},
        {{"a cut behind a call", CUT_OFF, "b" NOW, "0C(b) 1Fnow({}) "}, REASONING_SEPARATE, 1},
        {{"a cut text", CUT_OFF, NOW "b", "0Fnow({}) 1C(b)~ "}, REASONING_SEPARATE, 1},
        {{"nothing", 0, "\n", ""}, REASONING_SEPARATE, 0},
    };
    ReplyTools *tools = case_tools();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int by_bytes = 0; by_bytes < 2; by_bytes++)
            check(&cases[i], tools, by_bytes);
    reply_tools_close(tools);
}

/* Which tokens of an output became content: they join to it, none counts before it is let out. */
static void check_shown(const Tokenizer *tok, const ReplyTools *tools, int in_think,
                        const char *output, const char *want)
{
    Error err = {0};
    ApiRequest api = {.kind = API_CHAT,
                      .reasoning = REASONING_SEPARATE,
                      .skip_special = 1,
                      .parse_calls = 1,
                      .parallel_calls = 1,
                      .params = {.top_p = 1, .repetition = 1}};
    AnswerModel model = {.tok = tok, .tools = tools, .starts_in_think = in_think};
    TokenList tokens = encode_text(tok, output, strlen(output));
    Answer a;
    StrBuf text = {0};
    if (answer_open(&a, &model, &api, tokens.id, 1, 0, &err)) fail_msg("%s", err.msg);
    for (int i = 0; i < tokens.n; i++)
        answer_event(&a, &(Event){.type = EVENT_TOKEN, .token = tokens.id[i]});
    answer_event(&a, &(Event){.type = EVENT_DONE, .finish = FINISH_STOP});
    for (int i = 0; i < a.probs.n_shown; i++) {
        if (!a.probs.shown[i]) continue;
        size_t len;
        const char *bytes = tokenizer_bytes(tok, a.probs.token[i], &len);
        strbuf_add(&text, bytes, len);
        assert_true(a.probs.shown[i] >= text.len);
    }
    assert_string_equal(strbuf_str(&text), want);
    strbuf_free(&text);
    token_list_free(&tokens);
    answer_close(&a);
}

static void test_shown(void **state)
{
    (void)state;
    Error err = {0};
    Tokenizer *tok = tokenizer_open("models/demo/tokenizer.json", &err);
    if (!tok) fail_msg("%s", err.msg);
    ReplyTools *tools = case_tools();
#define NOW_CALL "<tool_call>\n<function=now>\n</function>\n</tool_call>"
    check_shown(tok, NULL, 0, "Hello there.\n", "Hello there.\n");
    check_shown(tok, tools, 0, "Sure." NOW_CALL "Here it is.", "Sure.Here it is.");
    check_shown(tok, tools, 1, "So be it.</think>Sure." NOW_CALL, "Sure.");
    check_shown(tok, tools, 0, "A <tool_call> is no call.", "A <tool_call> is no call.");
    reply_tools_close(tools);
    tokenizer_close(tok);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows), cmocka_unit_test(test_shown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
