// Where sinks lie: [q_heads, n], or [n] where all heads have the same.
#pragma once

#include <cstdint>

#include "flashlift/tensor.h"

namespace flashlift::problem {

inline int64_t sink_offset(const TensorView& sinks, int64_t h, int64_t r) {
  return sinks.rank == 1 ? r * sinks.strides[0] : h * sinks.strides[0] + r * sinks.strides[1];
}

// The place of the same sink in a dense tensor of that shape.
inline int64_t dense_sink_index(const TensorView& sinks, int64_t h, int64_t r) {
  return sinks.rank == 1 ? r : h * sinks.sizes[1] + r;
}

}  // namespace flashlift::problem
