#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "flashlift/attention.h"
#include "problem/check.h"
#include "problem/elements.h"
#include "support/gradients.h"
#include "support/tensors.h"

namespace flashlift {
namespace {

TEST(Backward, RefusesWhatItHasNotWithAReasonAndWritesNothing) {
  struct Refusal {
    const char* problem;
    ErrorKind kind;
    const char* reason;
  };
  for (const Refusal& refusal : {
           Refusal{"attn h2 s8 d16 f32 lse unnormalized", ErrorKind::kUnsupported,
                   "compile the problem without `unnormalized`"},
           Refusal{"attn h2 s8 d16 f32 lse page_size=4", ErrorKind::kUnsupported, "gather them into tensors first"},
           Refusal{"attn h2 s8 d16 f32", ErrorKind::kInvalidArgument,
                   "gives d_lse, but the problem does not ask for lse"},
           Refusal{"attn h2 s8 d16 f32 lse", ErrorKind::kInvalidArgument,
                   "gives d_sinks, but the problem has no sinks"},
       }) {
    const Result<Problem> problem = parse_problem(refusal.problem);
    ASSERT_TRUE(problem.ok()) << problem.error().message;
    testing::Random random(1);
    testing::OwnedArguments memory = testing::dense_arguments(*problem, random);
    BackwardArguments backward;
    backward.forward = memory.views;
    backward.d_out = memory.dense(problem->d_out_dtype(), {1, 2, 8, 16}, random);
    backward.d_q = memory.dense(problem->dtype, {1, 2, 8, 16}, random);
    backward.d_lse = memory.dense(DType::kF32, {1, 2, 8}, random);
    backward.d_sinks = memory.dense(DType::kF32, {2, 1}, random);
    const float before = *static_cast<float*>(backward.d_q->data);
    const Result<Attention> attention = Attention::compile(*problem);
    ASSERT_TRUE(attention.ok()) << attention.error().message;
    const Status status = attention->run_backward(backward);
    ASSERT_FALSE(status.ok()) << refusal.problem;
    EXPECT_EQ(status.error().kind, refusal.kind) << status.error().message;
    EXPECT_NE(status.error().message.find(refusal.reason), std::string::npos) << status.error().message;
    EXPECT_EQ(*static_cast<float*>(backward.d_q->data), before);
  }
}

TEST(Backward, IsPreparedOrRefused) {
  const char* const bias = "score_mod(t: f32[8]) { %0 = load t[kv]; %1 = add score, %0; return %1 }";
  const auto prepare = [](const std::string& text, const std::vector<bool>& capture_gradients) {
    const Result<Problem> problem = parse_problem(text);
    EXPECT_TRUE(problem.ok()) << problem.error().message;
    const Result<Attention> attention = Attention::compile(*problem);
    EXPECT_TRUE(attention.ok()) << attention.error().message;
    return attention->prepare_backward(capture_gradients);
  };
  for (const std::vector<bool>& gradients : {std::vector<bool>{}, {false}, {true}}) {
    const Status status = prepare(std::string("attn h2 s8 d16 f32 ") + bias, gradients);
    EXPECT_TRUE(status.ok()) << status.error().message;
  }
  const Status wrong = prepare(std::string("attn h2 s8 d16 f32 ") + bias, {true, false});
  ASSERT_FALSE(wrong.ok());
  EXPECT_EQ(wrong.error().kind, ErrorKind::kInvalidArgument);
  EXPECT_EQ(wrong.error().message,
            "capture_gradients has 2 entries; expected none, or one for each of 1 captured tensor");
  const Status none = prepare("attn h2 s8 d16 f32 unnormalized", {});
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().kind, ErrorKind::kUnsupported);
}

class OnlyKeyOfARow : public ::testing::TestWithParam<const char*> {};

// The only key's probability is 1, however lse was rounded: d_v is d_out, and the scores have no gradient.
TEST_P(OnlyKeyOfARow, HasExactGradients) {
  const Result<Problem> problem = parse_problem(GetParam());
  ASSERT_TRUE(problem.ok()) << problem.error().message;
  testing::Random random(1);
  testing::OwnedArguments memory = testing::dense_arguments(*problem, random);
  const auto like = [&](const TensorView& view) {
    return memory.dense(view.dtype, {view.shape().begin(), view.shape().end()}, random);
  };
  BackwardArguments backward;
  backward.d_out = like(memory.views.out);
  backward.d_q = like(memory.views.q);
  backward.d_k = like(memory.views.k);
  backward.d_v = like(memory.views.v);
  backward.forward = memory.views;
  const Result<Attention> attention = Attention::compile(*problem);
  ASSERT_TRUE(attention.ok()) << attention.error().message;
  ASSERT_TRUE(attention->run(memory.views).ok());
  ASSERT_TRUE(attention->run_backward(backward).ok());
  const auto at = [](const TensorView& view, int64_t i) {
    return problem::read_float(view, problem::element_offset(view, i));
  };
  for (int64_t i = 0; i < backward.d_v->element_count(); ++i) {
    ASSERT_EQ(at(*backward.d_v, i), at(backward.d_out, i)) << i;
  }
  for (int64_t i = 0; i < backward.d_q->element_count(); ++i) {
    ASSERT_EQ(at(*backward.d_q, i), 0) << i;
    ASSERT_EQ(at(*backward.d_k, i), 0) << i;
  }
}

// Each query sees only the key at its own position.
INSTANTIATE_TEST_SUITE_P(Problems, OnlyKeyOfARow,
                         ::testing::Values("attn h2 s1 d24 f32 lse", "attn b2 h2 s1 d64 bf16",
                                           "attn h2 s8 d33 f32 lse window=0,0", "attn b2 h3 s90 d40 f32 window=0,0 lse",
                                           "attn h2 s90 d24 f32 softcap=20 window=0,0 lse",
                                           "attn h2 s90 d24 f16 window=0,0"));

// A select leaves whole rows out: their scores get no gradient, even if the gradient of their lse is not finite, as
// that of 1 / (1 + exp(sink - lse)) is where a finite constant masks a row.
TEST(Backward, RowsThatASelectLeavesOutGetNoGradient) {
  constexpr int64_t kFirst = 40;
  constexpr int64_t kEnd = 50;
  const std::string hidden = " %0 = ge q, 40; %1 = lt q, 50; %2 = and %0, %1;";
  for (const std::string& score_mod : {
           "score_mod() {" + hidden + " %3 = select %2, -1e9, score; return %3 }",
           "score_mod(t: f32[2, 150]) {" + hidden +
               " %3 = load t[h, kv]; %4 = mul score, %3; %5 = select %2, -1e9, %4; return %5 }",
           "score_mod(t: f32[90]) {" + hidden +
               " %3 = load t[q]; %4 = add score, %3; %5 = select %2, -1e9, %4; return %5 }",
       }) {
    for (const char* words : {"f32", "bf16 causal=bottom_right", "f16 residual"}) {
      for (const char* name : {"cpu_amx", "cpu_avx512_bf16", "cpu_avx512", "cpu_avx2", "cpu_portable"}) {
        const std::string text = std::string("attn h2 sq90 skv150 d64 lse ") + words + " " + score_mod;
        SCOPED_TRACE(text + " " + name);
        const Result<Problem> problem = parse_problem(text);
        ASSERT_TRUE(problem.ok()) << problem.error().message;
        const Result<Attention> attention = Attention::compile(*problem, {.implementation = name});
        if (!attention.ok()) {
          ASSERT_EQ(attention.error().kind, ErrorKind::kUnsupported) << attention.error().message;
          continue;
        }
        testing::Random random(3);
        testing::OwnedArguments memory = testing::dense_arguments(*problem, random);
        const TensorView d_out = memory.dense(problem->d_out_dtype(), {1, 2, 90, 64}, random);
        const TensorView d_lse = memory.dense(DType::kF32, {1, 2, 90}, random);
        for (int64_t row = kFirst; row < kEnd; ++row) {
          static_cast<float*>(d_lse.data)[row] = std::numeric_limits<float>::quiet_NaN();
          static_cast<float*>(d_lse.data)[90 + row] = std::numeric_limits<float>::infinity();
        }
        const Status forward = attention->run(memory.views);
        ASSERT_TRUE(forward.ok()) << forward.error().message;
        const testing::OwnedGradients gradients = testing::make_gradients(*problem, memory.views, d_out, d_lse, random);
        const Status status = attention->run_backward(gradients.arguments);
        ASSERT_TRUE(status.ok()) << status.error().message;
        for (int64_t i = 0; i < gradients.arguments.d_k->element_count(); ++i) {
          const float x =
              problem::read_float(*gradients.arguments.d_k, problem::element_offset(*gradients.arguments.d_k, i));
          ASSERT_TRUE(std::isfinite(x)) << i;
        }
        const Result<problem::Judgement> report = problem::check_gradients(*problem, gradients.arguments);
        ASSERT_TRUE(report.ok()) << report.error().message;
        EXPECT_TRUE(report->ok) << report->reason;
      }
    }
  }
}

}  // namespace
}  // namespace flashlift
