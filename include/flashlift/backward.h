// The tensors of a backward call. It computes the gradients of a loss with respect to the inputs of a forward call,
// from the gradients with respect to its outputs.
#pragma once

#include <optional>
#include <vector>

#include "flashlift/problem.h"
#include "flashlift/result.h"
#include "flashlift/tensor.h"

#pragma GCC visibility push(default)  // the shared library exports these declarations

namespace flashlift {

// Every gradient is an optional output. Each has the shape of its tensor and any strides, and overlaps nothing else. A
// call overwrites it and does not add to it.
struct BackwardArguments {
  // The forward call's arguments with the outputs that it wrote: out and lse are inputs here. The backward pass is
  // fastest if the problem has lse, and an f32 output or the residual. Without lse it computes the row sums again. A
  // 16-bit output is not exact enough for <d_out, out>, so that this is computed again, too.
  AttentionArguments forward;

  TensorView d_out;                      // dtype Problem::d_out_dtype(), out's shape
  std::optional<TensorView> d_lse = {};  // f32, lse's shape; only if the problem has lse

  std::optional<TensorView> d_q = {};  // the problem's dtype, like d_k and d_v
  std::optional<TensorView> d_k = {};  // summed over the query heads of its group
  std::optional<TensorView> d_v = {};
  // Empty, or one for each of Problem::captures; only float captured tensors have gradients. Each is f32 or of the
  // tensor's own dtype, in the tensor's logical shape, so that each element of a broadcast dimension has its own
  // gradient. It is zero where score_mod does not depend on the tensor, and for a tensor that only mask_mod reads.
  std::vector<std::optional<TensorView>> d_captures = {};
  std::optional<TensorView> d_sinks = {};  // f32, the sinks' shape: summed over the heads that share them
};

// kUnsupported with the reason, if this problem has no backward pass: an output that is not normalised, or pages.
Status verify_backward(const Problem& problem);
// Checks that the arguments of a backward call match the problem, which verify(problem) accepts.
Status verify(const Problem& problem, const BackwardArguments& arguments);

}  // namespace flashlift

#pragma GCC visibility pop
