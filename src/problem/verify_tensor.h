// Checking the tensors of a call against what a problem says of them.
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
  // Views and spans, since a call of a compiled attention allocates nothing.
  std::string_view name;
  const TensorView& view;
  DType dtype;
  std::span<const int64_t> shape;          // -1: any
  std::string_view role = {};              // what goes before the name of a captured tensor
  std::span<const int64_t> declared = {};  // the captured tensor's shape in the program, where that may have names
  std::string_view dimensions = {};        // what they are, for those who bring them in another order
};

Status verify_tensor(const WantedTensor& wanted);
// The same for one that is written, whose elements must not overlap.
Status verify_output(const WantedTensor& wanted);

// What a forward call reads: what no call may write.
void add_inputs(const AttentionArguments& arguments, const Problem& problem, CallTensors& tensors);

// The shape of a captured tensor for a call of the problem's own lengths. `any` is the size of `?`, `same` that of `n`.
std::vector<int64_t> capture_shape(const Capture& capture, const Problem& problem, int64_t any, int64_t same);

}  // namespace flashlift::problem
