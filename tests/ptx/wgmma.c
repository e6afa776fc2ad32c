/*
 * wgmma.c: wgmma of ptx_run.h, written from the PTX ISA.
 *
 * A thread computes its elements of D where it begins a product; what it read of shared memory is
 * kept as a checksum until the wait that ends the product's group.
 */
#include "tests/ptx/ptx_run.h"

enum { MOST_PRODUCTS = 64, KIND_WGMMA = 1 << 28, K = 16, ROW_BYTES = 128, WARPGROUP = 128 };

/* What a thread has begun; its descriptors. */
typedef struct {
    uint64_t a, b, checksum; /* a: 0 where it came from registers */
    int n, transposed, line, group;
} Product;

/* Of the running block's threads. */
static struct {
    Product product[MOST_PRODUCTS]; /* not waited for, in order */
    int n_products, n_groups;       /* groups committed */
    uint32_t n_begun;               /* products, by the block */
    uint32_t shown, passed; /* how often, ever, it has shown its stores; had, at its last barrier */
} thread[SIMT_MAX_THREADS];

/* A product as the first thread of a warpgroup has begun it. */
typedef struct {
    uint32_t launch, block, number; /* number: of the block's, from 1 */
    int line, adds;
    uint64_t a, b;
} First;

static First begun[SIMT_MAX_THREADS / WARPGROUP][MOST_PRODUCTS]; /* by number */

/* The last store to two bytes of shared memory; shown: its thread's then. */
static struct {
    uint32_t launch, block, thread, shown;
} stored[SIMT_SHARED_HOPPER / 2];

/* ---- shared memory ---- */

static uint64_t field(uint64_t descriptor, int low, int bits)
{
    return descriptor >> low & (((uint64_t)1 << bits) - 1);
}

/*
 * What all our descriptors are: swizzled by 128 bytes, no offset of the base, 8 rows after 8. A
 * product takes `bytes` of each row.
 */
static void check_descriptor(const PtxThread *t, int line, uint64_t of, uint64_t bytes)
{
    uint64_t start = field(of, 0, 14) << 4;
    if (field(of, 62, 2) != 1) ptx_wrong(t, line, "wgmma: not the swizzle of 128 bytes");
    if (field(of, 49, 3) || field(of, 14, 2) || field(of, 30, 2) || field(of, 46, 3) ||
        field(of, 52, 10))
        ptx_wrong(t, line, "wgmma: bits of a descriptor that must be 0");
    if (field(of, 32, 14) << 4 != 8 * ROW_BYTES)
        ptx_wrong(t, line, "wgmma: eight rows do not follow eight");
    if (start % (8 * ROW_BYTES) > ROW_BYTES - bytes)
        ptx_wrong(t, line, "wgmma: rows do not begin at a multiple of 1,024 bytes");
}

/* Where value i of a row lies. The address is swizzled: bits 7 to 9 on bits 4 to 6. */
static uint64_t place(uint64_t of, int row, int i)
{
    uint64_t stride = field(of, 32, 14) << 4;
    uint64_t at = (field(of, 0, 14) << 4) + (uint64_t)(row / 8) * stride +
                  (uint64_t)(row % 8) * ROW_BYTES + (uint64_t)i * sizeof(uint16_t);
    return at ^ field(at, 7, 3) << 4;
}

static uint64_t place_of_b(const Product *p, int column, int k)
{
    return p->transposed ? place(p->b, k, column) : place(p->b, column, k);
}

static uint16_t value(const PtxThread *t, int line, uint64_t at)
{
    return *(const uint16_t *)ptx_shared(t, at, sizeof(uint16_t), line, PTX_LOAD);
}

static uint32_t block_number(void)
{
    SimtDim b = simt_block_idx, n = simt_grid_dim;
    return (b.z * n.y + b.y) * n.x + b.x;
}

/* A value that a product begins with. */
static uint16_t shown_value(const PtxThread *t, int line, uint64_t at)
{
    uint16_t x = value(t, line, at);
    if (stored[at / 2].launch == t->launch && stored[at / 2].block == block_number() &&
        thread[stored[at / 2].thread].passed <= stored[at / 2].shown)
        ptx_wrong(t, line, "wgmma of shared memory that a thread has not shown");
    return x;
}

/* Of the rows that this thread reads: of its warp's 16 two. */
static int own_row(int i)
{
    return (int)simt_thread_idx.x / SIMT_WARP % 4 * 16 + simt_lane() / 4 + i * 8;
}

/* Of its columns: of each eight two. */
static int own_column(int i)
{
    return i / 2 * 8 + simt_lane() % 4 * 2 + i % 2;
}

/* Of what this thread reads. */
static uint64_t checksum(const PtxThread *t, const Product *p)
{
    uint64_t sum = 0, factor = 0x9e3779b97f4a7c15u;
    for (int i = 0; p->a && i < 2; i++)
        for (int k = 0; k < K; k++)
            sum = sum * factor + value(t, p->line, place(p->a, own_row(i), k));
    for (int i = 0; i < p->n / 4; i++)
        for (int k = 0; k < K; k++)
            sum = sum * factor + value(t, p->line, place_of_b(p, own_column(i), k));
    return sum;
}

/* ---- products ---- */

static float number(PtxHalf kind, uint16_t bits)
{
    return kind == PTX_F16 ? cvt_f32_f16(bits) : cvt_f32_bf16(bits);
}

/* Value k of this thread's row i of A, of which the lanes have brought four words each. */
static uint16_t brought(const SimtWords *of, int i, int k)
{
    uint32_t pair = of[simt_lane() / 4 * 4 + k % 8 / 2].word[i + k / 8 * 2];
    return (uint16_t)(k % 2 ? pair >> 16 : pair);
}

/* All of a warpgroup begin the same. Not seen where one thread is MOST_PRODUCTS ahead. */
static void check_same(const PtxThread *t, const Product *p, int adds)
{
    unsigned self = simt_thread_idx.x;
    uint32_t number = ++thread[self].n_begun;
    First own = {t->launch, block_number(), number, p->line, !!adds, p->a, p->b};
    First *of = &begun[self / WARPGROUP][number % MOST_PRODUCTS];
    if (of->launch != own.launch || of->block != own.block || of->number != number) *of = own;
    if (of->line != own.line || of->adds != own.adds || of->a != own.a || of->b != own.b)
        ptx_wrong(t, p->line, "wgmma: not the same for all of a warpgroup");
}

/* word: A, where it comes from registers. */
static void begin(const PtxThread *t, Product p, PtxHalf kind, const uint32_t *word, float *d,
                  int adds)
{
    unsigned self = simt_thread_idx.x;
    float row[2][K], column[K];
    if (!word) check_descriptor(t, p.line, p.a, 2 * K);
    check_descriptor(t, p.line, p.b, p.transposed ? ROW_BYTES : 2 * K);
    check_same(t, &p, adds);
    if (thread[self].n_products == MOST_PRODUCTS) ptx_wrong(t, p.line, "wgmma: too many at once");
    const SimtWords *of =
        simt_exchange(word, word ? 4 : 0, KIND_WGMMA + p.line, t->entry->file, p.line);
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < K; k++) {
            uint64_t at = place(p.a, own_row(i), k);
            row[i][k] = number(kind, word ? brought(of, i, k) : shown_value(t, p.line, at));
        }
    for (int i = 0; i < p.n / 4; i++) {
        for (int k = 0; k < K; k++)
            column[k] = number(kind, shown_value(t, p.line, place_of_b(&p, own_column(i), k)));
        for (int r = 0; r < 2; r++) {
            float *to = &d[i / 2 * 4 + r * 2 + i % 2];
            *to = ptx_add_products(adds ? *to : 0, row[r], column);
        }
    }
    p.checksum = checksum(t, &p);
    p.group = thread[self].n_groups;
    thread[self].product[thread[self].n_products++] = p;
}

void ptx_wgmma_registers(const PtxThread *t, int line, PtxHalf kind, int n, float *d,
                         const uint32_t a[4], uint64_t b, int transposed, int adds)
{
    begin(t, (Product){.b = b, .n = n, .transposed = transposed, .line = line}, kind, a, d, adds);
}

void ptx_wgmma_shared(const PtxThread *t, int line, PtxHalf kind, int n, float *d, uint64_t a,
                      uint64_t b, int adds)
{
    begin(t, (Product){.a = a, .b = b, .n = n, .line = line}, kind, NULL, d, adds);
}

void ptx_wgmma_fence(const PtxThread *t, int line)
{
    simt_exchange(NULL, 0, KIND_WGMMA + line, t->entry->file, line);
}

void ptx_wgmma_commit(const PtxThread *t, int line)
{
    simt_exchange(NULL, 0, KIND_WGMMA + line, t->entry->file, line);
    thread[simt_thread_idx.x].n_groups++;
}

void ptx_wgmma_wait(const PtxThread *t, int line, uint32_t n)
{
    unsigned self = simt_thread_idx.x;
    int ended = thread[self].n_groups - (int)n, kept = 0;
    simt_exchange(NULL, 0, KIND_WGMMA + line, t->entry->file, line);
    for (int i = 0; i < thread[self].n_products; i++) {
        Product p = thread[self].product[i];
        if (p.group >= ended)
            thread[self].product[kept++] = p;
        else if (checksum(t, &p) != p.checksum)
            ptx_wrong(t, p.line, "wgmma: its shared memory has changed before the wait");
    }
    thread[self].n_products = kept;
}

/* ---- what else a thread does ---- */

void ptx_show_shared(void)
{
    thread[simt_thread_idx.x].shown++;
}

void ptx_wgmma_stored(const PtxThread *t, uint64_t at, uint32_t bytes)
{
    for (uint64_t i = at / 2; i < (at + bytes + 1) / 2; i++) {
        stored[i].launch = t->launch;
        stored[i].block = block_number();
        stored[i].shown = thread[simt_thread_idx.x].shown;
        stored[i].thread = simt_thread_idx.x;
    }
}

void ptx_wgmma_passed(void)
{
    thread[simt_thread_idx.x].passed = thread[simt_thread_idx.x].shown;
}

void ptx_wgmma_end(const PtxThread *t)
{
    unsigned self = simt_thread_idx.x;
    if (thread[self].n_products)
        ptx_wrong(t, thread[self].product[0].line, "wgmma: nobody waits for it");
    thread[self].n_groups = 0;
    thread[self].n_begun = 0;
}
