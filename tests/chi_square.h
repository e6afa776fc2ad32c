/*
 * chi_square.h: how likely it is that counts differ so much from what was expected.
 */
#ifndef OFFSHOOT_TESTS_CHI_SQUARE_H
#define OFFSHOOT_TESTS_CHI_SQUARE_H

/* The chance of a chi-square above x with n degrees of freedom. */
double chi_square_tail(double x, int n);

#endif
