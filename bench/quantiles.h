/*
 * quantiles.h: the middle and the ends of what was measured.
 */
#ifndef OFFSHOOT_BENCH_QUANTILES_H
#define OFFSHOOT_BENCH_QUANTILES_H

/* The mean of the one or two in the middle of n values, which are sorted by this. */
double median(double *value, int n);

void quantile_sort(double *value, int n);

/* Of n > 0 sorted values the place of the first that `share` of all, above 0, do not exceed. */
long quantile_place(long n, double share);

/* That value; 0 where there is none. */
double quantile(const double *sorted, int n, double share);

#endif
