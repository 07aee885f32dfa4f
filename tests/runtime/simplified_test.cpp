#include "runtime/simplified.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>

namespace flashlift::runtime {
namespace {

TEST(SimplifiedProblem, OfOwnKeys) {
  const auto own = [](const char* words) {
    const Result<Problem> problem = parse_problem(std::string("attn h1 s800 d8 ") + words);
    EXPECT_TRUE(problem.ok()) << problem.error().message;
    return simplified_for_own_keys(*problem);
  };
  const std::optional<Problem> documents = own("documents=8");
  ASSERT_TRUE(documents);
  EXPECT_EQ(print_one_line(*documents->mask_mod).find("kv_len"), std::string::npos);
  EXPECT_FALSE(own("causal=bottom_right"));  // would compile for each length, and gain nothing
  EXPECT_FALSE(own(""));
}

}  // namespace
}  // namespace flashlift::runtime
