// Programs of thousands of operations, from unrolled loops or from malicious input.
#include <gtest/gtest.h>
#include <pthread.h>

#include "compiled_program.h"
#include "cpu/score_function.h"

namespace flashlift::cpu {
namespace {

// Starts with tanh of the score, and applies an operation to the last result until there are `count` operations.
// `operands` are the operation's other operands.
std::string chain(const std::string& operation, const std::string& operands, int count) {
  std::string text = "score_mod() { %0 = tanh score";
  for (int i = 1; i < count; ++i) {
    text += "; %" + std::to_string(i) + " = " + operation + " %" + std::to_string(i - 1) + operands;
  }
  return text + "; return %" + std::to_string(count - 1) + " }";
}

// LLVM does not optimise the long program.
TEST(JitLongPrograms, GiveTheBitsOfShortOnes) {
  constexpr int kCount = 600;
  std::vector<float> inputs;
  for (int i = 0; i < 64; ++i) {
    inputs.push_back(0.37f * static_cast<float>(i - 30));
  }
  const auto columns = static_cast<int64_t>(inputs.size());
  const Isa isa = available_isas().back();
  std::vector<float> expected = inputs;
  CompiledProgram once(problem_of_programs(chain("tanh", "", 1)), isa, {});
  for (int i = 0; i < kCount; ++i) {
    expected = once.run(expected, {{0, 0, 0}}, columns);
  }
  CompiledProgram program(problem_of_programs(chain("tanh", "", kCount)), isa, {});
  EXPECT_EQ(program.run(inputs, {{0, 0, 0}}, columns), expected);
}

// LLVM's recursion along the chain is deeper than the caller's stack allows.
TEST(JitLongPrograms, CompileOnSmallStacks) {
  const Problem problem = problem_of_programs(chain("max", ", score", 800));
  const auto compile = [](void* of) -> void* {
    const bool ok = compile_gradient(*static_cast<const Problem*>(of), available_isas().back(), {}).ok();
    return ok ? of : nullptr;
  };
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, size_t{128} << 10);
  pthread_t thread{};
  ASSERT_EQ(pthread_create(&thread, &attributes, compile, const_cast<Problem*>(&problem)), 0);
  pthread_attr_destroy(&attributes);
  void* result = nullptr;
  pthread_join(thread, &result);
  EXPECT_NE(result, nullptr);
}

}  // namespace
}  // namespace flashlift::cpu
