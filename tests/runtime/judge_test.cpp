// The judge with real results: it accepts correct ones, and finds errors that are inserted into them.
#include "problem/judge.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>

#include "flashlift/attention.h"
#include "problem/check.h"
#include "support/half.h"
#include "support/tensors.h"

namespace flashlift {
namespace {

using problem::Judgement;
using testing::OwnedArguments;
using testing::Random;

Problem problem_of(const std::string& text) {
  Result<Problem> problem = parse_problem(text);
  EXPECT_TRUE(problem.ok()) << problem.error().message;
  return *problem;
}

std::byte* element(const TensorView& view, int64_t h, int64_t row, int64_t d) {
  return static_cast<std::byte*>(view.data) + (h * view.strides[1] + row * view.strides[2] + d * view.strides[3]) *
                                                  static_cast<int64_t>(size_in_bytes(view.dtype));
}

void copy_row(const TensorView& to, int64_t to_h, int64_t to_row, const TensorView& from, int64_t h, int64_t row) {
  for (int64_t d = 0; d < to.sizes[3]; ++d) {
    std::memcpy(element(to, to_h, to_row, d), element(from, h, row, d), size_in_bytes(to.dtype));
  }
}

void clear_row(const TensorView& view, int64_t h, int64_t row) {
  for (int64_t d = 0; d < view.sizes[3]; ++d) {
    std::memset(element(view, h, row, d), 0, size_in_bytes(view.dtype));
  }
}

// The next number away from zero.
void move_by_one_unit(const TensorView& view, int64_t h, int64_t row, int64_t d) {
  if (view.dtype == DType::kF32) {
    ++*reinterpret_cast<uint32_t*>(element(view, h, row, d));
  } else {
    ++*reinterpret_cast<uint16_t*>(element(view, h, row, d));
  }
}

constexpr const char* kPlain = "attn hq4 hkv2 s512 d32 lse causal";

// A kernel with a defect, described by the problem for which its results would be right.
struct Defect {
  const char* name;
  std::string problem;
};

std::vector<Defect> defects() {
  const std::string sizes = "attn hq4 hkv2 s512 d32 lse ";
  return {{"the scale is off by 1 %", std::string(kPlain) + " scale=0.17854"},
          {"one key is missed", sizes + "causal mask_mod() { %0 = ne kv, 200; return %0 }"},
          {"the diagonal is left out", sizes + "mask_mod() { %0 = lt kv, q; %1 = eq q, 0; %2 = or %0, %1; return %2 }"},
          {"the last tile of rows misses its last tile of keys",
           sizes + "causal mask_mod() { %0 = lt q, 496; %1 = lt kv, 480; %2 = or %0, %1; return %2 }"}};
}

// Results of an attention and its gradients, all dense tensors, for the same inputs whatever the problem.
struct Results {
  Problem problem;
  OwnedArguments memory;
  BackwardArguments call;

  explicit Results(const std::string& text) : problem(problem_of(text)) {
    Random random(3);
    memory = testing::dense_arguments(problem, random);
    call.forward = memory.views;
    const auto like = [&](const TensorView& of) {
      return memory.dense(of.dtype, {of.shape().begin(), of.shape().end()}, random);
    };
    call.d_out = like(memory.views.out);
    call.d_q = like(memory.views.q);
    call.d_k = like(memory.views.k);
    call.d_v = like(memory.views.v);
    const Result<Attention> attention = Attention::compile(problem);
    EXPECT_TRUE(attention.ok()) << attention.error().message;
    EXPECT_TRUE(attention->run(call.forward).ok());
    EXPECT_TRUE(attention->run_backward(call).ok());
  }
};

// The right results and the oracle's results, shared by all tests of a dtype.
class Judge : public ::testing::TestWithParam<const char*> {
 protected:
  struct Right {
    Results results;
    problem::OutputReference output;
    problem::GradientReference gradients;
  };

  static std::string with_dtype(const std::string& text) { return text + " " + GetParam(); }

  static const Right& right() {
    static std::map<std::string, Right> all;
    const std::string dtype = GetParam();
    const auto found = all.find(dtype);
    if (found != all.end()) {
      return found->second;
    }
    Results results(with_dtype(kPlain));
    auto output = problem::compute_reference(results.problem, results.call.forward);
    auto gradients = problem::compute_reference(results.problem, results.call);
    return all.emplace(dtype, Right{std::move(results), std::move(*output), std::move(*gradients)}).first->second;
  }

  // Compares with what is right for the inputs, whichever problem computed these results.
  static Judgement judge_output(const Results& results) {
    return check_output(right().results.problem, results.call.forward, right().output);
  }
  static Judgement judge_gradients(const Results& results) {
    return check_gradients(right().results.problem, results.call, right().gradients);
  }

  // Changes a right tensor, runs the judge, and restores the tensor.
  static void expect_found(const char* what, const TensorView& tensor, const std::function<void()>& change) {
    const auto bytes = static_cast<size_t>(tensor.element_count()) * size_in_bytes(tensor.dtype);
    std::vector<std::byte> kept(bytes);
    std::memcpy(kept.data(), tensor.data, bytes);
    change();
    const bool is_output = tensor.data == right().results.call.forward.out.data;
    const Judgement judgement = is_output ? judge_output(right().results) : judge_gradients(right().results);
    EXPECT_FALSE(judgement.ok) << what << ": largest ratio " << judgement.ratio();
    EXPECT_FALSE(judgement.reason.empty()) << what;
    std::memcpy(tensor.data, kept.data(), bytes);
  }
};

TEST_P(Judge, AcceptsWhatIsRight) {
  const Judgement output = judge_output(right().results);
  EXPECT_TRUE(output.ok) << output.reason;
  const Judgement gradients = judge_gradients(right().results);
  EXPECT_TRUE(gradients.ok) << gradients.reason;
}

TEST_P(Judge, AcceptsElementsThatAreRoundedTheOtherWay) {
  const Results results(with_dtype(kPlain));
  for (int64_t row = 0; row < 512; ++row) {
    move_by_one_unit(results.call.forward.out, row % 4, row, row % 32);
  }
  const Judgement output = judge_output(results);
  EXPECT_TRUE(output.ok) << output.reason;
}

TEST_P(Judge, FindsWhatADefectOfAKernelMakesOfAllRows) {
  for (const Defect& defect : defects()) {
    SCOPED_TRACE(defect.name);
    const Results wrong(with_dtype(defect.problem));
    EXPECT_FALSE(judge_output(wrong).ok);
    EXPECT_FALSE(judge_gradients(wrong).ok);
  }
}

// One row of 2,048.
TEST_P(Judge, FindsASingleWrongRow) {
  const TensorView& out = right().results.call.forward.out;
  for (const int64_t row : {0, 1, 100, 510}) {
    SCOPED_TRACE("row " + std::to_string(row));
    expect_found("zeros", out, [&] { clear_row(out, 2, row); });
    expect_found("the row of another head", out, [&] { copy_row(out, 2, row, out, 0, row); });
    expect_found("the next row", out, [&] { copy_row(out, 2, row, out, 2, row + 1); });
  }
}

TEST_P(Judge, FindsANumberThatIsNone) {
  const TensorView& out = right().results.call.forward.out;
  expect_found("NaN", out, [&] {
    const float nan = std::nanf("");
    const uint16_t half = float_to_bf16(nan);
    std::memcpy(element(out, 1, 30, 7), out.dtype == DType::kF32 ? static_cast<const void*>(&nan) : &half,
                size_in_bytes(out.dtype));
  });
}

TEST_P(Judge, FindsAWrongRowOfAGradient) {
  const BackwardArguments& call = right().results.call;
  for (const TensorView& gradient : {*call.d_q, *call.d_k, *call.d_v}) {
    for (const int64_t row : {1, 100, 500}) {
      SCOPED_TRACE("row " + std::to_string(row));
      expect_found("zeros", gradient, [&] { clear_row(gradient, 1, row); });
      expect_found("the next row", gradient, [&] { copy_row(gradient, 1, row, gradient, 1, row + 1); });
      expect_found("the row of another head", gradient, [&] { copy_row(gradient, 1, row, gradient, 0, row); });
    }
  }
}

// The judge checks every row's statistics separately, and finds one error in 2,048 rows.
TEST_P(Judge, FindsOneWrongLogSumOfExponentials) {
  float& lse = static_cast<float*>(right().results.call.forward.lse->data)[700];
  const float kept = lse;
  lse += 1e-3f;
  const Judgement judgement = judge_output(right().results);
  EXPECT_FALSE(judgement.ok);
  EXPECT_EQ(judgement.tensor, "lse");
  lse = kept;
}

INSTANTIATE_TEST_SUITE_P(DTypes, Judge, ::testing::Values("f32", "bf16"),
                         [](const auto& test) { return std::string(test.param); });

// If a score_mod rounds, f32's error may round a score to the other neighbour. lse may differ by that much and no more:
// here by 1/16, a unit of bf16 between 8 and 16.
TEST(JudgeOfSteps, AllowsWhatRoundingExplains) {
  const std::string text = "attn h1 sq1 skv2 d1 lse scale=1";
  const std::string rounded = text + " score_mod() { %0 = round_bf16 score; return %0 }";
  // One score lies between two numbers of bf16; the other score is 1.
  std::vector<float> q = {1}, k = {10.03125f, 1}, v = {1, 1}, out = {1}, lse = {0};
  const auto view = [](std::vector<float>& data, std::vector<int64_t> shape) {
    return dense_view(data.data(), DType::kF32, shape);
  };
  const AttentionArguments arguments{.q = view(q, {1, 1, 1, 1}),
                                     .k = view(k, {1, 1, 2, 1}),
                                     .v = view(v, {1, 1, 2, 1}),
                                     .out = view(out, {1, 1, 1, 1}),
                                     .captures = {},
                                     .sinks = {},
                                     .lse = view(lse, {1, 1, 1})};
  const auto accepts = [&](const std::string& problem, double score) {
    lse[0] = static_cast<float>(std::log(std::exp(score) + std::exp(1.0)));
    return problem::check_output(problem_of(problem), arguments)->ok;
  };
  EXPECT_TRUE(accepts(rounded, 10.0));
  EXPECT_TRUE(accepts(rounded, 10.0625));
  EXPECT_FALSE(accepts(rounded, 10.125));
  EXPECT_FALSE(accepts(rounded, 9.9375));
  EXPECT_TRUE(accepts(text, 10.03125));
  EXPECT_FALSE(accepts(text, 10.0));
  EXPECT_FALSE(accepts(text, 10.0625));
}

// Values of +1 and -1 cancel exactly in eager attention; elsewhere their sum may keep a rounding error.
TEST(JudgeOfRowsOfFewNumbers, AllowsTheRoundingOfTheirTerms) {
  for (const int64_t width : {1, 3}) {
    const Problem problem = problem_of("attn h1 sq1 skv64 dqk8 scale=0 dv" + std::to_string(width));
    Random random(1);
    const OwnedArguments memory = testing::dense_arguments(problem, random);
    auto* v = static_cast<float*>(memory.views.v.data);
    for (int64_t i = 0; i < memory.views.v.element_count(); ++i) {
      v[i] = i / width % 2 == 0 ? 1.0f : -1.0f;
    }
    for (const auto& [out, right] : {std::pair{0.0f, true}, {6e-8f, true}, {1e-6f, false}}) {
      std::fill_n(static_cast<float*>(memory.views.out.data), width, out);
      const Result<Judgement> judgement = problem::check_output(problem, memory.views);
      ASSERT_TRUE(judgement.ok()) << judgement.error().message;
      EXPECT_EQ(judgement->ok, right) << width << " of " << out << ": " << judgement->reason;
    }
  }
}

// The error of eager attention happens to be 0.
TEST(JudgeOfOneNumber, KnowsHowLargeEagersErrorTendsToBe) {
  const std::vector<double> want = {1.0};
  const std::vector<float> eager = {1.0f};
  const std::vector<double> deviations = {1e-3};
  for (const auto& [got, right] : {std::pair{1.004f, true}, {1.005f, false}}) {
    float number = got;
    const TensorView view = dense_view(&number, DType::kF32, std::vector<int64_t>{1});
    const auto judge = [&](std::span<const double> known) {
      return problem::judge({.name = "d_sinks",
                             .got = view,
                             .want = want,
                             .eager = eager,
                             .deviations = known,
                             .magnitudes = {},
                             .row_width = 1,
                             .samples = 1});
    };
    EXPECT_EQ(judge(deviations).ok, right) << got;
    EXPECT_FALSE(judge({}).ok) << got;
  }
}

// A gradient that sums over all scores, whose terms are a thousand times as large.
TEST(JudgeOfOneNumber, FindsAWrongGradient) {
  Results results(
      "attn hq4 hkv2 s512 d32 causal score_mod(factor: f32[]) { %0 = load factor[]; %1 = mul score, %0; return %1 }");
  float gradient = 0;
  results.call.d_captures = {dense_view(&gradient, DType::kF32, std::vector<int64_t>{})};
  ASSERT_TRUE(Attention::compile(results.problem)->run_backward(results.call).ok());
  const auto honest = problem::check_gradients(results.problem, results.call);
  EXPECT_TRUE(honest->ok) << honest->reason;
  const float right = gradient;
  for (const float factor : {0.0f, -1.0f, 0.99f, 1.01f}) {
    gradient = right * factor;
    EXPECT_FALSE(problem::check_gradients(results.problem, results.call)->ok) << factor;
  }
}

TEST(JudgeOfSmallNumbers, AllowsWhatProcessorsFlushToZero) {
  for (const auto& [size, right] : {std::pair{1e-38, true}, {1e-35, false}}) {
    float got = 0;
    const TensorView view = dense_view(&got, DType::kF32, std::vector<int64_t>{1});
    const std::vector<double> want = {size};
    const std::vector<float> eager = {static_cast<float>(size)};
    const Judgement judgement = problem::judge(
        {.name = "d_k", .got = view, .want = want, .eager = eager, .magnitudes = {}, .row_width = 1, .samples = 1});
    EXPECT_EQ(judgement.ok, right) << size << ": " << judgement.reason;
  }
}

// Partial sums of terms that are together beyond f32's range may be infinite; those of smaller terms may not.
TEST(JudgeOfLargeNumbers, AllowsPartialSumsToOverflow) {
  const std::vector<double> want = {2.5e38};
  const std::vector<float> eager = {2.5e38f};
  for (const auto& [terms, right] : {std::pair{4e38, true}, {3e38, false}}) {
    const std::vector<double> magnitudes = {terms};
    float got = INFINITY;
    const TensorView view = dense_view(&got, DType::kF32, std::vector<int64_t>{1});
    const auto judge = [&] {
      return problem::judge({.name = "d_bias",
                             .got = view,
                             .want = want,
                             .eager = eager,
                             .magnitudes = magnitudes,
                             .row_width = 1,
                             .samples = 1});
    };
    EXPECT_EQ(judge().ok, right) << terms;
    got = -2.5e38f;
    EXPECT_FALSE(judge().ok) << "a finite number must be right";
  }
}

// Errors of equal size in `inexact` rows of 400; eager attention's errors are two thirds as large.
Judgement judge_rows_in_error(size_t inexact) {
  const std::vector<double> want(400);
  std::vector<float> got(400);
  std::vector<float> eager(400);
  std::fill_n(got.begin(), inexact, 1.5e-3f);
  std::fill_n(eager.begin(), inexact, 1e-3f);
  const TensorView view = dense_view(got.data(), DType::kF32, std::vector<int64_t>{400, 1});
  return problem::judge({.name = "got", .got = view, .want = want, .eager = eager, .magnitudes = {}, .samples = 400});
}

TEST(JudgeOfFewErrors, CountsNoRowThatIsExact) {
  EXPECT_TRUE(judge_rows_in_error(16).ok) << judge_rows_in_error(16).reason;
  EXPECT_FALSE(judge_rows_in_error(400).ok);
}

// Probabilities from 1 down to e^-200. They underflow f32 at the 207th key: its smallest normal number is e^-87.3.
TEST(JudgeOfSmallNumbers, LetsKernelsFlushSubnormals) {
  for (const char* dtype : {"f32", "bf16"}) {
    const Results results(std::string("attn hq4 hkv2 sq4 skv400 d8 ") + dtype +
                          " score_mod() { %0 = to_f32 kv; %1 = mul %0, -0.5; %2 = add score, %1; return %2 }");
    const auto output = problem::check_output(results.problem, results.call.forward);
    EXPECT_TRUE(output->ok) << dtype << ": " << output->reason;
    const auto gradients = problem::check_gradients(results.problem, results.call);
    EXPECT_TRUE(gradients->ok) << dtype << ": " << gradients->reason;
  }
}

}  // namespace
}  // namespace flashlift
