#include "support/gradients.h"

namespace flashlift::testing {

OwnedGradients make_gradients(const Problem& problem, const AttentionArguments& forward, const TensorView& d_out,
                              const std::optional<TensorView>& d_lse, Random random) {
  OwnedGradients made;
  BackwardArguments& a = made.arguments;
  a.forward = forward;
  a.d_out = d_out;
  a.d_lse = d_lse;
  const auto like = [&](const TensorView& of, DType dtype) {
    return made.memory.strided(dtype, {of.shape().begin(), of.shape().end()}, random, false);
  };
  a.d_q = like(forward.q, problem.dtype);
  a.d_k = like(forward.k, problem.dtype);
  a.d_v = like(forward.v, problem.dtype);
  for (const TensorView& capture : forward.captures) {
    a.d_captures.emplace_back();
    if (is_float(capture.dtype)) {
      a.d_captures.back() = like(capture, DType::kF32);
    }
  }
  if (forward.sinks) {
    a.d_sinks = like(*forward.sinks, DType::kF32);
  }
  return made;
}

}  // namespace flashlift::testing
