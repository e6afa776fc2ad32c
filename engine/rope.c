/*
 * rope.c: see rope.h.
 */
#include "engine/rope.h"

#include <math.h>
#include <string.h>

#include "base/json.h"

static const double PI = 3.14159265358979323846;

typedef struct {
    Rope *rope;
    const json_t *text;
    const json_t *from; /* rope_parameters or rope_scaling, NULL: there is none */
    const char *where;
    Error *err;
} Reader;

static int bad(const Reader *r, const char *key, const char *what)
{
    return error_set(r->err, ERR_INPUT, "%s: '%s' %s", r->where, key, what);
}

static int get_num(const Reader *r, const char *key, double lo, double hi, double fallback,
                   double *out)
{
    return json_get_num(r->from, r->where, key, lo, hi, fallback, out, r->err);
}

/* One that is 0 counts as absent. */
static int get_beta(const Reader *r, const char *key, double fallback, double *out)
{
    if (get_num(r, key, 0, 1e6, fallback, out)) return -1;
    if (*out == 0) *out = fallback;
    return 0;
}

/* The object at key, or NULL. */
static int get_object(const Reader *r, const json_t *text, const char *key, const json_t **out)
{
    const char *name;
    json_t *v;
    *out = json_field(text, key);
    if (!*out) return 0;
    if (!json_is_object(*out)) return bad(r, key, "must be an object");
    json_object_foreach((json_t *)*out, name, v)
    {
        if (json_is_object(v)) return bad(r, key, "by type of layer is not supported");
    }
    return 0;
}

static int read_type(const Reader *r)
{
    static const char *const names[] = {
        [ROPE_DEFAULT] = "default", [ROPE_LINEAR] = "linear", [ROPE_YARN] = "yarn"};
    const char *key = json_field(r->from, "rope_type") ? "rope_type" : "type", *name;
    const json_t *v = json_field(r->from, key);
    r->rope->type = ROPE_DEFAULT;
    if (!v) return 0;
    if (!json_is_string(v)) return bad(r, key, "must be a string");
    name = json_string_value(v);
    if (!strcmp(name, "mrope")) return 0; /* an older name: a text's sections turn alike */
    for (int i = 0; i < 3; i++)
        if (!strcmp(name, names[i])) {
            r->rope->type = (RopeType)i;
            return 0;
        }
    return error_set(r->err, ERR_INPUT,
                     "%s: '%s' is '%.40s', supported are 'default', 'linear' and 'yarn'", r->where,
                     key, name);
}

static double yarn_scale(double factor, double weight)
{
    return factor > 1 ? 0.1 * weight * log(factor) + 1 : 1;
}

/* Beside the other numbers or in text itself, which counts where both say it. */
static int read_original_ctx(const Reader *r, int max_positions)
{
    static const char key[] = "original_max_position_embeddings";
    const json_t *from = json_field(r->text, key) ? r->text : r->from;
    return json_get_num(from, r->where, key, 1, MAX_CTX_LIMIT, max_positions,
                        &r->rope->original_ctx, r->err);
}

static int read_yarn(const Reader *r, int max_positions)
{
    Rope *rope = r->rope;
    double scale, all, scale_dflt;
    if (read_original_ctx(r, max_positions) ||
        get_num(r, "factor", 1, MAX_CTX_LIMIT, max_positions / rope->original_ctx, &rope->factor) ||
        get_beta(r, "beta_fast", 32, &rope->beta_fast) ||
        get_beta(r, "beta_slow", 1, &rope->beta_slow) ||
        json_get_bool(r->from, r->where, "truncate", 1, &rope->truncate, r->err) ||
        get_num(r, "mscale", 0, 1e3, 0, &scale) || get_num(r, "mscale_all_dim", 0, 1e3, 0, &all))
        return -1;
    scale_dflt = yarn_scale(rope->factor, 1);
    if (scale > 0 && all > 0)
        scale_dflt = yarn_scale(rope->factor, scale) / yarn_scale(rope->factor, all);
    if (get_num(r, "attention_factor", 1e-3, 1e3, scale_dflt, &rope->scale)) return -1;
    if (rope->factor < 1) return bad(r, "factor", "is missing, and nothing is stretched without");
    if (rope->beta_fast < rope->beta_slow) return bad(r, "beta_fast", "is below 'beta_slow'");
    if (rope->theta <= 1) return bad(r, "rope_theta", "must be over 1 for yarn");
    return 0;
}

static int read_scaling(const Reader *r, int *ctx_limit)
{
    Rope *rope = r->rope;
    double limit = *ctx_limit;
    rope->factor = rope->scale = 1;
    if (rope->type == ROPE_LINEAR) {
        if (!json_field(r->from, "factor")) return bad(r, "factor", "is missing");
        if (get_num(r, "factor", 1, MAX_CTX_LIMIT, 1, &rope->factor)) return -1;
    }
    if (rope->type == ROPE_YARN) {
        if (read_yarn(r, *ctx_limit)) return -1;
        limit = rope->original_ctx;
    }
    limit *= rope->factor;
    if (limit > MAX_CTX_LIMIT)
        return error_set(r->err, ERR_LIMIT, "%s: 'factor' %g gives %.0f positions, the limit is %d",
                         r->where, rope->factor, limit, MAX_CTX_LIMIT);
    *ctx_limit = (int)limit;
    return 0;
}

int rope_read(Rope *rope, const json_t *text, const char *where, int head_dim, int *ctx_limit,
              Error *err)
{
    Reader r = {rope, text, NULL, where, err};
    const json_t *parameters, *scaling;
    double part;
    *rope = (Rope){0};
    if (get_object(&r, text, "rope_parameters", &parameters) ||
        get_object(&r, text, "rope_scaling", &scaling))
        return -1;
    r.from = scaling && json_object_size(scaling) ? scaling : parameters;
    if (json_get_num(text, where, "rope_theta", 1, 1e12, 1e4, &rope->theta, err) ||
        json_get_num(text, where, "partial_rotary_factor", 0, 1, 0.25, &part, err) ||
        get_num(&r, "rope_theta", 1, 1e12, rope->theta, &rope->theta) ||
        get_num(&r, "partial_rotary_factor", 0, 1, part, &part) || read_type(&r) ||
        read_scaling(&r, ctx_limit))
        return -1;
    rope->n_rot = (int)(head_dim * part);
    if (rope->n_rot < 2 || rope->n_rot % 2)
        return error_set(err, ERR_INPUT,
                         "%s: 'partial_rotary_factor' %g of 'head_dim' %d gives %d rotary dims, "
                         "expected an even number from 2",
                         where, part, head_dim, rope->n_rot);
    return 0;
}

/* The dim, of n_rot, that turns so often within original_ctx. */
static double dim_of(const Rope *r, double turns)
{
    return r->n_rot * log(r->original_ctx / (turns * 2 * PI)) / (2 * log(r->theta));
}

/* How much of dim pair i is stretched: 0 up to the dim that turns beta_fast times, then more and
 * more, 1 from the one on that turns beta_slow times. */
static float stretched(const Rope *r, int i)
{
    double low = dim_of(r, r->beta_fast), high = dim_of(r, r->beta_slow);
    if (r->truncate) low = floor(low), high = ceil(high);
    low = fmax(low, 0), high = fmin(high, r->n_rot - 1);
    if (low == high) high += 0.001;
    float part = ((float)i - (float)low) / (float)(high - low);
    return part < 0 ? 0 : part > 1 ? 1 : part;
}

void rope_frequencies(const Rope *r, float *inv_freq)
{
    float factor = (float)r->factor;
    for (int i = 0; i < r->n_rot / 2; i++) {
        float period = powf((float)r->theta, (float)(2 * i) / (float)r->n_rot);
        float plain = 1 / period;
        if (r->type == ROPE_LINEAR) plain /= factor;
        if (r->type == ROPE_YARN) {
            float keep = 1 - stretched(r, i);
            plain = 1 / (factor * period) * (1 - keep) + plain * keep;
        }
        inv_freq[i] = plain;
    }
}
