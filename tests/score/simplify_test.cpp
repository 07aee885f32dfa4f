#include "score/simplify.h"

#include <gtest/gtest.h>

#include "score/canonical.h"
#include "score/random_program.h"

namespace flashlift::score {
namespace {

std::string simplified(const std::string& body, const std::string& kind = "mask_mod()") {
  const auto program = parse_program(kind + " {" + body + "}");
  EXPECT_TRUE(program.ok()) << program.error().message;
  return print_one_line(simplify(*program));
}

std::string canonical(const Program& program) { return print_one_line(canonicalize(SimplifiedProgram(program))); }

TEST(Simplify, FoldsConstantsAndDropsDeadNodes) {
  EXPECT_EQ(simplified("%0 = add 2, 3; %1 = mul %0, 4; %2 = lt kv, %1; %3 = neg q; return %2"),
            "mask_mod() { %0 = lt kv, 20; return %0 }");
}

TEST(Simplify, SpellsMasksInOneWay) {
  const std::string causal = "mask_mod() { %0 = le kv, q; return %0 }";
  EXPECT_EQ(simplified("%0 = ge q, kv; return %0"), causal);
  EXPECT_EQ(simplified("%0 = add q, 0; %1 = ge %0, kv; %2 = select %1, true, false; return %2"), causal);
  EXPECT_EQ(simplified("%0 = gt kv, q; %1 = not %0; return %1"), causal);
  EXPECT_EQ(simplified("%0 = ge q, kv; %1 = to_i32 %0; %2 = ne %1, 0; return %2"), causal);
  EXPECT_EQ(simplified("%0 = ge q, kv; %1 = and %0, true; %2 = or %1, %1; return %2"), causal);
}

TEST(Simplify, KeepsWhatDependsOnNanAndSignedZero) {
  EXPECT_EQ(simplified("%0 = add score, 0.0; return %0", "score_mod()"),
            "score_mod() { %0 = add score, 0.0; return %0 }");
  EXPECT_EQ(simplified("%0 = mul score, 0.0; return %0", "score_mod()"),
            "score_mod() { %0 = mul score, 0.0; return %0 }");
  EXPECT_EQ(simplified("%0 = sub score, 0.0; %1 = mul %0, 1.0; %2 = max %1, -inf; return %2", "score_mod()"),
            "score_mod() { return score }");
}

TEST(Simplify, DropsCapturedTensorsThatAreNotRead) {
  EXPECT_EQ(simplified("%0 = load t[q]; %1 = load u[q]; %2 = and %0, false; %3 = or %2, %1; return %3",
                       "mask_mod(t: bool[4], u: bool[4])"),
            "mask_mod(u: bool[4]) { %0 = load u[q]; return %0 }");
}

TEST(Canonical, ForgetsNamesAndOrder) {
  const auto one = parse_program("score_mod(x: f32[4], y: f32[4]) { %a = load y[q]; %b = add score, %a; return %b }");
  const auto two = parse_program("score_mod(bias: f32[4]) { %1 = load bias[q]; %2 = add %1, score; return %2 }");
  ASSERT_TRUE(one.ok() && two.ok());
  EXPECT_EQ(canonical(*one), canonical(*two));
  const auto other = parse_program("score_mod(bias: f32[4]) { %1 = load bias[kv]; %2 = add %1, score; return %2 }");
  EXPECT_NE(canonical(*one), canonical(*other));
}

// The walk reaches q before kv here, so that the sum's operands change places when they are renumbered.
TEST(Canonical, OrdersOperandsByTheirNewNumbers) {
  const auto program = parse_program("mask_mod() { %0 = add kv, q; %1 = sub q, %0; %2 = lt %1, kv; return %2 }");
  ASSERT_TRUE(program.ok());
  const Program form = canonicalize(SimplifiedProgram(*program));
  EXPECT_EQ(canonical(form), print_one_line(form));
}

TEST(Canonical, IsItsOwnCanonicalForm) {
  std::mt19937 random(7);
  const std::vector<Capture> captures = {{"x", DType::kF32, {kAnySize}},
                                         {"y", DType::kF32, {kAnySize}},
                                         {"ids", DType::kI32, {kAnySize}},
                                         {"flags", DType::kBool, {kAnySize, kAnySize}}};
  for (int trial = 0; trial < 6000; ++trial) {
    const auto kind = trial % 2 == 0 ? ProgramKind::kMaskMod : ProgramKind::kScoreMod;
    const Program program = random_program(random, {.kind = kind, .nodes = 5 + trial % 40, .captures = captures});
    const Program simple = simplify(program);
    ASSERT_EQ(print_one_line(simplify(simple)), print_one_line(simple)) << print(program);
    const Program form = canonicalize(SimplifiedProgram(program));
    ASSERT_EQ(canonical(form), print_one_line(form)) << print(program);
  }
}

}  // namespace
}  // namespace flashlift::score
