#include "random_forward.h"

#include <gtest/gtest.h>

namespace flashlift {
namespace {

// Fixed seeds; `soak forward --count N --seed S` draws others.
TEST(RandomForward, TwoThousandProblemsAgreeWithTheOracle) {
  int failures = 0;
  for (unsigned long seed = 1; seed <= 2000; ++seed) {
    const std::string failure = testing::check_random_forward(seed).failure;
    if (!failure.empty() && ++failures <= 5) {
      ADD_FAILURE() << failure;
    }
  }
  EXPECT_EQ(failures, 0);
}

// Scores are rounded to bf16, one of them to another neighbour than in double precision.
TEST(RandomForward, RoundedScoresAgreeWithTheOracle) { EXPECT_EQ(testing::check_random_forward(68543).failure, ""); }

}  // namespace
}  // namespace flashlift
