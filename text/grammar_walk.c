/*
 * grammar_walk.c: see grammar_walk.h.
 */
#include "text/grammar_walk.h"

#include <string.h>

#include "base/mem.h"
#include "text/utf8.h"

enum {
    FINDER_SLOTS = 4 * MAX_GRAMMAR_THREADS, /* powers of two */
    JOINED_SLOTS = 4 * MAX_TOKEN_FRAMES,
};

typedef struct {
    uint32_t turn, thread;
} FinderSlot;

typedef struct {
    uint64_t hash;
    uint32_t turn;
} JoinedSlot;

/* Slots of other turns are free. */
struct GrammarFinder {
    uint32_t turn; /* of the state that is made */
    int n_joined;
    FinderSlot slot[FINDER_SLOTS];
    JoinedSlot joined[JOINED_SLOTS]; /* threads whose frames are among joined ones */
};

GrammarFinder *grammar_finder_open(void)
{
    return mem_alloc(1, sizeof(GrammarFinder));
}

void grammar_finder_close(GrammarFinder *f)
{
    mem_free(f);
}

void grammar_copy(GrammarState *out, const GrammarState *s)
{
    out->n = s->n;
    out->is_cut = s->is_cut;
    memcpy(out->thread, s->thread, (size_t)s->n * sizeof *s->thread);
}

static void clear(GrammarWalk *w, GrammarState *out)
{
    GrammarFinder *f = w->finder;
    out->n = out->is_cut = f->n_joined = 0;
    if (++f->turn) return;
    memset(f, 0, sizeof *f);
    f->turn = 1;
}

/* ---- frames ---- */

static uint64_t mix(uint64_t h, uint64_t more)
{
    h = (h ^ more) * UINT64_C(0x9e3779b97f4a7c15);
    h = (h ^ h >> 32) * UINT64_C(0xd6e8feb86659fd93);
    return h ^ h >> 32;
}

/* 0 where there is no room. */
static uint32_t add_frame(GrammarWalk *w, GrammarFrame f, GrammarState *out)
{
    if (w->n_frames == w->most) {
        out->is_cut = 1;
        return 0;
    }
    f.hash = mix(mix(w->frame[f.parent].hash, (uint64_t)f.node << 32 | f.count),
                 f.node ? 0 : w->frame[f.other].hash);
    w->frame[w->n_frames] = f;
    return w->n_frames++;
}

/* A new frame, or 0 where there is no room or the nesting is too deep. */
static uint32_t push(GrammarWalk *w, uint32_t node, uint32_t parent, int count, GrammarState *out)
{
    int level = w->frame[parent].level + w->g->node[node].nests;
    if (level > MAX_GRAMMAR_LEVELS) return 0;
    return add_frame(
        w,
        (GrammarFrame){
            .node = node, .parent = parent, .count = (uint16_t)count, .level = (uint16_t)level},
        out);
}

/* ---- where a thread begins ---- */

/* What two threads that differ in their frame alone have in common. */
static uint64_t hash_thread(const GrammarWalk *w, const GrammarThread *t)
{
    uint64_t where = (uint64_t)t->at << 32 | (uint64_t)t->count << 16 | w->frame[t->frame].level;
    return mix((uint64_t)t->node << 32 | t->sub, where);
}

static int is_same_but_frame(const GrammarWalk *w, const GrammarThread *a, const GrammarThread *b)
{
    return a->node == b->node && a->at == b->at && a->count == b->count && a->sub == b->sub &&
           w->frame[a->frame].level == w->frame[b->frame].level;
}

/* 1 if the thread with that hash comes to f's joined ones, 0 if it is there; -1: there is no room.
 */
static int remember(GrammarFinder *f, uint64_t hash)
{
    size_t at = hash % JOINED_SLOTS;
    for (; f->joined[at].turn == f->turn; at = (at + 1) % JOINED_SLOTS)
        if (f->joined[at].hash == hash) return 0;
    if (f->n_joined == JOINED_SLOTS / 2) return -1;
    f->n_joined++;
    f->joined[at] = (JoinedSlot){hash, f->turn};
    return 1;
}

/* t has come to stand where `there` does: that one's frame is then both. */
static void join(GrammarWalk *w, GrammarThread *there, const GrammarThread *t, uint64_t hash,
                 GrammarState *out)
{
    GrammarFrame *frame = w->frame;
    if (frame[there->frame].hash == frame[t->frame].hash) return;
    int rc = remember(w->finder, mix(hash, frame[there->frame].hash));
    if (rc >= 0) rc = remember(w->finder, mix(hash, frame[t->frame].hash));
    if (rc < 0) out->is_cut = 1;
    if (rc <= 0) return;
    uint32_t both = add_frame(
        w,
        (GrammarFrame){.parent = there->frame, .other = t->frame, .level = frame[t->frame].level},
        out);
    if (both) there->frame = both;
}

static void add_thread(GrammarWalk *w, GrammarState *out, GrammarThread t)
{
    GrammarFinder *f = w->finder;
    uint64_t hash = hash_thread(w, &t);
    size_t at = hash % FINDER_SLOTS;
    for (; f->slot[at].turn == f->turn; at = (at + 1) % FINDER_SLOTS) {
        GrammarThread *there = &out->thread[f->slot[at].thread];
        if (!is_same_but_frame(w, there, &t)) continue;
        join(w, there, &t, hash, out);
        return;
    }
    if (out->n == MAX_GRAMMAR_THREADS) {
        out->is_cut = 1;
        return;
    }
    f->slot[at] = (FinderSlot){f->turn, (uint32_t)out->n};
    out->thread[out->n++] = t;
}

static void enter(GrammarWalk *w, uint32_t node, uint32_t frame, GrammarState *out);

/* The node of a repeat has come `count` times. */
static void repeated(GrammarWalk *w, uint32_t node, uint32_t frame, int count, GrammarState *out)
{
    const GrammarNode *n = &w->g->node[node];
    if (n->hi < 0 && count > n->lo) count = n->lo; /* more make no difference */
    if (n->hi < 0 || count < n->hi) {
        uint32_t inner = push(w, node, frame, count, out);
        if (inner) enter(w, n->body, inner, out);
    }
    if (count >= n->lo) enter(w, n->next, frame, out);
}

/* 1 if one more step may be taken; every way through a grammar takes some. */
static int may_step(GrammarWalk *w, GrammarState *out)
{
    if (w->n_steps++ < w->most_steps) return 1;
    out->is_cut = 1;
    return 0;
}

static void come_back(GrammarWalk *w, uint32_t frame, GrammarState *out)
{
    for (; frame && !w->frame[frame].node && may_step(w, out); frame = w->frame[frame].parent)
        come_back(w, w->frame[frame].other, out);
    GrammarFrame f = w->frame[frame];
    if (!may_step(w, out)) return;
    if (!frame)
        add_thread(w, out, (GrammarThread){0});
    else if (w->g->node[f.node].kind == NODE_REPEAT)
        repeated(w, f.node, f.parent, f.count + 1, out);
    else
        enter(w, w->g->node[f.node].next, f.parent, out);
}

static void enter(GrammarWalk *w, uint32_t node, uint32_t frame, GrammarState *out)
{
    const GrammarNode *n = &w->g->node[node];
    uint32_t inner;
    if (w->frame[frame].level + n->height > MAX_GRAMMAR_LEVELS) return; /* it could not end */
    if (!may_step(w, out)) return;
    switch ((GrammarNodeKind)n->kind) {
    case NODE_RETURN:
        come_back(w, frame, out);
        return;
    case NODE_CALL:
        inner = push(w, node, frame, 0, out);
        if (inner) enter(w, n->body, inner, out);
        return;
    case NODE_REPEAT:
        repeated(w, node, frame, n->index, out);
        return;
    case NODE_ANY_OF:
        for (uint32_t i = 0; i < n->n_edges; i++)
            enter(w, w->g->edge[n->first_edge + i].to, frame, out);
        return;
    case NODE_NAMES:
        add_thread(w, out, (GrammarThread){.node = n->body, .frame = frame, .at = (uint16_t)n->lo});
        return;
    case NODE_TEXT:
        add_thread(w, out, (GrammarThread){.node = node, .frame = frame});
        if (w->g->automaton[n->index].dfa.accepts[0] && !n->lo) enter(w, n->next, frame, out);
        return;
    case NODE_BYTES:
    case NODE_NAME:
    case NODE_STRING:
    case NODE_TOKEN:
    case NODE_FREE:
        add_thread(w, out, (GrammarThread){.node = node, .frame = frame});
        return;
    case NODE_UNTIL:
        add_thread(w, out, (GrammarThread){.node = node, .frame = frame, .count = n->hi >= 0});
        return;
    }
}

void grammar_begin(GrammarWalk *w, uint32_t node, GrammarState *out)
{
    clear(w, out);
    enter(w, node, 0, out);
}

/* ---- strings ---- */

/*
 * Where a thread is inside a string: between characters (0), inside an escape, or inside a
 * character of several bytes. A \u that begins a surrogate pair must be followed by the other half.
 */
enum {
    IN_TEXT,
    IN_ESCAPE,
    IN_HEX1, /* the digits of \u that are to come, one more each */
    IN_HEX2,
    IN_HEX3,
    IN_HEX4,
    IN_HEX_D, /* \ud */
    IN_HIGH3, /* \ud8 to \udb: the third digit of the first half */
    IN_HIGH4,
    IN_HIGH, /* the whole first half: its other half is to come */
    IN_LOW_U,
    IN_LOW1,
    IN_LOW2,
    IN_TAIL1, /* one more byte of a character, two, three */
    IN_TAIL2,
    IN_TAIL3,
    IN_E0, /* behind these first bytes fewer second ones are right */
    IN_ED,
    IN_F0,
    IN_F4,
    IN_NO_OTHER, /* inside a name that can only become a declared one */
    IN_NOTHING = -1,
};

static int is_hex(uint8_t b)
{
    return (b >= '0' && b <= '9') || (b >= 'a' && b <= 'f') || (b >= 'A' && b <= 'F');
}

static int is_within(uint8_t b, uint8_t lo, uint8_t hi)
{
    return b >= lo && b <= hi;
}

/* Behind the first byte of a character. RFC 3629, section 4. */
static int behind_lead(uint8_t b)
{
    if (is_within(b, 0xc2, 0xdf)) return IN_TAIL1;
    if (b == 0xe0) return IN_E0;
    if (b == 0xed) return IN_ED;
    if (is_within(b, 0xe1, 0xef)) return IN_TAIL2;
    if (b == 0xf0) return IN_F0;
    if (is_within(b, 0xf1, 0xf3)) return IN_TAIL3;
    return b == 0xf4 ? IN_F4 : IN_NOTHING;
}

static int behind_tail(int sub, uint8_t b)
{
    switch (sub) {
    case IN_TAIL1:
        return is_within(b, 0x80, 0xbf) ? IN_TEXT : IN_NOTHING;
    case IN_TAIL2:
        return is_within(b, 0x80, 0xbf) ? IN_TAIL1 : IN_NOTHING;
    case IN_TAIL3:
        return is_within(b, 0x80, 0xbf) ? IN_TAIL2 : IN_NOTHING;
    case IN_E0:
        return is_within(b, 0xa0, 0xbf) ? IN_TAIL1 : IN_NOTHING;
    case IN_ED:
        return is_within(b, 0x80, 0x9f) ? IN_TAIL1 : IN_NOTHING;
    case IN_F0:
        return is_within(b, 0x90, 0xbf) ? IN_TAIL2 : IN_NOTHING;
    default:
        return is_within(b, 0x80, 0x8f) ? IN_TAIL2 : IN_NOTHING; /* IN_F4 */
    }
}

static int behind_escape(int sub, uint8_t b)
{
    uint8_t small = b | 0x20;
    switch (sub) {
    case IN_ESCAPE:
        if (b == 'u') return IN_HEX1;
        return b && strchr("\"\\/bfnrt", b) ? IN_TEXT : IN_NOTHING;
    case IN_HEX1:
        return !is_hex(b) ? IN_NOTHING : small == 'd' ? IN_HEX_D : IN_HEX2;
    case IN_HEX_D:
        if (is_within(b, '0', '7')) return IN_HEX3;
        return is_within(b, '8', '9') || is_within(small, 'a', 'b') ? IN_HIGH3 : IN_NOTHING;
    case IN_HIGH:
        return b == '\\' ? IN_LOW_U : IN_NOTHING;
    case IN_LOW_U:
        return b == 'u' ? IN_LOW1 : IN_NOTHING;
    case IN_LOW1:
        return small == 'd' ? IN_LOW2 : IN_NOTHING;
    case IN_LOW2:
        return is_within(small, 'c', 'f') ? IN_HEX3 : IN_NOTHING;
    case IN_HEX4:
        return is_hex(b) ? IN_TEXT : IN_NOTHING;
    default:
        return is_hex(b) ? sub + 1 : IN_NOTHING; /* HEX2, HEX3, HIGH3, HIGH4 */
    }
}

/* What an escape of one letter stands for. */
static uint8_t unescaped(uint8_t b)
{
    static const char from[] = "bfnrt", to[] = "\b\f\n\r\t";
    const char *at = b ? strchr(from, b) : NULL;
    return at ? (uint8_t)to[at - from] : b;
}

/* One more character has begun: counted as far as the bounds ask. 0: there may not be one. */
static int count_character(const GrammarNode *n, GrammarThread *t)
{
    if (n->hi >= 0 && t->count >= n->hi) return 0;
    if (n->hi >= 0 || t->count < n->lo) t->count++;
    return 1;
}

/* The automaton takes a byte of the text that the string stands for. */
static int feed_automaton(const Grammar *g, const GrammarNode *n, GrammarThread *t, uint8_t byte)
{
    if (n->index < 0) return 1;
    const GrammarAutomaton *a = &g->automaton[n->index];
    t->at = dfa_step(&a->dfa, t->at, byte);
    if (t->at == DFA_DEAD || a->left[t->at] == UINT16_MAX) return 0;
    return n->hi < 0 || t->count + a->left[t->at] <= n->hi;
}

/* What may follow an escape where an automaton reads along, or a name is: no \u, no \/. */
static int is_canonical(const GrammarNode *n, uint8_t byte)
{
    return n->index == -1 || !strchr("u/", byte);
}

/* 1 if a character that escapes stand for may come. */
static int may_escape(const Grammar *g, const GrammarNode *n, const GrammarThread *t)
{
    static const char characters[] = "\"\\\b\f\n\r\t";
    int may = n->index < 0;
    for (const char *at = characters; *at && !may; at++) {
        GrammarThread tried = *t;
        may = feed_automaton(g, n, &tried, (uint8_t)*at);
    }
    return may;
}

/* One byte of a string's text: 0 where it may not come. */
static int string_text(const Grammar *g, const GrammarNode *n, GrammarThread *t, uint8_t byte)
{
    int sub = (int)t->sub;
    if (sub == IN_ESCAPE) {
        if (!is_canonical(n, byte)) return 0;
        if (!feed_automaton(g, n, t, unescaped(byte))) return 0;
    } else if (sub == IN_TEXT || sub >= IN_TAIL1) {
        if (byte < 0x20) return 0;
        if (sub == IN_TEXT && !count_character(n, t)) return 0;
        if (!(byte == '\\' ? may_escape(g, n, t) : feed_automaton(g, n, t, byte))) return 0;
    }
    if (sub == IN_TEXT)
        sub = byte == '\\' ? IN_ESCAPE : byte < 0x80 ? IN_TEXT : behind_lead(byte);
    else
        sub = sub >= IN_TAIL1 ? behind_tail(sub, byte) : behind_escape(sub, byte);
    t->sub = (uint32_t)sub;
    return sub != IN_NOTHING;
}

static void find_end(GrammarWalk *w, uint32_t frame, GrammarReturn *end)
{
    uint32_t n_frames = w->n_frames, most = w->most;
    w->n_frames = most;
    w->most = most + MAX_TOKEN_FRAMES;
    clear(w, &end->state);
    come_back(w, frame, &end->state);
    w->n_frames = n_frames;
    w->most = most;
    end->frame = frame;
}

/* A string that is called from frame ends; is_alone: it is all that out is made of. */
static void end_string(GrammarWalk *w, uint32_t frame, int is_alone, GrammarState *out)
{
    GrammarReturn *end = w->end;
    if (!end || !is_alone || !frame || frame >= w->n_kept) {
        come_back(w, frame, out);
        return;
    }
    if (end->frame != frame) find_end(w, frame, end);
    grammar_copy(out, &end->state);
    w->n_steps += (uint64_t)end->state.n / 8;
}

static void string_byte(GrammarWalk *w, GrammarThread t, uint8_t byte, int is_alone,
                        GrammarState *out)
{
    const GrammarNode *n = &w->g->node[t.node];
    if (t.sub == IN_TEXT && byte == '"') {
        int ends = n->index < 0 || w->g->automaton[n->index].dfa.accepts[t.at];
        if (ends && t.count >= n->lo) end_string(w, t.frame, is_alone, out);
        return;
    }
    if (string_text(w->g, n, &t, byte)) add_thread(w, out, t);
}

/* ---- names ---- */

/* 1 if property p may come where the object has got to property k, with room for more levels. */
static int may_come(const GrammarNames *names, int p, int k, int room)
{
    return p >= k && p <= names->next_required[k] && names->height[p] <= room;
}

/* 1 if one of a node's leaves may come. */
static int has_leaf(const GrammarNames *names, const GrammarNode *n, int k, int room)
{
    for (int i = n->lo; i < n->hi; i++)
        if (may_come(names, names->leaf[i], k, room)) return 1;
    return 0;
}

static const GrammarEdge *find_edge(const Grammar *g, const GrammarNode *n, uint8_t byte)
{
    const GrammarEdge *edge = g->edge + n->first_edge;
    int lo = 0, hi = n->n_edges;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (edge[mid].hi < byte)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < n->n_edges && edge[lo].lo <= byte ? &edge[lo] : NULL;
}

/* 1 if what has come of a name may be the beginning of one that is not declared. */
static int is_other(const GrammarNames *names, const GrammarThread *t)
{
    return names->other && t->sub != IN_NO_OTHER;
}

/*
 * Where other names may come, the tree is followed along names that may not, too: they are declared
 * as long as they can become one. sub and count are those of the other name.
 */
static void name_byte(GrammarWalk *w, GrammarThread t, uint8_t byte, GrammarState *out)
{
    const Grammar *g = w->g;
    const GrammarNode *n = &g->node[t.node];
    const GrammarNames *names = &g->names[n->index];
    const GrammarEdge *edge = find_edge(g, n, byte);
    int room = MAX_GRAMMAR_LEVELS - w->frame[t.frame].level;
    int others = names->next_required[t.at] == names->n && is_other(names, &t) &&
                 g->node[names->other].height <= room;
    GrammarThread other = {.node = g->node[names->other].body, .count = t.count, .sub = t.sub};
    if (!edge) {
        other.frame = others ? push(w, names->other, t.frame, 0, out) : 0;
        if (other.frame) string_byte(w, other, byte, 0, out);
        return;
    }
    const GrammarNode *to = &g->node[edge->to];
    int is_leaf = to->kind != NODE_NAME || to->index != n->index;
    if (is_leaf) {
        /* of this node's leaves the one that the byte ends */
        int i = n->lo;
        for (const GrammarEdge *e = g->edge + n->first_edge; e != edge; e++) {
            const GrammarNode *before = &g->node[e->to];
            int inner = before->kind == NODE_NAME && before->index == n->index;
            i += inner ? before->hi - before->lo : 1;
        }
        if (may_come(names, names->leaf[i], t.at, room)) enter(w, edge->to, t.frame, out);
        return;
    }
    if (!others || !string_text(g, &g->node[other.node], &other, byte)) other.sub = IN_NO_OTHER;
    if (is_other(names, &other) || has_leaf(names, to, t.at, room)) {
        t.node = edge->to;
        t.sub = other.sub;
        t.count = other.count;
        add_thread(w, out, t);
    }
}

/* ---- a byte, a token ---- */

static void text_byte(GrammarWalk *w, GrammarThread t, uint8_t byte, GrammarState *out)
{
    const GrammarNode *n = &w->g->node[t.node];
    const Dfa *d = &w->g->automaton[n->index].dfa;
    int begins = !utf8_is_tail(byte); /* a character */
    if (begins && !count_character(n, &t)) return;
    if (!feed_automaton(w->g, n, &t, byte)) return;
    add_thread(w, out, t);
    if (d->accepts[t.at] && t.count >= n->lo) enter(w, n->next, t.frame, out);
}

/* How much of the literal stands at the end of what has come, Knuth-Morris-Pratt without a table.
 */
static int found_of(const char *literal, int at, uint8_t byte)
{
    while ((uint8_t)literal[at] != byte && at > 0) {
        int shorter = at - 1;
        while (shorter > 0 && memcmp(literal, literal + at - shorter, (size_t)shorter) != 0)
            shorter--;
        at = shorter;
    }
    return at + ((uint8_t)literal[at] == byte);
}

static void until_byte(GrammarWalk *w, GrammarThread t, uint8_t byte, GrammarState *out)
{
    const GrammarNode *n = &w->g->node[t.node];
    const char *literal = w->g->literal[n->index];
    const char *never = n->hi < 0 ? NULL : w->g->literal[n->hi];
    t.at = (uint16_t)found_of(literal, t.at, byte);
    if (never) t.count = (uint16_t)found_of(never, t.count, byte);
    if (never && !never[t.count]) return;
    if (literal[t.at])
        add_thread(w, out, t);
    else
        enter(w, n->next, t.frame, out);
}

void grammar_byte(GrammarWalk *w, const GrammarState *from, uint8_t byte, GrammarState *out)
{
    const GrammarEdge *edge;
    clear(w, out);
    out->is_cut = from->is_cut;
    for (int i = 0; i < from->n && may_step(w, out); i++) {
        GrammarThread t = from->thread[i];
        const GrammarNode *n = &w->g->node[t.node];
        switch ((GrammarNodeKind)n->kind) {
        case NODE_BYTES:
            edge = find_edge(w->g, n, byte);
            if (edge) enter(w, edge->to, t.frame, out);
            break;
        case NODE_NAME:
            name_byte(w, t, byte, out);
            break;
        case NODE_STRING:
            string_byte(w, t, byte, from->n == 1, out);
            break;
        case NODE_TEXT:
            text_byte(w, t, byte, out);
            break;
        case NODE_UNTIL:
            until_byte(w, t, byte, out);
            break;
        case NODE_FREE:
            add_thread(w, out, t);
            break;
        case NODE_RETURN:
        case NODE_TOKEN:
        case NODE_NAMES:
        case NODE_CALL:
        case NODE_REPEAT:
        case NODE_ANY_OF:
            break; /* no byte may come; those below are no thread's */
        }
    }
}

void grammar_token(GrammarWalk *w, const GrammarState *from, int32_t token, GrammarState *out)
{
    clear(w, out);
    out->is_cut = from->is_cut;
    for (int i = 0; i < from->n && may_step(w, out); i++) {
        GrammarThread t = from->thread[i];
        const GrammarNode *n = &w->g->node[t.node];
        if (n->kind != NODE_TOKEN && n->kind != NODE_FREE) continue;
        if (n->lo == token)
            enter(w, n->next, t.frame, out);
        else if (n->kind == NODE_FREE)
            add_thread(w, out, t);
    }
}

int grammar_may_end(const Grammar *g, const GrammarState *s)
{
    for (int i = 0; i < s->n; i++) {
        const GrammarNode *n = &g->node[s->thread[i].node];
        if (n->kind == NODE_RETURN || (n->kind == NODE_FREE && n->hi)) return 1;
    }
    return 0;
}

/* 1 if any plain character may come; where they are texts without '<', any but that. */
static int is_plain(const Grammar *g, const GrammarThread *t, int are_texts)
{
    const GrammarNode *n = &g->node[t->node];
    if (!are_texts) return n->kind == NODE_STRING && n->index < 0 && t->sub == IN_TEXT;
    if (n->kind != NODE_TEXT || !n->body) return 0;
    return t->at == dfa_step(&g->automaton[n->index].dfa, 0, 'x');
}

int grammar_plain_room(const Grammar *g, const GrammarState *s, int are_texts)
{
    int room = 0;
    for (int i = 0; i < s->n; i++) {
        const GrammarThread *t = &s->thread[i];
        const GrammarNode *n = &g->node[t->node];
        if (!is_plain(g, t, are_texts)) continue;
        if (n->hi < 0) return -1;
        if (n->hi - t->count > room) room = n->hi - t->count;
    }
    return room;
}

int grammar_is_free_text(const Grammar *g, const GrammarState *s)
{
    for (int i = 0; i < s->n; i++) {
        const GrammarThread *t = &s->thread[i];
        if (g->node[t->node].kind == NODE_UNTIL && !t->at && t->count <= 1) return 1;
    }
    return 0;
}
