/* chi_square.c: see chi_square.h. */
#include "tests/chi_square.h"

#include <math.h>

/* Upper tail of the regularised incomplete gamma: a series below a + 1, else Lentz's fraction. */
static double gamma_tail(double a, double x)
{
    double scale = exp(a * log(x) - x - lgamma(a));
    if (x < a + 1) {
        double term = 1 / a, sum = term;
        for (int n = 1; n < 10000 && term > sum * 1e-16; n++)
            sum += term *= x / (a + n);
        return 1 - scale * sum;
    }
    double b = x + 1 - a, c = 1e300, d = 1 / b, h = d;
    for (int n = 1; n < 10000; n++) {
        double an = -n * (n - a);
        b += 2;
        d = 1 / (an * d + b);
        c = b + an / c;
        h *= c * d;
        if (fabs(c * d - 1) < 1e-15) break;
    }
    return scale * h;
}

double chi_square_tail(double x, int n)
{
    return x > 0 ? gamma_tail(n / 2.0, x / 2) : 1;
}
