/* json_scan.c: see json_scan.h. */
#include "text/json_scan.h"

#include <string.h>

void json_scan_init(JsonScan *s)
{
    *s = (JsonScan){.state = JS_START};
}

int json_scan_in_string(const JsonScan *s)
{
    return s->state == JS_STRING || s->state == JS_ESCAPE || s->state == JS_HEX;
}

static int is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static int is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static int in_array(const JsonScan *s)
{
    int top = s->depth - 1;
    return s->is_array[top / 8] >> top % 8 & 1;
}

static JsonState open_container(JsonScan *s, int array)
{
    if (s->depth == MAX_SCANNED_DEPTH) return JS_BAD;
    uint8_t bit = (uint8_t)(1 << s->depth % 8);
    s->is_array[s->depth / 8] &= (uint8_t)~bit;
    if (array) s->is_array[s->depth / 8] |= bit;
    s->depth++;
    return array ? JS_FIRST_VALUE : JS_FIRST_KEY;
}

static JsonState close_container(JsonScan *s, char c)
{
    if (c != (in_array(s) ? ']' : '}')) return JS_BAD;
    s->depth--;
    return s->depth ? JS_NEXT : JS_DONE;
}

static JsonState begin_string(JsonScan *s, int key)
{
    s->in_key = key;
    return JS_STRING;
}

static JsonState begin_word(JsonScan *s, const char *rest)
{
    s->word = rest;
    return JS_WORD;
}

static JsonState begin_value(JsonScan *s, char c)
{
    if (c == '"') return begin_string(s, 0);
    if (c == '{' || c == '[') return open_container(s, c == '[');
    if (c == 't') return begin_word(s, "rue");
    if (c == 'f') return begin_word(s, "alse");
    if (c == 'n') return begin_word(s, "ull");
    if (c == '-') return JS_MINUS;
    if (c == '0') return JS_ZERO;
    return is_digit(c) ? JS_DIGITS : JS_BAD;
}

static JsonState after_value(JsonScan *s, char c)
{
    if (is_blank(c)) return JS_NEXT;
    if (c == ',') return in_array(s) ? JS_VALUE : JS_KEY;
    return close_container(s, c);
}

static JsonState in_string(JsonScan *s, char c)
{
    if (c == '\\') return JS_ESCAPE;
    if (c == '"') return s->in_key ? JS_COLON : JS_NEXT;
    return (unsigned char)c < 0x20 ? JS_BAD : JS_STRING;
}

static JsonState after_backslash(JsonScan *s, char c)
{
    s->n_hex = 4;
    if (c == 'u') return JS_HEX;
    return c && strchr("\"\\/bfnrt", c) ? JS_STRING : JS_BAD;
}

static JsonState hex_digit(JsonScan *s, char c)
{
    if (!is_digit(c) && !(c >= 'a' && c <= 'f') && !(c >= 'A' && c <= 'F')) return JS_BAD;
    return --s->n_hex ? JS_HEX : JS_STRING;
}

/* The states of a number; what cannot continue it must be able to follow it. */
static JsonState in_number(JsonScan *s, char c)
{
    int digit = is_digit(c), e = c == 'e' || c == 'E';
    switch (s->state) {
    case JS_MINUS:
        return !digit ? JS_BAD : c == '0' ? JS_ZERO : JS_DIGITS;
    case JS_POINT:
        return digit ? JS_DECIMALS : JS_BAD;
    case JS_EXPONENT:
        if (c == '+' || c == '-') return JS_EXPONENT_SIGN;
        return digit ? JS_EXPONENT_DIGITS : JS_BAD;
    case JS_EXPONENT_SIGN:
        return digit ? JS_EXPONENT_DIGITS : JS_BAD;
    case JS_ZERO:
    case JS_DIGITS:
        if (digit) return s->state == JS_ZERO ? JS_BAD : JS_DIGITS;
        if (c == '.') return JS_POINT;
        return e ? JS_EXPONENT : after_value(s, c);
    case JS_DECIMALS:
        if (digit) return JS_DECIMALS;
        return e ? JS_EXPONENT : after_value(s, c);
    default:
        return digit ? JS_EXPONENT_DIGITS : after_value(s, c);
    }
}

static JsonState next_state(JsonScan *s, char c)
{
    switch (s->state) {
    case JS_START:
        if (is_blank(c)) return JS_START;
        return c == '{' ? open_container(s, 0) : JS_BAD;
    case JS_FIRST_KEY:
    case JS_KEY:
        if (is_blank(c)) return s->state;
        if (c == '"') return begin_string(s, 1);
        return s->state == JS_KEY ? JS_BAD : close_container(s, c);
    case JS_COLON:
        return is_blank(c) ? JS_COLON : c == ':' ? JS_VALUE : JS_BAD;
    case JS_FIRST_VALUE:
        if (c == ']') return close_container(s, c);
        return is_blank(c) ? JS_FIRST_VALUE : begin_value(s, c);
    case JS_VALUE:
        return is_blank(c) ? JS_VALUE : begin_value(s, c);
    case JS_NEXT:
        return after_value(s, c);
    case JS_STRING:
        return in_string(s, c);
    case JS_ESCAPE:
        return after_backslash(s, c);
    case JS_HEX:
        return hex_digit(s, c);
    case JS_WORD:
        if (c != *s->word++) return JS_BAD;
        return *s->word ? JS_WORD : JS_NEXT;
    case JS_DONE:
    case JS_BAD:
        return JS_BAD;
    default:
        return in_number(s, c);
    }
}

JsonState json_scan_push(JsonScan *s, char byte)
{
    s->state = next_state(s, byte);
    return s->state;
}
