#include "stablehlo/reader/attributes.h"

#include <gtest/gtest.h>

namespace flashlift::stablehlo {
namespace {

TEST(Attributes, DotInAnyOrderAndSpacing) {
  const auto dims = parse_dot("dot<\n  rhs_contracting_dimensions=[1],\tlhs_contracting_dimensions = [ 2,3 ]>");
  ASSERT_TRUE(dims.has_value());
  EXPECT_EQ(dims->lhs_contract, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(dims->rhs_contract, (std::vector<int64_t>{1}));
  EXPECT_TRUE(dims->lhs_batch.empty());
}

TEST(Attributes, DotRefusesWhatItIsNot) {
  for (const char* text :
       {"", "dot", "dot<", "dot<>x", "dot<lhs_contracting_dimensions = 1>", "dot<unknown = [1]>",
        "dot<lhs_contracting_dimensions = [1>", "dot<lhs_contracting_dimensions = [x]>",
        "dot<lhs_contracting_dimensions = [99999999999999999999]>", "gather<index_vector_dim = 1>"}) {
    EXPECT_FALSE(parse_dot(text).has_value()) << text;
  }
}

TEST(Attributes, CanonicalTextIsStableHlosOwn) {
  EXPECT_EQ(canonical_attribute("dot<rhs_contracting_dimensions = [0], lhs_contracting_dimensions = [1], "
                                "lhs_batching_dimensions = []>"),
            "dot<lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [0]>");
  EXPECT_EQ(canonical_attribute("gather<collapsed_slice_dims=[0],offset_dims=[1],start_index_map=[0]>"),
            "gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0]>");
  EXPECT_EQ(canonical_attribute("channel_handle<\n   handle = 5,  type = 2 // a comment\n >"),
            "channel_handle<handle = 5, type = 2>");
  EXPECT_EQ(canonical_attribute("conv<[b,0,1,f]x[0,1,i,o]->[b,0,1,f]>"),
            "conv<[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]>");
  EXPECT_EQ(canonical_attribute("type_extensions<bounds = [3, ?]>"), "bounds<3, ?>");
  EXPECT_EQ(canonical_attribute("x<\"a  ,  b\\\"  c\" ,1>"), "x<\"a  ,  b\\\"  c\", 1>");
  for (const char* text : {"x<[1 // 2]\n]>", "x<[1, // ]>"}) {
    EXPECT_FALSE(canonical_attribute(text).has_value()) << text;
  }
}

TEST(Attributes, Enumerations) {
  EXPECT_EQ(parse_enum("comparison_direction GT", "comparison_direction"), "GT");
  EXPECT_EQ(parse_enum("precision<HIGH>", "precision"), "HIGH");
  EXPECT_FALSE(parse_enum("precision", "precision").has_value());
  EXPECT_FALSE(parse_enum("precision ", "precision").has_value());
  EXPECT_FALSE(parse_enum("precisions GT", "precision").has_value());
}

}  // namespace
}  // namespace flashlift::stablehlo
