/* random.c: see random.h. So few bytes never come short; a kernel without getrandom gives zeros. */
#include "base/random.h"

#include <assert.h>
#include <sys/random.h>

uint64_t random_u64(void)
{
    uint64_t value = 0;
    return getrandom(&value, sizeof value, 0) == sizeof value ? value : 0;
}

void random_hex(char *out, size_t n_bytes)
{
    static const char digits[] = "0123456789abcdef";
    unsigned char bytes[16] = {0};
    assert(n_bytes <= sizeof bytes);
    ssize_t n = getrandom(bytes, n_bytes, 0);
    (void)n;
    for (size_t i = 0; i < n_bytes; i++) {
        out[2 * i] = digits[bytes[i] >> 4];
        out[2 * i + 1] = digits[bytes[i] & 15];
    }
    out[2 * n_bytes] = 0;
}
