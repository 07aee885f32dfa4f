#include <gtest/gtest.h>

#include "flashlift/program.h"

namespace flashlift {
namespace {

constexpr const char* kAlibi = R"(score_mod(slopes: f32[8], table: bf16[?,4]) {
  %0 = load slopes[h]
  %1 = sub kv, q
  %2 = to_f32 %1
  %3 = mul %0, %2
  %4 = add score, %3
  %5 = load table[%1, 3:i64]
  %6 = select true, %4, %5
  %7 = max %6, -inf
  %8 = mul %7, 0.1
  return %8
})";

TEST(ProgramText, RoundTrips) {
  const auto program = parse_program(kAlibi);
  ASSERT_TRUE(program.ok()) << program.error().message;
  EXPECT_EQ(print(*program), kAlibi);
  const auto one_line = parse_program(print_one_line(*program));
  ASSERT_TRUE(one_line.ok()) << one_line.error().message;
  EXPECT_EQ(print(*one_line), kAlibi);
}

TEST(ProgramText, IsPrintedForProgramsThatAreInvalid) {
  const Program program{.nodes = {{.op = Op::k_neg, .type = Type::kF32, .operands = {0}},
                                  {.op = static_cast<Op>(250), .type = Type::kF32, .operands = {}},
                                  {.op = Op::k_load, .type = Type::kF32, .operands = {1, 9}, .payload = -1}},
                        .result = 7};
  EXPECT_EQ(print_one_line(program), "score_mod() { %0 = neg ?; %1 = load ?[?, ?]; return ? }");
}

TEST(ProgramText, TakesSemicolonsWhereNewlinesMayBe) {
  const auto program = parse_program("score_mod() {; %0 = neg score;; return %0;; }");
  ASSERT_TRUE(program.ok()) << program.error().message;
  EXPECT_EQ(print_one_line(*program), "score_mod() { %0 = neg score; return %0 }");
}

TEST(ProgramText, KeepsTheBitsOfConstants) {
  for (const char* constant : {"nan", "inf", "-inf", "0x7fc12345:f32", "1e-45", "-0.0", "3.4028235e+38", "0.1"}) {
    const std::string text = std::string("score_mod() {\n  return ") + constant + "\n}";
    const auto program = parse_program(text);
    ASSERT_TRUE(program.ok()) << constant << ": " << program.error().message;
    EXPECT_EQ(print(*program), text);
  }
}

TEST(ProgramText, TakesTheTypeOfAnyConstantAsASuffix) {
  const auto program = parse_program(
      "mask_mod() { %0 = lt kv, 3:i32; %1 = lt 2:f32, -inf:f32; %2 = or %0, %1; %3 = and %2, true:i1; "
      "%4 = eq nan:f32, 0.5:f32; %5 = or %3, %4; return %5 }");
  ASSERT_TRUE(program.ok()) << program.error().message;
  EXPECT_EQ(print_one_line(*program),
            "mask_mod() { %0 = lt kv, 3; %1 = lt 2.0, -inf; %2 = or %0, %1; %3 = and %2, true; %4 = eq nan, 0.5; "
            "%5 = or %3, %4; return %5 }");
}

struct BadText {
  const char* text;
  const char* message;
};

class ProgramTextErrors : public testing::TestWithParam<BadText> {};

TEST_P(ProgramTextErrors, NameThePlaceAndTheCause) {
  const auto program = parse_program(GetParam().text);
  ASSERT_FALSE(program.ok());
  EXPECT_EQ(program.error().kind, ErrorKind::kInvalidArgument);
  EXPECT_NE(program.error().message.find(GetParam().message), std::string::npos) << program.error().message;
}

INSTANTIATE_TEST_SUITE_P(
    All, ProgramTextErrors,
    testing::Values(
        BadText{"", "expected `score_mod` or `mask_mod`, got the end of the text"},
        BadText{"score_mod() { return %9 }", "line 1, column 22: expected a value defined before, got `%9`"},
        BadText{"score_mod() { %0 = frobnicate score\n return %0 }", "expected an operation"},
        BadText{"score_mod() { %0 = add score return %0 }", "expected `,`"},
        BadText{"score_mod() { %0 = add score, q return %0 }", "operands of one type"},
        BadText{"score_mod() { return 0.5:i32 }", "expected `f32`, the type of `0.5`"},
        BadText{"score_mod() { return 3:i1 }", "expected i32, i64 or f32"},
        BadText{"score_mod() { return 3000000000:i32 }", "does not fit i32"},
        BadText{"mask_mod() { %0 = lt score, 0.0 return %0 }", "cannot read `score`"},
        BadText{"mask_mod() { return q }", "a mask_mod returns i1, this one returns i32"},
        BadText{"score_mod(t: f32[4]) { %0 = load t[q, kv] return %0 }", "has 1 dimension, but is read with 2 indices"},
        BadText{"score_mod(t: f32[4]) { %0 = load t[score] return %0 }", "i32 or i64 indices"},
        BadText{"score_mod(t: f32[4]) { %0 = search t[q] return score }", "expected integers of one"},
        BadText{"score_mod(t: i32[4,4]) { %0 = search t[q] return score }", "has 2 dimensions"},
        BadText{"score_mod(t: i32[2|batch]) { return score }", "expected `,`"},
        BadText{"score_mod(t: i32[1|?]) { return score }", "`batch`, `heads`"},
        BadText{"score_mod(t: i32[length]) { return score }", "expected a size"},
        BadText{"score_mod(t: f31[4]) { return score }", "expected a dtype"},
        BadText{"score_mod(t: f32[4], t: f32[4]) { return score }", "two captured tensors"},
        BadText{"score_mod() { %0 = neg score %0 = neg score return %0 }", "defined twice"},
        BadText{"score_mod() { %0 = add q, 3000000000 return score }", "does not fit i32"},
        BadText{"score_mod() { return score } x", "the end of the program"},
        BadText{"score_mod() { return 1e999 }", "a constant in range"}));

TEST(ProgramText, LimitsItsSize) {
  const auto parse_steps = [](size_t count) {
    std::string text = "score_mod() {";
    for (size_t i = 0; i < count; ++i) {
      text += " %" + std::to_string(i) + " = neg " + (i == 0 ? "score" : "%" + std::to_string(i - 1)) + ";";
    }
    return parse_program(text + " return score }");
  };
  EXPECT_TRUE(parse_steps(kMaxProgramNodes - 1).ok());  // `score` is a node, too
  const auto program = parse_steps(kMaxProgramNodes);
  ASSERT_FALSE(program.ok());
  EXPECT_NE(program.error().message.find("a program has at most 4096 nodes, and this one has more"), std::string::npos);
}

}  // namespace
}  // namespace flashlift
