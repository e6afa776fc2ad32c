/* service.c: see service.h. */
#include "server/service.h"

#include <math.h>

#include "base/random.h"

/* The user's choice, else the model's, else ours. */
static float pick(double chosen, float model, float ours)
{
    if (!isnan(chosen)) return (float)chosen;
    return isnan(model) ? ours : model;
}

SampleParams service_sampling(const Service *s)
{
    const Settings *set = s->settings;
    const GenerationDefaults *g = &s->generation;
    SampleParams p = {
        .temperature = pick(set->temperature, g->do_sample == 0 ? 0 : g->temperature, 1),
        .top_p = pick(set->top_p, g->top_p, 1),
        .min_p = pick(set->min_p, g->min_p, 0),
        .top_k = set->top_k >= 0 ? set->top_k
                 : g->top_k >= 0 ? g->top_k
                                 : 0,
        .repetition = isnan(g->repetition) ? 1 : g->repetition,
        .seed = set->seed >= 0 ? (uint64_t)set->seed : random_u64(),
    };
    return p;
}

int service_max_tokens(const Service *s, int chosen)
{
    return chosen >= 0 ? chosen : s->generation.max_tokens;
}

ChatOptions service_chat_options(const Settings *settings)
{
    static const int on[] = {[AUTO] = -1, [ON] = 1, [OFF] = 0};
    static const char *const efforts[] = {NULL, "low", "medium", "xhigh"}; /* EFFORT_CHOICES */
    return (ChatOptions){.add_generation_prompt = 1,
                         .enable_thinking = on[settings->thinking],
                         .preserve_thinking = on[settings->preserve_thinking],
                         .effort = efforts[settings->effort]};
}
