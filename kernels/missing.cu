/* Stand-ins until every operation has its kernel; never committed to main. */
#include "kernels/simt.h"
#ifndef __CUDACC__
extern "C" {
#include "kernels/ops_ref.h"
}
#endif
extern "C" {
#ifndef __CUDACC__
#define STAND_IN(op, Args) __attribute__((weak)) void op##_simt(const CudaContext *, const Args *a) { op##_ref(a); }
STAND_IN(linear, Linear)
STAND_IN(conv_gates, ConvGates)
STAND_IN(gated_delta, GatedDelta)
STAND_IN(attention_prepare, AttentionPrepare)
STAND_IN(tree_attention, TreeAttention)
STAND_IN(moe_route, MoeRoute)
STAND_IN(moe_ffn, MoeFfn)
STAND_IN(token_logprobs, TokenLogprobs)
__attribute__((weak)) void sample_simt(const CudaContext *, const Sample *a) { static Candidate c[1 << 18]; sample_ref(a, c); }
#else
#define STAND_IN(op, Args) __attribute__((weak)) void op##_cuda(const CudaContext *, const Args *) { }
STAND_IN(linear, Linear)
STAND_IN(conv_gates, ConvGates)
STAND_IN(gated_delta, GatedDelta)
STAND_IN(attention_prepare, AttentionPrepare)
STAND_IN(tree_attention, TreeAttention)
STAND_IN(moe_route, MoeRoute)
STAND_IN(moe_ffn, MoeFfn)
STAND_IN(token_logprobs, TokenLogprobs)
STAND_IN(sample, Sample)
#endif
}
