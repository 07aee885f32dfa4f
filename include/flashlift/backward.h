// The tensors of a backward call: the gradients of a loss by what a forward call read, from those by what it wrote.
#pragma once

#include <optional>
#include <vector>

#include "flashlift/problem.h"
#include "flashlift/result.h"
#include "flashlift/tensor.h"

#pragma GCC visibility push(default)  // this is what the shared library exports

namespace flashlift {

// Every gradient is an output that may be left out; each has the shape of its tensor, any strides, and overlaps nothing
// else. It is written, not added to.
struct BackwardArguments {
  // The forward call's arguments as it left them: out and lse are read now. A problem that asks for lse, and for an f32
  // output or the residual, has the fastest backward: without lse the row sums are computed once more, and what
  // rounding takes from a 16-bit output is too much for <d_out, out>, so that this is computed once more too.
  AttentionArguments forward;

  TensorView d_out;                 // of Problem::d_out_dtype() and out's shape
  std::optional<TensorView> d_lse;  // f32, of lse's shape; only if the problem asks for lse

  std::optional<TensorView> d_q;  // of the problem's dtype, as d_k and d_v
  std::optional<TensorView> d_k;  // summed over the query heads of its group
  std::optional<TensorView> d_v;
  // Empty, or one for each of Problem::captures, of float captured tensors only: f32 or the tensor's own dtype, in its
  // logical shape, so that the elements of a broadcast dimension have a gradient each. Zero where score_mod does not
  // depend on the tensor, and for one that only mask_mod reads.
  std::vector<std::optional<TensorView>> d_captures;
  std::optional<TensorView> d_sinks;  // f32, of the sinks' shape: summed over the heads that share them
};

// Why this problem has no backward: kUnsupported for an output that is not normalised, and for pages.
Status verify_backward(const Problem& problem);
// Checks that the arguments of a backward call are what the problem says.
Status verify(const Problem& problem, const BackwardArguments& arguments);

}  // namespace flashlift

#pragma GCC visibility pop
