/*
 * analyzer.h: tells the analyzers of `make lint` (and no compiler) that a failed cmocka check does
 * not return. cmocka.h does not say so, and they would go on with the pointer that was NULL.
 */
#ifndef OFFSHOOT_TESTS_ANALYZER_H
#define OFFSHOOT_TESTS_ANALYZER_H

void _fail(const char *file, int line) __attribute__((noreturn));
void _skip(const char *file, int line) __attribute__((noreturn));

#endif
