/* arrays.c: see arrays.h. */
#include "engine/arrays.h"

#include <string.h>

int arrays_take(Backend *be, const BackendArray *array, int n, Error *err)
{
    for (int i = 0; i < n; i++) {
        void *p = be->alloc(be, array[i].bytes, err);
        if (!p) return -1;
        memcpy(array[i].where, &p, sizeof p);
    }
    return 0;
}

void arrays_give_back(Backend *be, const BackendArray *array, int n)
{
    for (int i = 0; i < n; i++) {
        void *p;
        memcpy(&p, array[i].where, sizeof p);
        if (p) be->free(be, p);
    }
}

size_t arrays_bytes(const BackendArray *array, int n)
{
    size_t bytes = 0;
    for (int i = 0; i < n; i++)
        bytes += array[i].bytes;
    return bytes;
}
