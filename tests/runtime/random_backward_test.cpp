#include "random_backward.h"

#include <gtest/gtest.h>

namespace flashlift {
namespace {

// Fixed seeds; `soak_backward --count N --seed S` draws others.
TEST(RandomBackward, FiveHundredProblemsAgreeWithTheOracle) {
  int failures = 0;
  for (unsigned long seed = 1; seed <= 500; ++seed) {
    const std::string failure = testing::check_random_backward(seed);
    if (!failure.empty() && ++failures <= 5) {
      ADD_FAILURE() << failure;
    }
  }
  EXPECT_EQ(failures, 0);
}

}  // namespace
}  // namespace flashlift
