#include "problem/dropout.h"

#include <gtest/gtest.h>

#include <cmath>

namespace flashlift::problem {
namespace {

using Words = std::array<uint32_t, 4>;

// The published known answers of Philox4x32 with seven rounds (Random123's kat_vectors).
TEST(Dropout, PhiloxGivesThePublishedWords) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (Words{0x5f6fb709, 0x0d893f64, 0x4f121f81, 0x4f730a48}));
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(philox({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (Words{0x5207ddc2, 0x45165e59, 0x4d8ee751, 0x8c52f662}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0x4dfccaba, 0x190a87f0, 0xc47362ba, 0xb6b5242a}));
}

TEST(Dropout, LeavesOutTheGivenShareAndNoneTwiceAlike) {
  const Problem problem = *parse_problem("attn h2 s4 d1 dropout=0.25");
  int64_t kept = 0;
  int64_t same_as_other_seed = 0;
  int64_t same_as_other_row = 0;
  constexpr int64_t kKeys = 100'000;
  for (int64_t kv = 0; kv < kKeys; ++kv) {
    const double factor = dropout_factor(problem, {.dropout_seed = 5}, 1, 2, 3, kv);
    EXPECT_TRUE(factor == 0 || factor == 1 / 0.75);
    kept += factor != 0 ? 1 : 0;
    same_as_other_seed += factor == dropout_factor(problem, {.dropout_seed = 6}, 1, 2, 3, kv) ? 1 : 0;
    same_as_other_row += factor == dropout_factor(problem, {.dropout_seed = 5}, 1, 2, 4, kv) ? 1 : 0;
  }
  const double deviation = 5 * std::sqrt(0.25 * 0.75 * kKeys);  // five standard deviations
  EXPECT_NEAR(static_cast<double>(kept), 0.75 * kKeys, deviation);
  EXPECT_NEAR(static_cast<double>(same_as_other_seed), 0.625 * kKeys, deviation);
  EXPECT_NEAR(static_cast<double>(same_as_other_row), 0.625 * kKeys, deviation);
}

TEST(Dropout, KeepsInAPartWhatItKeepsInTheWhole) {
  const Problem problem = *parse_problem("attn h2 s4 d1 dropout=0.25");
  for (int64_t kv = 0; kv < 1000; ++kv) {
    EXPECT_EQ(dropout_factor(problem, {.dropout_seed = 5, .dropout_origin = {2, 4}}, 1, 2, 3, kv),
              dropout_factor(problem, {.dropout_seed = 5}, 3, 6, 3, kv));
  }
}

TEST(Dropout, IsAProbability) {
  for (const char* text : {"attn h1 s1 d1 dropout=1", "attn h1 s1 d1 dropout=-0.1",
                           "attn h1 s1 d1 dropout=", "attn h1 s1 d1 dropout=nan"}) {
    EXPECT_FALSE(parse_problem(text).ok()) << text;
  }
  EXPECT_EQ(parse_problem(print(*parse_problem("attn h1 s1 d1 dropout=0.1")))->dropout, 0.1f);
}

}  // namespace
}  // namespace flashlift::problem
