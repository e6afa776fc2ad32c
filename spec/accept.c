/* accept.c: see accept.h. */
#include "spec/accept.h"

void accept_path(const Tree *t, const int32_t *next, int (*stopped)(void *ctx, int32_t token),
                 void *ctx, AcceptedPath *out)
{
    int node = 0;
    out->m = 0;
    out->path[0] = 0;
    out->stop = 0;
    for (;;) {
        int32_t token = next[node];
        if (token < 0) {
            out->stop = -1;
            return;
        }
        out->emitted[out->m] = token;
        out->stop = stopped(ctx, token);
        if (out->stop) return;
        node = tree_child(t, node, token);
        if (node < 0) return;
        out->path[++out->m] = node;
    }
}

double synthetic_rate(double length, int depth)
{
    double lo = 0, hi = 1;
    for (int i = 0; i < 60; i++) {
        double a = (lo + hi) / 2, sum = 0, power = 1;
        for (int d = 0; d < depth; d++)
            sum += power *= a;
        *(sum < length - 1 ? &lo : &hi) = a;
    }
    return hi;
}
