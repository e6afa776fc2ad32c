/*
 * arrays.h: arrays in backend memory that are taken and given back together, by one list.
 */
#ifndef OFFSHOOT_ENGINE_ARRAYS_H
#define OFFSHOOT_ENGINE_ARRAYS_H

#include <stddef.h>

#include "base/error.h"
#include "kernels/backend.h"

typedef struct {
    void *where; /* the pointer to it: NULL as long as it is not taken */
    size_t bytes;
} BackendArray;

/* 0, or -1 and an Error: then some are there, to be given back. */
int arrays_take(Backend *be, const BackendArray *array, int n, Error *err);

/* Gives back those that are there; their sizes do not matter. */
void arrays_give_back(Backend *be, const BackendArray *array, int n);

/* What n arrays take. */
size_t arrays_bytes(const BackendArray *array, int n);

#endif
