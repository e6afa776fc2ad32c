/* mtp.c: see mtp.h. Source of the tree: EAGLE-2, arXiv 2406.16858, with the head's own layer. */
#include "drafts/mtp.h"

#include <assert.h>
#include <math.h>

#include "base/mem.h"
#include "engine/arrays.h"
#include "engine/head.h"
#include "engine/round.h"
#include "kernels/draft_pool.h"

/* Nodes that one sequence may expand in a step; their K and V fit the step's overhang of rows. */
enum { MAX_EXPANDED = MAX_TREE_NODES };
_Static_assert((int)MAX_EXPANDED <= (int)MAX_ROUND_NODES, "they fit a frontier");

typedef struct {
    DraftPool pool;
    int n_given, node[MAX_POOL]; /* of the pool's nodes, where they are in the request's tree */
    int n_expanded;
} Draft;

typedef struct {
    const Model *model;
    Engine *engine;
    Head *head;
    Batch batch;  /* rows of all passes of a step */
    Draft *draft; /* [MAX_SEQS], one per request of a step */

    /* backend memory */
    float *last;   /* [max_seqs][dim]: the head's output at each sequence's last committed token */
    float *logits; /* [MAX_TREE_NODES][n_vocab], of which n_ready rows have -inf where none goes */
    int n_ready;
    float *rows;    /* [MAX_TREE_NODES][dim]: output rows whose logits are wanted */
    int32_t *index; /* [max rows] rows to gather */
    SampleRow *sample;
    int32_t *path; /* [MAX_TREE_NODES][MAX_TREE_NODES] */
    int32_t *id;   /* [MAX_TREE_NODES][MAX_TOP] */
    float *logp;
    uint8_t *bad;

    /* the same on the host */
    SampleRow sample_host[MAX_TREE_NODES];
    int32_t path_host[MAX_TREE_NODES][MAX_TREE_NODES];
    int32_t id_host[MAX_TREE_NODES * MAX_TOP];
    float logp_host[MAX_TREE_NODES * MAX_TOP];
    uint8_t bad_host[MAX_TREE_NODES];
} Mtp;

enum { N_ARRAYS = 9 };

/* For max_seqs sequences, and passes of the head of max_rows rows. */
static void list_arrays(Mtp *m, int max_seqs, int max_rows, BackendArray array[N_ARRAYS])
{
    size_t dim = (size_t)m->model->config.dim, vocab = (size_t)m->model->config.n_vocab;
    size_t nodes = MAX_TREE_NODES;
    array[0] = (BackendArray){&m->last, (size_t)max_seqs * dim * sizeof(float)};
    array[1] = (BackendArray){&m->logits, nodes * vocab * sizeof(float)};
    array[2] = (BackendArray){&m->rows, nodes * dim * sizeof(float)};
    array[3] = (BackendArray){&m->index, (size_t)max_rows * sizeof(int32_t)};
    array[4] = (BackendArray){&m->sample, nodes * sizeof(SampleRow)};
    array[5] = (BackendArray){&m->path, nodes * nodes * sizeof(int32_t)};
    array[6] = (BackendArray){&m->id, nodes * MAX_TOP * sizeof(int32_t)};
    array[7] = (BackendArray){&m->logp, nodes * MAX_TOP * sizeof(float)};
    array[8] = (BackendArray){&m->bad, nodes};
}

static int mtp_bind(void *self, struct Engine *engine, Error *err)
{
    Mtp *m = self;
    Backend *be = m->model->backend;
    BackendArray array[N_ARRAYS];
    int max_seqs = engine_options(engine)->max_seqs;
    m->engine = engine;
    m->head = engine_head(engine);
    batch_open(&m->batch, m->head->max_meta);
    m->draft = mem_alloc((size_t)max_seqs, sizeof *m->draft);
    list_arrays(m, max_seqs, m->head->f->max_rows, array);
    if (arrays_take(be, array, N_ARRAYS, err)) return -1;
    /* On the host most rows are never used, and not to be touched before they are. */
    m->n_ready = be->is_host ? 1 : MAX_TREE_NODES;
    scored_init_logits(&m->head->scored, m->n_ready, m->logits);
    return 0;
}

/* Makes the first n rows of logits as the first one is: what is scored is written over. */
static void make_ready(Mtp *m, int n)
{
    Backend *be = m->model->backend;
    size_t vocab = (size_t)m->model->config.n_vocab;
    for (; m->n_ready < n; m->n_ready++)
        be->copy(be, m->logits + (size_t)m->n_ready * vocab, m->logits, vocab * sizeof *m->logits);
}

static void mtp_close(void *self)
{
    Mtp *m = self;
    BackendArray array[N_ARRAYS];
    list_arrays(m, 0, 0, array);
    arrays_give_back(m->model->backend, array, N_ARRAYS);
    batch_close(&m->batch);
    mem_free(m->draft);
    mem_free(m);
}

/* Queues to[i] = from[index[i]], rows of dim floats; index in backend memory. */
static void queue_gather(Mtp *m, int n, const int32_t *index, const float *from, float *to)
{
    Backend *be = m->model->backend;
    GatherRows g = {.n = n, .dim = m->model->config.dim, .index = index, .x = from, .out = to};
    be->gather_rows(be, &g);
}

/* The same with the host's index. */
static void gather(Mtp *m, int n, const int32_t *index, const float *from, float *to)
{
    Backend *be = m->model->backend;
    be->upload(be, m->index, index, (size_t)n * sizeof *index);
    queue_gather(m, n, m->index, from, to);
}

static void mtp_observe(void *self, const DraftObserved *r)
{
    Mtp *m = self;
    Backend *be = m->model->backend;
    size_t dim = (size_t)m->model->config.dim;
    batch_clear(&m->batch);
    for (int i = 0; i < r->n; i++)
        head_add(&m->batch, r->token[i], r->pos[i], r->seq[i], -1, r->pos[i], r->pos[i] + 1);
    gather(m, r->n, r->hidden, r->final, m->head->hidden);
    head_pass(m->head, &m->batch, 0);
    for (int i = 0; i < r->n; i++)
        if (i + 1 == r->n || r->seq[i + 1] != r->seq[i])
            be->copy(be, m->last + (size_t)r->seq[i] * dim, m->head->out + (size_t)i * dim,
                     dim * sizeof(float));
}

/* Queues: the topk best children of each of n rows of the head's output, as m->sample says. */
static void queue_sample(Mtp *m, int n, int topk, int uncut, const float *rows)
{
    Backend *be = m->model->backend;
    scored_logits(&m->head->scored, n, rows, m->logits);
    be->sample(be, &(Sample){.n = n,
                             .n_vocab = m->model->config.n_vocab,
                             .n_top = topk,
                             .logits = m->logits,
                             .allowed = engine_allowed(m->engine),
                             .row = m->sample,
                             .id = m->id,
                             .logp = m->logp,
                             .bad = m->bad,
                             .uncut = uncut});
}

static int is_by_lot(const Mtp *m)
{
    return engine_options(m->engine)->synthetic > 0;
}

/* The sampled children of a node (-1: the root), best first, join the pool. */
static void take_children(DraftPool *p, int parent, int topk, int by_lot, const int32_t *id,
                          const float *logp)
{
    float above = parent < 0 ? 0 : p->node[parent].logp;
    int depth = parent < 0 ? 1 : p->node[parent].depth + 1;
    for (int j = 0; j < topk && id[j] >= 0 && p->n < MAX_POOL; j++)
        pool_child(&p->node[p->n++], parent, above, depth, id[j],
                   pool_guess_logp(by_lot, j, logp[j]));
}

/* Samples n rows of m->rows; row i is what follows node[i] of draft[owner[i]]. */
static void sample_children(Mtp *m, const DraftRequest *req, int n, const int *owner,
                            const int *node, int topk)
{
    Backend *be = m->model->backend;
    size_t nodes = MAX_TREE_NODES;
    for (int i = 0; i < n; i++) {
        const DraftRequest *r = &req[owner[i]];
        const DraftPool *d = &m->draft[owner[i]].pool;
        m->sample_host[i] = *r->row;
        m->sample_host[i].path = m->path + (size_t)i * nodes;
        int depth = node[i] < 0 ? 0 : d->node[node[i]].depth;
        pool_path(d, node[i], m->path_host[i]);
        m->sample_host[i].allowed = engine_draft_mask(m->engine, r->seq, m->path_host[i], depth, i);
        m->sample_host[i].n_path = r->row->counts ? depth : 0;
        m->sample_host[i].pos = r->row->pos + depth;
    }
    be->upload(be, m->sample, m->sample_host, (size_t)n * sizeof(SampleRow));
    be->upload(be, m->path, m->path_host, (size_t)n * sizeof m->path_host[0]);
    make_ready(m, n);
    queue_sample(m, n, topk, sample_rows_uncut(m->sample_host, n), m->rows);
    be->download(be, m->id_host, m->id, (size_t)n * (size_t)topk * sizeof(int32_t));
    be->download(be, m->logp_host, m->logp, (size_t)n * (size_t)topk * sizeof(float));
    be->download(be, m->bad_host, m->bad, (size_t)n);
    for (int i = 0; i < n; i++) {
        if (!m->bad_host[i])
            take_children(&m->draft[owner[i]].pool, node[i], topk, is_by_lot(m),
                          m->id_host + i * topk, m->logp_host + i * topk);
    }
}

/* Level 1 of the drafts that get one (bit 0 of nodes), from the head's rows at the roots. */
static void first_level(Mtp *m, const DraftRequest *req, int n, int topk, const uint64_t *nodes)
{
    int owner[MAX_TREE_NODES], node[MAX_TREE_NODES], rows = 0;
    int32_t index[MAX_TREE_NODES];
    for (int i = 0; i < n; i++) {
        m->draft[i].pool.n = m->draft[i].n_expanded = m->draft[i].n_given = 0;
        if (!(nodes[i] & 1)) continue;
        owner[rows] = i;
        node[rows] = -1;
        index[rows++] = req[i].seq;
    }
    gather(m, rows, index, m->last, m->rows);
    sample_children(m, req, rows, owner, node, topk);
}

/* The tree gets the pool's nodes that it does not have yet; those of others may be there. */
static void give_nodes(Draft *d, const DraftRequest *r)
{
    for (; d->n_given < d->pool.n; d->n_given++) {
        const DraftNode *c = &d->pool.node[d->n_given];
        int parent = c->parent < 0 ? 0 : d->node[c->parent];
        float above = c->parent < 0 ? 0 : d->pool.node[c->parent].logp;
        float value = r->tree->value[parent] * expf(c->logp - above);
        d->node[d->n_given] = tree_join(r->tree, parent, c->token, value, GUESS_HEAD);
        assert(d->node[d->n_given] > 0);
    }
}

/* A fixed shape: the best nodes stay, the best of the level get children. */
static void choose_best(Mtp *m, const DraftRequest *req, int n, int depth)
{
    for (int i = 0; i < n; i++) {
        DraftPool *p = &m->draft[i].pool;
        int room = MAX_EXPANDED - m->draft[i].n_expanded;
        pool_keep_best(p, req[i].max_nodes - 1);
        p->n_frontier = 0;
        if (depth < req[i].max_depth)
            pool_choose_frontier(p, depth, req[i].topk < room ? req[i].topk : room);
    }
}

static void ask_guide(Mtp *m, const DraftRequest *req, int n, int depth, const DraftGuide *guide)
{
    uint64_t nodes[MAX_TREE_NODES];
    for (int i = 0; i < n; i++)
        give_nodes(&m->draft[i], &req[i]);
    guide->expand(guide->self, depth, nodes);
    for (int i = 0; i < n; i++) {
        DraftPool *p = &m->draft[i].pool;
        p->n_frontier = 0;
        for (int c = 0; c < p->n; c++)
            if (nodes[i] >> m->draft[i].node[c] & 1) p->frontier[p->n_frontier++] = c;
    }
}

/*
 * Puts the frontiers of all drafts into one head pass: input rows, then K and V at row
 * root_pos + 1 + k for the k-th node that a sequence expands. Returns the number of rows.
 */
static int add_frontiers(Mtp *m, const DraftRequest *req, int n, int depth, int *owner, int *node)
{
    int rows = 0;
    for (int i = 0; i < n; i++) {
        Draft *d = &m->draft[i];
        DraftPool *p = &d->pool;
        for (int k = 0; k < p->n_frontier && rows < MAX_TREE_NODES; k++) {
            DraftNode *c = &p->node[p->frontier[k]];
            int parent = c->parent < 0 ? -1 : p->node[c->parent].meta;
            int kv_row = req[i].root_pos + 1 + d->n_expanded++;
            c->meta = head_add(&m->batch, c->token, req[i].root_pos + depth, req[i].seq, parent,
                               kv_row, req[i].root_pos + 1);
            owner[rows] = i;
            node[rows++] = p->frontier[k];
        }
    }
    return rows;
}

/* Hidden inputs of a level: the head's output at each node's parent. */
static void gather_inputs(Mtp *m, const DraftRequest *req, int rows, const int *owner,
                          const int *node)
{
    int32_t index[MAX_TREE_NODES];
    int first = m->draft[owner[0]].pool.node[node[0]].parent < 0;
    for (int i = 0; i < rows; i++) {
        const DraftPool *p = &m->draft[owner[i]].pool;
        int parent = p->node[node[i]].parent;
        index[i] = first ? req[owner[i]].seq : p->node[parent].out;
    }
    gather(m, rows, index, first ? m->last : m->rows, m->head->hidden);
}

static void mtp_propose(void *self, const DraftRequest *req, int n, const DraftGuide *guide)
{
    Mtp *m = self;
    int topk = req[0].topk; /* the engine's, the same in all */
    int owner[MAX_TREE_NODES], node[MAX_TREE_NODES];
    uint64_t roots[MAX_TREE_NODES];
    size_t dim = (size_t)m->model->config.dim;
    Backend *be = m->model->backend;
    assert(n <= MAX_TREE_NODES);
    batch_clear(&m->batch);
    for (int i = 0; i < n; i++)
        roots[i] = 1;
    if (guide && !guide->expand(guide->self, 0, roots)) return;
    first_level(m, req, n, topk, roots);
    for (int depth = 1;; depth++) {
        if (guide)
            ask_guide(m, req, n, depth, guide);
        else
            choose_best(m, req, n, depth);
        int row0 = m->batch.n, rows = add_frontiers(m, req, n, depth, owner, node);
        if (!rows) break;
        gather_inputs(m, req, rows, owner, node);
        head_pass(m->head, &m->batch, row0);
        be->copy(be, m->rows, m->head->out, (size_t)rows * dim * sizeof(float));
        for (int i = 0; i < rows; i++)
            m->draft[owner[i]].pool.node[node[i]].out = i;
        sample_children(m, req, rows, owner, node, topk);
    }
    for (int i = 0; i < n && !guide; i++) {
        give_nodes(&m->draft[i], &req[i]);
        tree_order(req[i].tree, req[i].max_nodes);
    }
}

/* ---- rounds on a device: the same tree, without a look at it ---- */

static void mtp_queue_drafts(void *self, const Round *r)
{
    Mtp *m = self;
    Backend *be = m->model->backend;
    GrowDrafts grow = {.n = r->n,
                       .n_top = r->topk,
                       .most = r->n_nodes - 1,
                       .by_lot = is_by_lot(m),
                       .seq = r->seq,
                       .seqs = r->seqs,
                       .pool = r->pool,
                       .id = m->id,
                       .logp = m->logp,
                       .bad = m->bad,
                       .meta = m->head->meta,
                       .hidden = m->index,
                       .sample = {m->sample, m->path}};
    be->grow_drafts(be, &grow);
    queue_gather(m, r->n, r->seq, m->last, m->rows);
    queue_sample(m, r->n, r->topk, r->uncut, m->rows);
    grow.n_parents = 1;
    for (grow.level = 1; grow.level <= r->depth; grow.level++) {
        grow.width = grow.level < r->depth ? round_width(r) : 0;
        be->grow_drafts(be, &grow);
        int rows = r->n * grow.width;
        if (!rows) return;
        const float *said = grow.level == 1 ? m->last : m->head->out;
        queue_gather(m, rows, m->index, said, m->head->hidden);
        head_queue(m->head, rows, grow.row0, r->n_keys);
        queue_sample(m, rows, r->topk, r->uncut, m->head->out);
        grow.n_parents = grow.width;
        grow.kv0 += grow.width;
        grow.row0 += rows;
    }
}

static void mtp_queue_observe(void *self, const Round *r)
{
    Mtp *m = self;
    Backend *be = m->model->backend;
    int rows = r->n * (r->depth + 1);
    queue_gather(m, rows, r->hidden, r->final, m->head->hidden);
    head_queue(m->head, rows, 0, r->n_keys);
    be->gather_rows(be, &(GatherRows){.n = r->n,
                                      .dim = m->model->config.dim,
                                      .index = r->last,
                                      .to = r->seq,
                                      .x = m->head->out,
                                      .out = m->last});
}

int mtp_drafter_open(const Model *model, Drafter *out, Error *err)
{
    if (!model->has_mtp) return error_set(err, ERR_INPUT, "draft mtp: the model has no MTP layer");
    Mtp *m = mem_alloc(1, sizeof *m);
    m->model = model;
    *out = (Drafter){.name = "mtp",
                     .self = m,
                     .uses_head = 1,
                     .bind = mtp_bind,
                     .observe = mtp_observe,
                     .propose = mtp_propose,
                     .queue_drafts = mtp_queue_drafts,
                     .queue_observe = mtp_queue_observe,
                     .close = mtp_close};
    return 0;
}
