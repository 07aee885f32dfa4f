#include "cpu/forward_finish.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "cpu/dropout.h"
#include "cpu/views.h"
#include "support/half.h"

namespace flashlift::cpu {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct RowFactors {
  double scale;  // of the accumulated output
  double lse;
  bool empty = false;
};

RowFactors row_factors(const ForwardCall& call, const FinishedRow& row) {
  const Problem& problem = call.kernel.problem();
  double maximum = row.state.max;
  bool any_nan = std::isnan(row.state.sum);
  for (int64_t r = 0; r < problem.sinks; ++r) {
    const double sink = sink_at(*call.arguments.sinks, row.h, r);
    any_nan |= std::isnan(sink);
    maximum = sink > maximum ? sink : maximum;
  }
  if (any_nan || maximum == kInfinity) {
    return {kNan, any_nan ? kNan : kInfinity};
  }
  if (maximum == -kInfinity) {
    return {0, problem.empty_rows == EmptyRows::kNan ? kNan : -kInfinity, true};
  }
  // Without sinks the common factor of sum and output cancels, and needs no exponential.
  const double base = exponent_base(row.state.max);
  if (problem.sinks == 0 && problem.normalize) {
    return {1.0 / row.state.sum, base + std::log(static_cast<double>(row.state.sum))};
  }
  const double weight = row.state.max == -kInfinity ? 0.0 : std::exp(base - maximum);
  double sum = row.state.sum * weight;
  for (int64_t r = 0; r < problem.sinks; ++r) {
    sum += std::exp(sink_at(*call.arguments.sinks, row.h, r) - maximum);
  }
  return {problem.normalize ? weight / sum : weight, maximum + std::log(sum)};
}

float element(const TensorView& view, int64_t offset) {
  switch (view.dtype) {
    case DType::kF16:
      return f16_to_float(static_cast<const uint16_t*>(view.data)[offset]);
    case DType::kBF16:
      return bf16_to_float(static_cast<const uint16_t*>(view.data)[offset]);
    default:
      return static_cast<const float*>(view.data)[offset];
  }
}

// The values' mean (their sum, unnormalised). Reads all of V for a row: empty rows are rare.
void uniform_row(const ForwardCall& call, const FinishedRow& row, float* out) {
  const Problem& problem = call.kernel.problem();
  const TensorView& v = call.arguments.v;
  const int64_t kv_len = call.sizes.kv_len;
  const double weight = call.dropout.factor / (problem.normalize ? static_cast<double>(kv_len) : 1.0);
  for (int64_t d = 0; d < problem.value_dim; ++d) {
    double sum = 0;
    for (int64_t j = 0; j < kv_len; ++j) {
      if (call.dropout.threshold == 0 || keeps(call.dropout, {row.b, row.h, row.q}, j)) {
        const KeyPlace at = key_place(call.arguments, problem.page_size, row.b, j);
        sum += element(v, at.batch * v.strides[0] + row.g * v.strides[1] + at.row * v.strides[2] + d * v.strides[3]);
      }
    }
    out[d] = static_cast<float>(kv_len > 0 ? sum * weight : 0.0);
  }
}

}  // namespace

void finish_row(const ForwardCall& call, const FinishedRow& row, float* scratch) {
  const Problem& problem = call.kernel.problem();
  const RowFactors factors = row_factors(call, row);
  const float* source = row.accumulated;
  float scale = static_cast<float>(factors.scale * call.dropout.factor);
  if (factors.empty || std::isnan(factors.scale)) {
    source = scratch;
    scale = 1.0f;
    const bool nan = std::isnan(factors.scale) || problem.empty_rows == EmptyRows::kNan;
    for (int64_t d = 0; d < problem.value_dim; ++d) {
      scratch[d] = nan ? std::numeric_limits<float>::quiet_NaN() : 0.0f;
    }
    if (factors.empty && problem.empty_rows == EmptyRows::kUniform) {
      uniform_row(call, row, scratch);
    }
  }
  const TensorView& out = call.arguments.out;
  const int64_t offset = row.b * out.strides[0] + row.h * out.strides[1] + row.q * out.strides[2];
  std::byte* to = static_cast<std::byte*>(out.data) + offset * static_cast<int64_t>(size_in_bytes(out.dtype));
  call.kernel.kernels().store_row(source, problem.value_dim, scale, to, out.dtype, out.strides[3]);
  const auto store = [&](const TensorView& view, float value) {
    static_cast<float*>(view.data)[row.b * view.strides[0] + row.h * view.strides[1] + row.q * view.strides[2]] = value;
  };
  if (call.arguments.lse) {
    store(*call.arguments.lse, static_cast<float>(factors.lse));
  }
  if (call.arguments.row_max) {
    store(*call.arguments.row_max, std::isnan(row.state.sum) ? std::numeric_limits<float>::quiet_NaN() : row.state.max);
  }
}

}  // namespace flashlift::cpu
