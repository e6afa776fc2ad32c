/*
 * oniguruma.h: expressions in Oniguruma's syntax (Ruby's), by which the vocabularies were made, in
 * PCRE2's.
 *
 * What both read alike stays, what PCRE2 says in other words is said in them, and the rest is
 * refused: an escape, a group or a class that might mean something else is never passed on.
 */
#ifndef OFFSHOOT_TEXT_ONIGURUMA_H
#define OFFSHOOT_TEXT_ONIGURUMA_H

#include "base/error.h"
#include "base/strbuf.h"

/*
 * Adds the pattern to out, for PCRE2_UTF, PCRE2_UCP and PCRE2_MULTILINE: ^ and $ are ends of lines,
 * which they are to Oniguruma. -1 and an Error that names what is refused, and its byte. Whether
 * the rest is an expression PCRE2 says.
 */
int oniguruma_translate(const char *pattern, StrBuf *out, Error *err);

#endif
