#include "random_backward.h"

#include <gtest/gtest.h>

namespace flashlift {
namespace {

// Fixed seeds; `soak backward --count N --seed S` draws others.
TEST(RandomBackward, TwoThousandProblemsAgreeWithTheOracle) {
  int failures = 0;
  for (unsigned long seed = 1; seed <= 2000; ++seed) {
    const std::string failure = testing::check_random_backward(seed).failure;
    if (!failure.empty() && ++failures <= 5) {
      ADD_FAILURE() << failure;
    }
  }
  EXPECT_EQ(failures, 0);
}

}  // namespace
}  // namespace flashlift
