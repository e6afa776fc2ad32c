/* pattern.c: a pattern's way to its automaton; see dfa.h. */
#include "text/pattern_parts.h"

static int compile(Dfa *d, const char *pattern, size_t len, int is_whole, Error *err)
{
    PatternTree tree = {0};
    Nfa nfa = {0};
    *d = (Dfa){0};
    int rc = pattern_parse(&tree, pattern, len, is_whole, err);
    if (!rc && is_whole) pattern_tree_anchor(&tree);
    if (!rc) rc = nfa_build(&nfa, &tree, err);
    if (!rc) rc = dfa_from_nfa(d, &nfa, err);
    if (!rc) rc = dfa_minimise(d, err);
    if (rc) dfa_free(d);
    nfa_free(&nfa);
    pattern_tree_free(&tree);
    return rc;
}

int pattern_compile(Dfa *d, const char *pattern, size_t len, Error *err)
{
    return compile(d, pattern, len, 0, err);
}

int pattern_compile_whole(Dfa *d, const char *pattern, size_t len, Error *err)
{
    return compile(d, pattern, len, 1, err);
}
