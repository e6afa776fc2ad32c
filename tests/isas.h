/*
 * isas.h: the instruction sets of the CPU backend, from the plainest on.
 */
#ifndef OFFSHOOT_TESTS_ISAS_H
#define OFFSHOOT_TESTS_ISAS_H

static const char *const cpu_isas[] = {
    "plain",
#ifdef __aarch64__
    "dotprod",
#else
    "avx2",  "avx512", "vnni", "amx",
#endif
};
enum { N_CPU_ISAS = sizeof cpu_isas / sizeof *cpu_isas };

#endif
