/*
 * random.h: randomness for names and seeds, from the system.
 */
#ifndef OFFSHOOT_BASE_RANDOM_H
#define OFFSHOOT_BASE_RANDOM_H

#include <stddef.h>
#include <stdint.h>

uint64_t random_u64(void);

/* Writes 2 * n_bytes hexadecimal digits and a NUL; n_bytes is at most 16. */
void random_hex(char *out, size_t n_bytes);

#endif
