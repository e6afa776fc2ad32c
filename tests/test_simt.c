/*
 * test_simt.c: what GPU kernels are run with on the host: warps, blocks, 16-bit products and
 * numbers, each against plain C; and that a kernel which can never end is reported.
 */
#include <float.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "kernels/bf16.h"
#include "kernels/fp16.h"
#include "kernels/fp8.h"
#include "kernels/simt_host.h"
#include "tests/near.h"
#include "tests/simt_cases.h"

static void test_warps(void **state)
{
    (void)state;
    Rng r = rng_new(1);
    WarpCase c = {0};
    for (int t = 0; t < CASE_THREADS; t++) {
        c.x[t] = rng_float(&r);
        c.word[t] = (uint32_t)rng_next(&r);
        c.from[t] = rng_int(&r, 32);
    }
    case_warp(&c);
    for (int t = 0; t < CASE_THREADS; t++) {
        int first = t / 32 * 32;
        assert_true(c.shuffled[t] == c.x[first + c.from[t]]);
        assert_int_equal(c.words[t], c.word[first + c.from[t]]);
        assert_true(c.flipped[t] == c.x[t ^ 5]);
        for (int lane = 0; lane < 32; lane++)
            assert_int_equal(c.positive[t] >> lane & 1, c.x[first + lane] > 0);
        int is_largest = 0, is_smallest = 0;
        for (int lane = first; lane < first + 32; lane++) {
            assert_true(c.smallest[t] <= c.word[lane] && c.word[lane] <= c.largest[t]);
            is_largest |= c.word[lane] == c.largest[t];
            is_smallest |= c.word[lane] == c.smallest[t];
        }
        assert_true(is_largest && is_smallest);
        for (int i = 0; i < 6; i++) {
            int width = 1 << i, group = t / width * width;
            double sum = 0;
            float max = -INFINITY;
            for (int j = group; j < group + width; j++) {
                sum += (double)c.x[j];
                max = fmaxf(max, c.x[j]);
            }
            assert_true(fabs((double)c.sum[i][t] - sum) < 32 * 0x1p-23);
            assert_true(c.sum[i][t] == c.sum[i][group]); /* one tree: the same bits in all lanes */
            assert_true(c.max[i][t] == max);
        }
    }
}

static void test_order(void **state)
{
    (void)state;
    enum { LANES = 32, BLOCKS = 2 * 3 * 4, THREADS = LANES * BLOCKS };
    int seen[THREADS], back[THREADS], n = 0, n_back = 0;
    case_blocks(2, 3, 4, seen, &n);
    simt_reverse(1);
    case_blocks(2, 3, 4, back, &n_back);
    simt_reverse(0);
    assert_int_equal(n, THREADS);
    assert_int_equal(n_back, THREADS);
    for (int i = 0; i < THREADS; i++) {
        int lane = i % LANES, block = i / LANES;
        int number = block % 2 + 10 * (block / 2 % 3) + 100 * (block / 6);
        assert_int_equal(seen[i], lane + 100 * number);
        assert_int_equal(back[i], seen[THREADS - 1 - i]);
    }
}

static void test_block_barrier(void **state)
{
    (void)state;
    enum { STEPS = 50 };
    uint32_t x[CASE_THREADS], want[CASE_THREADS], poison[CASE_THREADS];
    for (int t = 0; t < CASE_THREADS; t++)
        x[t] = want[t] = (uint32_t)t * 2654435761u;
    case_neighbours(STEPS, x, poison);
    for (int i = 0; i < STEPS; i++) {
        uint32_t first = want[0];
        for (int t = 0; t < CASE_THREADS; t++)
            want[t] += t + 1 < CASE_THREADS ? want[t + 1] : first;
    }
    for (int t = 0; t < CASE_THREADS; t++) {
        assert_int_equal(x[t], want[t]);
        assert_int_equal(poison[t], 0xffffffffu);
    }
}

/* ---- products ---- */

static float value_of(int is_bf16, uint16_t bits)
{
    return is_bf16 ? bf16_to_float(bits) : fp16_to_float(bits);
}

/* The products of 16-bit terms are exact in f32; 17 terms of up to 1 are added. */
static void test_products(void **state)
{
    (void)state;
    for (int is_bf16 = 0; is_bf16 < 2; is_bf16++) {
        Rng r = rng_new(2 + (uint64_t)is_bf16);
        uint16_t a[16][16], b[16][8];
        float d[16][8], want[16][8], alone[16][8];
        for (int i = 0; i < 256; i++)
            a[i / 16][i % 16] =
                is_bf16 ? bf16_from_float(rng_float(&r)) : fp16_from_float(rng_float(&r));
        for (int i = 0; i < 128; i++) {
            b[i / 8][i % 8] =
                is_bf16 ? bf16_from_float(rng_float(&r)) : fp16_from_float(rng_float(&r));
            d[i / 8][i % 8] = alone[i / 8][i % 8] = rng_float(&r);
        }
        for (int i = 0; i < 128; i++) {
            double sum = (double)d[i / 8][i % 8];
            for (int k = 0; k < 16; k++)
                sum +=
                    (double)value_of(is_bf16, a[i / 8][k]) * (double)value_of(is_bf16, b[k][i % 8]);
            want[i / 8][i % 8] = (float)sum;
        }
        case_mma(is_bf16, a[0], b[0], d[0]);
        assert_true(near_all("product", d[0], want[0], 128, 0, 17 * 0x1p-21, r.seed));
        for (int k = 0; k < 16; k++) /* a column of D hangs on that of B alone: others are NaN */
            for (int j = 0; j < 8; j++)
                if (j != 3) b[k][j] = 0x7fff;
        case_mma(is_bf16, a[0], b[0], alone[0]);
        for (int i = 0; i < 16; i++)
            assert_true(same_bits("column", &alone[i][3], &d[i][3], 1, r.seed));
    }
}

/* ---- numbers ---- */

/* gcc has it on every x86-64, clang 14 does not. */
#if defined __FLT16_MAX__ && !defined __clang__
#define HAS_HALF 1
__extension__ typedef _Float16 Half;

static float half_value(uint16_t bits)
{
    Half half;
    memcpy(&half, &bits, sizeof half);
    return (float)half;
}

static uint16_t half_bits(float x)
{
    Half half = (Half)x;
    uint16_t bits;
    memcpy(&bits, &half, sizeof bits);
    return bits;
}

/* As the compiler rounds x, of either sign. */
static void expect_half(float x)
{
    for (int sign = 0; sign < 2; sign++, x = -x) {
        if (fp16_from_float(x) != half_bits(x)) fail_msg("%a becomes %x", (double)x, half_bits(x));
        assert_int_equal(case_fp16_pair(x, 1.0f), half_bits(x) | 0x3c00u << 16);
    }
}

/* Every value; every f32 next to a value or half way between two, where rounding turns. */
static void test_fp16(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        float got = fp16_to_float((uint16_t)bits), want = half_value((uint16_t)bits);
        float kernel = case_fp16_value((uint16_t)bits);
        assert_true(isnan(want) ? isnan(got) : same_bits("fp16", &got, &want, 1, bits));
        assert_true(same_bits("fp16 in a kernel", &kernel, &got, 1, bits));
        if (isnan(want)) assert_true((fp16_from_float(got) & 0x7fff) > 0x7c00);
    }
    for (uint16_t bits = 0; bits < 0x7c00; bits++) {
        float low = half_value(bits), high = half_value((uint16_t)(bits + 1));
        float middle = isinf(high) ? 65520.0f : low + (high - low) / 2;
        float at[] = {low, middle};
        for (int i = 0; i < 2; i++) {
            expect_half(at[i]);
            expect_half(nextafterf(at[i], INFINITY));
            expect_half(nextafterf(at[i], -INFINITY));
        }
    }
    Rng r = rng_new(3);
    for (int i = 0; i < 100000; i++)
        expect_half(ldexpf(rng_float(&r), rng_int(&r, 48) - 30));
    expect_half(INFINITY);
    expect_half(FLT_MAX);
    expect_half(FLT_MIN / 2);
}
#endif

/* Sign, 4 bits of exponent with bias 7, 3 of fraction; the NaN codes read as +-480. */
static void test_fp8(void **state)
{
    (void)state;
    for (int code = 0; code < 256; code++) {
        int exponent = code >> 3 & 15, fraction = code & 7;
        double value = exponent ? ldexp(8 + fraction, exponent - 10) : ldexp(fraction, -9);
        float want = (float)(code & 0x80 ? -value : value), got = fp8_to_float((uint8_t)code);
        assert_true(same_bits("fp8", &got, &want, 1, (uint64_t)code));
        uint32_t pair = case_fp8_pair((uint16_t)(code | (255 - code) << 8));
        float low = fp16_to_float((uint16_t)pair), high = fp16_to_float((uint16_t)(pair >> 16));
        assert_true(same_bits("fp8 pair", &low, &want, 1, (uint64_t)code));
        assert_true(high == fp8_to_float((uint8_t)(255 - code)));
    }
}

/* The nearer of the two neighbours, the even one when both are as near. */
static void test_bf16(void **state)
{
    (void)state;
    Rng r = rng_new(4);
    for (int i = 0; i < 300000; i++) {
        uint32_t bits = (uint32_t)rng_next(&r);
        if (i % 3 == 0) bits = (bits & 0xffff0000u) | 0x8000u; /* half way */
        if ((bits & 0x7f800000u) >= 0x7f000000u) continue;
        float x;
        memcpy(&x, &bits, sizeof x);
        uint16_t below = (uint16_t)(bits >> 16), above = (uint16_t)(below + 1);
        double down = fabs((double)x - (double)bf16_to_float(below));
        double up = fabs((double)bf16_to_float(above) - (double)x);
        uint16_t want = down < up || (down == up && below % 2 == 0) ? below : above;
        assert_int_equal(bf16_from_float(x), want);
        assert_int_equal(case_bf16_pair(x, -2.0f), want | 0xc000u << 16);
    }
    assert_int_equal(bf16_from_float(INFINITY), 0x7f80);
    assert_int_equal(bf16_from_float(FLT_MAX), 0x7f80);
    static const uint32_t nan_bits[] = {0x7fc00000u, 0x7f800001u, 0x7fffffffu, 0xffffffffu};
    for (int i = 0; i < 4; i++) { /* neither cut to infinity nor carried into the sign */
        float x;
        memcpy(&x, &nan_bits[i], sizeof x);
        assert_true(isnan(bf16_to_float(bf16_from_float(x))));
    }
}

/* Elements of K and V, in their order; two bf16 terms keep 16 bits of an f32. */
static void test_kv_values(void **state)
{
    (void)state;
    Rng r = rng_new(5);
    for (int i = 0; i < 1000; i++) {
        _Alignas(16) float full[4];
        _Alignas(16) uint16_t half[8];
        float x[8], summed[8];
        rng_fill(&r, full, 4, 100);
        for (int k = 0; k < 8; k++)
            half[k] = bf16_from_float(rng_float(&r));
        assert_int_equal(case_kv_values(0, full, x, summed), 4);
        assert_memory_equal(x, full, sizeof full);
        assert_true(near_all("two terms", summed, full, 4, 0x1p-16, 0, (uint64_t)i));
        assert_int_equal(case_kv_values(1, half, x, summed), 8);
        for (int k = 0; k < 8; k++) {
            assert_true(x[k] == bf16_to_float(half[k]));
            assert_true(summed[k] == x[k]);
        }
    }
}

/* ---- kernels that can never end ---- */

/* Runs the case in a process of its own; what it wrote to stderr goes to said. */
static int status_of(StuckCase which, char *said, size_t size)
{
    int pipes[2], status;
    size_t n = 0;
    ssize_t got;
    assert_int_equal(pipe(pipes), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        signal(SIGABRT, SIG_DFL);
        dup2(pipes[1], STDERR_FILENO);
        case_stuck(which);
        simt_flush();
        _exit(0);
    }
    close(pipes[1]);
    while (n + 1 < size && (got = read(pipes[0], said + n, size - 1 - n)) > 0)
        n += (size_t)got;
    said[n] = 0;
    close(pipes[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static void expect_said(const char *said, const char *want)
{
    if (!strstr(said, want)) fail_msg("'%s' is not in: %s", want, said);
}

static void counted(const void *n)
{
    (*(int *)(uintptr_t)n)++;
}

/*
 * Launches that do not overlap see what the one before left. Where they do, one block of each has
 * looked too early, all see it after the wait, and the last runs when it is asked for.
 */
static void test_overlap(void **state)
{
    (void)state;
    OverlapCase c = {0};
    int n_after = 0;
    case_overlap(&c);
    for (int i = 0; i < OVERLAP_LAUNCHES; i++)
        for (int b = 0; b < OVERLAP_LAUNCHES; b++)
            assert_true(c.seen[i][0][b] == i && c.seen[i][1][b] == i);
    c = (OverlapCase){0};
    simt_overlap(1);
    case_overlap(&c);
    simt_after(counted, &n_after);
    assert_int_equal(c.x[0], OVERLAP_LAUNCHES - 1);
    assert_int_equal(n_after, 0);
    simt_flush();
    assert_int_equal(c.x[0], OVERLAP_LAUNCHES);
    assert_int_equal(n_after, 1);
    simt_overlap(0);
    for (int i = 0; i < OVERLAP_LAUNCHES; i++) {
        int early = 0;
        for (int b = 0; b < OVERLAP_LAUNCHES; b++) {
            assert_int_equal(c.seen[i][1][b], i);
            early += c.seen[i][0][b] == i - 1;
            assert_true(c.seen[i][0][b] == i - 1 || c.seen[i][0][b] == i);
        }
        assert_int_equal(early, i > 0); /* the first finds nothing that is not over */
    }
}

/* One of two warps runs first; the other is still where it began. */
static void test_stuck(void **state)
{
    (void)state;
    static const char *const why[NO_GRID_WAIT] = {
        "lanes of one warp wait for others that do not come",
        "lanes of one warp wait for others that do not come",
        "lanes of one warp are at barriers of different kinds"};
    static const char *const upper[NO_GRID_WAIT] = {
        "done\n",
        "at a block barrier, tests/simt_cases.cu:", "at a warp barrier, tests/simt_cases.cu:"};
    uint32_t x[CASE_THREADS] = {0}, poison[CASE_THREADS];
    char said[2000], want[200];
    case_neighbours(1, x, poison); /* its barriers are of no interest in what is said later */
    assert_true(WIFSIGNALED(status_of(NO_GRID_WAIT, said, sizeof said)));
    expect_said(said, "thread 63 of block (0, 0, 0) ends and has not called grid_wait\n");
    for (int i = 0; i < NO_GRID_WAIT; i++) {
        int status = status_of((StuckCase)i, said, sizeof said);
        int first = strstr(said, "threads 32 to 63: ready\n") ? 0 : 32;
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
        expect_said(said, why[i]);
        if (first) expect_said(said, "threads 0 to 31: ready\n");
        snprintf(want, sizeof want,
                 "threads %d to %d: at a warp barrier, tests/simt_cases.cu:", first, first + 15);
        expect_said(said, want);
        snprintf(want, sizeof want, "threads %d to %d: %s", first + 16, first + 31, upper[i]);
        expect_said(said, want);
    }
}

/* Of launches that overlap and of others; the first has none to trust. */
static void test_trust(void **state)
{
    (void)state;
    char said[2000];
    for (int on = 0; on < 2; on++) {
        simt_overlap(on);
        assert_true(WIFSIGNALED(status_of(TRUSTS_HASTY, said, sizeof said)));
        expect_said(said, "a launch reads before grid_wait what the launch before the last wrote");
        assert_int_equal(status_of(TRUSTS_PATIENT, said, sizeof said), 0);
    }
    simt_overlap(0);
}

/* What is copied is there once it was waited for, group by group, and not a moment before. */
static void test_copies(void **state)
{
    (void)state;
    CopyCase *c = aligned_alloc(16, (sizeof *c + 15) / 16 * 16);
    assert_non_null(c);
    for (uint32_t i = 0; i < 3 * CASE_THREADS * 4; i++)
        c->from[i / 4 / CASE_THREADS][i / 4 % CASE_THREADS][i % 4] = i;
    case_copies(c);
    for (int left = 0; left < 4; left++)
        for (uint32_t g = 0; g < 3; g++)
            for (uint32_t i = 0; i < CASE_THREADS * 4; i++)
                assert_int_equal(c->seen[left][g][i / 4][i % 4],
                                 (int)g < 3 - left ? g * CASE_THREADS * 4 + i : 0xffffffffu);
    free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_warps),         cmocka_unit_test(test_order),
        cmocka_unit_test(test_block_barrier), cmocka_unit_test(test_products),
#ifdef HAS_HALF
        cmocka_unit_test(test_fp16),
#endif
        cmocka_unit_test(test_fp8),           cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_kv_values),     cmocka_unit_test(test_copies),
        cmocka_unit_test(test_overlap),       cmocka_unit_test(test_stuck),
        cmocka_unit_test(test_trust),
    };
    return cmocka_run_group_tests_name("simt", tests, NULL, NULL);
}
