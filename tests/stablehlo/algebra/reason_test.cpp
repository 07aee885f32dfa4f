#include "stablehlo/algebra/reason.h"

#include <gtest/gtest.h>

#include <set>

#include "support/error.h"

namespace flashlift::stablehlo {
namespace {

TEST(Reason, EachHasATextOfItsOwn) {
  std::set<std::string_view> texts;
  for (const std::string_view text : kReasonTexts) {
    EXPECT_FALSE(text.empty());
    EXPECT_TRUE(texts.insert(text).second) << text;
    EXPECT_FALSE(text.ends_with('.')) << text;
  }
}

TEST(Reason, RefusalsFillTheTextIn) {
  const Refusal refusal = refuse<Reason::kSinkPieces>(3);
  EXPECT_EQ(refusal.reason, Reason::kSinkPieces);
  EXPECT_EQ(refusal.text, "sink logits are split into 3 separate pieces");
}

TEST(Reason, ErrorsOfTheProblemAreRefusals) {
  const auto refused = []() -> Outcome<int> {
    FLASHLIFT_ASSIGN_OR_RETURN(const int value, Result<int>(invalid_argument("head_dim is {{0}}")));
    return value;
  }();
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().reason, Reason::kInvalidProblem);
  EXPECT_EQ(refused.error().text, "head_dim is {0}");
  const auto passed_on = [&]() -> Proof {
    FLASHLIFT_RETURN_IF_ERROR(refused);
    return {};
  }();
  ASSERT_FALSE(passed_on.ok());
  EXPECT_EQ(passed_on.error().text, refused.error().text);
}

}  // namespace
}  // namespace flashlift::stablehlo
