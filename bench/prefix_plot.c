/*
 * prefix_plot.c: hit rates over memory as an SVG.
 *
 * The memory's axis is logarithmic, with a tick at each size that was run; names stand beside the
 * ends of their lines, moved apart where they would lie over each other.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/strbuf.h"
#include "bench/prefix.h"

enum { WIDTH = 760, HEIGHT = 440, LEFT = 64, RIGHT = 130, TOP = 48, BOTTOM = 56, LABEL_GAP = 15 };

static const char *const colors[] = {"#888888", "#b5651d", "#e0a458", "#1f6fb4", "#2a9d5c",
                                     "#7cc49a", "#9467bd", "#d62728", "#17a2b8", "#555555"};
enum { N_COLORS = sizeof colors / sizeof *colors };

typedef struct {
    const PrefixBench *b;
    StrBuf out;
    double low, high;          /* capacities */
    int order[MAX_CAPACITIES]; /* by size */
} Plot;

static double x_of(const Plot *p, double capacity)
{
    double span = log(p->high / p->low);
    double at = span > 0 ? log(capacity / p->low) / span : 0.5;
    return LEFT + at * (WIDTH - LEFT - RIGHT);
}

static double y_of(double rate)
{
    return TOP + (1 - rate) * (HEIGHT - TOP - BOTTOM);
}

static double rate_of(const PolicyResult *r)
{
    return r->prompt_tokens > 0 ? r->hit_tokens / r->prompt_tokens : 0;
}

/* Text of the user's: his file's name. */
static void put_escaped(StrBuf *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '<')
            strbuf_puts(out, "&lt;");
        else if (*text == '&')
            strbuf_puts(out, "&amp;");
        else if (*text == '>') /* "]]>" may not stand in a text */
            strbuf_puts(out, "&gt;");
        else if ((unsigned char)*text >= ' ')
            strbuf_add(out, text, 1);
    }
}

static void sort_capacities(Plot *p)
{
    const PrefixBench *b = p->b;
    for (int i = 0; i < b->n_capacities; i++) {
        int at = i;
        while (at > 0 && b->capacity[p->order[at - 1]] > b->capacity[i]) {
            p->order[at] = p->order[at - 1];
            at--;
        }
        p->order[at] = i;
    }
    p->low = b->capacity[p->order[0]];
    p->high = b->capacity[p->order[b->n_capacities - 1]];
}

static void draw_frame(Plot *p)
{
    const PrefixBench *b = p->b;
    StrBuf *o = &p->out;
    strbuf_printf(o,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
                  "font-family=\"sans-serif\" font-size=\"12\">\n"
                  "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n"
                  "<text x=\"%d\" y=\"24\" font-size=\"14\">Prompt tokens found in the cache: ",
                  WIDTH, HEIGHT, LEFT);
    put_escaped(o, b->source);
    strbuf_printf(o, ", %d requests, ", b->trace.n);
    put_escaped(o, b->shape.name);
    strbuf_puts(o, "</text>\n");
    for (int percent = 0; percent <= 100; percent += 20) {
        double y = y_of(percent / 100.0);
        strbuf_printf(o,
                      "<line x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\" stroke=\"#dddddd\"/>"
                      "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%d %%</text>\n",
                      LEFT, y, WIDTH - RIGHT, y, LEFT - 8, y + 4, percent);
    }
    for (int i = 0; i < b->n_capacities; i++) {
        double x = x_of(p, b->capacity[i]);
        strbuf_printf(o,
                      "<line x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\" stroke=\"black\"/>"
                      "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.3g</text>\n",
                      x, HEIGHT - BOTTOM, x, HEIGHT - BOTTOM + 5, x, HEIGHT - BOTTOM + 20,
                      b->capacity[i] / 1e9);
    }
    strbuf_printf(o,
                  "<line x1=\"%d\" y1=\"%d\" x2=\"%d\" y2=\"%d\" stroke=\"black\"/>\n"
                  "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">memory for states and K, V, GB "
                  "(logarithmic)</text>\n",
                  LEFT, HEIGHT - BOTTOM, WIDTH - RIGHT, HEIGHT - BOTTOM, (LEFT + WIDTH - RIGHT) / 2,
                  HEIGHT - 14);
}

static void draw_lines(Plot *p)
{
    const PrefixBench *b = p->b;
    for (int i = 0; i < b->n_policies; i++) {
        const char *color = colors[i % N_COLORS];
        strbuf_printf(&p->out,
                      "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"%s\" points=\"", color,
                      b->policy[i].kind == CACHE_TUNED ? "3" : "1.5");
        for (int c = 0; c < b->n_capacities; c++) {
            int at = p->order[c];
            strbuf_printf(&p->out, "%.1f,%.1f ", x_of(p, b->capacity[at]),
                          y_of(rate_of(&b->result[at][i])));
        }
        strbuf_puts(&p->out, "\"/>\n");
    }
}

/* From the top down; each at its line's end or as near below the one above as it can be read. */
static void draw_names(Plot *p)
{
    const PrefixBench *b = p->b;
    int last = p->order[b->n_capacities - 1], done[MAX_POLICIES] = {0};
    double above = TOP - LABEL_GAP;
    for (int k = 0; k < b->n_policies; k++) {
        int best = -1;
        for (int i = 0; i < b->n_policies; i++)
            if (!done[i] &&
                (best < 0 || rate_of(&b->result[last][i]) > rate_of(&b->result[last][best])))
                best = i;
        done[best] = 1;
        double y = y_of(rate_of(&b->result[last][best]));
        if (y < above + LABEL_GAP) y = above + LABEL_GAP;
        above = y;
        strbuf_printf(&p->out, "<text x=\"%.1f\" y=\"%.1f\" fill=\"%s\">%s</text>\n",
                      x_of(p, p->high) + 10, y + 4, colors[best % N_COLORS], b->policy[best].name);
    }
}

int prefix_plot(const PrefixBench *b, const char *path, Error *err)
{
    Plot p = {.b = b};
    sort_capacities(&p);
    draw_frame(&p);
    draw_lines(&p);
    draw_names(&p);
    strbuf_puts(&p.out, "</svg>\n");
    FILE *f = fopen(path, "w");
    int bad = !f || fwrite(p.out.data, 1, p.out.len, f) != p.out.len;
    if (f && fclose(f)) bad = 1;
    if (bad) error_set(err, ERR_FILE, "cannot write '%s': %s", path, strerror(errno));
    strbuf_free(&p.out);
    return bad ? -1 : 0;
}
