/*
 * wgmma.c: wgmma of ptx_run.h, written from the PTX ISA.
 *
 * A thread computes its elements of D where it begins a product; what B was then is kept as a
 * checksum until the wait that ends the product's group.
 */
#include "tests/ptx/ptx_run.h"

enum { MOST_PRODUCTS = 64, KIND_WGMMA = 1 << 28, K = 16, ROW_BYTES = 128, PIECE_BYTES = 16 };

/* B of a product that a thread has begun. */
typedef struct {
    uint64_t b, checksum;
    int n, line, group;
} Product;

/* Of the running block's threads. */
static struct {
    Product product[MOST_PRODUCTS]; /* not waited for, in order */
    int n_products, n_groups;       /* groups committed */
    int hides, passed; /* has copies that it has not shown; went so through its last barrier */
} thread[SIMT_MAX_THREADS];

/* ---- B ---- */

static uint64_t field(uint64_t descriptor, int low, int bits)
{
    return descriptor >> low & (((uint64_t)1 << bits) - 1);
}

/* What all our descriptors are: swizzled by 128 bytes, no offset of the base, 8 rows after 8. */
static void check_descriptor(const PtxThread *t, int line, uint64_t b)
{
    uint64_t start = field(b, 0, 14) << 4;
    if (field(b, 62, 2) != 1) ptx_wrong(t, line, "wgmma: not the swizzle of 128 bytes");
    if (field(b, 49, 3) || field(b, 14, 2) || field(b, 30, 2) || field(b, 46, 3) ||
        field(b, 52, 10))
        ptx_wrong(t, line, "wgmma: bits of a descriptor that must be 0");
    if (field(b, 32, 14) << 4 != 8 * ROW_BYTES)
        ptx_wrong(t, line, "wgmma: eight rows do not follow eight");
    if (start % (8 * ROW_BYTES) > ROW_BYTES - 2 * K)
        ptx_wrong(t, line, "wgmma: rows do not begin at a multiple of 1,024 bytes");
}

/* Half `half` of the 16 values of column n: the address, swizzled: bits 7 to 9 on bits 4 to 6. */
static const uint16_t *piece(const PtxThread *t, int line, uint64_t b, int n, int half)
{
    uint64_t stride = field(b, 32, 14) << 4;
    uint64_t at = (field(b, 0, 14) << 4) + (uint64_t)(n / 8) * stride +
                  (uint64_t)(n % 8) * ROW_BYTES + (uint64_t)half * PIECE_BYTES;
    at ^= field(at, 7, 3) << 4;
    return ptx_shared(t, at, PIECE_BYTES, line, PTX_LOAD);
}

/* Of the columns that this thread reads: of each eight two. */
static int own_column(int i)
{
    return i / 2 * 8 + simt_lane() % 4 * 2 + i % 2;
}

static uint64_t checksum(const PtxThread *t, int line, uint64_t b, int n)
{
    uint64_t sum = 0;
    for (int i = 0; i < n / 4; i++)
        for (int k = 0; k < K; k++)
            sum = sum * 0x9e3779b97f4a7c15u + piece(t, line, b, own_column(i), k / 8)[k % 8];
    return sum;
}

/* ---- products ---- */

/* Row `row` of the warp's 16 of A, whose lanes have brought four words each. */
static void a_row(int row, float out[K])
{
    for (int k = 0; k < K; k++) {
        const uint32_t *word = simt_lane_words(row % 8 * 4 + k % 8 / 2);
        uint32_t pair = word[row / 8 + k / 8 * 2];
        out[k] = cvt_f32_f16((uint16_t)(k % 2 ? pair >> 16 : pair));
    }
}

void ptx_wgmma_f16(const PtxThread *t, int line, int n, float *d, uint32_t a0, uint32_t a1,
                   uint32_t a2, uint32_t a3, uint64_t b, int adds)
{
    uint32_t word[4] = {a0, a1, a2, a3};
    unsigned self = simt_thread_idx.x;
    float row[2][K];
    check_descriptor(t, line, b);
    for (unsigned i = 0; i < simt_block_dim.x; i++)
        if (thread[i].passed)
            ptx_wrong(t, line, "wgmma of shared memory that a thread has not shown");
    if (thread[self].n_products == MOST_PRODUCTS) ptx_wrong(t, line, "wgmma: too many at once");
    simt_exchange(word, 4, KIND_WGMMA + line, t->entry->file, line);
    for (int i = 0; i < 2; i++)
        a_row(simt_lane() / 4 + i * 8, row[i]);
    for (int i = 0; i < n / 4; i++)
        for (int r = 0; r < 2; r++) {
            float *to = &d[i / 2 * 4 + r * 2 + i % 2];
            double sum = adds ? *to : 0;
            for (int k = 0; k < K; k++)
                sum += (double)row[r][k] *
                       (double)cvt_f32_f16(piece(t, line, b, own_column(i), k / 8)[k % 8]);
            *to = ptx_cut(sum);
        }
    thread[self].product[thread[self].n_products++] =
        (Product){b, checksum(t, line, b, n), n, line, thread[self].n_groups};
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
        else if (checksum(t, p.line, p.b, p.n) != p.checksum)
            ptx_wrong(t, p.line, "wgmma: its shared memory has changed before the wait");
    }
    thread[self].n_products = kept;
}

/* ---- what else a thread does ---- */

void ptx_show_shared(void)
{
    thread[simt_thread_idx.x].hides = 0;
}

void ptx_wgmma_copied(void)
{
    thread[simt_thread_idx.x].hides = 1;
}

void ptx_wgmma_passed(void)
{
    thread[simt_thread_idx.x].passed = thread[simt_thread_idx.x].hides;
}

void ptx_wgmma_end(const PtxThread *t)
{
    unsigned self = simt_thread_idx.x;
    if (thread[self].n_products)
        ptx_wrong(t, thread[self].product[0].line, "wgmma: nobody waits for it");
    thread[self].n_groups = thread[self].hides = thread[self].passed = 0;
}
