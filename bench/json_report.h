/*
 * json_report.h: what a bench found, for programs (--json).
 */
#ifndef OFFSHOOT_BENCH_JSON_REPORT_H
#define OFFSHOOT_BENCH_JSON_REPORT_H

#include <jansson.h>

/* Prints it on stdout, figures with six digits, and frees it. */
void json_report_print(json_t *report);

#endif
