/*
 * metrics_page.h: a strict reader of the text format that GET /metrics answers in, and questions to
 * a page.
 */
#ifndef OFFSHOOT_TESTS_METRICS_PAGE_H
#define OFFSHOOT_TESTS_METRICS_PAGE_H

#include "tests/served.h"

typedef struct {
    json_t *value;     /* sample as printed, our two labels left out -> number */
    json_t *type;      /* family -> type */
    char family[128];  /* whose samples are being read */
    char model[128];   /* value of model_name in the last sample, unescaped */
    char series[512];  /* the last bucket's labels without le */
    double le, bucket; /* its bound and value; le NaN: there was none */
    double infinite;   /* value of the +Inf bucket that was read last */
    const char *line;
} Page;

/* The test fails when anything about the page is wrong. */
void page_read(Page *p, const char *text, size_t len);
void page_close(Page *p);
Page page_scrape(const Served *s);

/* Whether page_read would fail the test. */
int page_is_refused(const char *text);

/*
 * Reads labels from behind their brace on: all but our two and le go to rest, le's value to le (""
 * when absent). Returns the byte behind the closing brace.
 */
const char *page_read_labels(Page *p, const char *at, char *rest, size_t size, char *le);

/* A sample's value; it must be there. */
double page_get(const Page *p, const char *key);
void assert_sample(const Page *p, const char *key, double value);

/* Of what may only rise nothing has fallen or gone. */
void assert_risen(const Page *before, const Page *after);

#endif
