#include "stablehlo/rewrite/rewrite.h"

#include <gtest/gtest.h>

#include "stablehlo/read.h"
#include "stablehlo/reader/normalize.h"
#include "stablehlo/reader/ops.h"

namespace flashlift::stablehlo {
namespace {

// Attention on q [B,S,H,D] with a bias, and its row log-sum-exp, in a few lines. Nothing here lifts it.
constexpr const char* kText = R"(
func.func public @main(%q: tensor<2x8x4x16xf32>, %k: tensor<2x8x4x16xf32>, %v: tensor<2x8x4x16xf32>, %bias: tensor<8x8xf32>) -> (tensor<2x8x64xf32>, tensor<2x4x8xf32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %s = stablehlo.dot_general %q, %k, batching_dims = [0, 2] x [0, 2], contracting_dims = [3] x [3] : (tensor<2x8x4x16xf32>, tensor<2x8x4x16xf32>) -> tensor<2x4x8x8xf32>
  %b = stablehlo.broadcast_in_dim %bias, dims = [2, 3] : (tensor<8x8xf32>) -> tensor<2x4x8x8xf32>
  %t = stablehlo.add %s, %b : tensor<2x4x8x8xf32>
  %e = stablehlo.exponential %t : tensor<2x4x8x8xf32>
  %l = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [3] : (tensor<2x4x8x8xf32>, tensor<f32>) -> tensor<2x4x8xf32>
  %lse = stablehlo.log %l : tensor<2x4x8xf32>
  %early = stablehlo.negate %lse : tensor<2x4x8xf32>
  %w = stablehlo.broadcast_in_dim %l, dims = [0, 1, 2] : (tensor<2x4x8xf32>) -> tensor<2x4x8x8xf32>
  %p = stablehlo.divide %e, %w : tensor<2x4x8x8xf32>
  %o = stablehlo.dot_general %p, %v, batching_dims = [0, 1] x [0, 2], contracting_dims = [3] x [1] : (tensor<2x4x8x8xf32>, tensor<2x8x4x16xf32>) -> tensor<2x4x8x16xf32>
  %ot = stablehlo.transpose %o, dims = [0, 2, 1, 3] : (tensor<2x4x8x16xf32>) -> tensor<2x8x4x16xf32>
  %r = stablehlo.reshape %ot : (tensor<2x8x4x16xf32>) -> tensor<2x8x64xf32>
  return %r, %early : tensor<2x8x64xf32>, tensor<2x4x8xf32>
})";

LiftedAttention lifted(const Module& module) {
  mlir::Operation* function = find(module, "func.func");
  mlir::Block& body = function->getRegion(0).front();
  LiftedAttention found;
  module.op().walk([&](mlir::Operation* op) {
    if (kind(op) == OpKind::kDotGeneral) {
      (found.first_product ? found.second_product : found.first_product) = op;
    }
  });
  found.problem = *parse_problem(
      "attn b2 h4 s8 d16 f32 lse score_mod(bias: f32[8,8]) { %0 = load bias[q, kv]; "
      "%1 = add score, %0; return %1 }");
  found.q = {body.getArgument(0), {}, {}, "bshd"};
  // Adds a reshape and a transpose that cancel, to check how they are printed and read back.
  found.k = {body.getArgument(1), {2, 8, 1, 4, 16}, {0, 3, 1, 2, 4}, "bhs1d"};
  found.v = {body.getArgument(2), {}, {}, "bshd"};
  found.captures = {body.getArgument(3)};
  found.out = {find(module, "stablehlo.reshape")->getResult(0), {2, 4, 8, 16}, "bhsd", {0, 2, 1, 3}};
  found.lse = ResultView{find(module, "stablehlo.log")->getResult(0), {2, 4, 8}, "bhs", {}};
  return found;
}

TEST(Rewrite, CustomCallHasItsContract) {
  Module module = read(kText);
  const LiftedAttention found = lifted(module);
  ASSERT_TRUE(rewrite(found, FuseAs::kCustomCall).ok());
  remove_dead_code(module);
  EXPECT_EQ(count(module, "stablehlo.dot_general"), 0);
  const std::string text = module.print();
  const Module again = read(text);  // this also checks that everything is defined before it is used
  mlir::Operation* call = find(again, "stablehlo.custom_call");
  EXPECT_EQ(custom_call(call)->target, "flashlift.attention");
  EXPECT_EQ(custom_call(call)->api_version, 4);
  EXPECT_FALSE(custom_call(call)->has_side_effect);
  const auto config = mlir::dyn_cast<mlir::DictionaryAttr>(custom_call(call)->backend_config);
  ASSERT_TRUE(config);
  EXPECT_EQ(config.getAs<mlir::StringAttr>("k_dims").getValue(), "bhs1d");
  EXPECT_EQ(config.getAs<mlir::StringAttr>("lse_dims").getValue(), "bhs");
  EXPECT_TRUE(parse_problem(config.getAs<mlir::StringAttr>("problem").str()).ok());
  EXPECT_EQ(call->getNumOperands(), 4u);
  EXPECT_EQ(call->getNumResults(), 2u);
  EXPECT_NE(
      text.find("operand_layouts = [dense<[3, 2, 1, 0]> : tensor<4xindex>, dense<[4, 3, 2, 1, 0]> : tensor<5xindex>"),
      std::string::npos);
}

TEST(Rewrite, CompositeKeepsTheOriginal) {
  Module module = read(kText);
  ASSERT_TRUE(rewrite(lifted(module), FuseAs::kComposite).ok());
  remove_dead_code(module);
  const Module again = read(module.print());
  EXPECT_EQ(count(again, "func.func"), 2);
  mlir::Operation* call = find(again, "stablehlo.composite");
  EXPECT_EQ(composite(call)->name, "flashlift.attention");
  EXPECT_TRUE(composite(call)->attributes.get("problem"));
  EXPECT_EQ(composite(call)->decomposition, "flashlift.attention.impl");
  // Inlining gives the original again, with some reshapes and transposes.
  Module opened = again.clone();
  ASSERT_TRUE(inline_composites(opened).ok());
  remove_dead_code(opened);
  EXPECT_EQ(count(opened, "stablehlo.dot_general"), 2);
  EXPECT_EQ(count(opened, "func.func"), 1);
}

TEST(Rewrite, CompositeRefusesWhatItCannotHold) {
  Module module = read(kText);
  LiftedAttention found = lifted(module);
  found.captures = {found.q.source};  // so that the bias is not an operand
  const std::string before = module.print();
  const Status status = rewrite(found, FuseAs::kComposite);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().kind, ErrorKind::kUnsupported);
  EXPECT_EQ(module.print(), before);
}

TEST(Rewrite, RefusesOperandsThatAreBroadcastAlongTheirDepth) {
  Module module = read(kText);
  LiftedAttention found = lifted(module);
  found.v = {found.captures[0], {8, 8, 1}, {}, "sh1"};
  const std::string before = module.print();
  const Status status = rewrite(found, FuseAs::kCustomCall);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("v is the same along"), std::string::npos);
  EXPECT_EQ(module.print(), before);
}

TEST(Rewrite, RefusesValuesThatDependOnTheirOwnLogSumExp) {
  Module module = read(kText);
  LiftedAttention found = lifted(module);
  found.v.source = find(module, "stablehlo.negate")->getResult(0);
  const std::string before = module.print();
  EXPECT_FALSE(rewrite(found, FuseAs::kCustomCall).ok());
  EXPECT_EQ(module.print(), before);
}

}  // namespace
}  // namespace flashlift::stablehlo
