/*
 * apart.h: what may end a process, run in one of its own.
 */
#ifndef OFFSHOOT_TESTS_APART_H
#define OFFSHOOT_TESTS_APART_H

enum { APART_SAID = 256 };

/* The first line on stderr of a process that does run(arg), at most; its status, as wait gives it.
 */
int run_apart(void (*run)(const void *arg), const void *arg, char said[APART_SAID]);

#endif
