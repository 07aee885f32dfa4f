// Gradients on a GPU compared with the oracle's. Built and registered only if FLASHLIFT_TEST_GPU is set.
//
// FLASHLIFT_TEST_PROBLEMS: how many random problems (default 200); FLASHLIFT_TEST_SEED: the first seed;
// FLASHLIFT_TEST_FIRST: how many problems are left out before the first one.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <limits>
#include <memory>
#include <tuple>

#include "cuda/compile/nvrtc.h"
#include "cuda/launch/device_tensors.h"
#include "cuda/launch/driver.h"
#include "cuda/launch/loaded_kernel.h"
#include "flashlift/attention.h"
#include "problem/check.h"
#include "support/gradients.h"
#include "support/random_problem.h"

namespace flashlift {
namespace {

using testing::OwnedArguments;
using testing::OwnedGradients;
using testing::Random;

int number_from(const char* name, int otherwise) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): tests only
  return value != nullptr ? std::atoi(value) : otherwise;
}

// Runs forward and backward on the GPU with one implementation (empty: the one that is chosen), twice: the second call
// finds the memory as the first one left it, and must give the same bits. Returns the gradients, or nothing if an
// implementation that is named refuses the problem.
std::optional<OwnedGradients> run_on_device(const Problem& problem, const AttentionArguments& forward,
                                            const TensorView& d_out, const std::optional<TensorView>& d_lse,
                                            const Random& random, const std::string& named) {
  OwnedGradients first = testing::make_gradients(problem, forward, d_out, d_lse, random);
  OwnedGradients second = testing::make_gradients(problem, forward, d_out, d_lse, random);
  const auto device = cuda::DeviceGradients::copy_of(second.arguments, 0);
  if (!device.ok()) {
    ADD_FAILURE() << device.error().message;
    return std::nullopt;
  }
  const auto run = [&]() -> Status {
    FLASHLIFT_ASSIGN_OR_RETURN(const Attention attention,
                               Attention::compile(problem, {.device = DeviceKind::kCuda, .implementation = named}));
    FLASHLIFT_RETURN_IF_ERROR(attention.run(device->views().forward));
    for (const OwnedGradients* call : {&first, &second}) {
      FLASHLIFT_RETURN_IF_ERROR(attention.run_backward(device->views()));
      FLASHLIFT_RETURN_IF_ERROR(device->fetch(call->arguments));
    }
    return {};
  };
  if (const Status status = run(); !status.ok()) {
    if (named.empty() || status.error().kind != ErrorKind::kUnsupported) {
      ADD_FAILURE() << status.error().message;
    }
    return std::nullopt;
  }
  const std::string differing = testing::differing_bits(first.arguments, second.arguments, problem.deterministic);
  EXPECT_TRUE(differing.empty()) << differing;
  return second;
}

// Compares every gradient of each implementation with the oracle's, which is computed once. `change`: changes d_lse,
// which is always given then.
void expect_right(const Problem& problem, OwnedArguments& forward, Random& random,
                  const std::vector<std::string>& implementations,
                  const std::function<void(const TensorView&)>& change = {}) {
  SCOPED_TRACE(print(problem));
  OwnedArguments cotangents;
  const auto shape = forward.views.out.shape();
  const TensorView d_out = cotangents.dense(problem.d_out_dtype(), {shape.begin(), shape.end()}, random);
  if (d_out.dtype == DType::kF32 && random() % 2 == 0) {  // as a cast from bf16 gives it
    for (int64_t i = 0; i < d_out.element_count(); ++i) {
      static_cast<uint32_t*>(d_out.data)[i] &= 0xffff0000u;
    }
  }
  std::optional<TensorView> d_lse;
  if (problem.want_lse && (change || random() % 2 == 0)) {
    d_lse = cotangents.dense(DType::kF32, {shape[0], shape[1], shape[2]}, random);
  }
  if (change) {
    change(*d_lse);
  }
  std::optional<problem::GradientReference> reference;
  for (const std::string& named : implementations) {
    SCOPED_TRACE(named);
    const std::optional<OwnedGradients> got = run_on_device(problem, forward.views, d_out, d_lse, random, named);
    if (!got) {
      continue;
    }
    if (!reference) {
      Result<problem::GradientReference> computed = problem::compute_reference(problem, got->arguments);
      ASSERT_TRUE(computed.ok()) << computed.error().message;
      reference = std::move(*computed);
    }
    const problem::Judgement report = problem::check_gradients(problem, got->arguments, *reference);
    EXPECT_TRUE(report.ok) << report.reason;
  }
}

void expect_right(const std::string& text, uint64_t seed, bool strided,
                  const std::vector<std::string>& implementations) {
  SCOPED_TRACE(text);
  const Result<Problem> problem = parse_problem(text);
  ASSERT_TRUE(problem.ok()) << problem.error().message;
  Random random(seed);
  OwnedArguments forward =
      strided ? testing::strided_arguments(*problem, random) : testing::dense_arguments(*problem, random);
  expect_right(*problem, forward, random, implementations);
}

class DeviceBackwardOf : public ::testing::TestWithParam<const char*> {};

TEST_P(DeviceBackwardOf, AgreesWithTheOracle) {
  for (const bool strided : {false, true}) {
    expect_right(GetParam(), 1, strided, {"", "cuda_sm90", "cuda_sm80"});
    const std::string text = GetParam();
    if (const Result<Problem> problem = parse_problem(text); problem.ok() && problem->out_dtype != DType::kF32) {
      // Programs stand at the end of the text.
      const std::string exact = std::string(text).insert(4, " residual");
      expect_right(exact, 1, strided, {"", "cuda_sm80"});
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Problems, DeviceBackwardOf,
    ::testing::Values(
        "attn h2 s200 d64 bf16", "attn h2 s256 d128 bf16 lse causal", "attn h2 sq200 skv333 d64 f16 causal lse",
        // Slopes of small sigmoids.
        "attn b2 hq6 hkv3 sq40 skv83 dqk103 dv210 f16 score_mod() { %0 = sub score, 10.5; %1 = sigmoid %0; %2 = "
        "mul %1, 4.0; return %2 } window=8",
        "attn h2 s100 d128 bf16 lse score_mod() { %0 = sub score, 20.0; %1 = sigmoid %0; %2 = log %1; return %2 }",
        // Distances and other indices that are clamped sum whole rows, whose sum is nearly 0.
        "attn b2 hq6 hkv2 sq1 skv63 dqk111 dv17 f16 d_out=inputs sinks=3 lse score_mod(t: f32[6, 68]) { %0 = "
        "sigmoid score; %1 = mul %0, 4.0; %2 = sub kv, q; %3 = add %2, 30; %4 = load t[%3, q]; %5 = abs %4; %6 = "
        "add %1, %5; %7 = abs %6; return %7 }",
        "attn h2 sq128 skv2 d15 f16 d_out=inputs lse score_mod(t: f32[40, 1]) { %0 = sub q, kv; %1 = add %0, "
        "14; %2 = load t[%1, b]; %3 = add score, %2; return %3 }",
        "attn b2 h2 sq7 skv254 dqk80 dv9 f16 lse sinks=3 score_mod(t: f32[1], u: f32[7, 1]) { %0 = load t[kv]; %1 = "
        "load u[q, kv]; %2 = add %0, %1; %3 = add score, %2; return %3 }",
        "attn h2 sq300 skv90 d128 bf16 lse score_mod(t: f32[40]) { %0 = sub q, kv; %1 = load t[%0]; %2 = add "
        "score, %1; %3 = div %2, 30.0; %4 = tanh %3; %5 = mul %4, 30.0; return %5 }",
        "attn b2 hq8 hkv2 sq130 skv300 d128 bf16 causal=bottom_right", "attn h2 s150 d64 f32 lse causal",
        "attn h2 s100 d256 f32 softcap=5", "attn h2 s200 d256 bf16 causal", "attn h2 s150 dqk192 dv128 bf16 alibi",
        "attn h2 s130 dqk40 dv72 f16 window=20", "attn h2 s200 d128 bf16 out=f32 lse causal",
        "attn h2 s200 d128 bf16 out=f32 d_out=inputs lse causal",
        "attn h2 s150 d72 f16 out=f32 d_out=inputs lse softcap=5", "attn hq8 hkv2 sq3 skv700 d128 bf16 out=f32 lse",
        "attn h1 s1500 d64 bf16 causal window=100 out=f32 d_out=inputs lse", "attn h2 s90 d64 f16 out=f32",
        "attn b2 h2 s130 d64 bf16 sinks=2 lse", "attn h2 s100 d64 f32 sinks=1 dropout=0.2",
        "attn hq4 hkv2 s140 d96 bf16 bias=f32", "attn h2 s150 d64 bf16 dropout=0.3 causal",
        "attn b2 h2 s150 d64 bf16 dropout=0.3 keep_mask causal", "attn h2 sq70 skv90 d128 f32 keep_mask sinks=1",
        "attn h2 sq70 skv90 d64 bf16 empty_rows=uniform lse mask_mod() { %0 = lt q, 40; return %0 }",
        "attn h2 sq70 skv90 d64 f32 empty_rows=uniform dropout=0.2 mask_mod() { %0 = lt q, 40; return %0 }",
        "attn h2 sq64 skv0 d64 bf16 lse", "attn b0 h2 s20 d64 bf16", "attn h2 sq1 skv1 d64 f32",
        "attn h2 sq0 skv70 d64 f32 lse bias=f32", "attn h2 sq0 skv70 d64 bf16 lse bias=f32",
        "attn h2 s300 d64 bf16 cu_seqlens causal alibi", "attn h1 s1500 d64 bf16 causal window=100 lse",
        "attn b2 h2 s150 d64 bf16 mask_mod(ids: i32[?]) { %0 = load ids[q]; %1 = load ids[kv]; %2 = eq %0, %1; return "
        "%2 }",
        "attn h2 s100 d64 bf16 score_mod(t: f32[?], w: bf16[2], g: f16[?]) { %0 = sub q, kv; %1 = add %0, 50; %2 = "
        "load "
        "t[%1]; %3 = load w[h]; %4 = mul score, %3; %5 = add %4, %2; %6 = load g[kv]; %7 = add %5, %6; return %7 }",
        // Gradients of captured tensors: planes that all, some or no heads share, of both orders, in 16 bits, and with
        // indices beyond the tensor, which are clamped; tables by distance and others; two loads of one tensor.
        "attn b2 h3 s150 d64 bf16 score_mod(t: f32[?, ?]) { %0 = load t[q, kv]; %1 = add score, %0; return %1 }",
        "attn b2 hq4 hkv2 sq100 skv170 d64 f16 causal score_mod(t: f16[?, ?, ?]) { %0 = load t[h, kv, q]; %1 = mul "
        "score, %0; return %1 }",
        "attn b2 h2 s130 d128 bf16 lse score_mod(t: f32[2, 2, 130, 130]) { %0 = load t[b, h, q, kv]; %1 = add "
        "score, %0; return %1 }",
        "attn b3 h2 s130 d64 bf16 lse causal score_mod(t: bf16[2, 1, 100, 90]) { %0 = load t[b, h, q, kv]; %1 "
        "= add score, %0; return %1 }",
        "attn b2 h2 s140 d64 f32 score_mod(t: f32[130, 130]) { %0 = load t[q, kv]; %1 = load t[kv, q]; %2 = mul score, "
        "%0; %3 = add %2, %1; return %3 }",
        "attn b2 hq4 hkv2 s200 d128 bf16 lse causal score_mod(t: bf16[?, 399], u: f32[?]) { %0 = sub kv, q; "
        "%1 = add %0, 199; %2 = load t[h, %1]; %3 = add score, %2; %4 = load u[%1]; %5 = mul %3, %4; return %5 }",
        "attn h2 sq150 skv90 d64 bf16 window=40 score_mod(t: f32[64, 2]) { %0 = sub q, kv; %1 = abs %0; %2 = "
        "to_f32 %1; %3 = log1p %2; %4 = mul %3, 8.0; %5 = to_i32 %4; %6 = load t[%5, h]; %7 = add score, "
        "%6; return %7 }",
        "attn b2 h2 s150 d64 bf16 dropout=0.2 lse score_mod(t: f32[37]) { %0 = mul q, 5; %1 = add %0, kv; %2 = rem %1, "
        "37; %3 = load t[%2]; %4 = add score, %3; return %4 }",
        "attn b2 h2 s150 d64 bf16 out=f32 lse score_mod(t: f32[2, ?]) { %0 = load t[b, q]; %1 = load t[b, kv]; %2 = "
        "mul %0, %1; %3 = add score, %2; return %3 }",
        // The scores of rows after the end are large, too.
        "attn h2 s150 d64 bf16 lse score_mod(t: f32[?]) { %0 = sub q, kv; %1 = load t[%0]; %2 = add %1, 150.0; %3 = "
        "add score, %2; return %3 }",
        "attn h2 s150 d64 f32 score_mod(t: f32[?]) { %0 = sub q, kv; %1 = load t[%0]; %2 = add %1, 150.0; %3 = "
        "add score, %2; return %3 }",
        "attn b2 hq4 hkv2 sq300 skv200 d128 bf16 lse causal score_mod(t: f32[?], u: f32[?, 500]) { %0 = load t[kv]; %1 "
        "= sub q, kv; %2 = add %1, 200; %3 = load u[h, %2]; %4 = add score, %0; %5 = add %4, %3; return %5 }",
        "attn b2 h3 sq200 skv333 d256 f16 lse score_mod(t: f16[?, ?]) { %0 = load t[h, kv]; %1 = mul score, %0; return "
        "%1 }",
        "attn h2 s333 dqk192 dv128 bf16 lse window=100 score_mod(t: f32[?], u: f32[2]) { %0 = sub q, kv; %1 = abs %0; "
        "%2 = load t[%1]; %3 = add score, %2; %4 = load u[h]; %5 = mul %3, %4; return %5 }",
        "attn h2 s260 d96 bf16 lse softcap=5 dropout=0.2 score_mod(t: f32[37], u: f32[?]) { %0 = mul q, 5; %1 = add "
        "%0, kv; %2 = rem %1, 37; %3 = load t[%2]; %4 = load u[kv]; %5 = mul %3, %4; %6 = add score, %5; return %6 }",
        // Tables of few elements, whose sums are in shared memory: two elements that all scores hit; indices that a
        // tensor gives, some beyond the table; a table of each head in 16 bits; one too large for shared memory; three
        // at once, beside a diagonal; scores so large that the probabilities have all exponents.
        "attn b2 h2 s200 d64 bf16 lse causal score_mod(t: f32[2]) { %0 = add q, kv; %1 = rem %0, 2; %2 = load t[%1]; "
        "%3 = "
        "add score, %2; return %3 }",
        "attn b2 h3 s150 d64 f16 lse score_mod(t: f32[49], ids: i32[?, ?]) { %0 = load ids[q, kv]; %1 = sub %0, 20; %2 "
        "= "
        "load t[%1]; %3 = add score, %2; return %3 }",
        "attn b2 hq4 hkv2 s200 d128 bf16 lse window=150 score_mod(t: bf16[32, 4], ids: i32[?, ?]) { %0 = load ids[q, "
        "kv]; "
        "%1 = rem %0, 32; %2 = load t[%1, h]; %3 = mul score, %2; return %3 }",
        "attn b2 h2 s140 d64 f32 score_mod(t: f16[2, 7, 1, 5]) { %0 = rem q, 7; %1 = rem kv, 5; %2 = load t[h, %0, 3, "
        "%1]; "
        "%3 = add score, %2; return %3 }",
        "attn h2 s150 d64 bf16 lse score_mod(t: f32[5000], u: f32[?]) { %0 = mul q, 31; %1 = add %0, kv; %2 = load "
        "t[%1]; "
        "%3 = load u[%1]; %4 = add %2, %3; %5 = add score, %4; return %5 }",
        "attn b2 h2 s150 d128 bf16 lse score_mod(t: f32[37], u: bf16[300], w: f32[?, 3], x: f32[?]) { %0 = mul q, 5; "
        "%1 = "
        "add %0, kv; %2 = rem %1, 37; %3 = load t[%2]; %4 = rem %1, 300; %5 = load u[%4]; %6 = rem %1, 3; %7 = load "
        "w[q, "
        "%6]; %8 = sub q, kv; %9 = load x[%8]; %10 = add %3, %5; %11 = add %7, %9; %12 = add %10, %11; %13 = add "
        "score, "
        "%12; return %13 }",
        "attn b2 h2 s300 d64 bf16 lse scale=4 score_mod(t: f32[500]) { %0 = mul q, 7; %1 = add %0, kv; %2 = rem %1, "
        "500; "
        "%3 = load t[%2]; %4 = add score, %3; return %4 }",
        // A row masked by a large constant, whose scores end in a product.
        "attn h2 s130 d64 f32 score_mod(t: f32[]) { %0 = eq q, 3; %1 = select %0, -2.3819763e+38, score; %2 = load "
        "t[]; "
        "%3 = sigmoid %2; %4 = mul %1, %3; return %4 }",
        "attn h2 s130 d64 bf16 score_mod(t: f32[]) { %0 = eq q, 3; %1 = select %0, -2.3819763e+38, score; %2 = load "
        "t[]; "
        "%3 = sigmoid %2; %4 = mul %1, %3; return %4 }",
        // Scores whose powers of two would be those of infinity.
        "attn h2 sq80 skv3 d128 bf16 lse score_mod() { %0 = lt q, 40; %1 = select %0, score, 3e38; return %1 }",
        "attn h2 sq80 skv70 d64 f16 lse score_mod() { %0 = lt q, 40; %1 = select %0, score, -3e38; return %1 }",
        // Four warps of the portable kernel share the last 32 columns.
        "attn hq4 hkv2 sq200 skv333 d90 bf16 lse causal", "attn h2 s200 dqk150 dv20 f16 lse",
        "attn hq4 hkv2 s300 dqk96 dv32 bf16 lse causal",
        // Rows whose scores are all -inf, and whose lse is NaN therefore.
        "attn h2 sq40 skv33 d38 f16 empty_rows=nan lse score_mod() { %0 = sub q, 5; %1 = le kv, %0; %2 = select %1, "
        "score, -inf; return %2 }",
        // Most keys of each row have one element.
        "attn hq8 hkv2 sq4 skv190 d86 f16 lse score_mod(t: f32[3, 4]) { %0 = load t[kv, kv]; %1 = add score, %0; %2 = "
        "abs %1; return %2 }"));

// Problems that Hopper's kernels accept.
INSTANTIATE_TEST_SUITE_P(
    Hopper, DeviceBackwardOf,
    ::testing::Values(
        "attn h2 s200 d128 bf16 out=f32 lse causal", "attn h2 s190 d64 f16 out=f32 lse",
        "attn h2 s150 d256 bf16 out=f32 lse", "attn hq4 hkv2 s140 d96 bf16 bias=f32 lse",
        "attn h2 s300 d128 bf16 mask=bool lse empty_rows=uniform",
        "attn h2 sq70 skv90 d64 bf16 empty_rows=uniform lse mask_mod() { %0 = lt q, 40; return %0 }",
        "attn hq6 hkv2 sq10 skv27 d256 f16 empty_rows=nan lse score_mod() { %0 = sub q, 5; %1 = le kv, %0; %2 = "
        "select %1, score, -inf; return %2 }",
        "attn h1 s2000 d64 bf16 lse window=50", "attn h1 sq100 skv2500 d128 bf16 lse cu_seqlens",
        "attn h2 s256 d128 bf16 lse", "attn h2 s300 d256 bf16 lse causal", "attn h2 s300 dqk192 dv128 bf16 lse causal",
        "attn hq4 hkv2 sq200 skv300 d192 f16 lse", "attn h2 s300 d200 bf16 lse softcap=20",
        "attn h2 sq200 skv333 d64 f16 lse", "attn h1 s1000 d128 bf16 causal lse", "attn h2 s700 d64 bf16 causal lse",
        "attn b2 hq8 hkv2 sq130 skv300 d128 bf16 causal=bottom_right lse",
        "attn hq4 hkv2 sq300 skv140 d96 bf16 lse causal", "attn h2 sq130 skv257 dqk40 dv72 f16 window=20 lse",
        "attn b2 h2 s130 d64 bf16 sinks=2 lse causal", "attn h2 s333 d128 f16 sinks=1 lse",
        "attn h2 s260 d128 bf16 softcap=30 causal lse", "attn h2 s260 d64 f16 softcap=2 lse",
        "attn h4 s300 d128 bf16 alibi lse", "attn h2 s150 d64 bf16 dropout=0.3 causal lse",
        "attn h2 s150 d128 bf16 dropout=0.2 softcap=5 lse", "attn h2 s600 d128 bf16 cu_seqlens causal alibi lse",
        "attn h2 s700 d64 bf16 cu_seqlens lse", "attn h2 s512 d128 bf16 prefix=100 causal lse scale=-0.1",
        "attn h2 sq64 skv0 d64 bf16 lse", "attn b0 h2 s20 d64 bf16 lse", "attn h2 sq1 skv1 d128 bf16 lse",
        "attn h2 sq300 skv100 d128 bf16 lse causal=bottom_right empty_rows=nan",
        "attn h1 sq90 skv700 d128 bf16 lse mask_mod() { %0 = lt q, 40; %1 = lt kv, 600; %2 = and %0, %1; return %2 }",
        "attn b2 h2 s450 d128 bf16 lse mask_mod(ids: i32[?]) { %0 = load ids[q]; %1 = load ids[kv]; %2 = eq %0, %1; "
        "return %2 }",
        "attn h2 s300 d128 bf16 lse score_mod(t: f32[?]) { %0 = sub q, kv; %1 = add %0, 150; %2 = load t[%1]; %3 = add "
        "score, %2; return %3 }",
        // Scores rise beyond the last key, so that the probabilities of keys that do not exist would be infinite.
        "attn h2 s260 d128 bf16 lse score_mod() { %0 = sub kv, q; %1 = to_f32 %0; %2 = add score, %1; return %2 }",
        "attn h2 sq200 skv270 d64 f16 lse score_mod() { %0 = sub kv, q; %1 = to_f32 %0; %2 = add score, %1; return %2 "
        "}",
        // One kernel computes both sums of a key tile; the second sum's operand reuses the memory of the first's.
        "attn h2 s700 dqk192 dv128 f16 lse cu_seqlens causal", "attn hq4 hkv2 sq300 skv420 d160 bf16 lse",
        "attn h2 s300 dqk192 dv128 bf16 lse window=100", "attn b2 h2 sq200 skv333 dqk168 dv136 f16 lse out=f32 sinks=1",
        // With a residual, all gradients of rows of 129 to 192 columns from one kernel by roles.
        "attn h2 s500 d192 bf16 lse",
        "attn b2 hq6 hkv2 sq300 skv500 d192 bf16 lse nondeterministic causal=bottom_right",
        "attn h2 sq1 skv1 d192 bf16 lse", "attn h2 sq64 skv0 d192 f16 lse",
        "attn h1 sq100 skv2500 d192 bf16 lse nondeterministic cu_seqlens",
        "attn hq4 hkv2 sq200 skv420 d144 f16 lse sinks=2", "attn hq4 hkv2 s300 dqk184 dv136 bf16 lse",
        "attn h2 s600 dqk190 dv150 bf16 lse window=100",
        "attn h2 sq150 skv300 d192 bf16 empty_rows=uniform nondeterministic lse mask_mod() { %0 = lt q, 40; return %0 "
        "}",
        "attn b2 h2 s450 d192 bf16 lse mask_mod(ids: i32[?]) { %0 = load ids[q]; %1 = load ids[kv]; "
        "%2 = "
        "eq %0, %1; return %2 }",
        "attn h2 sq70 skv300 d176 bf16 nondeterministic lse", "attn b40 hq4 hkv2 sq70 skv200 d192 bf16 lse",
        "attn b50 h2 sq90 skv300 d160 f16 nondeterministic lse mask_mod() { %0 = lt kv, 140; %1 = le q, kv; %2 = and "
        "%0, "
        "%1; return %2 }",
        // More key tiles than a GPU has multiprocessors: each block computes several.
        "attn b40 hq4 hkv2 sq70 skv200 d128 bf16 lse", "attn b40 h4 sq130 skv130 d64 f16 lse causal=bottom_right",
        "attn b50 h2 sq90 skv300 d128 bf16 lse mask_mod() { %0 = lt kv, 140; %1 = le q, kv; %2 = and %0, %1; return %2 "
        "}",
        // Sums of d_q in any order.
        "attn h3 s500 d128 bf16 nondeterministic lse", "attn h3 s500 d128 f16 nondeterministic causal lse",
        "attn b3 h2 sq200 skv500 d64 bf16 nondeterministic causal=bottom_right lse",
        "attn hq6 hkv2 sq300 skv500 d96 f16 nondeterministic window=100 lse",
        "attn b2 h2 sq300 skv450 d128 bf16 nondeterministic lse mask_mod(ids: i32[?]) { %0 = load ids[q]; %1 = load "
        "ids[kv]; %2 = eq %0, %1; return %2 }",
        "attn h2 sq150 skv300 d128 bf16 nondeterministic empty_rows=uniform lse mask_mod() { %0 = lt q, 40; return %0 "
        "}",
        "attn h2 s200 d64 bf16 lse score_mod() { %0 = lt q, kv; %1 = mul score, 2.0; %2 = select %0, %1, score; return "
        "%2 "
        "}",
        // Narrow boxes of the block's own rows, and parts of d_q of 48 columns.
        "attn hq4 hkv2 sq300 skv260 d72 bf16 lse causal", "attn h2 s400 dqk96 dv128 f16 lse cu_seqlens",
        "attn h2 sq200 skv500 dqk80 dv16 bf16 nondeterministic lse",
        // Key tiles in rings: of all at once, also of several query heads, and of more than there are blocks. (Larger
        // ones: tests/python/test_torch_cuda.py.)
        "attn h2 s1000 dqk104 dv8 bf16 lse softcap=5", "attn hq4 hkv2 sq1100 skv1000 dqk8 dv128 f16 lse dropout=0.2",
        "attn h18 s1030 dqk104 dv8 bf16 lse dropout=0.1", "attn hq4 hkv2 sq1030 skv1100 d104 bf16 lse",
        // Heads that share keys: one by one in a window and where masks differ by head, otherwise in turns.
        "attn hq6 hkv2 s500 d128 bf16 lse window=100", "attn hq40 hkv1 s200 d64 bf16 lse causal",
        "attn hq4 hkv2 s400 d128 f16 lse mask_mod() { %0 = mul h, 50; %1 = add kv, %0; %2 = le %1, q; return %2 }",
        "attn b2 hq8 hkv2 s300 d128 bf16 lse nondeterministic causal",
        "attn hq6 hkv2 s600 d96 bf16 lse causal cu_seqlens", "attn hq12 hkv3 sq300 skv500 d128 bf16 lse causal",
        "attn hq4 hkv2 s400 d128 bf16 lse causal mask_mod() { %0 = floor_div q, 150; %1 = floor_div kv, 150; "
        "%2 = eq %0, %1; return %2 }",
        // So many heads that key tiles of most of them come in the opposite order, but not in the portable kernels,
        // which may take over.
        "attn b9 h2 s300 d128 bf16 lse causal", "attn b9 h2 s300 d128 bf16 out=f32 lse causal",
        "attn b9 h2 sq200 skv333 d96 f16 lse causal=bottom_right",
        "attn b9 h2 sq300 skv200 d104 f16 lse causal empty_rows=nan", "attn b9 h2 s333 d128 bf16 lse window=50",
        "attn b2 h9 s300 dqk80 dv128 f16 lse cu_seqlens causal softcap=5",
        "attn b2 h9 s260 d128 bf16 lse causal alibi dropout=0.1", "attn b9 h2 s260 d192 bf16 lse causal",
        "attn b9 h2 s300 d128 bf16 lse causal mask_mod(ids: i32[?]) { %0 = load ids[q]; %1 = load ids[kv]; %2 = eq "
        "%0, %1; return %2 }"));

// Calls use(i, random) for each number i of a drawn problem. `seeds` sets the seeds of one test apart from another's.
void for_each_drawn(int seeds, const std::function<void(int, Random&)>& use) {
  const int count = number_from("FLASHLIFT_TEST_PROBLEMS", 200);
  const int seed = number_from("FLASHLIFT_TEST_SEED", 1) + seeds;
  for (int i = number_from("FLASHLIFT_TEST_FIRST", 0); i < count; ++i) {
    SCOPED_TRACE("seed " + std::to_string(seed + i));
    Random random(static_cast<uint64_t>(seed + i));
    use(i, random);
  }
}

// Any problem that a description allows.
TEST(DeviceBackward, DrawnProblemsAgreeWithTheOracle) {
  for_each_drawn(3'000'000, [](int i, Random& random) {
    Problem problem = testing::draw_problem(random);
    problem.normalize = true;
    problem.page_size = 0;
    problem.d_out_like_inputs = i % 4 < 2;
    problem.deterministic = i % 5 != 0;
    problem.want_residual = i % 2 == 0 && problem.out_dtype != DType::kF32;
    OwnedArguments forward =
        i % 3 == 0 ? testing::strided_arguments(problem, random) : testing::dense_arguments(problem, random);
    expect_right(problem, forward, random, {"", "cuda_sm90", "cuda_sm80"});
  });
}

// Rows of 129 to 192 columns, most of whose problems one kernel computes with five products, in tiles of 128 keys.
TEST(DeviceBackward, DrawnProblemsOfWideHeadsAgreeWithTheOracle) {
  for_each_drawn(4'000'000, [](int i, Random& random) {
    const auto draw = [&](int64_t low, int64_t high) {
      return std::uniform_int_distribution<int64_t>(low, high)(random);
    };
    Problem problem;
    problem.batch = draw(1, 2);
    problem.kv_heads = draw(1, 3);
    problem.q_heads = problem.kv_heads * draw(1, 3);
    problem.q_len = draw(0, 3) == 0 ? draw(1, 70) : draw(1, 500);
    problem.kv_len = draw(0, 3) == 0 ? draw(1, 70) : draw(1, 700);
    problem.head_dim = draw(0, 1) == 0 ? 192 : draw(129, 192);
    problem.value_dim = draw(0, 1) == 0 ? problem.head_dim : draw(129, 192);
    problem.dtype = i % 2 == 0 ? DType::kBF16 : DType::kF16;
    problem.out_dtype = i % 7 == 0 ? DType::kF32 : problem.dtype;
    problem.scale = 0.08f;
    if (i % 3 == 0) {
      problem.mask_mod = testing::draw_program(ProgramKind::kMaskMod, problem, random);
    }
    problem.captures = *collect_captures(problem.score_mod, problem.mask_mod);
    problem.sinks = draw(0, 4) == 0 ? draw(1, 3) : 0;
    problem.want_lse = true;
    problem.deterministic = draw(0, 1) == 0;
    problem.want_residual = problem.out_dtype != DType::kF32 && draw(0, 7) != 0;
    OwnedArguments forward =
        i % 4 == 0 ? testing::strided_arguments(problem, random) : testing::dense_arguments(problem, random);
    expect_right(problem, forward, random, {"cuda_sm90"});
  });
}

// So many heads that key tiles of most of them come in the opposite order.
TEST(DeviceBackward, DrawnProblemsOfManyHeadsAgreeWithTheOracle) {
  for_each_drawn(5'000'000, [](int i, Random& random) {
    const auto draw = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
    const std::string ids = "mask_mod(ids: i32[?]) { %0 = load ids[q]; %1 = load ids[kv]; %2 = eq %0, %1; return %2 }";
    const std::string masks[] = {
        "causal",
        "causal=bottom_right",
        fmt::format("window={}", draw(1, 300)),
        fmt::format("causal window={}", draw(1, 300)),
        fmt::format("prefix={} causal", draw(1, 300)),
        "cu_seqlens causal",
        "causal " + ids,
        fmt::format("mask_mod() {{ %0 = mul q, {}; %1 = le kv, %0; return %1 }}", draw(1, 3)),
        "causal score_mod() { %0 = sub q, kv; %1 = lt %0, 100; %2 = select %1, score, -inf; return %2 }"};
    const int heads = draw(1, 4);
    const std::string text =
        fmt::format("attn b{} h{} sq{} skv{} dqk{} dv{} {} lse residual empty_rows={} {}", draw(17, 24) / heads + 1,
                    heads, draw(1, 400), draw(1, 600), draw(65, i % 5 == 0 ? 192 : 128), draw(65, 128),
                    i % 2 == 0 ? "bf16" : "f16", i % 3 == 0 ? "nan" : "zero", masks[draw(0, std::ssize(masks) - 1)]);
    const Result<Problem> problem = parse_problem(text);
    ASSERT_TRUE(problem.ok()) << text << ": " << problem.error().message;
    OwnedArguments forward =
        i % 4 == 0 ? testing::strided_arguments(*problem, random) : testing::dense_arguments(*problem, random);
    expect_right(*problem, forward, random, {"cuda_sm90"});
  });
}

// A masked key's content is ignored, even if it is infinite or NaN.
TEST(DeviceBackward, KeysThatAreNotFiniteStayMasked) {
  // The last problem has more query tiles than a GPU has multiprocessors, so that each multiprocessor computes several.
  for (const char* words : {"d64 h2 sq90 bf16", "d64 h2 sq90 bf16 residual", "d64 h2 sq90 f32",
                            "d64 h200 sq200 bf16 residual", "d192 h2 sq90 bf16 residual"}) {
    SCOPED_TRACE(words);
    const Result<Problem> problem =
        parse_problem(std::string("attn skv150 lse mask_mod() { %0 = lt kv, 100; return %0 } ") + words);
    ASSERT_TRUE(problem.ok()) << problem.error().message;
    Random random(5);
    OwnedArguments forward = testing::dense_arguments(*problem, random);
    for (const TensorView& view : {forward.views.k, forward.views.v}) {
      const auto element = static_cast<int64_t>(size_in_bytes(view.dtype));
      for (int64_t kv = 100; kv < 150; ++kv) {
        auto* const at = static_cast<std::byte*>(view.data) + (view.strides[1] + kv * view.strides[2]) * element;
        if (view.dtype == DType::kF32) {
          *reinterpret_cast<uint32_t*>(at) = 0x7fc00000;
        } else {
          *reinterpret_cast<uint16_t*>(at) = kv % 2 == 0 ? 0x7fc0 : 0x7f80;
        }
      }
    }
    expect_right(*problem, forward, random, {"", "cuda_sm90", "cuda_sm80"});
  }
}

// A bias of -inf gives a key no probability, and so its bias no gradient, even if its values are not finite.
TEST(DeviceBackward, BiasesOfKeysWithoutProbabilityGetNoGradientOfValuesThatAreNotFinite) {
  for (const char* load : {"(t: f32[150]) { %0 = load t[kv]", "(t: f32[2, 90, 150]) { %0 = load t[h, q, kv]",
                           "(t: f32[239]) { %1 = sub kv, q; %2 = add %1, 89; %0 = load t[%2]"}) {
    for (const char* words : {"bf16", "f16 causal=bottom_right", "bf16 residual"}) {
      const std::string text = std::string("attn h2 sq90 skv150 d128 lse ") + words + " score_mod" + load +
                               "; %3 = add score, %0; return %3 }";
      SCOPED_TRACE(text);
      const Result<Problem> problem = parse_problem(text);
      ASSERT_TRUE(problem.ok()) << problem.error().message;
      Random random(5);
      OwnedArguments forward = testing::dense_arguments(*problem, random);
      const TensorView& bias = forward.views.captures[0];
      const int64_t length = bias.sizes[bias.rank - 1];
      for (int64_t i = 0; i < bias.element_count(); ++i) {
        if (i % length >= length - 90) {
          static_cast<float*>(bias.data)[i] = -std::numeric_limits<float>::infinity();
        }
      }
      // The last key has this bias in every row.
      const TensorView& v = forward.views.v;
      auto* const last = static_cast<uint16_t*>(v.data) + v.strides[1] + 149 * v.strides[2];
      std::fill_n(last, 128, uint16_t{0x7fff});
      expect_right(*problem, forward, random, {"", "cuda_sm80"});
    }
  }
}

class DeviceBackwardOfRowsLeftOut : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {};

// A select leaves whole rows out: their scores get no gradient, even if the gradient of their lse is not finite.
TEST_P(DeviceBackwardOfRowsLeftOut, AgreesWithTheOracle) {
  const auto& [words, score_mod] = GetParam();
  std::string mod = score_mod;
  const std::string hidden = "{ %0 = ge q, 40; %1 = lt q, 50; %2 = and %0, %1;";
  mod.replace(mod.find('{'), 1, hidden);
  const std::string text = std::string("attn h2 sq90 skv150 lse ") + words + " score_mod" + mod;
  SCOPED_TRACE(text);
  const Result<Problem> problem = parse_problem(text);
  ASSERT_TRUE(problem.ok()) << problem.error().message;
  for (const char* name : {"", "cuda_sm90", "cuda_sm80"}) {
    Random random(5);
    OwnedArguments forward = testing::dense_arguments(*problem, random);
    expect_right(*problem, forward, random, {name}, [](const TensorView& d_lse) {
      for (int64_t row = 40; row < 50; ++row) {
        static_cast<float*>(d_lse.data)[row] = std::numeric_limits<float>::quiet_NaN();
        static_cast<float*>(d_lse.data)[90 + row] = std::numeric_limits<float>::infinity();
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(
    Problems, DeviceBackwardOfRowsLeftOut,
    ::testing::Combine(
        ::testing::Values("d64 f32", "d128 bf16", "d64 bf16 residual", "d128 f16 causal=bottom_right residual",
                          "d192 bf16 residual", "dqk192 dv128 bf16", "d256 f16 causal=bottom_right"),
        ::testing::Values(
            "() { %3 = select %2, -1e9, score; return %3 }",
            "(t: f32[2, 150]) { %3 = load t[h, kv]; %4 = mul score, %3; %5 = select %2, -1e9, %4; return %5 }",
            "(t: f32[90]) { %3 = load t[q]; %4 = add score, %3; %5 = select %2, -1e9, %4; return %5 }",
            "(t: f32[239]) { %3 = sub kv, q; %4 = add %3, 89; %5 = load t[%4]; %6 = add score, %5;"
            " %7 = select %2, -1e9, %6; return %7 }")));

// All values are alike: d_p is the same number in a whole row, and <d_out, out> must equal it. (With Hopper's kernels
// it is not quite equal: docs/lessons/cuda_backward.md.)
TEST(DeviceBackward, EqualValuesGiveNoGradientOfScores) {
  for (const char* text : {"attn residual h2 s700 d64 bf16 causal lse", "attn residual h2 s300 d128 bf16 lse",
                           "attn residual h2 s300 d128 f16 causal window=100 lse"}) {
    SCOPED_TRACE(text);
    const Result<Problem> problem = parse_problem(text);
    ASSERT_TRUE(problem.ok()) << problem.error().message;
    Random random(5);
    OwnedArguments forward = testing::dense_arguments(*problem, random);
    const TensorView& v = forward.views.v;
    for (int64_t h = 0; h < v.sizes[1]; ++h) {
      auto* const first = static_cast<uint16_t*>(v.data) + h * v.strides[1];
      for (int64_t kv = 1; kv < v.sizes[2]; ++kv) {
        std::copy_n(first, v.sizes[3], first + kv * v.strides[2]);
      }
    }
    expect_right(*problem, forward, random, {"cuda_sm80"});
  }
}

TensorView batch_of(TensorView view, int64_t b) {
  view.data =
      static_cast<std::byte*>(view.data) + b * view.strides[0] * static_cast<int64_t>(size_in_bytes(view.dtype));
  view.sizes[0] = 1;
  return view;
}

BackwardArguments batch_of(BackwardArguments all, int64_t b) {
  for (TensorView* view : {&all.forward.q, &all.forward.k, &all.forward.v, &all.forward.out, &all.d_out}) {
    *view = batch_of(*view, b);
  }
  for (std::optional<TensorView>* view : {&all.forward.lse, &all.d_q, &all.d_k, &all.d_v}) {
    *view = batch_of(**view, b);
  }
  if (all.forward.residual) {
    all.forward.residual = batch_of(*all.forward.residual, b);
  }
  return all;
}

// Four batches have more tiles than a GPU has multiprocessors, so that each multiprocessor computes several, one after
// the other; one batch has fewer. Both must give the same bits.
TEST(DeviceBackward, TilesOfAMultiprocessorDoNotAffectEachOther) {
  constexpr int64_t kBatches = 4;
  for (const char* words : {"d256 bf16 causal", "d256 f16", "d192 bf16 causal softcap=30", "dqk192 dv128 bf16 causal",
                            "dqk192 dv128 bf16 window=100", "d160 bf16 causal", "residual d192 bf16",
                            // (Not causal: in which order key tiles add to d_q depends on the number of heads.)
                            "residual d144 f16 mask_mod() { %0 = lt kv, 250; return %0 }"}) {
    SCOPED_TRACE(words);
    const Result<Problem> problem = parse_problem(std::string("attn b4 h24 s300 lse ") + words);
    const Result<Problem> small = parse_problem(std::string("attn b1 h24 s300 lse ") + words);
    ASSERT_TRUE(problem.ok() && small.ok());
    Random random(5);
    const OwnedArguments forward = testing::dense_arguments(*problem, random);
    OwnedArguments cotangents;
    const auto shape = forward.views.out.shape();
    const TensorView d_out = cotangents.dense(problem->d_out_dtype(), {shape.begin(), shape.end()}, random);
    const Result<Attention> together =
        Attention::compile(*problem, {.device = DeviceKind::kCuda, .implementation = "cuda_sm90"});
    const Result<Attention> alone =
        Attention::compile(*small, {.device = DeviceKind::kCuda, .implementation = "cuda_sm90"});
    if (!together.ok() && together.error().kind == ErrorKind::kUnsupported) {
      return;  // not on this GPU
    }
    ASSERT_TRUE(together.ok()) << together.error().message;
    ASSERT_TRUE(alone.ok()) << alone.error().message;
    const OwnedGradients x = testing::make_gradients(*problem, forward.views, d_out, std::nullopt, random);
    const OwnedGradients y = testing::make_gradients(*problem, forward.views, d_out, std::nullopt, random);
    for (const OwnedGradients* call : {&x, &y}) {
      const auto device = cuda::DeviceGradients::copy_of(call->arguments, 0);
      ASSERT_TRUE(device.ok()) << device.error().message;
      Status status = together->run(device->views().forward);
      ASSERT_TRUE(status.ok()) << status.error().message;
      for (int64_t b = 0; b < (call == &x ? 1 : kBatches); ++b) {
        status =
            call == &x ? together->run_backward(device->views()) : alone->run_backward(batch_of(device->views(), b));
        ASSERT_TRUE(status.ok()) << status.error().message;
      }
      status = device->fetch(call->arguments);
      ASSERT_TRUE(status.ok()) << status.error().message;
    }
    const std::string differing = testing::differing_bits(x.arguments, y.arguments);
    EXPECT_TRUE(differing.empty()) << differing;
  }
}

// A stream on which a kernel occupies the shared memory of some multiprocessors for a while.
class BusyStream {
 public:
  Status begin(int multiprocessors, int64_t milliseconds) {
    FLASHLIFT_ASSIGN_OR_RETURN(driver_, cuda::Driver::get());
    FLASHLIFT_RETURN_IF_ERROR(
        driver_->check(driver_->cuStreamCreate(&stream_, cuda::kStreamNonBlocking), "cuStreamCreate"));
    FLASHLIFT_ASSIGN_OR_RETURN(const cuda::Device device, cuda::get_device(0));
    const cuda::KernelSource source = {
        .name = "busy.cu",
        .text =
            "extern \"C\" __global__ void busy(unsigned long long nanoseconds) { unsigned long long begin, now; "
            "asm volatile(\"mov.u64 %0, %globaltimer;\" : \"=l\"(begin)); do { asm volatile(\"mov.u64 %0, "
            "%globaltimer;\" : \"=l\"(now)); } while (now - begin < nanoseconds); }",
        .headers = {},
        .options = {},
        .architecture = device.architecture};
    FLASHLIFT_ASSIGN_OR_RETURN(
        library_, cuda::LoadedLibrary::compile(
                      source, [](const cuda::KernelSource& text) -> Result<std::shared_ptr<const std::string>> {
                        FLASHLIFT_ASSIGN_OR_RETURN(const cuda::Nvrtc* nvrtc, cuda::Nvrtc::get());
                        FLASHLIFT_ASSIGN_OR_RETURN(cuda::CompiledKernel kernel, nvrtc->compile(text));
                        return std::make_shared<const std::string>(std::move(kernel.cubin));
                      }));
    FLASHLIFT_ASSIGN_OR_RETURN(const cuda::CuKernel kernel,
                               library_->kernel("busy", device.handle, device.shared_bytes));
    unsigned long long nanoseconds = static_cast<unsigned long long>(milliseconds) * 1'000'000;
    void* parameters[] = {&nanoseconds};
    return driver_->check(
        driver_->cuLaunchKernel(kernel, static_cast<unsigned>(multiprocessors), 1, 1, 32, 1, 1,
                                static_cast<unsigned>(device.shared_bytes), stream_, parameters, nullptr),
        "cuLaunchKernel");
  }
  ~BusyStream() {
    if (stream_ != nullptr) {
      driver_->cuStreamSynchronize(stream_);
      driver_->cuStreamDestroy(stream_);
    }
  }

 private:
  const cuda::Driver* driver_ = nullptr;
  cuda::CuStream stream_ = nullptr;
  std::shared_ptr<const cuda::LoadedLibrary> library_;
};

// Key tiles of a ring wait for each other, but must not depend on how many blocks there are at a time, nor on another
// kernel's end.
TEST(DeviceBackward, FewFreeMultiprocessorsGiveTheSameBits) {
  const Result<cuda::Device> gpu = cuda::get_device(0);
  ASSERT_TRUE(gpu.ok()) << gpu.error().message;
  for (const char* text :
       {"attn h8 s1100 d128 bf16 lse residual", "attn b2 hq8 hkv2 s1100 dqk104 dv72 f16 lse residual",
        "attn hq32 hkv8 s1024 d128 bf16 lse residual", "attn h40 s1024 d128 bf16 lse residual softcap=20",
        "attn h16 s1024 d64 bf16 lse residual", "attn h16 s4090 d64 bf16 lse residual",
        "attn h20 s1500 d96 f16 lse residual", "attn b2 hq6 hkv2 s1800 dqk64 dv40 bf16 lse residual alibi",
        "attn b2 h16 s1024 d128 bf16 lse residual causal"}) {
    SCOPED_TRACE(text);
    const Result<Problem> problem = parse_problem(text);
    ASSERT_TRUE(problem.ok()) << problem.error().message;
    Random random(3);
    const OwnedArguments forward = testing::dense_arguments(*problem, random);
    OwnedArguments cotangents;
    const auto shape = forward.views.out.shape();
    const TensorView d_out = cotangents.dense(problem->d_out_dtype(), {shape.begin(), shape.end()}, random);
    const Result<Attention> attention = Attention::compile(*problem, {.device = DeviceKind::kCuda});
    ASSERT_TRUE(attention.ok()) << attention.error().message;
    const OwnedGradients want = testing::make_gradients(*problem, forward.views, d_out, std::nullopt, random);
    const auto device = cuda::DeviceGradients::copy_of(want.arguments, 0);
    ASSERT_TRUE(device.ok()) << device.error().message;
    Status status = attention->run(device->views().forward);
    ASSERT_TRUE(status.ok()) << status.error().message;
    status = attention->run_backward(device->views());
    ASSERT_TRUE(status.ok()) << status.error().message;
    status = device->fetch(want.arguments);
    ASSERT_TRUE(status.ok()) << status.error().message;
    for (const int free : {1, 3, 20}) {
      const OwnedGradients found = testing::make_gradients(*problem, forward.views, d_out, std::nullopt, random);
      BusyStream busy;
      constexpr std::chrono::milliseconds kBusy{500};
      status = busy.begin(gpu->multiprocessors - free, kBusy.count());
      const auto begun = std::chrono::steady_clock::now();
      ASSERT_TRUE(status.ok()) << status.error().message;
      status = attention->run_backward(device->views());
      ASSERT_TRUE(status.ok()) << status.error().message;
      status = device->fetch(found.arguments);
      ASSERT_TRUE(status.ok()) << status.error().message;
      EXPECT_LT(std::chrono::steady_clock::now() - begun, kBusy * 3 / 4) << "it waited for the other kernel";
      const std::string differing = testing::differing_bits(want.arguments, found.arguments);
      EXPECT_TRUE(differing.empty()) << free << " free multiprocessors: " << differing;
    }
  }
}

// What the caller's allocator returns, and what it was called with.
struct Lent {
  void* memory = nullptr;
  size_t asked = 0;

  static void* allocate(void* context, size_t bytes) {
    auto* const lent = static_cast<Lent*>(context);
    lent->asked += bytes;
    return lent->memory;
  }
  RunOptions options() { return {.allocator = {.allocate = allocate, .context = this}}; }
};

TEST(DeviceBackward, TakesItsMemoryFromTheCaller) {
  const Result<Problem> problem = parse_problem("attn h2 s300 d64 bf16 lse causal");
  ASSERT_TRUE(problem.ok()) << problem.error().message;
  Random random(5);
  const OwnedArguments forward = testing::dense_arguments(*problem, random);
  OwnedArguments cotangents;
  const TensorView d_out = cotangents.dense(DType::kBF16, {1, 2, 300, 64}, random);
  const auto gradients = [&] { return testing::make_gradients(*problem, forward.views, d_out, {}, random); };
  const OwnedGradients untouched = gradients();
  const OwnedGradients after_errors = gradients();
  const OwnedGradients expected = gradients();
  const OwnedGradients got = gradients();
  const auto device = cuda::DeviceGradients::copy_of(untouched.arguments, 0);
  ASSERT_TRUE(device.ok()) << device.error().message;
  const Result<Attention> attention = Attention::compile(*problem, {.device = DeviceKind::kCuda});
  ASSERT_TRUE(attention.ok()) << attention.error().message;
  ASSERT_TRUE(attention->run(device->views().forward).ok());
  ASSERT_TRUE(device->fetch(untouched.arguments).ok());

  Lent lent;
  Status status = attention->run_backward(device->views(), lent.options());
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().kind, ErrorKind::kInternal);
  EXPECT_GT(lent.asked, 0u);
  EXPECT_LE(static_cast<int64_t>(lent.asked), attention->backward_workspace_bytes(1));
  lent.memory = reinterpret_cast<void*>(uintptr_t{1000});  // NOLINT: an address that is not a multiple of 256
  status = attention->run_backward(device->views(), lent.options());
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().kind, ErrorKind::kInvalidArgument) << status.error().message;
  ASSERT_TRUE(device->fetch(after_errors.arguments).ok());
  EXPECT_EQ(testing::differing_bits(untouched.arguments, after_errors.arguments), "");

  ASSERT_TRUE(attention->run_backward(device->views()).ok());
  ASSERT_TRUE(device->fetch(expected.arguments).ok());
  const Result<const cuda::Driver*> driver = cuda::Driver::get();
  ASSERT_TRUE(driver.ok());
  cuda::CuPointer memory = 0;
  ASSERT_EQ((*driver)->cuMemAlloc(&memory, lent.asked), 0);
  lent.memory = reinterpret_cast<void*>(memory);  // NOLINT
  status = attention->run_backward(device->views(), lent.options());
  EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.error().message);
  EXPECT_TRUE(device->fetch(got.arguments).ok());
  EXPECT_EQ(testing::differing_bits(expected.arguments, got.arguments), "");
  (*driver)->cuMemFree(memory);
}

// compute-sanitizer's initcheck cannot check this (docs/lessons/cuda_backward.md): it does not see what bulk copies
// write.
TEST(DeviceBackward, ReadsNoMemoryThatItHasNotWritten) {
  const Result<const cuda::Driver*> driver = cuda::Driver::get();
  ASSERT_TRUE(driver.ok());
  for (const std::string named : {"cuda_sm90", "cuda_sm80"}) {
    for (const char* text :
         {"attn residual h2 s300 d128 bf16 lse", "attn residual hq4 hkv2 s300 d64 bf16 lse causal",
          "attn residual h2 sq300 skv100 d96 f16 lse causal=bottom_right", "attn h2 s300 d256 bf16 lse causal",
          "attn residual h2 s700 d128 bf16 lse cu_seqlens causal", "attn h2 s200 dqk192 dv128 bf16 lse window=50",
          "attn residual hq4 hkv2 s300 d192 bf16 lse causal"}) {
      SCOPED_TRACE(named + " " + text);
      const Result<Problem> problem = parse_problem(text);
      ASSERT_TRUE(problem.ok()) << problem.error().message;
      Random random(5);
      const OwnedArguments forward = testing::dense_arguments(*problem, random);
      OwnedArguments cotangents;
      const auto shape = forward.views.out.shape();
      const TensorView d_out = cotangents.dense(problem->d_out_dtype(), {shape.begin(), shape.end()}, random);
      const OwnedGradients zeros = testing::make_gradients(*problem, forward.views, d_out, {}, random);
      const OwnedGradients ones = testing::make_gradients(*problem, forward.views, d_out, {}, random);
      const auto device = cuda::DeviceGradients::copy_of(zeros.arguments, 0);
      ASSERT_TRUE(device.ok()) << device.error().message;
      const Result<Attention> attention =
          Attention::compile(*problem, {.device = DeviceKind::kCuda, .implementation = named});
      ASSERT_TRUE(attention.ok()) << attention.error().message;
      ASSERT_TRUE(attention->run(device->views().forward).ok());
      Lent lent;
      ASSERT_FALSE(attention->run_backward(device->views(), lent.options()).ok());
      cuda::CuPointer memory = 0;
      ASSERT_EQ((*driver)->cuMemAlloc(&memory, lent.asked), 0);
      lent.memory = reinterpret_cast<void*>(memory);  // NOLINT
      for (const auto& [call, byte] : {std::pair(&zeros, 0), std::pair(&ones, 0xff)}) {
        ASSERT_EQ((*driver)->cuMemsetD8Async(memory, static_cast<unsigned char>(byte), lent.asked, nullptr), 0);
        lent.asked = 0;
        const Status status = attention->run_backward(device->views(), lent.options());
        EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.error().message);
        EXPECT_TRUE(device->fetch(call->arguments).ok());
      }
      EXPECT_EQ(testing::differing_bits(zeros.arguments, ones.arguments), "");
      (*driver)->cuMemFree(memory);
    }
  }
}

}  // namespace
}  // namespace flashlift
