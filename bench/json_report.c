/* json_report.c: see json_report.h. */
#include "bench/json_report.h"

#include <stdio.h>

void json_report_print(json_t *report)
{
    json_dumpf(report, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
    printf("\n");
    json_decref(report);
}
