#include "flashlift/backward.h"

#include "problem/verify_tensor.h"
#include "support/error.h"

namespace flashlift {
namespace {

Status verify_gradient(const char* name, const std::optional<TensorView>& gradient, DType dtype, const TensorView& of) {
  return gradient ? problem::verify_output({name, *gradient, dtype, of.shape()}) : Status();
}

Status verify_capture_gradients(const Problem& problem, const BackwardArguments& arguments) {
  if (!arguments.d_captures.empty() && arguments.d_captures.size() != problem.captures.size()) {
    return invalid_argument("expected no gradients of captured tensors, or one entry for each of {}, got {}",
                            problem.captures.size(), arguments.d_captures.size());
  }
  for (size_t i = 0; i < arguments.d_captures.size(); ++i) {
    if (!arguments.d_captures[i]) {
      continue;
    }
    const Capture& capture = problem.captures[i];
    if (!is_float(capture.dtype)) {
      return invalid_argument("captured tensor `{}` is {}: only float tensors have gradients", capture.name,
                              to_string(capture.dtype));
    }
    const DType dtype = arguments.d_captures[i]->dtype == DType::kF32 ? DType::kF32 : capture.dtype;
    FLASHLIFT_RETURN_IF_ERROR(
        problem::verify_output({capture.name, *arguments.d_captures[i], dtype, arguments.forward.captures[i].shape(),
                                "the gradient of captured tensor"}));
  }
  return {};
}

Status verify_apart(const Problem& problem, const BackwardArguments& arguments) {
  problem::CallTensors tensors;
  const AttentionArguments& forward = arguments.forward;
  problem::add_inputs(forward, problem, tensors);
  tensors.add_input("out", forward.out);
  tensors.add_input("d_out", arguments.d_out);
  for (const auto& [name, view] : {std::pair{"lse", &forward.lse}, std::pair{"d_lse", &arguments.d_lse}}) {
    if (*view) {
      tensors.add_input(name, **view);
    }
  }
  for (const auto& [name, view] : {std::pair{"d_q", &arguments.d_q}, std::pair{"d_k", &arguments.d_k},
                                   std::pair{"d_v", &arguments.d_v}, std::pair{"d_sinks", &arguments.d_sinks}}) {
    if (*view) {
      tensors.add_output(name, **view);
    }
  }
  for (size_t i = 0; i < arguments.d_captures.size(); ++i) {
    if (arguments.d_captures[i]) {
      tensors.add_output(problem.captures[i].name, *arguments.d_captures[i], "the gradient of captured tensor");
    }
  }
  return tensors.verify_apart();
}

}  // namespace

Status verify_backward(const Problem& problem) {
  if (!problem.normalize) {
    return unsupported(
        "an output that is not normalised has no backward pass: compile the problem without `unnormalized` and scale "
        "the output");
  }
  if (problem.page_size > 0) {
    return unsupported(
        "paged keys and values have no backward pass: pages are shared, so gather them into tensors first");
  }
  return {};
}

Status verify(const Problem& problem, const BackwardArguments& arguments) {
  const AttentionArguments& forward = arguments.forward;
  FLASHLIFT_RETURN_IF_ERROR(verify_backward(problem));
  FLASHLIFT_RETURN_IF_ERROR(verify(problem, forward));
  FLASHLIFT_RETURN_IF_ERROR(
      problem::verify_tensor({"d_out", arguments.d_out, problem.d_out_dtype(), forward.out.shape()}));
  if (arguments.d_lse) {
    if (!problem.want_lse) {
      return invalid_argument("the call gives d_lse, but the problem does not ask for lse; compile it with lse");
    }
    FLASHLIFT_RETURN_IF_ERROR(problem::verify_tensor({"d_lse", *arguments.d_lse, DType::kF32, forward.lse->shape()}));
  }
  FLASHLIFT_RETURN_IF_ERROR(verify_gradient("d_q", arguments.d_q, problem.dtype, forward.q));
  FLASHLIFT_RETURN_IF_ERROR(verify_gradient("d_k", arguments.d_k, problem.dtype, forward.k));
  FLASHLIFT_RETURN_IF_ERROR(verify_gradient("d_v", arguments.d_v, problem.dtype, forward.v));
  FLASHLIFT_RETURN_IF_ERROR(verify_capture_gradients(problem, arguments));
  if (arguments.d_sinks && problem.sinks == 0) {
    return invalid_argument("the call gives d_sinks, but the problem has no sinks; compile it with sinks=<N>");
  }
  if (arguments.d_sinks) {
    FLASHLIFT_RETURN_IF_ERROR(verify_gradient("d_sinks", arguments.d_sinks, DType::kF32, *forward.sinks));
  }
  return verify_apart(problem, arguments);
}

}  // namespace flashlift
