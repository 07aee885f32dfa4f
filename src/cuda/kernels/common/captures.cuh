// Reading captured tensors.
#pragma once

#include "cuda/kernels/common/forward_params.h"
#include "cuda/kernels/common/ops.cuh"

namespace flashlift::cuda {

// Element types, with the names that generated code uses. Each defines the type of its bits and the scalar that a load
// returns.
struct ElementBool {
  using Bits = unsigned char;
  using Scalar = bool;
  static FL_OP bool scalar(Bits x) { return x != 0; }
};
struct ElementI8 {
  using Bits = signed char;
  using Scalar = i32;
  static FL_OP i32 scalar(Bits x) { return x; }
};
struct ElementU8 {
  using Bits = unsigned char;
  using Scalar = i32;
  static FL_OP i32 scalar(Bits x) { return x; }
};
struct ElementI16 {
  using Bits = short;
  using Scalar = i32;
  static FL_OP i32 scalar(Bits x) { return x; }
};
struct ElementI32 {
  using Bits = int;
  using Scalar = i32;
  static FL_OP i32 scalar(Bits x) { return x; }
};
struct ElementU32 {
  using Bits = unsigned int;
  using Scalar = i64;
  static FL_OP i64 scalar(Bits x) { return x; }
};
struct ElementI64 {
  using Bits = long long;
  using Scalar = i64;
  static FL_OP i64 scalar(Bits x) { return x; }
};
struct ElementF16 {
  using Bits = unsigned short;
  using Scalar = float;
  static FL_OP float scalar(Bits x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
    return y;
  }
};
struct ElementBF16 {
  using Bits = unsigned short;
  using Scalar = float;
  static FL_OP float scalar(Bits x) { return __uint_as_float(static_cast<u32>(x) << 16); }
};
struct ElementF32 {
  using Bits = float;
  using Scalar = float;
  static FL_OP float scalar(Bits x) { return x; }
};
struct ElementF64 {
  using Bits = double;
  using Scalar = float;
  static FL_OP float scalar(Bits x) { return static_cast<float>(x); }
};

// Maps floats to integers in the order of their values, so that bounds of all types are alike. NaN comes last.
constexpr i32 kOrderedNan = 0x7f800001;
FL_OP i32 ordered(float x) {
  const i32 bits = __float_as_int(x);
  return bits >= 0 ? bits : bits ^ 0x7fffffff;
}
FL_OP float from_ordered(i32 x) { return __int_as_float(x >= 0 ? x : x ^ 0x7fffffff); }

// The smallest and the largest element of a block, as they are kept (see capture_bounds.cuh).
template <typename Scalar>
struct BlockBounds {
  using Value = i32;
  using Pair = int2;
};
template <>
struct BlockBounds<i64> {
  using Value = i64;
  using Pair = longlong2;
};

// The index clamped into dimension `d` of a captured tensor, or of its gradient.
template <typename Capture>
FL_OP i32 clamp_index(const Capture& capture, int d, i32 index) {
  return max(min(index, capture.sizes[d] - 1), 0);
}
template <typename Capture>
FL_OP i32 clamp_index(const Capture& capture, int d, i64 index) {
  return static_cast<i32>(max(min(index, static_cast<i64>(capture.sizes[d] - 1)), 0ll));
}

template <typename Element, typename... Indices>
FL_OP typename Element::Scalar op_load(const CaptureArgument& capture, Indices... indices) {
  i64 offset = 0;
  int d = 0;
  // The last index is the one that changes from key to key: its stride fits 32 bits (the host guarantees it), so that
  // an address is one multiply-add.
  ((offset += d + 1 == static_cast<int>(sizeof...(indices))
                  ? static_cast<i64>(clamp_index(capture, d, indices)) * static_cast<i32>(capture.strides[d])
                  : clamp_index(capture, d, indices) * capture.strides[d],
    ++d),
   ...);
  return Element::scalar(__ldg(static_cast<const typename Element::Bits*>(capture.data) + offset));
}

// Whether the positions from `first` to `first + reach` in dimension `d` are inside, and their elements are neighbours
// in memory.
FL_OP bool op_inside(const CaptureArgument& capture, int d, i32 first, int reach) {
  const i64 last = static_cast<i64>(first) + reach;
  return first >= 0 && last >= 0 && first < capture.sizes[d] && last < capture.sizes[d] && capture.strides[d] == 1;
}

// A load known to be inside; the last index is `elements` away from the one given.
template <typename Element, typename... Indices>
FL_OP typename Element::Scalar op_load_inside(const CaptureArgument& capture, int elements, Indices... indices) {
  i64 offset = 0;
  int d = 0;
  ((offset += d + 1 == static_cast<int>(sizeof...(indices)) ? static_cast<i64>(indices)
                                                            : clamp_index(capture, d, indices) * capture.strides[d],
    ++d),
   ...);
  return Element::scalar(__ldg(static_cast<const typename Element::Bits*>(capture.data) + offset + elements));
}

// The same steps as everywhere: see ops.def.
template <typename Element, typename Value>
FL_OP i32 op_search(const CaptureArgument& capture, Value x) {
  const i32 size = max(capture.sizes[0], 1);
  i32 found = 0;
#pragma unroll 1
  for (i32 step = 1 << (31 - __clz(size)); step > 0; step /= 2) {
    const i32 last = found + step - 1;
    found += last < size && static_cast<i64>(op_load<Element>(capture, last)) <= static_cast<i64>(x) ? step : 0;
  }
  return found;
}

}  // namespace flashlift::cuda
