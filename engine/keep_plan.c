/* keep_plan.c: see keep_plan.h. */
#include "engine/keep_plan.h"

int keep_whole_blocks(const KeepRules *rules, int n)
{
    return rules->block ? n / rules->block * rules->block : n;
}

KeepPlan keep_plan(const KeepRules *rules, const CacheHit *hit, int n_prompt, int n_system,
                   int n_stable, int answer_changes)
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
    if (prompt > hit->n && (rules->keep_prompts || !p.answer)) p.prompt = prompt;
    return p;
}
