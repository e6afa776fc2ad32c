/*
 * pattern_minimise.c: the smallest automaton for the same strings; see pattern_parts.h.
 *
 * States from which nothing is accepted go first. Then Valmari's form of Hopcroft's algorithm
 * ("Fast brief practical DFA minimization", 2012): states and transitions are each parted into
 * groups, and each part splits the other until no group has two that behave differently. It takes
 * O(m log m) for m transitions. States are then numbered as they are met from state 0, which makes
 * the result the same for all patterns with the same strings.
 */
#include "text/pattern_parts.h"

#include <string.h>

#include "base/mem.h"

/* Elements 0..n-1 in groups. The marked elements of a group lie before its others. */
typedef struct {
    int n_groups;
    int *element, *place;     /* elements by group; where each lies */
    int *group;               /* of each element */
    int *first, *past, *mark; /* of each group: its elements, and how many are marked */
    int *touched, n_touched;  /* groups with marked elements */
} Partition;

/* The transitions between states, and the indices of those that lead into state s: [into[s],
 * into[s + 1]) of by_head. */
typedef struct {
    int n;
    int *tail, *head, *class;
    int *by_head, *into;
} Edges;

static int *int_array(int n)
{
    return mem_alloc((size_t)n + 1, sizeof(int));
}

static void partition_open(Partition *p, int n)
{
    *p = (Partition){.n_groups = n > 0};
    p->element = int_array(n);
    p->place = int_array(n);
    p->group = int_array(n);
    p->first = int_array(n);
    p->past = int_array(n);
    p->mark = int_array(n);
    p->touched = int_array(n);
    for (int i = 0; i < n; i++)
        p->element[i] = p->place[i] = i;
    p->past[0] = n;
}

static void partition_close(Partition *p)
{
    mem_free(p->element);
    mem_free(p->place);
    mem_free(p->group);
    mem_free(p->first);
    mem_free(p->past);
    mem_free(p->mark);
    mem_free(p->touched);
}

/* Each element is marked once at most between two splits. */
static void partition_mark(Partition *p, int e)
{
    int g = p->group[e], from = p->place[e], to = p->first[g] + p->mark[g];
    int other = p->element[to];
    p->element[from] = other;
    p->place[other] = from;
    p->element[to] = e;
    p->place[e] = to;
    if (!p->mark[g]++) p->touched[p->n_touched++] = g;
}

/* Parts the marked elements of each group from the others; the smaller part is the new group. */
static void partition_split(Partition *p)
{
    while (p->n_touched) {
        int g = p->touched[--p->n_touched], cut = p->first[g] + p->mark[g], new = p->n_groups;
        int marked_is_smaller = p->mark[g] <= p->past[g] - cut;
        p->mark[g] = 0;
        if (cut == p->past[g]) continue;
        p->first[new] = marked_is_smaller ? p->first[g] : cut;
        p->past[new] = marked_is_smaller ? cut : p->past[g];
        if (marked_is_smaller)
            p->first[g] = cut;
        else
            p->past[g] = cut;
        for (int i = p->first[new]; i < p->past[new]; i++)
            p->group[p->element[i]] = new;
        p->mark[new] = 0;
        p->n_groups++;
    }
}

static uint16_t *cell(const Dfa *d, int state, int class)
{
    return &d->next[(size_t)state * (size_t)d->n_classes + (size_t) class];
}

/* Edges come class by class. */
static void edges_open(Edges *e, const Dfa *d)
{
    int n = 0, sum = 0;
    for (int i = 0; i < d->n_states * d->n_classes; i++)
        n += d->next[i] != DFA_DEAD;
    *e = (Edges){0, int_array(n), int_array(n), int_array(n), int_array(n), int_array(d->n_states)};
    for (int c = 0; c < d->n_classes; c++) {
        for (int s = 0; s < d->n_states; s++) {
            int head = *cell(d, s, c);
            if (head == DFA_DEAD) continue;
            e->tail[e->n] = s;
            e->class[e->n] = c;
            e->head[e->n++] = head;
            e->into[head]++;
        }
    }
    for (int s = 0; s <= d->n_states; s++) {
        sum += e->into[s];
        e->into[s] = sum; /* the end of its run, from which it is filled */
    }
    for (int i = n - 1; i >= 0; i--)
        e->by_head[--e->into[e->head[i]]] = i;
}

static void edges_close(Edges *e)
{
    mem_free(e->tail);
    mem_free(e->head);
    mem_free(e->class);
    mem_free(e->by_head);
    mem_free(e->into);
}

/* Makes the states from which no accepting one is reached dead; 0 when the first is one of them. */
static int trim(Dfa *d)
{
    Edges e;
    int *todo = int_array(d->n_states), n = 0;
    uint8_t *lives = mem_alloc((size_t)d->n_states, 1);
    edges_open(&e, d);
    for (int s = 0; s < d->n_states; s++)
        if (d->accepts[s]) lives[todo[n++] = s] = 1;
    while (n) {
        int s = todo[--n];
        for (int i = e.into[s]; i < e.into[s + 1]; i++) {
            int tail = e.tail[e.by_head[i]];
            if (!lives[tail]) lives[todo[n++] = tail] = 1;
        }
    }
    for (int i = 0; i < d->n_states * d->n_classes; i++)
        if (d->next[i] != DFA_DEAD && !lives[d->next[i]]) d->next[i] = DFA_DEAD;
    int first_lives = lives[0];
    edges_close(&e);
    mem_free(lives);
    mem_free(todo);
    return first_lives;
}

/* Parts edges by class, which they are sorted by. */
static void part_by_class(Partition *p, const Edges *e)
{
    int g = 0;
    for (int i = 0; i < e->n; i++) {
        if (i && e->class[i] != e->class[i - 1]) {
            p->past[g++] = i;
            p->first[g] = i;
        }
        p->group[i] = g;
    }
    p->past[g] = e->n;
    p->n_groups = e->n ? g + 1 : 0;
}

/* Groups of states that behave alike. Dead states are groups of their own, or together. */
static void part_states(Partition *states, const Dfa *d)
{
    Edges e;
    Partition edges;
    edges_open(&e, d);
    partition_open(states, d->n_states);
    for (int s = 0; s < d->n_states; s++)
        if (d->accepts[s]) partition_mark(states, s);
    partition_split(states);
    partition_open(&edges, e.n);
    part_by_class(&edges, &e);
    for (int g = 0, done = 1; g < edges.n_groups; g++) {
        for (int i = edges.first[g]; i < edges.past[g]; i++)
            partition_mark(states, e.tail[edges.element[i]]);
        partition_split(states);
        for (; done < states->n_groups; done++) {
            for (int i = states->first[done]; i < states->past[done]; i++)
                for (int s = states->element[i], k = e.into[s]; k < e.into[s + 1]; k++)
                    partition_mark(&edges, e.by_head[k]);
            partition_split(&edges);
        }
    }
    partition_close(&edges);
    edges_close(&e);
}

/* Numbers the groups as they are met from state 0: *state [n] has one state of each. */
static int number_groups(const Partition *p, const Dfa *d, int *number, int *state)
{
    int n = 1;
    memset(number, -1, (size_t)p->n_groups * sizeof *number);
    number[p->group[0]] = 0;
    state[0] = 0;
    for (int i = 0; i < n; i++) {
        for (int c = 0; c < d->n_classes; c++) {
            int next = *cell(d, state[i], c);
            if (next == DFA_DEAD || number[p->group[next]] >= 0) continue;
            number[p->group[next]] = n;
            state[n++] = next;
        }
    }
    return n;
}

static int same_column(const Dfa *d, int a, int b)
{
    for (int s = 0; s < d->n_states; s++)
        if (*cell(d, s, a) != *cell(d, s, b)) return 0;
    return 1;
}

/* Classes that no state tells apart become one; they keep the order of their first bytes. */
static void merge_classes(Dfa *d)
{
    int n = 0, kept[256], new_class[256];
    for (int c = 0; c < d->n_classes; c++) {
        int k = 0;
        while (k < n && !same_column(d, kept[k], c))
            k++;
        if (k == n) kept[n++] = c;
        new_class[c] = k;
    }
    for (int s = 0; s < d->n_states; s++)
        for (int k = 0; k < n; k++)
            d->next[(size_t)s * (size_t)n + (size_t)k] = *cell(d, s, kept[k]);
    for (int byte = 0; byte < 256; byte++)
        d->class_of[byte] = (uint8_t)new_class[d->class_of[byte]];
    d->n_classes = n;
    d->next = mem_realloc(d->next, (size_t)d->n_states * (size_t)n, sizeof *d->next);
}

/* The automaton with one state for each group. */
static int merge_states(Dfa *d, const Partition *p, Error *err)
{
    int *number = int_array(p->n_groups), *state = int_array(p->n_groups);
    int n = number_groups(p, d, number, state), rc = 0;
    if (n > DFA_MAX_STATES) {
        rc = error_set(err, ERR_LIMIT, "pattern needs %d states, the limit is %d", n,
                       DFA_MAX_STATES);
    } else {
        size_t n_cells = (size_t)n * (size_t)d->n_classes;
        uint16_t *next = mem_realloc(NULL, n_cells, sizeof *next);
        uint8_t *accepts = mem_alloc((size_t)n, 1);
        for (int i = 0; i < n; i++) {
            accepts[i] = d->accepts[state[i]];
            for (int c = 0; c < d->n_classes; c++) {
                int to = *cell(d, state[i], c);
                next[(size_t)i * (size_t)d->n_classes + (size_t)c] =
                    to == DFA_DEAD ? DFA_DEAD : (uint16_t)number[p->group[to]];
            }
        }
        mem_free(d->next);
        mem_free(d->accepts);
        d->next = next;
        d->accepts = accepts;
        d->n_states = n;
    }
    mem_free(number);
    mem_free(state);
    return rc;
}

int dfa_minimise(Dfa *d, Error *err)
{
    Partition states;
    if (!trim(d)) return error_set(err, ERR_INPUT, "no string matches the pattern");
    part_states(&states, d);
    int rc = merge_states(d, &states, err);
    partition_close(&states);
    if (!rc) merge_classes(d);
    return rc;
}
