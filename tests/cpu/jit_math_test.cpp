// The elementary functions at a dense sample of all floats, compared with double precision.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <span>
#include <vector>

#include "compiled_program.h"
#include "score/operation.h"
#include "score/scalar.h"

namespace flashlift::cpu {
namespace {

// The functions of one f32 that do not round correctly.
std::vector<Op> functions() {
  std::vector<Op> list;
#define FLASHLIFT_FUNCTION(name, ...) list.push_back(Op::k_##name);
#define FLASHLIFT_OP(...)
#include "flashlift/ops.def"
  std::erase_if(list, [](Op op) { return score::operation(op).ulps == 0; });
  return list;
}

double reference(Op op, double x) {
  const score::Scalar<double> operand{.i = 0, .f = x};
  return score::apply<double>(op, Type::kF32, Type::kF32, std::span(&operand, 1)).f;
}

class JitMath : public ::testing::TestWithParam<Op> {};

TEST_P(JitMath, StaysWithinItsBound) {
  const Op op = GetParam();
  const char* const name = info(op).name;
  // The step through the bit patterns is a prime number, so that every binade of both signs is sampled thousands of
  // times.
  std::vector<float> inputs;
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 4999) {
    inputs.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  }
  // Also the range where results are neither 0, 1 nor infinite.
  for (int i = -400000; i <= 400000; ++i) {
    inputs.push_back(static_cast<float>(i) * 2.7e-4f);
  }
  const std::string text = "score_mod() { %0 = " + std::string(name) + " score; return %0 }";
  for (const Isa isa : available_isas()) {
    CompiledProgram program(problem_of_programs(text), isa, {});
    const std::vector<float> got = program.run(inputs, {{0, 0, 0}}, static_cast<int64_t>(inputs.size()));
    double worst = 0;
    float worst_input = 0;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const double want = reference(op, inputs[i]);
      const float nearest = static_cast<float>(want);
      if (std::isnan(want) || std::isinf(nearest) || nearest == 0) {
        // A zero in place of the smallest subnormal number is off by one unit.
        const bool same = std::isnan(want)      ? std::isnan(got[i])
                          : std::isinf(nearest) ? got[i] == nearest
                                                : std::abs(got[i]) < 2.9e-45f;
        ASSERT_TRUE(same) << name << "(" << inputs[i] << ") = " << got[i] << ", expected " << want;
        continue;
      }
      const double ulp = std::max(std::ldexp(1.0, std::ilogb(nearest) - 23), std::ldexp(1.0, -149));
      const double error = std::abs(got[i] - want) / ulp;
      if (!(error <= worst)) {
        worst = error;
        worst_input = inputs[i];
      }
    }
    EXPECT_LE(worst, score::operation(op).ulps) << name << " at " << worst_input << " on " << to_string(isa);
    RecordProperty(std::string(to_string(isa)), std::to_string(worst));
  }
}

INSTANTIATE_TEST_SUITE_P(Functions, JitMath, ::testing::ValuesIn(functions()),
                         [](const auto& test) { return std::string(flashlift::info(test.param).name); });

}  // namespace
}  // namespace flashlift::cpu
