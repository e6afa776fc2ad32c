/* golden.c: see golden.h. */
#include "tests/golden.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

Safetensors *golden_open(const char *dir, int32_t *token, int max, int *n)
{
    Error err = {0};
    char path[128];
    snprintf(path, sizeof path, "%s/golden.safetensors", dir);
    Safetensors *st = safetensors_open_file(path, &err);
    if (!st) fail_msg("%s", err.msg);
    const Tensor *ids = safetensors_find(st, "input_ids");
    assert_non_null(ids);
    assert_true(ids->dim[0] <= max);
    *n = (int)ids->dim[0];
    for (int i = 0; i < *n; i++) {
        int64_t id;
        memcpy(&id, ids->data + 8 * (size_t)i, sizeof id);
        token[i] = (int32_t)id;
    }
    return st;
}
