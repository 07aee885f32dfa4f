#include "score/interpret.h"

#include <gtest/gtest.h>

#include <cmath>

namespace flashlift::score {
namespace {

double run(const std::string& text, double score = 0, Coordinates at = {}, std::vector<TensorView> captures = {}) {
  const auto program = parse_program(text);
  EXPECT_TRUE(program.ok()) << program.error().message;
  return Interpreter(*program, captures).score_mod(score, at);
}

double run_integer(const std::string& expression) {
  return run("score_mod() { %0 = " + expression + "; %1 = to_f32 %0; return %1 }", 0, {.q = 7, .kv = -7});
}

TEST(Interpret, IntegerArithmeticIsTotal) {
  EXPECT_EQ(run_integer("div q, 0"), -1);
  EXPECT_EQ(run_integer("rem q, 0"), 7);
  EXPECT_EQ(run_integer("div -2147483648, -1"), -2147483648.0);
  EXPECT_EQ(run_integer("rem -2147483648, -1"), 0);
  EXPECT_EQ(run_integer("add 2147483647, 1"), -2147483648.0);
  EXPECT_EQ(run_integer("div kv, 2"), -3);
  EXPECT_EQ(run_integer("floor_div kv, 2"), -4);
  EXPECT_EQ(run_integer("rem kv, 4"), -3);
  EXPECT_EQ(run_integer("mod kv, 4"), 1);
  EXPECT_EQ(run_integer("shl q, 32"), 0);
  EXPECT_EQ(run_integer("shr kv, 40"), -1);
  EXPECT_EQ(run_integer("ushr kv, 28"), 15);
}

TEST(Interpret, ConversionsSaturate) {
  const auto to_i32 = [](double score) {
    return run("score_mod() { %0 = to_i32 score; %1 = to_f32 %0; return %1 }", score);
  };
  EXPECT_EQ(to_i32(3.99), 3);
  EXPECT_EQ(to_i32(-3.99), -3);
  EXPECT_EQ(to_i32(1e30), 2147483647.0);
  EXPECT_EQ(to_i32(-1e30), -2147483648.0);
  EXPECT_EQ(to_i32(std::nan("")), 0);
}

TEST(Interpret, MinimumAndMaximumKeepNan) {
  EXPECT_TRUE(std::isnan(run("score_mod() { %0 = max score, 1.0; return %0 }", std::nan(""))));
  EXPECT_TRUE(std::isnan(run("score_mod() { %0 = min 1.0, score; return %0 }", std::nan(""))));
}

TEST(Interpret, ClampsTheIndicesOfLoads) {
  std::vector<float> table = {10, 20, 30};
  const std::vector<int64_t> shape = {3};
  const std::vector<TensorView> captures = {dense_view(table.data(), DType::kF32, shape)};
  const char* text = "score_mod(t: f32[?]) { %0 = load t[q]; return %0 }";
  EXPECT_EQ(run(text, 0, {.q = -5}, captures), 10);
  EXPECT_EQ(run(text, 0, {.q = 1}, captures), 20);
  EXPECT_EQ(run(text, 0, {.q = 99}, captures), 30);
}

TEST(Interpret, LoadsEveryDtypeAndStride) {
  std::vector<uint16_t> bf16 = {0x3f80, 0x4000, 0x4040, 0x4080};  // 1 2 3 4
  TensorView view = transposed(dense_view(bf16.data(), DType::kBF16, std::vector<int64_t>{2, 2}), 0, 1);
  const std::vector<TensorView> captures = {view};
  EXPECT_EQ(run("score_mod(t: bf16[2,2]) { %0 = load t[q, kv]; return %0 }", 0, {.q = 1, .kv = 0}, captures), 2);
}

}  // namespace
}  // namespace flashlift::score
