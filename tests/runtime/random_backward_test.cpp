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

// Rows of few keys, in tasks of few rows, have almost no error in eager attention: one query with 21 keys, and two
// queries with one and two keys.
TEST(RandomBackward, FewRowsAgreeWithTheOracle) {
  for (const unsigned long seed : {22156ul, 40126ul}) {
    EXPECT_EQ(testing::check_random_backward(seed).failure, "");
  }
}

}  // namespace
}  // namespace flashlift
