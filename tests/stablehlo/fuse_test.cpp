#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "flashlift/stablehlo.h"
#include "stablehlo/read.h"
#include "stablehlo/reader/ops.h"

namespace flashlift::stablehlo {
namespace {

// softmax(q kᵀ) v of [8,16] as a function's body, whose result is %o; %p holds the probabilities.
constexpr const char* kAttention = R"(
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %s = stablehlo.dot_general %q, %k, contracting_dims = [1] x [1] : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x8xf32>
    %m = stablehlo.reduce(%s init: %low) applies stablehlo.maximum across dimensions = [1] : (tensor<8x8xf32>, tensor<f32>) -> tensor<8xf32>
    %n = stablehlo.broadcast_in_dim %m, dims = [0] : (tensor<8xf32>) -> tensor<8x8xf32>
    %d = stablehlo.subtract %s, %n : tensor<8x8xf32>
    %e = stablehlo.exponential %d : tensor<8x8xf32>
    %l = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<8x8xf32>, tensor<f32>) -> tensor<8xf32>
    %w = stablehlo.broadcast_in_dim %l, dims = [0] : (tensor<8xf32>) -> tensor<8x8xf32>
    %p = stablehlo.divide %e, %w : tensor<8x8xf32>
    %o = stablehlo.dot_general %p, %v, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x16xf32>) -> tensor<8x16xf32>)";
constexpr const char* kArguments = "%q: tensor<8x16xf32>, %k: tensor<8x16xf32>, %v: tensor<8x16xf32>";

std::string function(const std::string& name, const std::string& body, const std::string& results,
                     const std::string& returned) {
  return "func.func " + name + "(" + kArguments + ") -> (" + results + ") {" + body + "\n    return " + returned +
         "\n}\n";
}

std::string attention_as(const std::string& name) {
  return function(name, kAttention, "tensor<8x16xf32>", "%o : tensor<8x16xf32>");
}

FuseResult fused(const std::string& text, FuseAs as = FuseAs::kCustomCall) {
  Result<FuseResult> result = fuse(text, {.as = as, .name = "test.mlir"});
  if (!result.ok()) {
    ADD_FAILURE() << result.error().message;
    return {};
  }
  return *std::move(result);
}

TEST(Fuse, AttentionBecomesOneCall) {
  const FuseResult result = fused(attention_as("public @main"));
  ASSERT_EQ(result.fused_count(), 1u);
  EXPECT_TRUE(result.changed);
  const Candidate& candidate = result.candidates.front();
  EXPECT_EQ(candidate.function, "main");
  EXPECT_TRUE(candidate.location.starts_with("test.mlir:12:")) << candidate.location;
  EXPECT_TRUE(candidate.problem.starts_with("attn ")) << candidate.problem;
  EXPECT_TRUE(candidate.score_mod.empty());
  const Module module = read(result.module);
  EXPECT_EQ(count(module, "stablehlo.custom_call"), 1);
  EXPECT_EQ(count(module, "stablehlo.dot_general"), 0);
}

TEST(Fuse, GivesTheSameOfBytesThatItMayFree) {
  const std::string nothing = function("public @main", "", "tensor<8x16xf32>", "%q : tensor<8x16xf32>");
  for (const char* emit : {"", "bytecode"}) {
    for (const std::string& text : {attention_as("public @main"), nothing}) {
      const Result<FuseResult> kept = fuse(text, {.emit = emit});
      const Result<FuseResult> freed = fuse_and_free(text, {.emit = emit});
      ASSERT_TRUE(kept.ok() && freed.ok());
      EXPECT_EQ(kept->module, freed->module);
      EXPECT_EQ(kept->fused_count(), freed->fused_count());
    }
  }
}

TEST(Fuse, CompositeKeepsTheOriginal) {
  const Module module = read(fused(attention_as("public @main"), FuseAs::kComposite).module);
  EXPECT_EQ(composite(find(module, "stablehlo.composite"))->name, "flashlift.attention");
  EXPECT_EQ(count(module, "stablehlo.dot_general"), 2);
}

TEST(Fuse, NothingFusedIsByteForByte) {
  const std::string text = "// a comment\n\n" +
                           function("public @main", kAttention, "tensor<8x16xf32>, tensor<8x8xf32>",
                                    "%o, %p : tensor<8x16xf32>, tensor<8x8xf32>") +
                           "   \n";
  const FuseResult result = fused(text);
  EXPECT_FALSE(result.changed);
  EXPECT_EQ(result.module, text);
  ASSERT_EQ(result.candidates.size(), 1u);
  EXPECT_FALSE(result.candidates[0].fused);
  EXPECT_FALSE(result.candidates[0].reason.empty());
  EXPECT_TRUE(result.candidates[0].problem.empty());
}

TEST(Fuse, TakesTheZeroThatEndsCStrings) {
  std::string text = function("@main", kAttention, "tensor<8x16xf32>", "%o : tensor<8x16xf32>");
  const std::string of_text = fused(text).module;
  text.push_back('\0');
  EXPECT_EQ(fused(text).module, of_text);
  text.push_back('\0');
  const Result<FuseResult> two = fuse(text, {.name = "two.mlir"});
  ASSERT_FALSE(two.ok());
  EXPECT_NE(two.error().message.find("is zero, so this is not text"), std::string::npos) << two.error().message;
}

TEST(Fuse, LooksIntoCallsAndLoops) {
  const std::string text = R"(
func.func public @main(%q: tensor<8x16xf32>, %k: tensor<8x16xf32>, %v: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %0 = stablehlo.constant dense<0> : tensor<i32>
  %1 = stablehlo.constant dense<1> : tensor<i32>
  %3 = stablehlo.constant dense<3> : tensor<i32>
  %r:2 = stablehlo.while(%i = %0, %x = %q) : tensor<i32>, tensor<8x16xf32> cond {
    %c = stablehlo.compare LT, %i, %3, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  } do {
    %y = func.call @layer(%x, %k, %v) : (tensor<8x16xf32>, tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x16xf32>
    %j = stablehlo.add %i, %1 : tensor<i32>
    stablehlo.return %j, %y : tensor<i32>, tensor<8x16xf32>
  }
  return %r#1 : tensor<8x16xf32>
}
)" + attention_as("private @layer");
  const FuseResult result = fused(text);
  EXPECT_EQ(result.fused_count(), 1u);
  const Module module = read(result.module);
  EXPECT_EQ(find(module, "stablehlo.custom_call")->getParentOp(), find(module, "stablehlo.while"));
  EXPECT_EQ(count(module, "func.func"), 1);
}

TEST(Fuse, LeavesOutFunctionsThatNobodyCallsFirst) {
  const auto recursive = [](const char* name, const char* callee) {
    return function(name,
                    fmt::format("\n    %o = call @{}(%q, %k, %v) : (tensor<8x16xf32>, tensor<8x16xf32>, "
                                "tensor<8x16xf32>) -> tensor<8x16xf32>",
                                callee),
                    "tensor<8x16xf32>", "%o : tensor<8x16xf32>");
  };
  const std::string pair = recursive("private @one", "other") + recursive("private @other", "one");
  EXPECT_EQ(fused(attention_as("public @main") + recursive("private @again", "again") + pair).fused_count(), 1u);
  const Result<FuseResult> called = fuse(recursive("public @main", "one") + pair, {.name = "test.mlir"});
  ASSERT_FALSE(called.ok());
  EXPECT_NE(called.error().message.find("calls itself"), std::string::npos) << called.error().message;
}

TEST(Fuse, OpensOnlyTheCompositesItNeeds) {
  const std::string text = R"(
func.func public @main(%q: tensor<8x16xf32>, %k: tensor<8x16xf32>, %v: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %0 = stablehlo.composite "my.relu" %q {decomposition = @relu} : (tensor<8x16xf32>) -> tensor<8x16xf32>
  %1 = stablehlo.composite "my.outer" %0, %k, %v {decomposition = @outer} : (tensor<8x16xf32>, tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x16xf32>
  %2 = stablehlo.composite "my.relu" %1 {decomposition = @relu} : (tensor<8x16xf32>) -> tensor<8x16xf32>
  return %2 : tensor<8x16xf32>
}
func.func private @relu(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %z = stablehlo.constant dense<0.0> : tensor<8x16xf32>
  %0 = stablehlo.maximum %x, %z : tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}
func.func private @outer(%q: tensor<8x16xf32>, %k: tensor<8x16xf32>, %v: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %0 = stablehlo.composite "my.relu" %q {decomposition = @relu} : (tensor<8x16xf32>) -> tensor<8x16xf32>
  %1 = stablehlo.composite "my.attention" %0, %k, %v {decomposition = @inner} : (tensor<8x16xf32>, tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x16xf32>
  return %1 : tensor<8x16xf32>
}
)" + attention_as("private @inner");
  const FuseResult result = fused(text);
  EXPECT_EQ(result.fused_count(), 1u);
  const Module module = read(result.module);
  EXPECT_EQ(count(module, "stablehlo.custom_call"), 1);
  EXPECT_EQ(count(module, "stablehlo.composite"), 3);  // all of them my.relu
  EXPECT_EQ(count(module, "func.func"), 2);
  EXPECT_EQ(result.module.find("flashlift.composite"), std::string::npos);
  EXPECT_EQ(result.module.find("flashlift.origins"), std::string::npos);
}

// A barrier whose operand is a barrier: the first one's reader is erased when the second is opened.
std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(Fuse, ReadsSizesThatOperandsGiveFromStaticTypes) {
  const std::string broadcast = "%n = stablehlo.broadcast_in_dim %m, dims = [0] : (tensor<8xf32>) -> tensor<8x8xf32>";
  const std::string sizes = "%sizes = stablehlo.constant dense<8> : tensor<2xi64>\n";
  const auto attention_with = [&](const std::string& spelling) {
    return function("public @main", replaced(kAttention, broadcast, sizes + spelling), "tensor<8x16xf32>",
                    "%o : tensor<8x16xf32>");
  };
  const std::string dynamic =
      "%n = stablehlo.dynamic_broadcast_in_dim %m, %sizes, dims = [0] : (tensor<8xf32>, "
      "tensor<2xi64>) -> tensor<8x8xf32>";
  const std::string repeated =
      "%r = stablehlo.broadcast %m, sizes = [8] : (tensor<8xf32>) -> tensor<8x8xf32>\n"
      "%n = stablehlo.transpose %r, dims = [1, 0] : (tensor<8x8xf32>) -> tensor<8x8xf32>";
  const std::string reshaped =
      "%f = stablehlo.dynamic_reshape %m, %one : (tensor<8xf32>, tensor<2xi64>) -> "
      "tensor<8x1xf32>\n%n = stablehlo.broadcast_in_dim %f, dims = [0, 1] : "
      "(tensor<8x1xf32>) -> tensor<8x8xf32>";
  const std::string counted =
      "%i = stablehlo.dynamic_iota %sizes, dim = 1 : (tensor<2xi64>) -> tensor<8x8xf32>\n"
      "%b = stablehlo.broadcast_in_dim %m, dims = [0] : (tensor<8xf32>) -> tensor<8x8xf32>\n"
      "%n = stablehlo.subtract %b, %i : tensor<8x8xf32>";
  const std::string one = "%one = stablehlo.constant dense<[8, 1]> : tensor<2xi64>\n";
  for (const std::string& spelling : {dynamic, repeated, one + reshaped}) {
    const FuseResult result = fused(attention_with(spelling));
    EXPECT_EQ(result.fused_count(), 1U) << spelling;
    EXPECT_EQ(count(read(result.module), "stablehlo.constant"), 0);
  }
  const FuseResult positions = fused(attention_with(counted));
  ASSERT_EQ(positions.candidates.size(), 1U);
  EXPECT_TRUE(positions.candidates[0].fused) << positions.candidates[0].reason;
  EXPECT_FALSE(positions.candidates[0].score_mod.empty());
  // The rows' maxima become columns, and sizes that only the operands give.
  const std::string columns =
      "%n = stablehlo.dynamic_broadcast_in_dim %m, %sizes, dims = [1] : (tensor<8xf32>, "
      "tensor<2xi64>) -> tensor<8x8xf32>";
  EXPECT_EQ(fused(attention_with(columns)).fused_count(), 0U);
}

TEST(Fuse, PutsBarriersInARowBack) {
  const std::string body = std::string(kAttention) + R"(
    %s2 = stablehlo.dot_general %q, %v, contracting_dims = [1] x [1] : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x8xf32>
    %e2 = stablehlo.exponential %s2 : tensor<8x8xf32>
    %l2 = stablehlo.reduce(%e2 init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<8x8xf32>, tensor<f32>) -> tensor<8xf32>
    %x = stablehlo.optimization_barrier %e2 : tensor<8x8xf32>
    %y:2 = stablehlo.optimization_barrier %x, %q : tensor<8x8xf32>, tensor<8x16xf32>
    %z = stablehlo.optimization_barrier %y#0 : tensor<8x8xf32>
    %a:2 = stablehlo.optimization_barrier %y#1, %o : tensor<8x16xf32>, tensor<8x16xf32>
    %sum = stablehlo.add %z, %y#0 : tensor<8x8xf32>)";
  const std::string text =
      function("public @main", body, "tensor<8x16xf32>, tensor<8x8xf32>, tensor<8x16xf32>, tensor<8xf32>",
               "%a#1, %sum, %a#0, %l2 : tensor<8x16xf32>, tensor<8x8xf32>, tensor<8x16xf32>, tensor<8xf32>");
  Result<FuseResult> result = fuse(text, {.name = "test.mlir"});
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_EQ(result->fused_count(), 1u);
  const Module module = read(result->module);
  EXPECT_EQ(count(module, "stablehlo.optimization_barrier"), 3);
}

TEST(Fuse, ErrorsHaveTheModulesName) {
  const Result<FuseResult> result = fuse("func.func @main( {", {.name = "bad.mlir"});
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().kind, ErrorKind::kInvalidArgument);
  EXPECT_TRUE(result.error().message.starts_with("bad.mlir:1:")) << result.error().message;
}

TEST(Fuse, ReportIsJson) {
  FuseResult result = fused(attention_as("public @main"));
  result.candidates.push_back({.location = "\xff", .function = "f", .fused = false, .reason = "because \"so\""});
  const nlohmann::json report = nlohmann::json::parse(report_json(result));
  ASSERT_EQ(report.size(), 2u);
  EXPECT_EQ(report[0]["fused"], true);
  EXPECT_EQ(report[0]["problem"], result.candidates[0].problem);
  EXPECT_EQ(report[1]["reason"], "because \"so\"");
  EXPECT_FALSE(report[1].contains("problem"));
}

}  // namespace
}  // namespace flashlift::stablehlo
