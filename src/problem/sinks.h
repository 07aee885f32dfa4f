// The layout of sinks: [q_heads, n], or [n] if all heads share them.
#pragma once

#include <cstdint>

#include "flashlift/tensor.h"

namespace flashlift::problem {

inline int64_t sink_offset(const TensorView& sinks, int64_t h, int64_t r) {
  return sinks.rank == 1 ? r * sinks.strides[0] : h * sinks.strides[0] + r * sinks.strides[1];
}

// The index of the sink in a dense tensor of that shape.
inline int64_t dense_sink_index(const TensorView& sinks, int64_t h, int64_t r) {
  return sinks.rank == 1 ? r : h * sinks.sizes[1] + r;
}

}  // namespace flashlift::problem
