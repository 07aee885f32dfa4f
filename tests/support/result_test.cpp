#include "flashlift/result.h"

#include <gtest/gtest.h>

#include <memory>

#include "support/error.h"

namespace flashlift {
namespace {

Result<int> half_of(int value) {
  if (value % 2 != 0) {
    return invalid_argument("expected an even number, got {}", value);
  }
  return value / 2;
}

Result<std::unique_ptr<int>> quarter_of(int value) {
  FLASHLIFT_ASSIGN_OR_RETURN(const int half, half_of(value));
  FLASHLIFT_ASSIGN_OR_RETURN(const int quarter, half_of(half));
  return std::make_unique<int>(quarter);
}

Status check_even(int value) {
  FLASHLIFT_RETURN_IF_ERROR([&]() -> Status {
    const auto half = half_of(value);
    return half ? Status() : Status(half.error());
  }());
  return {};
}

TEST(Result, CarriesMoveOnlyValues) {
  auto quarter = quarter_of(8);
  ASSERT_TRUE(quarter);
  const std::unique_ptr<int> value = *std::move(quarter);
  EXPECT_EQ(*value, 2);
}

TEST(Result, PassesTheFirstErrorOn) {
  const auto quarter = quarter_of(6);
  ASSERT_FALSE(quarter);
  EXPECT_EQ(quarter.error().kind, ErrorKind::kInvalidArgument);
  EXPECT_EQ(quarter.error().message, "expected an even number, got 3");
}

TEST(Status, IsOkUntilGivenAnError) {
  EXPECT_TRUE(check_even(2).ok());
  EXPECT_EQ(check_even(3).error().message, "expected an even number, got 3");
}

}  // namespace
}  // namespace flashlift
