/*
 * test_rope.c: rotary frequencies and their scale against those of Hugging Face transformers 5.23,
 * how long contexts get, and settings that make no sense.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/rope.h"
#include "tests/textdata.h"

enum { MAX_POSITIONS = 32768, MAX_FREQUENCIES = 16 };

/* Reads a text config, with ' for ". */
static int read_text(Rope *rope, const char *text, int head_dim, int *ctx_limit, Error *err)
{
    char json[1024];
    snprintf(json, sizeof json, "%s", text);
    json_t *config = json_loads(with_quotes(json), 0, NULL);
    assert_non_null(config);
    *ctx_limit = MAX_POSITIONS;
    *err = (Error){0};
    int rc = rope_read(rope, config, "config.json", head_dim, ctx_limit, err);
    json_decref(config);
    return rc;
}

static const struct {
    int head_dim;
    const char *parameters;
    double scale;
    float inv_freq[MAX_FREQUENCIES];
} cases[] = {
    {64,
     "{'rope_type':'default','rope_theta':10000000.0,'partial_rotary_factor':0.25}",
     1,
     {1, 0.133352146f, 0.0177827943f, 0.00237137382f, 0.000316227786f, 4.21696532e-05f,
      5.62341347e-06f, 7.49894241e-07f}},
    {64, /* as checkpoints older than that name have it */
     "{'type':'mrope','mrope_section':[3,3,2],'rope_theta':10000000.0,'partial_rotary_factor':0."
     "25}",
     1,
     {1, 0.133352146f, 0.0177827943f, 0.00237137382f, 0.000316227786f, 4.21696532e-05f,
      5.62341347e-06f, 7.49894241e-07f}},
    {64,
     "{'rope_type':'linear','rope_theta':1000000.0,'partial_rotary_factor':0.25,'factor':3}",
     1,
     {0.333333343f, 0.059275981f, 0.0105409259f, 0.00187447108f, 0.000333333359f, 5.92759789e-05f,
      1.05409244e-05f, 1.8744712e-06f}},
    {64,
     "{'rope_type':'yarn','rope_theta':10000000.0,'partial_rotary_factor':0.25,'factor':4.0,'"
     "original_max_position_embeddings':262144}",
     1.13862944,
     {1, 0.133352146f, 0.0177827943f, 0.00237137382f, 0.00023717084f, 2.10848266e-05f,
      1.40585337e-06f, 1.8747356e-07f}},
    {64,
     "{'rope_type':'yarn','rope_theta':10000.0,'partial_rotary_factor':0.5,'factor':2.5,'original_"
     "max_position_embeddings':8192,'attention_factor':1.25,'truncate':false}",
     1.25,
     {1, 0.562341332f, 0.316227764f, 0.177827939f, 0.100000001f, 0.0562341288f, 0.0316227786f,
      0.0167907923f, 0.00844557676f, 0.00418887986f, 0.00204043463f, 0.000970201101f,
      0.000445926329f, 0.000224936521f, 0.000126491112f, 7.11311732e-05f}},
    {40,
     "{'rope_type':'yarn','rope_theta':10000.0,'partial_rotary_factor':0.4,'factor':16,'original_"
     "max_position_embeddings':4096,'beta_fast':64,'beta_slow':2,'mscale':0.7,'mscale_all_dim':0."
     "3}",
     1.10238722,
     {1, 0.316227764f, 0.100000001f, 0.0242111888f, 0.00531250006f, 0.000938801211f, 6.2500003e-05f,
      1.97642366e-05f}},
    {32,
     "{'rope_type':'yarn','rope_theta':100,'partial_rotary_factor':0.5,'factor':8,'original_max_"
     "position_embeddings':64,'beta_fast':0}",
     1.20794415,
     {1, 0.46393159f, 0.205548048f, 0.0844682679f, 0.0300000012f, 0.0070292661f, 0.00395284733f,
      0.00222284929f}},
    {32,
     "{'rope_type':'yarn','rope_theta':500000.0,'partial_rotary_factor':0.5,'factor':null,'"
     "original_max_position_embeddings':1024}",
     1.34657359,
     {1, 0.146957085f, 0.0193906091f, 0.00199408806f, 4.41941702e-05f, 8.57025589e-06f,
      1.66196742e-06f, 3.22293289e-07f}},
};

/* In the place of rope_parameters and of rope_scaling. */
static void test_frequencies(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int old = 0; old < 2; old++) {
            Rope rope;
            Error err;
            char text[512];
            int ctx_limit;
            float got[MAX_FREQUENCIES] = {0};
            snprintf(text, sizeof text, "{'%s':%s}", old ? "rope_scaling" : "rope_parameters",
                     cases[i].parameters);
            if (read_text(&rope, text, cases[i].head_dim, &ctx_limit, &err))
                fail_msg("%s", err.msg);
            assert_true(rope.n_rot / 2 <= MAX_FREQUENCIES);
            rope_frequencies(&rope, got);
            for (int f = 0; f < MAX_FREQUENCIES; f++)
                if (!(fabsf(got[f] - cases[i].inv_freq[f]) <= 4e-7f * cases[i].inv_freq[f]))
                    fail_msg("%s: frequency %d is %.9g, not %.9g", cases[i].parameters, f,
                             (double)got[f], (double)cases[i].inv_freq[f]);
            if (!(fabs(rope.scale - cases[i].scale) < 1e-6))
                fail_msg("%s: scale %g", cases[i].parameters, rope.scale);
        }
}

/* A little is stretched a little; one of the two weights alone counts for nothing. */
static void test_scale(void **state)
{
    (void)state;
    static const struct {
        const char *more;
        double scale;
    } rows[] = {{"'factor':1.5", 1.04054651},
                {"'factor':16", 1.27725887},
                {"'factor':16,'mscale':0.7", 1.27725887},
                {"'factor':16,'mscale_all_dim':0.7", 1.27725887},
                {"'factor':16,'mscale':0.7,'mscale_all_dim':0.7", 1}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Rope rope;
        Error err;
        char text[256];
        int ctx_limit;
        snprintf(text, sizeof text, "{'rope_scaling':{'type':'yarn',%s}}", rows[i].more);
        if (read_text(&rope, text, 64, &ctx_limit, &err)) fail_msg("%s", err.msg);
        if (!(fabs(rope.scale - rows[i].scale) < 1e-6)) fail_msg("%s: scale %g", text, rope.scale);
    }
}

static void test_context(void **state)
{
    static const struct {
        const char *text;
        int ctx_limit;
    } rows[] = {
        {"{}", MAX_POSITIONS},
        {"{'rope_scaling':null,'rope_parameters':null}", MAX_POSITIONS},
        {"{'rope_parameters':{'factor':4}}", MAX_POSITIONS},
        {"{'rope_parameters':{'rope_type':'linear','factor':2.5}}", 81920},
        {"{'rope_scaling':{'type':'yarn','factor':4}}", 131072},
        {"{'rope_scaling':{'rope_type':'yarn','factor':4,"
         "'original_max_position_embeddings':262144}}",
         1048576},
        {"{'rope_scaling':{'rope_type':'yarn','original_max_position_embeddings':4096}}",
         MAX_POSITIONS},
        {"{'original_max_position_embeddings':4096,'rope_scaling':{'rope_type':'yarn',"
         "'factor':4}}",
         16384},
        {"{'original_max_position_embeddings':4096,'rope_parameters':{'rope_type':'yarn',"
         "'factor':4,'original_max_position_embeddings':8192}}",
         16384},
        {"{'original_max_position_embeddings':null,'rope_parameters':{'rope_type':'yarn',"
         "'factor':4,'original_max_position_embeddings':8192}}",
         MAX_POSITIONS},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Rope rope;
        Error err;
        int ctx_limit;
        if (read_text(&rope, rows[i].text, 256, &ctx_limit, &err)) fail_msg("%s", err.msg);
        if (ctx_limit != rows[i].ctx_limit) fail_msg("%s: %d", rows[i].text, ctx_limit);
    }
}

static void test_refused(void **state)
{
    static const struct {
        const char *parameters, *says;
    } rows[] = {
        {"3", "config.json: 'rope_parameters' must be an object"},
        {"{'full_attention':{}}", "'rope_parameters' by type of layer is not supported"},
        {"{'rope_type':'llama3','factor':8}", "'rope_type' is 'llama3', supported are"},
        {"{'type':'dynamic'}", "'type' is 'dynamic', supported are"},
        {"{'rope_type':7}", "'rope_type' must be a string"},
        {"{'rope_type':'linear'}", "'factor' is missing"},
        {"{'rope_type':'linear','factor':0.5}", "'factor' is 0.5"},
        {"{'rope_type':'linear','factor':1000}", "'factor' 1000 gives 32768000 positions"},
        {"{'rope_type':'yarn','factor':'4'}", "'factor' must be a number"},
        {"{'rope_type':'yarn','factor':-4}", "'factor' is -4"},
        {"{'rope_type':'yarn','factor':1e7}", "gives 327680000000 positions"},
        {"{'rope_type':'yarn','original_max_position_embeddings':65536}", "'factor' is missing"},
        {"{'rope_type':'yarn','factor':4,'original_max_position_embeddings':0}",
         "'original_max_position_embeddings' is 0"},
        {"{'rope_type':'yarn','factor':4,'beta_fast':1,'beta_slow':32}", "'beta_fast' is below"},
        {"{'rope_type':'yarn','factor':4,'beta_slow':-1}", "'beta_slow' is -1"},
        {"{'rope_type':'yarn','factor':4,'attention_factor':0}", "'attention_factor' is 0"},
        {"{'rope_type':'yarn','factor':4,'truncate':1}", "'truncate' must be true or false"},
        {"{'rope_type':'yarn','factor':4,'rope_theta':1}", "'rope_theta' must be over 1"},
        {"{'rope_theta':0.5}", "'rope_theta' is 0.5"},
        {"{'partial_rotary_factor':0.02}", "gives 5 rotary dims"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Rope rope;
        Error err;
        char text[256];
        int ctx_limit;
        snprintf(text, sizeof text, "{'rope_parameters':%s}", rows[i].parameters);
        if (!read_text(&rope, text, 256, &ctx_limit, &err)) fail_msg("%s is taken", text);
        if (!strstr(err.msg, rows[i].says)) fail_msg("%s: %s", text, err.msg);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_frequencies),
        cmocka_unit_test(test_scale),
        cmocka_unit_test(test_context),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests_name("rope", tests, NULL, NULL);
}
