#include "xla/ffi/dimensions.h"

#include <gtest/gtest.h>

#include <vector>

namespace flashlift::xla {
namespace {

Result<TensorView> view(std::string_view text, std::vector<int64_t> dims, std::vector<int64_t> logical,
                        AbsentLetters absent = AbsentLetters::kShared) {
  FLASHLIFT_ASSIGN_OR_RETURN(const DimensionOrder order, DimensionOrder::parse(text, "q", 4));
  return order.view(nullptr, DType::kF32, dims, logical, absent);
}

void expect_strides(const Result<TensorView>& result, std::vector<int64_t> sizes, std::vector<int64_t> strides) {
  ASSERT_TRUE(result.ok()) << result.error().message;
  for (size_t i = 0; i < sizes.size(); ++i) {
    EXPECT_EQ(result->sizes[i], sizes[i]) << i;
    EXPECT_EQ(result->strides[i], strides[i]) << i;
  }
}

void expect_error(const Result<TensorView>& result, std::string_view part) {
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().kind, ErrorKind::kInvalidArgument);
  EXPECT_NE(result.error().message.find(part), std::string::npos) << result.error().message;
}

TEST(DimensionOrder, ReadsAnyOrder) {
  expect_strides(view("bhsd", {2, 3, 5, 7}, {2, 3, 5, 7}), {2, 3, 5, 7}, {105, 35, 7, 1});
  expect_strides(view("bshd", {2, 5, 3, 7}, {2, 3, 5, 7}), {2, 3, 5, 7}, {105, 7, 21, 1});
  expect_strides(view("dsbh", {7, 5, 2, 3}, {2, 3, 5, 7}), {2, 3, 5, 7}, {3, 1, 6, 30});
}

TEST(DimensionOrder, FlattensRepeatedLetters) {
  expect_strides(view("bshhd", {2, 5, 4, 3, 7}, {2, 12, 5, 7}), {2, 12, 5, 7}, {420, 7, 84, 1});
  expect_strides(view("bbhsd", {2, 3, 4, 5, 7}, {6, 4, 5, 7}), {6, 4, 5, 7}, {140, 35, 7, 1});
}

TEST(DimensionOrder, IgnoresWhereSizeOneStands) {
  expect_strides(view("bhshd", {2, 4, 5, 1, 7}, {2, 4, 5, 7}), {2, 4, 5, 7}, {140, 35, 7, 1});
  expect_strides(view("bh1sd", {2, 4, 1, 5, 7}, {2, 4, 5, 7}), {2, 4, 5, 7}, {140, 35, 7, 1});
}

TEST(DimensionOrder, RefusesLettersThatAreNoNeighbours) {
  expect_error(view("bhshd", {2, 4, 5, 3, 7}, {2, 12, 5, 7}), "are not neighbours");
}

TEST(DimensionOrder, SharesInputsWithoutBatchOrHead) {
  const auto shared = view("sd", {5, 7}, {2, 3, 5, 7});
  ASSERT_TRUE(shared.ok()) << shared.error().message;
  EXPECT_EQ(shared->sizes[0], 2);
  EXPECT_EQ(shared->strides[0], 0);
  EXPECT_EQ(shared->sizes[1], 3);
  EXPECT_EQ(shared->strides[1], 0);
  expect_error(view("sd", {5, 7}, {2, 1, 5, 7}, AbsentLetters::kSizeOne), "as b = 1; the problem says 2");
  expect_error(view("bhd", {2, 3, 7}, {2, 3, 5, 7}), "as s = 1; the problem says 5");
  // A dimension that exists is not shared by heads or batches, even if its size is one.
  expect_error(view("bhsd", {1, 3, 5, 7}, {2, 3, 5, 7}), "as b = 1; the problem says 2");
}

TEST(DimensionOrder, RefusesWhatDoesNotFit) {
  expect_error(view("bhsd", {2, 3, 5}, {2, 3, 5, 7}), "q has 3 dimensions, but q_dims = \"bhsd\" names 4");
  expect_error(view("bhsd", {2, 3, 5, 8}, {2, 3, 5, 7}), "as d = 8; the problem says 7");
  expect_error(view("1hsd", {2, 3, 5, 7}, {1, 3, 5, 7}), "called 1");
  expect_error(view("bhxd", {2, 3, 5, 7}, {2, 3, 5, 7}), "got 'x'");
}

TEST(DimensionOrder, KnowsOnlyThreeLettersForLse) {
  const auto order = DimensionOrder::parse("bhd", "lse", 3);
  ASSERT_FALSE(order.ok());
  EXPECT_EQ(order.error().message,
            "attribute lse_dims = \"bhd\": expected the letters b, h, s and 1, one for each dimension, got 'd'");
}

TEST(DimensionOrder, TakesEmptyTensors) {
  expect_strides(view("bhsd", {2, 3, 0, 7}, {2, 3, 0, 7}), {2, 3, 0, 7}, {0, 0, 7, 1});
}

}  // namespace
}  // namespace flashlift::xla
