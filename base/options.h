/*
 * options.h: one table of options feeds the command line, the config file and the help.
 *
 * An option is spelled --name VALUE or --name=VALUE on the command line and `name = value` in a
 * config file (# starts a comment at the start of a line or after a blank). The command line wins
 * over the file, wherever it stands; of two equal options the last wins.
 */
#ifndef OFFSHOOT_BASE_OPTIONS_H
#define OFFSHOOT_BASE_OPTIONS_H

#include <stdint.h>
#include <stdio.h>

#include "base/error.h"

typedef enum {
    OPTION_INT,    /* int, within [lo, hi] */
    OPTION_INT64,  /* int64_t, within [lo, hi] */
    OPTION_BYTES,  /* int64_t; K, M, G (and KiB, MiB, GiB) are powers of 1,024 */
    OPTION_NUMBER, /* double, finite, within [lo, hi]; or the word in choices, if any: NaN */
    OPTION_STRING, /* const char *, owned by the parser until options_free */
    OPTION_CHOICE, /* int: index into choices, "a|b|c" */
    OPTION_SWITCH, /* int: 1 for "on", 0 for "off"; the bare --name means on */
} OptionType;

typedef struct {
    const char *name; /* NULL ends a table */
    OptionType type;
    void *value; /* where the result goes; holds the default before parsing */
    double lo, hi;
    const char *choices;
    const char *arg;   /* what help calls the value: "N", "DIR"; NULL: its choices */
    const char *help;  /* a few words; "(default x)" is added unless they speak of a default; NULL:
                          no line of its own, a neighbour's words name it */
    unsigned commands; /* bit set of subcommands that take it; the caller's meaning */
} Option;

/* A row that an error reads: what other programs call the option `ours`. */
#define OPTION_OF_OTHERS(theirs, ours)                                                             \
    {                                                                                              \
        theirs, OPTION_STRING, 0, 0, 0, 0, 0, ours, 0                                              \
    }

/*
 * Parses argv[0..argc) for the options whose commands intersect command. A name has several rows
 * where its help differs by command, and at most one of them for each. Words that are no option go
 * to rest (room for argc), their number to *n_rest; "--" ends the options. --config FILE is read
 * first. Errors name option, value, bounds, and for an unknown one ours where others call it so,
 * else the nearest; for a file, its name and line.
 */
int options_parse(const Option *table, unsigned command, int argc, char **argv, const char **rest,
                  int *n_rest, Error *err);

/*
 * Prints the options of a command: "  --name ARG   help (default x)", within 80 columns. The values
 * must still hold the defaults.
 */
void options_help(const Option *table, unsigned command, FILE *out);

/* "4096", "512M" or "4GiB", with nothing around it. 0, or -1: it is something else. */
int options_read_bytes(const char *text, int64_t *out);

/* Frees strings made by options_parse; every OPTION_STRING is invalid from then on. */
void options_free(void);

#endif
