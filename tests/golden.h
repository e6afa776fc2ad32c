/*
 * golden.h: reading the reference outputs of tests/data/golden.
 */
#ifndef OFFSHOOT_TESTS_GOLDEN_H
#define OFFSHOOT_TESTS_GOLDEN_H

#include "engine/safetensors.h"

/* Opens dir/golden.safetensors and its input_ids, at most max; a test failure when it can't. */
Safetensors *golden_open(const char *dir, int32_t *token, int max, int *n);

#endif
