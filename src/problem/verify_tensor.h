// Checks the tensors of a call against the problem.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "flashlift/problem.h"
#include "flashlift/result.h"
#include "flashlift/tensor.h"
#include "problem/overlap.h"

namespace flashlift::problem {

struct WantedTensor {
  // These are views and spans, so that calls of a compiled attention do not allocate.
  std::string_view name;
  const TensorView& view;
  DType dtype;
  std::span<const int64_t> shape;          // -1: any
  std::string_view role = {};              // precedes the name of a captured tensor
  std::span<const int64_t> declared = {};  // the captured tensor's shape in the program, which may contain names
  std::string_view dimensions = {};        // their meaning, for callers with another order of dimensions
};

Status verify_tensor(const WantedTensor& wanted);
// The same for a tensor that is written, whose elements must not overlap.
Status verify_output(const WantedTensor& wanted);

// Fails if a call passes another number of captured tensors than the problem has. For callers whose tensors lie in an
// array that they may read only as far as it goes.
Status verify_capture_count(const Problem& problem, size_t count);

// Adds the tensors that a forward call reads, which no call may write.
void add_inputs(const AttentionArguments& arguments, const Problem& problem, CallTensors& tensors);

// The shape of a captured tensor for a call of the problem's own lengths. `any` is the size of `?`, `same` that of `n`.
std::vector<int64_t> capture_shape(const Capture& capture, const Problem& problem, int64_t any, int64_t same);

}  // namespace flashlift::problem
