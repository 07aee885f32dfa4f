#include <gtest/gtest.h>

#include <limits>

#include "flashlift/attention.h"
#include "score/interpret.h"
#include "support/tensors.h"

namespace flashlift {
namespace {

TEST(CountTiles, CountsOverAllBatchesAndHeads) {
  const auto counts = count_tiles(*parse_problem("attn b2 h3 s512 d64 causal"), {}, 128, 128);
  ASSERT_TRUE(counts.ok()) << counts.error().message;
  EXPECT_EQ(counts->full, 6 * 6);
  EXPECT_EQ(counts->partial, 6 * 4);
  EXPECT_EQ(counts->skipped, 6 * 6);
}

TEST(CountTiles, TakesTilesOfAnySize) {
  constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
  const auto counts = count_tiles(*parse_problem("attn h3 s64 d8 causal"), {}, kLargest, kLargest);
  ASSERT_TRUE(counts.ok()) << counts.error().message;
  EXPECT_EQ(counts->partial, 3);
  EXPECT_EQ(counts->full + counts->skipped, 0);
}

TEST(CountTiles, RefusesMoreTilesThanItCanCount) {
  const auto problem = parse_problem("attn b1073741824 hq1024 hkv1 s1073741824 d8");
  const auto counts = count_tiles(*problem, {}, 1, 1);
  ASSERT_FALSE(counts.ok());
  EXPECT_EQ(counts.error().message, "1 by 1 tiles are more than 2^63 - 1; count larger tiles");
  EXPECT_TRUE(count_tiles(*problem, {}, 1 << 30, 1 << 30).ok());
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

// Counts the tiles by enumerating every score of the plane.
TileCounts enumerate(const Problem& p, const std::vector<TensorView>& captures, int64_t q_tile, int64_t kv_tile) {
  score::Interpreter mask(*p.mask_mod, captures);
  TileCounts counts{.q_tile = q_tile, .kv_tile = kv_tile};
  for (int32_t b = 0; b < p.batch; ++b) {
    for (int64_t q_begin = 0; q_begin < p.q_len; q_begin += q_tile) {
      for (int64_t kv_begin = 0; kv_begin < p.kv_len; kv_begin += kv_tile) {
        bool any = false;
        bool all = true;
        for (auto q = static_cast<int32_t>(q_begin); q < std::min(q_begin + q_tile, p.q_len); ++q) {
          for (auto kv = static_cast<int32_t>(kv_begin); kv < std::min(kv_begin + kv_tile, p.kv_len); ++kv) {
            const bool kept = mask.mask_mod({.b = b,
                                             .q = q,
                                             .kv = kv,
                                             .q_len = static_cast<int32_t>(p.q_len),
                                             .kv_len = static_cast<int32_t>(p.kv_len)});
            any |= kept;
            all &= kept;
          }
        }
        (all ? counts.full : any ? counts.partial : counts.skipped) += p.q_heads;
      }
    }
  }
  return counts;
}

struct Named {
  const char* text;
  std::vector<std::vector<int32_t>> captures;  // in the order of the problem, each for all batches
};

std::vector<int32_t> runs(const std::vector<int32_t>& lengths) {
  std::vector<int32_t> ids;
  for (size_t i = 0; i < lengths.size(); ++i) {
    ids.insert(ids.end(), static_cast<size_t>(lengths[i]), static_cast<int32_t>(i));
  }
  return ids;
}

class NamedFeatures : public ::testing::TestWithParam<Named> {};

TEST_P(NamedFeatures, CountExactlyWhatTheScoresSay) {
  const Result<Problem> problem = parse_problem(GetParam().text);
  ASSERT_TRUE(problem.ok()) << problem.error().message;
  std::vector<std::vector<int32_t>> memory = GetParam().captures;
  std::vector<TensorView> views;
  ASSERT_EQ(memory.size(), problem->captures.size());
  for (size_t i = 0; i < memory.size(); ++i) {
    const auto elements = static_cast<int64_t>(memory[i].size());
    const bool by_position = problem->captures[i].shape.size() == 2;
    const std::vector<int64_t> shape =
        by_position ? std::vector<int64_t>{problem->batch, elements / problem->batch} : std::vector<int64_t>{elements};
    views.push_back(dense_view(memory[i].data(), DType::kI32, shape));
  }
  for (const auto& [q_tile, kv_tile] : {std::pair(32, 32), std::pair(48, 64), std::pair(128, 16), std::pair(1, 1)}) {
    const auto counts = count_tiles(*problem, views, q_tile, kv_tile);
    ASSERT_TRUE(counts.ok()) << counts.error().message;
    const TileCounts expected = enumerate(*problem, views, q_tile, kv_tile);
    EXPECT_EQ(counts->skipped, expected.skipped) << q_tile << " x " << kv_tile;
    EXPECT_EQ(counts->full, expected.full) << q_tile << " x " << kv_tile;
    EXPECT_EQ(counts->partial, expected.partial) << q_tile << " x " << kv_tile;
  }
}

const std::vector<int32_t> kPacked = {0, 40, 40, 170, 171, 300};

INSTANTIATE_TEST_SUITE_P(
    Visits, NamedFeatures,
    ::testing::Values(Named{"attn h2 s300 d8 segment_ids", {runs({50, 30, 120, 100}), runs({50, 30, 120, 100})}},
                      Named{"attn h1 s300 d8 segment_ids causal", {runs({64, 64, 172}), runs({64, 64, 172})}},
                      Named{"attn b2 h1 sq90 skv300 d8 key_lengths", {{170, 0}}},
                      Named{"attn b2 h1 sq90 skv300 d8 key_lengths causal=bottom_right", {{170, 300}}},
                      Named{"attn h2 s300 d8 cu_seqlens", {kPacked, kPacked}},
                      Named{"attn h2 s300 d8 cu_seqlens causal", {kPacked, kPacked}},
                      Named{"attn h1 s300 d8 cu_seqlens causal=bottom_right", {kPacked, kPacked}},
                      Named{"attn h1 s300 d8 cu_seqlens window=20,0", {kPacked, kPacked}},
                      Named{"attn h1 sq120 skv300 d8 cu_seqlens causal=bottom_right",
                            {{0, 20, 21, 100, 120}, {0, 90, 130, 260, 300}}},
                      Named{"attn h1 sq300 skv200 d8 cu_seqlens causal", {{0, 100, 200, 250}, {0, 20, 120, 200}}}));

}  // namespace
}  // namespace flashlift
