#include <gtest/gtest.h>

#include "flashlift/attention.h"

namespace flashlift {
namespace {

TEST(CountTiles, CountsOverAllBatchesAndHeads) {
  const auto counts = count_tiles(*parse_problem("attn b2 h3 s512 d64 causal"), {}, 128, 128);
  ASSERT_TRUE(counts.ok()) << counts.error().message;
  EXPECT_EQ(counts->full, 6 * 6);
  EXPECT_EQ(counts->partial, 6 * 4);
  EXPECT_EQ(counts->skipped, 6 * 6);
}

TEST(CountTiles, RefusesCapturedTensorsOfTheWrongShape) {
  const auto problem = parse_problem(
      "attn h1 s64 d8 mask_mod(doc: i32[64]) { %0 = load doc[q]; %1 = load doc[kv]; %2 = eq %0, %1; "
      "return %2 }");
  ASSERT_TRUE(problem.ok()) << problem.error().message;
  std::vector<int32_t> ids(64);
  const auto short_one = dense_view(ids.data(), DType::kI32, std::vector<int64_t>{32});
  EXPECT_FALSE(count_tiles(*problem, {}, 16, 16).ok());
  EXPECT_FALSE(count_tiles(*problem, {short_one}, 16, 16).ok());
  EXPECT_FALSE(count_tiles(*problem, {short_one}, 0, 16).ok());
  const auto counts = count_tiles(*problem, {dense_view(ids.data(), DType::kI32, std::vector<int64_t>{64})}, 16, 16);
  ASSERT_TRUE(counts.ok());
  EXPECT_EQ(counts->full, 16);
}

}  // namespace
}  // namespace flashlift
