#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "flashlift/tensor.h"
#include "support/half.h"

namespace flashlift {
namespace {

TEST(DType, NamesRoundTrip) {
  for (int i = 0; i <= static_cast<int>(DType::kF64); ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(parse_dtype(to_string(dtype)), dtype) << to_string(dtype);
  }
  EXPECT_EQ(parse_dtype("float32"), std::nullopt);
  EXPECT_EQ(parse_dtype(""), std::nullopt);
}

TEST(DType, SizesAndKinds) {
  EXPECT_EQ(size_in_bytes(DType::kBool), 1u);
  EXPECT_EQ(size_in_bytes(DType::kBF16), 2u);
  EXPECT_EQ(size_in_bytes(DType::kU32), 4u);
  EXPECT_EQ(size_in_bytes(DType::kF64), 8u);
  EXPECT_TRUE(is_float(DType::kF16));
  EXPECT_FALSE(is_float(DType::kI64));
}

TEST(DType, NumbersThatAreNoneHaveAName) {
  for (const int number : {static_cast<int>(DType::kF64) + 1, 255}) {
    EXPECT_STREQ(to_string(static_cast<DType>(number)), "?");
    EXPECT_FALSE(is_float(static_cast<DType>(number)));
  }
}

TEST(Half, EveryF16SurvivesF32) {
  for (uint32_t bits = 0; bits <= 0xffffu; ++bits) {
    const float value = f16_to_float(static_cast<uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(f16_to_float(float_to_f16(value))));
    } else {
      EXPECT_EQ(float_to_f16(value), bits) << value;
    }
  }
}

TEST(Half, EveryBF16SurvivesF32) {
  for (uint32_t bits = 0; bits <= 0xffffu; ++bits) {
    const float value = bf16_to_float(static_cast<uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(value))));
    } else {
      EXPECT_EQ(float_to_bf16(value), bits) << value;
    }
  }
}

// The nearer neighbour is right, and at the midpoint the even one: compared with exact doubles.
TEST(Half, F16RoundsToNearestEven) {
  for (uint32_t bits = 0; bits < 0x7bffu; ++bits) {
    const double low = f16_to_float(static_cast<uint16_t>(bits));
    const double high = f16_to_float(static_cast<uint16_t>(bits + 1));
    const auto middle = static_cast<float>((low + high) / 2);
    const uint32_t even = (bits & 1u) == 0 ? bits : bits + 1;
    EXPECT_EQ(float_to_f16(middle), even) << middle;
    EXPECT_EQ(float_to_f16(std::nextafter(middle, 0.0f)), bits) << middle;
    EXPECT_EQ(float_to_f16(std::nextafter(middle, 1e9f)), bits + 1) << middle;
  }
}

TEST(Half, LargeValuesBecomeInfinite) {
  EXPECT_EQ(float_to_f16(65504.0f), 0x7bff);
  EXPECT_EQ(float_to_f16(65519.996f), 0x7bff);
  EXPECT_EQ(float_to_f16(65520.0f), 0x7c00);
  EXPECT_EQ(float_to_f16(-std::numeric_limits<float>::infinity()), 0xfc00);
  EXPECT_EQ(float_to_bf16(std::numeric_limits<float>::max()), 0x7f80);
}

TEST(Half, BF16RoundsToNearestEven) {
  EXPECT_EQ(float_to_bf16(1.0f + 0x1p-8f), 0x3f80);    // halfway, down to even
  EXPECT_EQ(float_to_bf16(1.0f + 0x3p-8f), 0x3f82);    // halfway, up to even
  EXPECT_EQ(float_to_bf16(1.0f + 0x1.1p-8f), 0x3f81);  // above halfway
}

}  // namespace
}  // namespace flashlift
