#include "runtime/program_key.h"

#include <gtest/gtest.h>

namespace flashlift::runtime {
namespace {

std::string key_of(const char* programs) {
  const Result<Problem> problem = parse_problem(std::string("attn h1 s8 d8 ") + programs);
  EXPECT_TRUE(problem.ok()) << problem.error().message;
  return program_key(SimplifiedProblem(*problem), cpu::Isa::kAvx2);
}

TEST(ProgramKey, KnowsNoNamesAndNoSpelling) {
  const std::string key = key_of(
      "score_mod(bias: f32[8]) { %0 = load bias[kv]; %1 = add score, %0; return %1 } mask_mod(ids: i32[8]) { "
      "%0 = load ids[q]; %1 = load ids[kv]; %2 = eq %0, %1; return %2 }");
  EXPECT_EQ(key, key_of("score_mod(table: f32[8]) { %0 = load table[kv]; %1 = add %0, score; return %1 } mask_mod(x: "
                        "i32[8]) { %9 = load x[q]; %3 = load x[kv]; %4 = add %3, 1; %5 = eq %9, %3; return %5 }"));
}

TEST(ProgramKey, TellsDifferentCodeApart) {
  const std::string key = key_of(
      "score_mod(a: f32[8], b: f32[8]) { %0 = load a[kv]; %1 = load b[q]; %2 = sub %0, %1; "
      "%3 = add score, %2; return %3 }");
  // The same program with its two tensors exchanged.
  EXPECT_NE(key, key_of("score_mod(b: f32[8], a: f32[8]) { %0 = load a[kv]; %1 = load b[q]; %2 = sub %0, %1; "
                        "%3 = add score, %2; return %3 }"));
  EXPECT_NE(key, key_of("score_mod(a: f32[8], b: f32[?]) { %0 = load a[kv]; %1 = load b[q]; %2 = sub %0, %1; "
                        "%3 = add score, %2; return %3 }"));
  EXPECT_NE(key, key_of("causal"));
  EXPECT_NE(key_of("causal"),
            program_key(SimplifiedProblem(*parse_problem("attn h1 s8 d8 causal")), cpu::Isa::kAvx512));
}

}  // namespace
}  // namespace flashlift::runtime
