/*
 * chat_command.c: `offshoot chat`.
 *
 * One thread: render, tokenize, submit, then step the engine and print what each step lets out. A
 * conversation keeps its messages and renders all of them for each turn; the first error ends a
 * command line or a pipe, while a person at a terminal may try again.
 */
#include "server/service.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "text/detokenizer.h"
#include "text/encoder.h"

enum { MAX_TOOLS_BYTES = 4 << 20, MAX_LINE_BYTES = 4 << 20 };

#define GREEN "\033[32m"
#define PLAIN "\033[0m"

typedef struct {
    const Service *service;
    json_t *messages, *tools; /* tools: NULL when there are none */
    TokenList prompt;
    int n_stable;       /* tokens of it that the next prompt begins with, */
    int answer_changes; /* 1: and that will not hold the answer as it is generated */
    StrBuf rendered, line;
    StrBuf answer; /* the whole answer, for the history */
    StrBuf piece;  /* what one token adds to it */
    Detokenizer detok;
    RequestStats stats; /* of the last answer */
    int color;          /* accepted drafts in green */
    int terminal;       /* stdout is one: control characters are not passed on */
} Chat;

static volatile sig_atomic_t interrupted;

static void on_interrupt(int sig)
{
    (void)sig;
    interrupted = 1;
}

/* ---- messages ---- */

static int add_message(Chat *c, const char *role, const char *content, Error *err)
{
    json_t *text = json_string(content);
    if (!text) return error_set(err, ERR_INPUT, "the %s message is not valid UTF-8", role);
    json_array_append_new(c->messages, json_pack("{s:s, s:o}", "role", role, "content", text));
    return 0;
}

static int load_tools(Chat *c, const char *path, Error *err)
{
    c->tools = json_read_file_digits(path, MAX_TOOLS_BYTES, err);
    if (!c->tools) return -1;
    int ok = json_is_array(c->tools);
    for (size_t i = 0; ok && i < json_array_size(c->tools); i++)
        ok = json_is_object(json_array_get(c->tools, i));
    if (!ok) return error_set(err, ERR_FILE, "'%s' must hold an array of function objects", path);
    return 0;
}

static int encode(Chat *c, size_t mark, Error *err)
{
    int rc = 1;
    Encoder *e = encoder_open(c->service->tok, strbuf_str(&c->rendered), c->rendered.len, NULL, 0,
                              &c->prompt, err);
    if (!e) return -1;
    encoder_mark(e, mark);
    while (rc > 0) {
        size_t budget = SIZE_MAX;
        rc = encoder_some(e, &budget, err);
    }
    c->n_stable = encoder_stable(e);
    encoder_close(e);
    return rc;
}

/*
 * The prompt's tokens: the conversation by the model's template, or text as it is. No calls are
 * answered here: another question follows, and what reasoning there is vanishes.
 */
static int make_prompt(Chat *c, const char *text, Error *err)
{
    const Settings *set = c->service->settings;
    strbuf_clear(&c->rendered);
    c->prompt.n = 0;
    size_t mark;
    c->answer_changes = 0;
    if (set->raw) {
        strbuf_puts(&c->rendered, text);
        mark = c->rendered.len;
    } else {
        ChatMarks marks = {0};
        ChatOptions options = service_chat_options(set);
        int rc = chat_render(&c->service->tmpl, c->messages, c->tools, &options, &c->rendered,
                             &marks, err);
        mark = marks.n_stable;
        c->answer_changes = marks.drops_thinking;
        chat_marks_free(&marks);
        if (rc) return -1;
    }
    return encode(c, mark, err);
}

/* ---- the answer ---- */

/* Bytes of the control character that text begins with, or 0; U+0080 to U+009F are some, too. */
static size_t control_at(const char *text, size_t len)
{
    unsigned char ch = (unsigned char)text[0];
    if (ch == 0xc2 && len > 1 && (unsigned char)text[1] < 0xa0) return 2;
    return (ch < 0x20 && ch != '\n' && ch != '\t') || ch == 0x7f;
}

/* Text from a model is data: on a terminal its escape sequences must stay without effect. */
static void write_text(const Chat *c, const char *text, size_t len)
{
    for (size_t i = 0; i < len;) {
        size_t n = c->terminal ? control_at(text + i, len - i) : 0;
        putchar(n ? '?' : (unsigned char)text[i]);
        i += n ? n : 1;
    }
}

static void print_piece(Chat *c, int green)
{
    if (!c->piece.len) return;
    strbuf_add(&c->answer, c->piece.data, c->piece.len);
    if (green) fputs(GREEN, stdout);
    write_text(c, c->piece.data, c->piece.len);
    if (green) fputs(PLAIN, stdout);
    strbuf_clear(&c->piece);
}

/* Takes what the last step let out. Returns 1 once the answer is done. */
static int take_events(Chat *c, FinishReason *finish)
{
    const Event *e;
    int done = 0;
    while ((e = engine_next_event(c->service->engine))) {
        if (e->type == EVENT_TOKEN) {
            detokenizer_push(&c->detok, e->token, &c->piece);
            print_piece(c, c->color && e->drafted);
        } else if (e->type == EVENT_DONE) {
            c->stats = e->stats;
            *finish = e->finish;
            done = 1;
        }
    }
    fflush(stdout);
    return done;
}

/* What the model's file says is no demand: the context may have less left. */
static int longest_answer(const Chat *c)
{
    const Service *s = c->service;
    int asked = s->settings->max_tokens, max = service_max_tokens(s, asked);
    EngineStatus status;
    engine_status(s->engine, &status);
    return asked < 0 && max > status.ctx_size - c->prompt.n ? -1 : max;
}

/* Runs c->prompt and prints the answer. */
static int generate(Chat *c, Error *err)
{
    const Service *s = c->service;
    EngineRequest request = {
        .id = 1,
        .prompt = c->prompt.id,
        .n_prompt = c->prompt.n,
        .max_tokens = longest_answer(c),
        .params = service_sampling(s),
        .n_logprobs = -1,
        .draft_max = -1,
        .n_stable = c->n_stable,
        .answer_changes = c->answer_changes,
    };
    strbuf_clear(&c->answer);
    detokenizer_init(&c->detok, s->tok, 0);
    if (engine_submit(s->engine, &request, err)) return -1;

    FinishReason finish = FINISH_STOP;
    do {
        int ran = interrupted ? 1 : engine_step(s->engine, err);
        if (ran < 0) return -1;
        assert(ran > 0);
        if (interrupted) engine_cancel(s->engine, request.id);
    } while (!take_events(c, &finish));

    detokenizer_finish(&c->detok, &c->piece);
    print_piece(c, 0);
    putchar('\n');
    if (fflush(stdout) || ferror(stdout))
        return error_set(err, ERR_FILE, "cannot write the answer: %s", strerror(errno));
    if (finish == FINISH_ERROR)
        return error_set(err, ERR_DEVICE, "the model gave a value that is no number");
    return 0;
}

/* One line: how much, how fast, and what speculation gained. */
static void print_stats(const RequestStats *st, FILE *out)
{
    double steps = st->n_steps ? st->n_steps : 1;
    double seconds = st->decode_ms / 1000;
    double speed = st->n_generated > 1 && seconds > 0 ? (st->n_generated - 1) / seconds : 0;
    fprintf(out, "prompt %d tokens ", st->n_prompt);
    if (st->n_cached) fprintf(out, "(%d cached) ", st->n_cached);
    fprintf(out,
            "in %.0f ms; %d tokens, %.0f tokens/s; acceptance length %.2f "
            "(%d of %d drafted accepted)\n",
            st->prompt_ms, st->n_generated, speed, 1 + st->n_accepted / steps, st->n_accepted,
            st->n_drafted);
}

/* One turn: text is what the user said. On an error the conversation is as before. */
static int answer(Chat *c, const char *text, Error *err)
{
    if (!*text) return error_set(err, ERR_INPUT, "the prompt is empty");
    size_t n_before = json_array_size(c->messages);
    interrupted = 0;
    int rc = add_message(c, "user", text, err);
    if (!rc) rc = make_prompt(c, text, err);
    if (!rc) rc = generate(c, err);
    if (!rc) {
        print_stats(&c->stats, stderr);
        rc = add_message(c, "assistant", strbuf_str(&c->answer), err);
    }
    while (rc && json_array_size(c->messages) > n_before)
        json_array_remove(c->messages, n_before);
    return rc;
}

/* ---- the conversation ---- */

/*
 * Reads a line without its end, LF or CRLF, into c->line: 1, or 0 at the end, or -1. One that is
 * interrupted is not to be answered: it is the end, too.
 */
static int read_line(Chat *c, Error *err)
{
    int ch;
    strbuf_clear(&c->line);
    while ((ch = getchar()) != EOF && ch != '\n') {
        char byte = (char)ch;
        if (c->line.len == MAX_LINE_BYTES)
            return error_set(err, ERR_LIMIT, "a line has more than %d bytes", MAX_LINE_BYTES);
        strbuf_add(&c->line, &byte, 1);
    }
    if (ch == EOF && ferror(stdin)) {
        if (errno == EINTR) return 0;
        return error_set(err, ERR_FILE, "cannot read the input: %s", strerror(errno));
    }
    int some = ch != EOF || c->line.len > 0;
    if (c->line.len && c->line.data[c->line.len - 1] == '\r') c->line.data[--c->line.len] = 0;
    return some;
}

static int answer_line(Chat *c, Error *err)
{
    const char *text = strbuf_str(&c->line);
    if (strlen(text) != c->line.len) return error_set(err, ERR_INPUT, "a line holds a NUL byte");
    return answer(c, text, err);
}

/* As main.c prints what ends a command. */
static void print_error(const Error *err, FILE *out)
{
    fprintf(out, "offshoot: %s\n", err->msg);
}

/* Whether a person may go on after this error: it was about one message only. */
static int is_forgivable(const Error *err)
{
    return err->code == ERR_INPUT || err->code == ERR_LIMIT;
}

static int converse(Chat *c, Error *err)
{
    int person = isatty(STDIN_FILENO);
    /* No SA_RESTART: an interrupt while reading a line ends the conversation. */
    struct sigaction action = {.sa_handler = on_interrupt}, old;
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, &old);
    if (person) puts("Say something; /exit or ctrl-D ends, ctrl-C stops an answer.");

    int rc = 0;
    while (!rc) {
        if (person) fputs("> ", stdout);
        fflush(stdout);
        int got = read_line(c, err);
        if (got < 0) rc = -1;
        if (got <= 0 || !strcmp(strbuf_str(&c->line), "/exit")) break;
        if (!c->line.len) continue;
        Error local = {0};
        rc = answer_line(c, &local);
        if (rc && person && is_forgivable(&local)) {
            print_error(&local, stderr);
            rc = 0;
        } else if (rc && err) {
            *err = local;
        }
    }
    if (person) putchar('\n');
    sigaction(SIGINT, &old, NULL);
    return rc;
}

static int use_color(const Settings *set, int terminal)
{
    return set->show_draft && (set->color == ON || (set->color == AUTO && terminal));
}

static void chat_close(Chat *c)
{
    json_decref(c->messages);
    json_decref(c->tools);
    token_list_free(&c->prompt);
    strbuf_free(&c->rendered);
    strbuf_free(&c->line);
    strbuf_free(&c->answer);
    strbuf_free(&c->piece);
}

int chat_run(const Service *s, const char *prompt, Error *err)
{
    const Settings *set = s->settings;
    int terminal = isatty(STDOUT_FILENO);
    Chat c = {.service = s, .messages = json_array(), .terminal = terminal};
    c.color = use_color(set, terminal);
    int rc = 0;
    if (set->tools) rc = load_tools(&c, set->tools, err);
    if (!rc && set->system) rc = add_message(&c, "system", set->system, err);
    if (!rc) rc = prompt ? answer(&c, prompt, err) : converse(&c, err);
    chat_close(&c);
    return rc;
}
