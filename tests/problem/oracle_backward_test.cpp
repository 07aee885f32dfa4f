// The oracle's gradients, compared with finite differences of the oracle itself.
#include "problem/oracle_backward.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "problem/oracle.h"
#include "support/random_problem.h"
#include "support/tensors.h"

namespace flashlift::problem {
namespace {

using testing::OwnedArguments;
using testing::Random;

struct Case {
  Problem problem;
  OwnedArguments arguments;
  OracleCotangents cotangents;
};

Case make_case(Problem problem, Random& random) {
  Case made{.problem = std::move(problem), .arguments = {}, .cotangents = {}};
  made.problem.captures = *collect_captures(made.problem.score_mod, made.problem.mask_mod);
  made.arguments = testing::dense_arguments(made.problem, random);
  const AttentionArguments& views = made.arguments.views;
  const auto shape = [](const TensorView& view) {
    return std::vector<int64_t>(view.shape().begin(), view.shape().end());
  };
  made.cotangents.out = made.arguments.dense(DType::kF32, shape(views.out), random);
  if (views.lse) {
    made.cotangents.lse = made.arguments.dense(DType::kF32, shape(*views.lse), random);
  }
  return made;
}

// <out, its cotangent> + <lse, its cotangent>, over the rows that have a key.
double loss(const Case& at) {
  const OracleResult result = *run_oracle(at.problem, at.arguments.views);
  const auto* d_out = static_cast<const float*>(at.cotangents.out.data);
  double sum = 0;
  for (size_t i = 0; i < result.out.size(); ++i) {
    sum += result.out[i] * d_out[i];
  }
  if (at.cotangents.lse) {
    const auto* d_lse = static_cast<const float*>(at.cotangents.lse->data);
    for (size_t i = 0; i < result.lse.size(); ++i) {
      sum += std::isfinite(result.lse[i]) ? result.lse[i] * d_lse[i] : 0;
    }
  }
  return sum;
}

// Checks random elements of one dense f32 tensor. If a step of half the size changes the difference, the loss has a
// kink there.
void check_gradient(const Case& at, const char* name, const TensorView& tensor, const std::vector<double>& gradient,
                    Random& random, int& checked) {
  ASSERT_EQ(static_cast<int64_t>(gradient.size()), tensor.element_count()) << name;
  if (std::abs(loss(at)) > 1e6) {
    return;  // lse contains a finite stand-in for -inf, which hides the differences
  }
  for (int trial = 0; trial < 4 && !gradient.empty(); ++trial) {
    const size_t i = random() % gradient.size();
    float& element = static_cast<float*>(tensor.data)[i];
    const float middle = element;
    const auto difference = [&](float step) {
      const float up = middle + step;
      const float down = middle - step;
      element = up;
      const double above = loss(at);
      element = down;
      const double below = loss(at);
      element = middle;
      return (above - below) / (double{up} - double{down});
    };
    const double coarse = difference(0x1p-8f);
    const double fine = difference(0x1p-9f);
    const double scale = std::max(1.0, std::abs(gradient[i]));
    if (!std::isfinite(fine) || std::abs(coarse - fine) > 1e-4 * scale) {
      continue;
    }
    ++checked;
    EXPECT_NEAR(gradient[i], fine, 1e-3 * scale) << name << "[" << i << "] of " << print(at.problem);
  }
}

void check_gradients(Case at, Random& random, int& checked) {
  const Result<OracleGradients> gradients = run_oracle_backward(at.problem, at.arguments.views, at.cotangents);
  ASSERT_TRUE(gradients.ok()) << gradients.error().message;
  const AttentionArguments& views = at.arguments.views;
  check_gradient(at, "q", views.q, gradients->q, random, checked);
  check_gradient(at, "k", views.k, gradients->k, random, checked);
  check_gradient(at, "v", views.v, gradients->v, random, checked);
  if (views.sinks) {
    check_gradient(at, "sinks", *views.sinks, gradients->sinks, random, checked);
  }
  for (size_t i = 0; i < views.captures.size(); ++i) {
    if (views.captures[i].dtype == DType::kF32 && !gradients->captures[i].empty()) {
      check_gradient(at, at.problem.captures[i].name.c_str(), views.captures[i], gradients->captures[i], random,
                     checked);
    }
  }
}

Problem problem_of(const std::string& text) {
  const auto problem = parse_problem(text);
  EXPECT_TRUE(problem.ok()) << problem.error().message;
  return *problem;
}

class Gradients : public ::testing::TestWithParam<const char*> {};

TEST_P(Gradients, AgreeWithFiniteDifferences) {
  Random random(3);
  int checked = 0;
  check_gradients(make_case(problem_of(GetParam()), random), random, checked);
  EXPECT_GE(checked, 9);
}

INSTANTIATE_TEST_SUITE_P(
    Problems, Gradients,
    ::testing::Values("attn h1 s5 d3 f32", "attn b2 hq4 hkv2 sq5 skv7 dqk3 dv2 f32 causal lse",
                      "attn h2 s6 d4 f32 sinks=3 lse", "attn h2 s6 d4 f32 softcap=2 alibi causal",
                      "attn h1 sq6 skv4 d2 f32 causal=bottom_right lse",
                      "attn h1 sq6 skv4 d2 f32 causal=bottom_right empty_rows=uniform",
                      "attn h1 s8 d2 f32 window=1 sinks=1",
                      "attn h2 s6 d4 f32 score_mod(t: f32[11]) { %0 = sub kv, q; %1 = add %0, 5; %2 = load t[%1]; "
                      "%3 = add score, %2; return %3 }",
                      "attn b2 h2 s6 d4 f32 score_mod(t: f32[2,2,6,6]) { %0 = load t[b, h, q, kv]; %1 = mul score, %0; "
                      "%2 = add %1, %0; return %2 }",
                      "attn h2 s6 d4 f32 causal score_mod(t: f32[4], bucket: i32[6]) { %0 = load bucket[kv]; "
                      "%1 = load t[%0]; %2 = tanh %1; %3 = mul score, %2; return %3 }"));

// By convention, rounding passes gradients through unchanged, so that finite differences do not apply.
bool rounds(const Program& program) {
  return std::any_of(program.nodes.begin(), program.nodes.end(),
                     [](const Node& node) { return node.op == Op::k_round_bf16 || node.op == Op::k_round_f16; });
}

TEST(OracleBackward, AgreesWithFiniteDifferencesOnRandomPrograms) {
  Random random(17);
  int checked = 0;
  for (int trial = 0; trial < 400; ++trial) {
    Problem problem = problem_of(trial % 2 == 0 ? "attn b2 hq4 hkv2 sq4 skv5 dqk3 dv2 f32 lse sinks=1"
                                                : "attn b1 h2 sq5 skv4 d2 f32");
    problem.score_mod = testing::draw_program(ProgramKind::kScoreMod, problem, random);
    if (trial % 3 != 0) {
      problem.mask_mod = testing::draw_program(ProgramKind::kMaskMod, problem, random);
    }
    if (rounds(*problem.score_mod) || !collect_captures(problem.score_mod, problem.mask_mod).ok()) {
      continue;  // or both programs drew the same name for different tensors
    }
    check_gradients(make_case(std::move(problem), random), random, checked);
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_GT(checked, 3000);
}

TEST(OracleBackward, MaskedKeysTakeNoPartWhateverTheirValues) {
  Random random(5);
  Case at = make_case(problem_of("attn h1 s4 d2 f32 causal"), random);
  const TensorView& v = at.arguments.views.v;
  static_cast<float*>(v.data)[3 * 2] = NAN;  // key 3: seen by the last query only
  const OracleGradients gradients = *run_oracle_backward(at.problem, at.arguments.views, at.cotangents);
  EXPECT_TRUE(std::isfinite(gradients.q[2 * 2]));
  EXPECT_TRUE(std::isnan(gradients.q[3 * 2]));
}

TEST(OracleBackward, RefusesWhatHasNoGradient) {
  Random random(5);
  const Case unnormalized = make_case(problem_of("attn h1 s4 d2 f32 unnormalized"), random);
  const auto refused = run_oracle_backward(unnormalized.problem, unnormalized.arguments.views, unnormalized.cotangents);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().kind, ErrorKind::kUnsupported);

  Case wrong = make_case(problem_of("attn h1 s4 d2 f32"), random);
  wrong.cotangents.out.sizes[3] = 1;
  const auto mismatched = run_oracle_backward(wrong.problem, wrong.arguments.views, wrong.cotangents);
  ASSERT_FALSE(mismatched.ok());
  EXPECT_NE(mismatched.error().message.find("cotangent of out"), std::string::npos);
}

}  // namespace
}  // namespace flashlift::problem
