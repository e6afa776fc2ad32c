/* quantiles.c: see quantiles.h. */
#include "bench/quantiles.h"

#include <math.h>
#include <stdlib.h>

static int by_size(const void *pa, const void *pb)
{
    double a = *(const double *)pa, b = *(const double *)pb;
    return (a > b) - (a < b);
}

void quantile_sort(double *value, int n)
{
    qsort(value, (size_t)n, sizeof *value, by_size);
}

double median(double *value, int n)
{
    quantile_sort(value, n);
    return n ? (value[(n - 1) / 2] + value[n / 2]) / 2 : 0;
}

long quantile_place(long n, double share)
{
    return (long)ceil(share * (double)n) - 1;
}

double quantile(const double *sorted, int n, double share)
{
    return n ? sorted[quantile_place(n, share)] : 0;
}
