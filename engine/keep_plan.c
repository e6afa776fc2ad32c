/* keep_plan.c: see keep_plan.h. */
#include "engine/keep_plan.h"

int keep_whole_blocks(const KeepRules *rules, int n)
{
    return rules->block ? n / rules->block * rules->block : n;
}

KeepPlan keep_plan(const Cache *c, const KeepRules *rules, const CacheHit *hit, int n_prompt,
                   int n_system, int n_stable, int answer_changes)
{
    int branch = keep_whole_blocks(rules, hit->branch), prompt = keep_whole_blocks(rules, n_stable);
    int system = keep_whole_blocks(rules, n_system);
    KeepPlan p = {.answer = rules->keep_answers && !answer_changes};
    if (rules->keep_prompts) {
        if (branch == n_prompt) prompt = branch; /* it came before: it is what comes again */
        if (branch == prompt) branch = 0;
        if (hit->matched < n_system && system - hit->n >= MIN_BRANCH) p.system = system;
    }
    if (branch > hit->n) p.branch = branch;
    if (p.branch && rules->keep_prompts && cache_prefers_prompts(c)) p.answer = 0;
    if (prompt > hit->n && (!p.answer || (rules->keep_prompts && !p.branch))) p.prompt = prompt;
    return p;
}
