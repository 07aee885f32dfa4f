#include <cmath>
#include <iterator>

#include "flashlift/tensor.h"
#include "support/half.h"

namespace flashlift {
namespace {

struct DTypeRow {
  DType dtype;
  const char* name;
  size_t bytes;
  bool is_float;
};

constexpr DTypeRow kRows[] = {
    {DType::kBool, "bool", 1, false}, {DType::kI8, "i8", 1, false},   {DType::kU8, "u8", 1, false},
    {DType::kI16, "i16", 2, false},   {DType::kI32, "i32", 4, false}, {DType::kU32, "u32", 4, false},
    {DType::kI64, "i64", 8, false},   {DType::kF16, "f16", 2, true},  {DType::kBF16, "bf16", 2, true},
    {DType::kF32, "f32", 4, true},    {DType::kF64, "f64", 8, true},
};

// Of a number that a C++ caller cast to DType: messages name it, too.
constexpr DTypeRow kUnknown = {DType::kBool, "?", 1, false};

const DTypeRow& row(DType dtype) {
  const auto number = static_cast<size_t>(dtype);
  return number < std::size(kRows) ? kRows[number] : kUnknown;
}

}  // namespace

const char* to_string(DType dtype) { return row(dtype).name; }
size_t size_in_bytes(DType dtype) { return row(dtype).bytes; }
bool is_float(DType dtype) { return row(dtype).is_float; }

std::optional<DType> parse_dtype(std::string_view text) {
  for (const DTypeRow& candidate : kRows) {
    if (text == candidate.name) {
      return candidate.dtype;
    }
  }
  return std::nullopt;
}

float f16_to_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0) {  // zero and subnormals: mantissa * 2^-24, exact in f32
    const float magnitude = std::ldexp(static_cast<float>(mantissa), -24);
    return sign != 0 ? -magnitude : magnitude;
  }
  if (exponent == 31) {
    return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13) | (mantissa != 0 ? 0x400000u : 0u));
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

uint16_t float_to_f16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    return static_cast<uint16_t>(sign | 0x7e00u);
  }
  if (magnitude >= 0x477ff000u) {  // rounds to 65536 or more
    return static_cast<uint16_t>(sign | 0x7c00u);
  }
  if (magnitude < 0x38800000u) {  // subnormal in f16: an integer multiple of 2^-24, rounded to even by nearbyint
    const float scaled = std::ldexp(std::bit_cast<float>(magnitude), 24);
    return static_cast<uint16_t>(sign | static_cast<uint16_t>(std::nearbyint(scaled)));
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

}  // namespace flashlift
