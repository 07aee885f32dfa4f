// Element types, and strided views of memory that they do not own.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#pragma GCC visibility push(default)  // the shared library exports these declarations

namespace flashlift {

enum class DType : uint8_t { kBool, kI8, kU8, kI16, kI32, kU32, kI64, kF16, kBF16, kF32, kF64 };

// "f32", "bf16", "f16", "f64", "bool", "i8", "u8", "i16", "i32", "u32", "i64".
const char* to_string(DType dtype);
std::optional<DType> parse_dtype(std::string_view text);
size_t size_in_bytes(DType dtype);
bool is_float(DType dtype);

inline constexpr int kMaxRank = 8;

// A view of a strided tensor. Strides count elements, not bytes, and may be zero (broadcast) or negative.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int rank = 0;
  std::array<int64_t, kMaxRank> sizes{};
  std::array<int64_t, kMaxRank> strides{};

  std::span<const int64_t> shape() const { return {sizes.data(), static_cast<size_t>(rank)}; }
  int64_t element_count() const;
};

// A view of dense row-major memory of the given shape.
TensorView dense_view(void* data, DType dtype, std::span<const int64_t> shape);

// The same memory with dimensions i and j exchanged: a BSHD tensor seen as BHSD is transposed(view, 1, 2).
TensorView transposed(TensorView view, int i, int j);

// "f32[2,8,128,64]" for messages.
std::string describe(const TensorView& view);

}  // namespace flashlift

#pragma GCC visibility pop
