/*
 * formats.c: patterns of the formats that JSON schemas name; see dfa.h.
 *
 * These say what is written, so they are stricter than what readers have to take: 'T' and 'Z' are
 * capitals (RFC 3339 asks it of writers), fractions of a second end after nine digits, leap
 * seconds are written in UTC alone, and numbers of durations (its appendix A) end after six digits,
 * of seconds after nine, so that who counts in 32 bits can read them.
 */
#include "text/dfa.h"

#include <string.h>

#define DAY    "(0[1-9]|1\\d|2[0-8])" /* that every month has */
#define FOURTH "(0[48]|[2468][048]|[13579][26])"
#define LEAP   "(\\d\\d" FOURTH "|(00|" FOURTH ")00)"
#define DATE                                                                                       \
    "(\\d{4}-((0[1-9]|1[0-2])-" DAY "|(0[13-9]|1[0-2])-(29|30)|(0[13578]|1[02])-31)|" LEAP "-02-"  \
    "29)"
#define HOUR   "([01]\\d|2[0-3])"
#define MINUTE "[0-5]\\d"
#define PART   "(\\.\\d{1,9})?"
#define TIME                                                                                       \
    "(" HOUR ":" MINUTE ":" MINUTE PART "(Z|[+-]" HOUR ":" MINUTE ")|23:59:60" PART "(Z|[+-]00:"   \
    "00))"
#define N     "\\d{1,6}"
#define SECS  "\\d{1,9}S"
#define DAYS  "(" N "D|" N "M(" N "D)?|" N "Y(" N "M(" N "D)?)?)"
#define HOURS "T(" N "H(" N "M(" SECS ")?)?|" N "M(" SECS ")?|" SECS ")"
#define HEX   "[0-9a-fA-F]"
#define HEX4  HEX "{4}"
#define NODE  HEX4 HEX4 HEX4
/* Of one version, as Pydantic names and checks them. */
#define UUID(n)                                                                                    \
    {                                                                                              \
        "uuid" n, "^" HEX4 HEX4 "-" HEX4 "-" n HEX "{3}-[89abAB]" HEX "{3}-" NODE "$"              \
    }
#define OCTET "(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define IPV4  "(" OCTET "\\.){3}" OCTET
#define GROUP "[0-9a-fA-F]{1,4}"
#define LAST  "(" GROUP ":" GROUP "|" IPV4 ")" /* 32 bits */
/* Up to n groups and one more, if any, those that are left out, and the end. */
#define CUT(n, end) "|((" GROUP ":){0," n "}" GROUP ")?::" end
#define IPV6                                                                                       \
    "((" GROUP ":){6}" LAST "|::(" GROUP ":){5}" LAST CUT("0", "(" GROUP ":){4}" LAST)             \
        CUT("1", "(" GROUP ":){3}" LAST) CUT("2", "(" GROUP ":){2}" LAST) CUT("3", GROUP ":" LAST) \
            CUT("4", LAST) CUT("5", GROUP) CUT("6", "") ")"
#define ATOM  "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
#define LABEL "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"

const char *format_pattern(const char *name)
{
    static const struct {
        const char *name, *pattern;
    } formats[] = {
        {"date-time", "^" DATE "T" TIME "$"},
        {"date", "^" DATE "$"},
        {"time", "^" TIME "$"},
        {"uuid", "^" HEX4 HEX4 "-" HEX4 "-" HEX4 "-" HEX4 "-" NODE "$"},
        UUID("1"),
        UUID("3"),
        UUID("4"),
        UUID("5"),
        UUID("6"),
        UUID("7"),
        UUID("8"),
        {"duration", "^P(" DAYS "(" HOURS ")?|" HOURS "|" N "W)$"},
        {"ipv4", "^" IPV4 "$"},
        {"ipv6", "^" IPV6 "$"},
        {"hostname", "^" LABEL "(\\." LABEL ")*$"},
        {"email", "^" ATOM "(\\." ATOM ")*@" LABEL "(\\." LABEL ")+$"},
    };
    _Static_assert(sizeof formats / sizeof *formats == N_FORMATS, "who keeps them has room");
    for (size_t i = 0; i < N_FORMATS; i++)
        if (!strcmp(formats[i].name, name)) return formats[i].pattern;
    return NULL;
}

int format_longest(const char *name)
{
    return strcmp(name, "hostname") ? -1 : 253; /* 255 bytes of a message (RFC 1035) */
}
