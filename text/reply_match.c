/* reply_match.c: see reply_match.h. */
#include "text/reply_match.h"

#include <string.h>

#include "text/call_json.h"

int is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static size_t skip_blanks(Look *l)
{
    size_t from = l->at;
    while (l->at < l->n && is_blank(l->text[l->at]))
        l->at++;
    return l->at - from;
}

/* The text is used up: whether waiting helps. */
static Match out_of_text(const Look *l)
{
    return l->end == LOOK_GROWS ? MATCH_MORE : MATCH_NOT;
}

/* Moves past the literal and returns found; else stays where it is. */
static Match literal(Look *l, const char *text, Match found)
{
    size_t len = strlen(text), left = l->n - l->at;
    size_t n = left < len ? left : len;
    if (memcmp(l->text + l->at, text, n) != 0) return MATCH_NOT;
    if (n < len) return out_of_text(l);
    l->at += len;
    return found;
}

/* literal NAME '>' with a name of 1..MAX_CALL_NAME bytes, none of them '<', '>' or a newline. */
static Match named(Look *l, const char *text, Match found, Look *name)
{
    Match m = literal(l, text, found);
    if (m != found) return m;
    *name = (Look){l->text + l->at, 0, 0, LOOK_ENDS};
    for (; l->at < l->n && name->n <= MAX_CALL_NAME; l->at++, name->n++) {
        char c = l->text[l->at];
        if (c == '<' || c == '\n') return MATCH_NOT;
        if (c != '>') continue;
        l->at++;
        return name->n ? found : MATCH_NOT;
    }
    return name->n > MAX_CALL_NAME ? MATCH_NOT : out_of_text(l);
}

Match match_call(Look *l, int whole, Look *name)
{
    Match m = literal(l, "<tool_call>", MATCH_FUNCTION);
    if (m == MATCH_MORE || (m == MATCH_NOT && whole)) return m;
    skip_blanks(l);
    if (l->at == l->n) return out_of_text(l);
    if (l->text[l->at] == '{') return MATCH_JSON;
    return named(l, "<function=", MATCH_FUNCTION, name);
}

/* The first of several that matches, or may do so later. */
static Match any_of(Look *l, const Match *found, const char *const *texts, int n)
{
    Match best = MATCH_NOT;
    for (int i = 0; i < n; i++) {
        Match m = literal(l, texts[i], found[i]);
        if (m == found[i]) return m;
        if (m == MATCH_MORE) best = m;
    }
    return best;
}

Match match_bare_call(Look *l, Look *name)
{
    static const Match found[] = {MATCH_FUNCTION, MATCH_FUNCTION};
    static const char *const texts[] = {"<parameter=", "</function>"};
    Match m = named(l, "<function=", MATCH_FUNCTION, name);
    if (m != MATCH_FUNCTION) return m;
    size_t after_name = l->at;
    skip_blanks(l);
    if (l->at == l->n) return out_of_text(l);
    m = any_of(l, found, texts, 2);
    l->at = after_name;
    return m;
}

Match match_in_args(Look *l, Look *name)
{
    static const Match found[] = {MATCH_END_FUNCTION, MATCH_END_CALL, MATCH_FUNCTION};
    static const char *const texts[] = {"</function>", "</tool_call>", "<function="};
    if (skip_blanks(l)) return MATCH_BLANKS;
    Match closer = any_of(l, found, texts, 3);
    if (closer != MATCH_NOT && closer != MATCH_MORE) return closer;
    size_t from = l->at;
    Match m = named(l, "<parameter=", MATCH_PARAMETER, name);
    if (m == MATCH_NOT) l->at = from;
    return m == MATCH_NOT ? closer : m;
}

/* After </parameter>: what must follow for it to end the value. */
static Match end_of_value(Look *l)
{
    static const Match found[] = {MATCH_END_VALUE, MATCH_END_VALUE, MATCH_END_VALUE};
    static const char *const texts[] = {"<parameter=", "</function>", "</tool_call>"};
    skip_blanks(l);
    size_t after_blanks = l->at;
    if (l->at == l->n) return l->end == LOOK_ENDS ? MATCH_END_VALUE : out_of_text(l);
    Match m = any_of(l, found, texts, 3);
    l->at = after_blanks;
    return m;
}

/* </function>, </tool_call> or both in this order, and nothing else. */
static Match tail(Look *l)
{
    Match m = literal(l, "</function>", MATCH_TAIL);
    if (m == MATCH_MORE) return m;
    int some = m == MATCH_TAIL;
    skip_blanks(l);
    m = literal(l, "</tool_call>", MATCH_TAIL);
    some |= m == MATCH_TAIL;
    skip_blanks(l);
    if (!some || l->at < l->n) return m == MATCH_MORE ? m : MATCH_NOT;
    return l->end == LOOK_ENDS ? MATCH_TAIL : out_of_text(l);
}

Match match_in_value(Look *l, int line_start, size_t *n_blanks, Look *name)
{
    *n_blanks = skip_blanks(l);
    if (l->at == l->n) return l->end == LOOK_ENDS ? MATCH_TAIL : out_of_text(l);
    if (*n_blanks) line_start = l->text[l->at - 1] == '\n';
    size_t from = l->at;

    Match m = literal(l, "</parameter>", MATCH_END_VALUE);
    if (m == MATCH_END_VALUE) return end_of_value(l);
    if (m == MATCH_MORE) return m;
    if (line_start) {
        m = named(l, "<parameter=", MATCH_PARAMETER, name);
        if (m != MATCH_NOT) return m;
        l->at = from;
    }
    return tail(l);
}

Match match_after_call(Look *l)
{
    skip_blanks(l);
    size_t after_blanks = l->at;
    if (l->at == l->n) return l->end == LOOK_ENDS ? MATCH_BLANKS : out_of_text(l);
    static const Match found[] = {MATCH_END_CALL, MATCH_FUNCTION};
    static const char *const texts[] = {"</tool_call>", "<function="};
    Match m = any_of(l, found, texts, 2);
    if (m == MATCH_FUNCTION) l->at = after_blanks;
    return m;
}
