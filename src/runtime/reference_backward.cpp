#include "runtime/reference_backward.h"

#include <vector>

#include "problem/oracle_backward.h"
#include "support/half.h"

namespace flashlift::runtime {
namespace {

void write(const TensorView& view, int64_t offset, double value) {
  switch (view.dtype) {
    case DType::kF16:
      static_cast<uint16_t*>(view.data)[offset] = float_to_f16(static_cast<float>(value));
      return;
    case DType::kBF16:
      static_cast<uint16_t*>(view.data)[offset] = float_to_bf16(static_cast<float>(value));
      return;
    case DType::kF64:
      static_cast<double*>(view.data)[offset] = value;
      return;
    default:
      static_cast<float*>(view.data)[offset] = static_cast<float>(value);
  }
}

// `values` are dense; none at all are zeros.
void store(const std::optional<TensorView>& view, const std::vector<double>& values) {
  if (!view) {
    return;
  }
  const int64_t count = view->element_count();
  for (int64_t i = 0; i < count; ++i) {
    int64_t rest = i;
    int64_t offset = 0;
    for (int d = view->rank - 1; d >= 0; --d) {
      offset += rest % view->sizes[d] * view->strides[d];
      rest /= view->sizes[d];
    }
    write(*view, offset, values.empty() ? 0.0 : values[i]);
  }
}

}  // namespace

Status run_reference_backward(const Problem& problem, const BackwardArguments& arguments) {
  FLASHLIFT_ASSIGN_OR_RETURN(
      const problem::OracleGradients gradients,
      problem::run_oracle_backward(problem, arguments.forward, {.out = arguments.d_out, .lse = arguments.d_lse}));
  store(arguments.d_q, gradients.q);
  store(arguments.d_k, gradients.k);
  store(arguments.d_v, gradients.v);
  store(arguments.d_sinks, gradients.sinks);
  for (size_t i = 0; i < arguments.d_captures.size(); ++i) {
    store(arguments.d_captures[i], gradients.captures[i]);
  }
  return {};
}

}  // namespace flashlift::runtime
