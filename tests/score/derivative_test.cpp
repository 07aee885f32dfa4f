// Derivatives, compared with finite differences in double precision; where none exists, with PyTorch's conventions.
#include "score/derivative.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "flashlift/builder.h"
#include "score/interpret.h"
#include "score/random_program.h"
#include "score/simplify.h"
#include "score/verify.h"

namespace flashlift::score {
namespace {

double value_of(Program program, ValueId id, double score, const Coordinates& at,
                const std::vector<TensorView>& captures = {}) {
  program.result = id;
  return Interpreter(program, captures).score_mod(score, at);
}

template <typename F>
Derivative derive(F f) {
  const auto program = trace_score_mod([&](Expr score, Expr, Expr, Expr q, Expr kv) { return f(score, q, kv); });
  EXPECT_TRUE(program.ok());
  return differentiate(SimplifiedProgram(*program));
}

template <typename F>
double slope_at(F f, double score, Coordinates at = {}) {
  const Derivative derivative = derive(f);
  return value_of(derivative.body, derivative.d_score, score, at);
}

TEST(Derivative, OfWhatDoesNotTouchTheScoreIsOne) {
  const Derivative derivative = derive([](Expr score, Expr q, Expr kv) { return score - 0.5f * abs(q - kv); });
  const Node& node = derivative.body.nodes[derivative.d_score];
  EXPECT_EQ(node.op, Op::k_constant);
  EXPECT_EQ(std::bit_cast<float>(static_cast<uint32_t>(node.payload)), 1.0f);
}

TEST(Derivative, OfSoftcapSharesItsTanh) {
  const Derivative derivative = derive([](Expr score, Expr, Expr) { return tanh(score / 30.0) * 30.0; });
  int tanhs = 0;
  for (const Node& node : derivative.body.nodes) {
    tanhs += node.op == Op::k_tanh ? 1 : 0;
  }
  EXPECT_EQ(tanhs, 1);
  const double t = std::tanh(0.5);
  EXPECT_NEAR(value_of(derivative.body, derivative.d_score, 15, {}), 1 - t * t, 1e-6);
  EXPECT_NEAR(value_of(derivative.body, derivative.body.result, 15, {}), 30 * t, 1e-5);
}

TEST(Derivative, KeepsPyTorchsConventionsAtKinks) {
  EXPECT_EQ(slope_at([](Expr s, Expr, Expr) { return max(s, 1.0); }, 1), 0.5);
  EXPECT_EQ(slope_at([](Expr s, Expr, Expr) { return max(s, 1.0); }, 2), 1);
  EXPECT_EQ(slope_at([](Expr s, Expr, Expr) { return max(s, 1.0); }, 0), 0);
  EXPECT_EQ(slope_at([](Expr s, Expr, Expr) { return min(1.0, s); }, 1), 0.5);
  EXPECT_EQ(slope_at([](Expr s, Expr, Expr) { return min(max(s, -1.0), 1.0); }, 0.3), 1);
  EXPECT_EQ(slope_at([](Expr s, Expr, Expr) { return abs(s); }, 0), 0);
  EXPECT_EQ(slope_at([](Expr s, Expr, Expr) { return abs(s); }, -3), -1);
  EXPECT_EQ(slope_at([](Expr s, Expr, Expr) { return s + to(Type::kI32, s * 10.0); }, 2), 1);
  EXPECT_EQ(slope_at([](Expr s, Expr, Expr) { return pow(s, 0.0) + s; }, 0), 1);
  EXPECT_EQ(slope_at([](Expr s, Expr, Expr) { return pow(s, 2.0); }, -3), -6);
}

TEST(Derivative, RoundingPassesThrough) {
  const auto program = parse_program("score_mod() { %0 = round_bf16 score; %1 = mul %0, 3.0; return %1 }");
  const Derivative derivative = differentiate(SimplifiedProgram(*program));
  EXPECT_EQ(value_of(derivative.body, derivative.d_score, 1.2345, {}), 3);
}

TEST(Derivative, MaskedScoresPassNothing) {
  const auto causal = [](Expr score, Expr q, Expr kv) { return select(kv <= q, 2.0 * score, Expr(-HUGE_VALF)); };
  EXPECT_EQ(slope_at(causal, 5, {.q = 3, .kv = 3}), 2);
  EXPECT_EQ(slope_at(causal, 5, {.q = 3, .kv = 4}), 0);
}

TEST(Derivative, WhatIsNotChosenGivesNothingHoweverSteep) {
  EXPECT_EQ(slope_at([](Expr s, Expr, Expr) { return select(s > 0.0, log(s), s * 3.0); }, 0), 3);
  EXPECT_EQ(slope_at([](Expr s, Expr, Expr) { return select(s > 0.0, 1.0 / (s * s), s); }, 0), 1);
  EXPECT_EQ(slope_at([](Expr s, Expr, Expr) { return max(log(s), -2.0); }, 0), 0);
  EXPECT_EQ(slope_at([](Expr s, Expr, Expr) { return select(s < 100.0, s, exp(exp(s)) * s); }, 99), 1);
}

TEST(Derivative, OfAConstantIsZero) {
  EXPECT_EQ(slope_at([](Expr, Expr q, Expr) { return to(Type::kF32, q); }, 5), 0);
}

TEST(Derivative, WeighsTheLoadsThatWantGradients) {
  const Captured slopes("slopes", DType::kF32, {8});
  const Captured table("table", DType::kF32, {-1});
  const Captured buckets("buckets", DType::kI32, {-1});
  const auto program = trace_score_mod([&](Expr score, Expr, Expr h, Expr q, Expr kv) {
    const Expr bias = table(buckets(kv - q));
    return score * slopes(h) + bias * bias;
  });
  // Captured tensors are numbered in the order of first use; find them by name.
  std::vector<bool> wanted;
  for (const Capture& capture : program->captures) {
    wanted.push_back(capture.name != "slopes");
  }
  const Derivative derivative = differentiate(SimplifiedProgram(*program), wanted);
  ASSERT_EQ(derivative.loads.size(), 1u);
  const Node& load = derivative.body.nodes[derivative.loads[0].load];
  ASSERT_EQ(load.op, Op::k_load);
  EXPECT_EQ(derivative.body.captures[load.payload].name, "table");
  ASSERT_EQ(load.operands.size(), 1u);
  EXPECT_EQ(derivative.body.nodes[load.operands[0]].op, Op::k_load);

  std::vector<float> slope_data = {1, 2, 3, 4, 5, 6, 7, 8};
  std::vector<float> table_data = {0.5f, 1.5f, -2.5f};
  std::vector<int32_t> bucket_data = {2, 0, 1};
  std::vector<TensorView> views;
  for (const Capture& capture : derivative.body.captures) {
    views.push_back(capture.name == "slopes"  ? dense_view(slope_data.data(), DType::kF32, std::vector<int64_t>{8})
                    : capture.name == "table" ? dense_view(table_data.data(), DType::kF32, std::vector<int64_t>{3})
                                              : dense_view(bucket_data.data(), DType::kI32, std::vector<int64_t>{3}));
  }
  const Coordinates at{.h = 3, .q = 1, .kv = 1};  // bucket 2
  EXPECT_EQ(value_of(derivative.body, derivative.d_score, 10, at, views), 4);
  EXPECT_EQ(value_of(derivative.body, derivative.loads[0].weight, 10, at, views), -5);

  EXPECT_TRUE(differentiate(SimplifiedProgram(*program)).loads.empty());
}

TEST(Derivative, OneWeightForEqualLoads) {
  const Captured bias("bias", DType::kF32, {-1});
  const auto program = trace_score_mod(
      [&](Expr score, Expr, Expr, Expr q, Expr) { return score + bias(q) + 2.0 * bias(q) + bias(q + 1); });
  const Derivative derivative = differentiate(SimplifiedProgram(*program), {true});
  ASSERT_EQ(derivative.loads.size(), 2u);
  std::vector<float> data = {1, 2, 3};
  const std::vector<TensorView> views = {dense_view(data.data(), DType::kF32, std::vector<int64_t>{3})};
  double sum = 0;
  for (const LoadDerivative& load : derivative.loads) {
    sum += value_of(derivative.body, load.weight, 0, {}, views);
  }
  EXPECT_EQ(sum, 4);
}

// ---- finite differences

struct Difference {
  double slope = 0;
  bool smooth = false;
};

// The central difference; trusted if two step sizes and both one-sided differences agree.
template <typename F>
Difference difference(F f, double x) {
  const double step = 1e-5 * std::max(1.0, std::abs(x));
  const auto central = [&](double h) { return (f(x + h) - f(x - h)) / (2 * h); };
  const double slope = central(step);
  const double finer = central(step / 4);
  const double right = (f(x + step) - f(x)) / step;
  const double left = (f(x) - f(x - step)) / step;
  const double scale = std::max({std::abs(slope), std::abs(f(x)) * 1e-3, 1e-3});
  const bool agree = std::abs(slope - finer) <= 1e-6 * scale && std::abs(right - left) <= 1e-2 * scale;
  return {slope, std::isfinite(slope) && std::isfinite(f(x)) && std::abs(f(x)) < 1e8 && agree};
}

// The program as a function of one of its loads: the score becomes a constant, the load the score.
Program as_function_of(const Program& program, ValueId load, float score) {
  Program result = program;
  for (Node& node : result.nodes) {
    if (node.op == Op::k_score) {
      node = {.op = Op::k_constant, .type = Type::kF32, .operands = {}, .payload = std::bit_cast<uint32_t>(score)};
    }
  }
  result.nodes[load] = {.op = Op::k_score, .type = Type::kF32, .operands = {}};
  return result;
}

TEST(Derivative, AgreesWithFiniteDifferencesOnRandomPrograms) {
  std::mt19937 random(5);
  std::vector<float> table(20);
  std::vector<int32_t> buckets(20);
  for (size_t i = 0; i < table.size(); ++i) {
    table[i] = std::uniform_real_distribution<float>(-2, 2)(random);
    buckets[i] = static_cast<int32_t>(random() % 20);
  }
  const std::vector<Capture> declared = {{"table", DType::kF32, {-1}}, {"buckets", DType::kI32, {-1}}};
  // By convention, rounding passes gradients through and bit casts give 0, so that finite differences do not apply.
  const std::vector<Op> excluded = {Op::k_round_bf16, Op::k_round_f16, Op::k_bitcast_f32, Op::k_bitcast_i32};
  int scores = 0;
  int loads = 0;
  int sloping = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    const Program program = random_program(random, {.kind = ProgramKind::kScoreMod,
                                                    .nodes = static_cast<int>(2 + random() % 30),
                                                    .floats = true,
                                                    .excluded = excluded,
                                                    .captures = declared});
    const Derivative derivative = differentiate(SimplifiedProgram(program), {true, true});
    ASSERT_TRUE(verify(derivative.body).ok()) << print(program);
    std::vector<TensorView> views;
    for (const Capture& capture : derivative.body.captures) {
      views.push_back(capture.name == "table" ? dense_view(table.data(), DType::kF32, std::vector<int64_t>{20})
                                              : dense_view(buckets.data(), DType::kI32, std::vector<int64_t>{20}));
    }
    const Coordinates at{.b = 1,
                         .h = 2,
                         .q = static_cast<int32_t>(random() % 20),
                         .kv = static_cast<int32_t>(random() % 20),
                         .q_len = 20,
                         .kv_len = 20};
    const float score = std::uniform_real_distribution<float>(-3, 3)(random);
    const Program& body = derivative.body;
    const auto expect_slope = [&](const Difference& expected, double got, int& checked) {
      if (expected.smooth && std::isfinite(got)) {
        ++checked;
        sloping += expected.slope != 0 ? 1 : 0;
        ASSERT_NEAR(got, expected.slope, 1e-4 * std::max(1.0, std::abs(expected.slope)))
            << print(program) << "\nscore " << score << " q " << at.q << " kv " << at.kv;
      }
    };
    expect_slope(difference([&](double x) { return value_of(body, body.result, x, at, views); }, score),
                 value_of(body, derivative.d_score, score, at, views), scores);
    for (const LoadDerivative& load : derivative.loads) {
      const double loaded = value_of(body, load.load, score, at, views);
      const Program function = as_function_of(body, load.load, score);
      expect_slope(difference([&](double x) { return value_of(function, function.result, x, at, views); }, loaded),
                   value_of(body, load.weight, score, at, views), loads);
    }
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_GT(scores, 8000);
  EXPECT_GT(loads, 1000);
  EXPECT_GT(sloping, 3000);
}

}  // namespace
}  // namespace flashlift::score
