// The memory that compiled programs keep.
#include <gtest/gtest.h>
#include <malloc.h>

#include <memory>
#include <string>
#include <vector>

#include "compiled_program.h"
#include "cpu/score_function.h"

namespace flashlift::cpu {
namespace {

// A process that tries thousands of masks keeps hundreds of programs. A code generator takes more than all else.
TEST(JitMemory, AProgramKeepsNoCodeGenerator) {
  constexpr size_t kCount = 8;
  constexpr size_t kMost = size_t{256} << 10;  // bytes each
  const Isa isa = available_isas().back();
  std::vector<std::shared_ptr<const CompiledScore>> kept;
  const auto compile = [&](const std::string& factor) {
    const auto compiled = compile_score(
        problem_of_programs("score_mod() { %0 = mul score, " + factor + "; %1 = tanh %0; return %1 }"), isa);
    ASSERT_TRUE(compiled.ok()) << compiled.error().message;
    kept.push_back(*compiled);
  };
  compile("0.5");  // also what LLVM keeps once for all programs
  const size_t before = mallinfo2().uordblks;
  for (size_t i = 0; i < kCount; ++i) {
    compile(std::to_string(i) + ".25");
  }
  EXPECT_LT(mallinfo2().uordblks, before + kCount * kMost);
}

}  // namespace
}  // namespace flashlift::cpu
