/* ptx_run.c: see ptx_run.h. */
#include "tests/ptx/ptx_run.h"

#include <assert.h>
#include <fenv.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ENTRIES = 1024, MAX_PARAM_BYTES = 4096 };

/* Kinds of simt_exchange; a product's is its line, for all lanes must be at the same. */
enum { KIND_SYNC, KIND_SHUFFLE, KIND_BALLOT, KIND_REDUCE, KIND_MMA };

static const PtxEntry *entries[MAX_ENTRIES];
static int n_entries;

void ptx_register(const PtxEntry *entry, int n)
{
    for (int i = 0; i < n; i++) {
        assert(n_entries < MAX_ENTRIES && !ptx_find(entry[i].module, entry[i].name));
        entries[n_entries++] = &entry[i];
    }
}

const PtxEntry *ptx_find(const char *module, const char *name)
{
    for (int i = 0; i < n_entries; i++)
        if (!strcmp(entries[i]->name, name) && !strcmp(entries[i]->module, module))
            return entries[i];
    return NULL;
}

uint32_t ptx_param_offset(const PtxEntry *entry, int i)
{
    uint32_t at = 0;
    for (int p = 0; p < entry->n_params; p++) {
        uint32_t align = entry->param[p].align;
        at = (at + align - 1) / align * align;
        if (p == i) break;
        at += entry->param[p].bytes;
    }
    return at;
}

/* ---- launches ---- */

typedef struct {
    const PtxEntry *entry;
    uint32_t shared_bytes, param_bytes, launch;
    int early;
    _Alignas(16) unsigned char param[MAX_PARAM_BYTES];
} Argument;

static void run_thread(void *argument)
{
    const Argument *a = argument;
    PtxThread t = {a->entry,    a->shared_bytes, a->param_bytes, a->param,
                   simt_shared, a->launch,       a->early};
    if (races_watched) races_begin(&t);
    a->entry->body(&t);
    ptx_wgmma_end(&t);
}

void ptx_launch(const PtxEntry *entry, SimtDim grid, unsigned block, uint32_t dynamic_bytes,
                const void *params, int early)
{
    static uint32_t n_launches;
    static int overlap;
    Argument a = {.entry = entry, .param_bytes = ptx_param_offset(entry, entry->n_params)};
    assert(a.param_bytes <= sizeof a.param);
    a.launch = ++n_launches;
    a.early = early;
    a.shared_bytes = (entry->shared_bytes + 15) / 16 * 16 + dynamic_bytes;
    memcpy(a.param, params, a.param_bytes);
    if (early != overlap) simt_overlap(overlap = early);
    size_t limit = simt_shared_limit(); /* a test's, for the other backend */
    if (limit != SIMT_SHARED_HOPPER) simt_limit_shared(SIMT_SHARED_HOPPER);
    simt_launch(grid, block, a.shared_bytes, run_thread, &a,
                offsetof(Argument, param) + a.param_bytes);
    if (limit != SIMT_SHARED_HOPPER) simt_limit_shared(limit);
}

/* ---- faults ---- */

/* The .loc before the line, with the name of its file. */
const char *ptx_source(const PtxEntry *entry, int line, char place[PTX_SOURCE_BYTES])
{
    char text[1024], names[64][256] = {{0}};
    unsigned of = 0, at = 0, caller = 0, caller_at = 0, number;
    FILE *ptx = fopen(entry->file, "r");
    for (int i = 1; ptx && fgets(text, sizeof text, ptx); i++) {
        char name[256];
        unsigned l;
        if (i <= line && sscanf(text, " .loc %u %u", &number, &l) == 2 && l) {
            const char *by = strstr(text, "inlined_at ");
            of = number, at = l;
            if (!by || sscanf(by, "inlined_at %u %u", &caller, &caller_at) != 2) caller_at = 0;
        }
        if (sscanf(text, " .file %u \"%255[^\"]\"", &number, name) == 2 && number < 64)
            memcpy(names[number], name, sizeof name);
    }
    if (ptx) fclose(ptx);
    if (of < 64 && caller < 64 && caller_at && strstr(names[of], "/simt.h"))
        of = caller, at = caller_at; /* its small functions say little */
    if (of < 64 && at)
        snprintf(place, PTX_SOURCE_BYTES, "%s:%u", names[of], at);
    else
        snprintf(place, PTX_SOURCE_BYTES, "%s:%d", entry->file, line);
    return place;
}

void ptx_print_place(const PtxThread *t, int line)
{
    char place[PTX_SOURCE_BYTES];
    fprintf(stderr, "  %s, block (%u, %u, %u), thread %u\n  %s:%d\n", t->entry->name,
            simt_block_idx.x, simt_block_idx.y, simt_block_idx.z, simt_thread_idx.x, t->entry->file,
            line);
    fprintf(stderr, "  from %s\n", ptx_source(t->entry, line, place));
}

void ptx_fault(const PtxThread *t, const char *space, uint64_t at, uint32_t bytes, int line)
{
    char text[128];
    fprintf(stderr, "ptx: %s %s memory at %#llx, %u bytes", at % bytes ? "misaligned" : "no", space,
            (unsigned long long)at, bytes);
    if (strstr(space, "g"))
        fprintf(stderr, ": %s", device_memory_describe(at, text));
    else
        fprintf(stderr, " of %u", t->shared_bytes);
    fprintf(stderr, "\n");
    ptx_print_place(t, line);
    abort();
}

void ptx_wrong(const PtxThread *t, int line, const char *what)
{
    fprintf(stderr, "ptx: %s\n", what);
    ptx_print_place(t, line);
    abort();
}

void *ptx_global_slow(const PtxThread *t, uint64_t at, uint32_t bytes, int line)
{
    for (int i = 0; i < t->entry->n_variables; i++) {
        uint64_t in = at - (uintptr_t)t->entry->variable[i].at;
        if (in < t->entry->variable[i].bytes && in + bytes <= t->entry->variable[i].bytes &&
            at % bytes == 0)
            return (void *)(uintptr_t)at;
    }
    ptx_fault(t, "global", at, bytes, line);
}

void *ptx_generic(const PtxThread *t, uint64_t at, uint32_t bytes, int line, PtxAccess access,
                  void *local, uint32_t local_bytes)
{
    uint64_t in = ptx_to_shared(t, at);
    if (in < t->shared_bytes) return ptx_shared(t, in, bytes, line, access);
    if (at - (uintptr_t)local < local_bytes)
        return ptx_local(t, at, bytes, line, local, local_bytes);
    return ptx_global(t, at, bytes, line, access);
}

/* ---- rounding ---- */

static float rounded(float (*what)(volatile float *), volatile float *operand, int mode)
{
    int before = fegetround();
    fesetround(mode);
    float r = what(operand);
    fesetround(before);
    return one_nan_f32(r);
}

static float fused(volatile float *x)
{
    return fmaf(x[0], x[1], x[2]);
}

static float sum(volatile float *x)
{
    return x[0] + x[1];
}

float fma_rm_f32(float a, float b, float c)
{
    volatile float operand[3] = {a, b, c};
    return rounded(fused, operand, FE_DOWNWARD);
}

float add_rz_f32(float a, float b)
{
    volatile float operand[2] = {a, b};
    return rounded(sum, operand, FE_TOWARDZERO);
}

/* ---- products ---- */

/*
 * The operands of a warp's product, the columns of B as rows: each lane puts its elements in their
 * places. Lanes that run ahead write the other half, as in simt_host.c.
 */
typedef struct {
    float a[16][16], b[8][16];
} Operands;

static Operands operands[SIMT_MAX_THREADS / SIMT_WARP][2];
static unsigned char half[SIMT_MAX_THREADS]; /* of a thread's last product */

/* Registers hold two elements, the first in the low half. */
static float element(const uint32_t *word, int i, float (*value)(uint16_t))
{
    return value((uint16_t)(i % 2 ? word[i / 2] >> 16 : word[i / 2]));
}

/* Rows and columns as in the ISA's "Matrix Fragments for mma.m16n8k16 with floating point type". */
static void place(Operands *to, const uint32_t word[6], float (*value)(uint16_t))
{
    int group = simt_lane() >> 2, in_group = simt_lane() % 4;
    for (int i = 0; i < 8; i++) {
        int row = i < 2 || (4 <= i && i < 6) ? group : group + 8;
        int column = in_group * 2 + (i & 1) + (i < 4 ? 0 : 8);
        to->a[row][column] = element(word, i, value);
    }
    for (int i = 0; i < 4; i++) {
        int row = in_group * 2 + (i & 1) + (i < 2 ? 0 : 8), column = group;
        to->b[column][row] = element(word + 4, i, value);
    }
}

static float bf16_value(uint16_t bits)
{
    return cvt_f32_bf16(bits);
}

static float f16_value(uint16_t bits)
{
    return cvt_f32_f16(bits);
}

float ptx_cut(double x)
{
    float r = (float)x;
    if (fabs((double)r) > fabs(x) && !isinf(x)) r = nextafterf(r, 0);
    return one_nan_f32(r);
}

static inline __attribute__((always_inline)) PtxFour product(const PtxThread *t, int line,
                                                             const uint32_t word[6],
                                                             const float c[4],
                                                             float (*value)(uint16_t))
{
    PtxFour d;
    unsigned self = simt_thread_idx.x;
    Operands *of = &operands[self / SIMT_WARP][half[self] ^= 1];
    place(of, word, value);
    simt_exchange(NULL, 0, KIND_MMA + line, t->entry->file, line);
    int group = simt_lane() >> 2, in_group = simt_lane() % 4;
    for (int i = 0; i < 4; i++) {
        int row = i < 2 ? group : group + 8, column = in_group * 2 + (i & 1);
        d.x[i] = ptx_add_products(c[i], of->a[row], of->b[column]);
    }
    return d;
}

PtxFour ptx_mma_bf16(const PtxThread *t, int line, uint32_t a0, uint32_t a1, uint32_t a2,
                     uint32_t a3, uint32_t b0, uint32_t b1, float c0, float c1, float c2, float c3)
{
    uint32_t word[6] = {a0, a1, a2, a3, b0, b1};
    float c[4] = {c0, c1, c2, c3};
    return product(t, line, word, c, bf16_value);
}

PtxFour ptx_mma_f16(const PtxThread *t, int line, uint32_t a0, uint32_t a1, uint32_t a2,
                    uint32_t a3, uint32_t b0, uint32_t b1, float c0, float c1, float c2, float c3)
{
    uint32_t word[6] = {a0, a1, a2, a3, b0, b1};
    float c[4] = {c0, c1, c2, c3};
    return product(t, line, word, c, f16_value);
}

/* ---- warps and blocks ---- */

/* The runtime below waits for all lanes. */
static void need_all(const PtxThread *t, int line, uint32_t mask)
{
    if (mask != 0xffffffffu) ptx_wrong(t, line, "a warp's instruction for some lanes only");
}

uint32_t ptx_shfl(const PtxThread *t, int line, char mode, uint32_t a, uint32_t b, uint32_t c,
                  uint32_t mask, int *in_range)
{
    need_all(t, line, mask);
    const SimtWords *of = simt_exchange(&a, 1, KIND_SHUFFLE, t->entry->file, line);
    int lane = simt_lane(), by = (int)(b & 31), clamp = (int)(c & 31), segment = (int)(c >> 8 & 31);
    int last = (lane & segment) | (clamp & ~segment), first = lane & segment, from = lane;
    switch (mode) {
    case 'u':
        from = lane - by;
        *in_range = from >= last;
        break;
    case 'd':
        from = lane + by;
        *in_range = from <= last;
        break;
    case 'b':
        from = lane ^ by;
        *in_range = from <= last;
        break;
    default:
        from = first | (by & ~segment);
        *in_range = from <= last;
    }
    return of[*in_range ? from : lane].word[0];
}

uint32_t ptx_ballot(const PtxThread *t, int line, int predicate, uint32_t mask)
{
    uint32_t bit = predicate != 0, all = 0;
    need_all(t, line, mask);
    const SimtWords *of = simt_exchange(&bit, 1, KIND_BALLOT, t->entry->file, line);
    for (int lane = 0; lane < SIMT_WARP; lane++)
        all |= of[lane].word[0] << lane;
    return all;
}

uint32_t ptx_redux_max(const PtxThread *t, int line, uint32_t x, uint32_t mask)
{
    need_all(t, line, mask);
    const SimtWords *of = simt_exchange(&x, 1, KIND_REDUCE, t->entry->file, line);
    for (int lane = 0; lane < SIMT_WARP; lane++)
        if (of[lane].word[0] > x) x = of[lane].word[0];
    return x;
}

uint32_t ptx_redux_min(const PtxThread *t, int line, uint32_t x, uint32_t mask)
{
    return ~ptx_redux_max(t, line, ~x, mask);
}

void ptx_warp_sync(const PtxThread *t, int line, uint32_t mask)
{
    need_all(t, line, mask);
    simt_exchange(NULL, 0, KIND_SYNC, t->entry->file, line);
    if (races_watched) races_warp_sync(t, line);
}

void ptx_block_sync(const PtxThread *t, int line, uint32_t barrier)
{
    if (barrier) ptx_wrong(t, line, "a barrier other than 0");
    ptx_wgmma_passed();
    simt_sync_block(t->entry->file, line);
    if (races_watched) races_block_sync(t, line);
}

/* ---- copies, grids ---- */

void ptx_copy(const PtxThread *t, int line, uint64_t shared, uint64_t global, uint32_t bytes,
              uint32_t read)
{
    static const unsigned char zeros[16];
    if (read && read != bytes) ptx_wrong(t, line, "a copy of neither all bytes nor none");
    const void *from = read ? ptx_global(t, global, bytes, line, PTX_LOAD) : zeros;
    void *to = ptx_shared(t, shared, bytes, line, PTX_STORE);
    simt_begin_copy(to, from, bytes);
}

void ptx_prefetch(const PtxThread *t, int line, uint64_t global, uint32_t bytes)
{
    if (global % 16 || bytes % 16) ptx_wrong(t, line, "a prefetch of what are no multiples of 16");
    for (uint32_t at = 0; at < bytes; at += 16)
        ptx_global(t, global + at, 16, line, PTX_CONSTANT);
}

void ptx_copies_commit(void)
{
    simt_copies_commit();
}

/* The thread that waits for copies, and where. */
static const PtxThread *waiting;
static int waiting_at;

/* Its place is stored to again where it comes; since it was begun that held 0xff. */
static void copied(const void *to, size_t bytes)
{
    uint64_t at = (uint64_t)((const unsigned char *)to - waiting->shared);
    ptx_shared(waiting, at, (uint32_t)bytes, waiting_at, PTX_STORE);
}

void ptx_copies_wait(const PtxThread *t, int line, uint32_t n)
{
    simt_copied = copied;
    waiting = t;
    waiting_at = line;
    simt_copies_wait((int)n);
}

void ptx_launch_dependents(void)
{
    simt_grid_next();
}

void ptx_grid_wait(const PtxThread *t)
{
    simt_grid_wait();
    if (races_watched) races_grid_wait(t);
}
