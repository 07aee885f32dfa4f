#include "support/gradients.h"

namespace flashlift::testing {
namespace {

bool same_bits(const std::optional<TensorView>& x, const std::optional<TensorView>& y) {
  return !x || bits_of(*x) == bits_of(*y);
}

}  // namespace

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

std::string differing_bits(const BackwardArguments& x, const BackwardArguments& y, bool compares_d_q) {
  if (compares_d_q && !same_bits(x.d_q, y.d_q)) {
    return "d_q";
  }
  if (!same_bits(x.d_k, y.d_k)) {
    return "d_k";
  }
  if (!same_bits(x.d_v, y.d_v)) {
    return "d_v";
  }
  if (!same_bits(x.d_sinks, y.d_sinks)) {
    return "d_sinks";
  }
  for (size_t i = 0; i < x.d_captures.size(); ++i) {
    if (!same_bits(x.d_captures[i], y.d_captures[i])) {
      return "the gradient of captured tensor " + std::to_string(i);
    }
  }
  return "";
}

}  // namespace flashlift::testing
