// The elementary functions over a dense sample of all floats, against double precision.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>

#include "compiled_program.h"

namespace flashlift::cpu {
namespace {

struct MathCase {
  const char* op;
  double (*reference)(double);
  double ulps;  // the largest error allowed
};

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

const MathCase kCases[] = {
    {"exp", std::exp, 2},    {"exp2", std::exp2, 2},   {"log", std::log, 2},   {"tanh", std::tanh, 4},
    {"sigmoid", sigmoid, 4}, {"expm1", std::expm1, 4}, {"log2", std::log2, 4}, {"log1p", std::log1p, 4},
    {"sin", std::sin, 4},    {"cos", std::cos, 4},     {"erf", std::erf, 4},
};

class JitMath : public ::testing::TestWithParam<MathCase> {};

TEST_P(JitMath, StaysWithinItsBound) {
  const MathCase& c = GetParam();
  // A prime step through the bit patterns visits every binade of both signs thousands of times.
  std::vector<float> inputs;
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 4999) {
    inputs.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  }
  // And the range where results are neither 0, 1 nor infinite.
  for (int i = -400000; i <= 400000; ++i) {
    inputs.push_back(static_cast<float>(i) * 2.7e-4f);
  }
  const std::string text = "score_mod() { %0 = " + std::string(c.op) + " score; return %0 }";
  for (const Isa isa : available_isas()) {
    CompiledProgram program(problem_of_programs(text), isa, {});
    const std::vector<float> got = program.run(inputs, {{0, 0, 0}}, static_cast<int64_t>(inputs.size()));
    double worst = 0;
    float worst_input = 0;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const double want = c.reference(inputs[i]);
      const float nearest = static_cast<float>(want);
      if (std::isnan(want) || std::isinf(nearest) || nearest == 0) {
        // A zero that the smallest subnormal number stands for is off by one unit.
        const bool same = std::isnan(want)      ? std::isnan(got[i])
                          : std::isinf(nearest) ? got[i] == nearest
                                                : std::abs(got[i]) < 2.9e-45f;
        ASSERT_TRUE(same) << c.op << "(" << inputs[i] << ") = " << got[i] << ", expected " << want;
        continue;
      }
      const double ulp = std::max(std::ldexp(1.0, std::ilogb(nearest) - 23), std::ldexp(1.0, -149));
      const double error = std::abs(got[i] - want) / ulp;
      if (!(error <= worst)) {
        worst = error;
        worst_input = inputs[i];
      }
    }
    EXPECT_LE(worst, c.ulps) << c.op << " at " << worst_input << " on " << to_string(isa);
    RecordProperty(std::string(to_string(isa)), std::to_string(worst));
  }
}

INSTANTIATE_TEST_SUITE_P(Functions, JitMath, ::testing::ValuesIn(kCases),
                         [](const auto& test) { return std::string(test.param.op); });

}  // namespace
}  // namespace flashlift::cpu
