// The bytes that hold the rounding errors of bf16 outputs, by the kernels' own code: the few intrinsics that it uses
// are defined here.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <random>

#define __device__
#define __forceinline__ inline
#define FL_OUT_BF16 1

namespace {

using std::max;

uint32_t __float_as_uint(float x) { return std::bit_cast<uint32_t>(x); }
float __uint_as_float(uint32_t x) { return std::bit_cast<float>(x); }

uint32_t __byte_perm(uint32_t x, uint32_t y, uint32_t selector) {
  const uint64_t bytes = uint64_t{y} << 32 | x;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    result |= static_cast<uint32_t>(bytes >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
  }
  return result;
}

}  // namespace

#include "cuda/kernels/common/residual.cuh"

namespace flashlift::cuda {
namespace {

// As GPUs round: to the nearest, ties to even, and every NaN to one.
uint32_t to_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return std::isnan(x) ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

float with_residual(float x) {
  const uint32_t bits = to_bf16(x);
  const uint32_t byte = residual_of(x, bits) & 0xff;
  const uint32_t pair = residual_pair(x, 1.0f, 0x3f800000 | bits);
  EXPECT_EQ(pair & 0xffff, byte) << x;
  EXPECT_EQ(residual_pair(1.0f, x, bits << 16 | 0x3f80) & 0xffff, byte << 8) << x;
  const float value = unrounded(bits, byte, 0);
  for (int i = 1; i < 4; ++i) {
    EXPECT_EQ(std::bit_cast<uint32_t>(unrounded(bits, 0x5a5a5a5a ^ (0x5a ^ byte) << 8 * i, i)),
              std::bit_cast<uint32_t>(value));
  }
  return value;
}

// An output and its residual have 16 bits of fraction, also where the output alone is infinite.
void expect_near(float x) {
  const float near = with_residual(x);
  if (!std::isfinite(x)) {
    EXPECT_EQ(std::isnan(near), std::isnan(x)) << x;
    EXPECT_TRUE(std::isnan(x) || near == x) << near;
    return;
  }
  const int exponent = std::max(std::ilogb(x), -126);
  const double value = std::isfinite(near) ? near : std::copysign(0x1p128, near);
  EXPECT_LE(std::abs(value - x), std::ldexp(1.03, exponent - 16)) << std::hexfloat << x;
}

TEST(Residual, OfEveryOutputAtTheEndsOfItsRange) {
  for (uint32_t upper = 0; upper < 0x10000; ++upper) {
    for (const uint32_t lower :
         {0u, 1u, 0x7fu, 0x80u, 0x81u, 0x7f80u, 0x7fffu, 0x8000u, 0x8001u, 0x8080u, 0xff80u, 0xffffu}) {
      expect_near(std::bit_cast<float>(upper << 16 | lower));
    }
  }
}

TEST(Residual, OfDrawnNumbers) {
  std::mt19937 random(1);
  for (int i = 0; i < 2'000'000; ++i) {
    expect_near(std::bit_cast<float>(static_cast<uint32_t>(random())));
  }
}

TEST(Residual, OfOutputsThatAreExactIsZero) {
  for (const float x : {0.0f, -0.0f, 1.0f, -3.5f, 0x1p-126f, 0x1p-133f, 0x1.fep127f}) {
    EXPECT_EQ(with_residual(x), x);
  }
}

}  // namespace
}  // namespace flashlift::cuda
