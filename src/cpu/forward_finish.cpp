#include "cpu/forward_finish.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>

#include "cpu/dropout.h"
#include "cpu/views.h"
#include "problem/sizes.h"

namespace flashlift::cpu {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct RowFactors {
  double scale;  // multiplies the accumulated output
  double lse;
  bool empty = false;
};

// The number of rows whose logarithms are computed together.
constexpr int64_t kLogRows = 64;

// log_sum: the logarithm of state.sum, if lse is requested.
RowFactors row_factors(const ForwardCall& call, int64_t h, const RowState& state, double log_sum) {
  const Problem& problem = call.kernel.problem();
  double maximum = state.max;
  bool any_nan = std::isnan(state.sum);
  for (int64_t r = 0; r < problem.sinks; ++r) {
    const double sink = sink_at(*call.arguments.sinks, h, r);
    any_nan |= std::isnan(sink);
    maximum = sink > maximum ? sink : maximum;
  }
  if (any_nan || maximum == kInfinity) {
    return {kNan, any_nan ? kNan : kInfinity};
  }
  if (maximum == -kInfinity) {
    return {0, problem.empty_rows == EmptyRows::kNan ? kNan : -kInfinity, true};
  }
  // Without sinks, the common factor of sum and output cancels, so that no exponential is needed.
  const double base = exponent_base(state.max);
  if (problem.sinks == 0 && problem.normalize) {
    return {1.0 / state.divisor, base + log_sum};
  }
  const bool has_key = state.max != -kInfinity;
  const double weight = has_key ? std::exp(base - maximum) : 0.0;
  double sinks = 0;
  for (int64_t r = 0; r < problem.sinks; ++r) {
    sinks += std::exp(sink_at(*call.arguments.sinks, h, r) - maximum);
  }
  const double lse = maximum + std::log(state.sum * weight + sinks);
  if (problem.normalize) {
    return {weight / (state.divisor * weight + sinks), lse};
  }
  // Callers divide by the sum of the unrounded probabilities, which lse contains.
  return {has_key ? weight * state.sum / state.divisor : 0.0, lse};
}

// Writes the mean of the values (or their sum, unnormalised).
void uniform_row(const ForwardCall& call, const FinishedRows& rows, int64_t q, float* out) {
  const Problem& problem = call.kernel.problem();
  const int64_t kv_len = call.sizes.kv_len;
  const double weight = call.dropout.factor / (problem.normalize ? static_cast<double>(kv_len) : 1.0);
  std::array<double, problem::kMostDepth> sums{};
  for (int64_t j = 0; j < kv_len; ++j) {
    if (!call.dropout.is_active() || keeps(call.dropout, {rows.b, rows.h, q}, j)) {
      const KeyPlace at = key_place(call.arguments, problem.page_size, rows.b, j);
      call.kernel.kernels().convert_rows(head_rows(call.arguments.v, at.batch, rows.g, at.row), 1, problem.value_dim,
                                         1.0f, out, problem.value_dim);
      std::transform(out, out + problem.value_dim, sums.begin(), sums.begin(), std::plus<>());
    }
  }
  for (int64_t d = 0; d < problem.value_dim; ++d) {
    out[d] = static_cast<float>(kv_len > 0 ? sums[static_cast<size_t>(d)] * weight : 0.0);
  }
}

// Writes the output of a row without a divisor, because it has no key and no sink, or contains a NaN.
void special_row(const ForwardCall& call, const FinishedRows& rows, int64_t q, const RowFactors& factors, float* out) {
  const Problem& problem = call.kernel.problem();
  const bool nan = std::isnan(factors.scale) || problem.empty_rows == EmptyRows::kNan;
  std::fill_n(out, problem.value_dim, nan ? std::numeric_limits<float>::quiet_NaN() : 0.0f);
  if (factors.empty && problem.empty_rows == EmptyRows::kUniform) {
    uniform_row(call, rows, q, out);
  }
}

// The position of the rows' elements of lse or of the row maxima, or null.
float* row_elements(const std::optional<TensorView>& view, const FinishedRows& rows) {
  return view ? static_cast<float*>(view->data) + rows.b * view->strides[0] + rows.h * view->strides[1] +
                    rows.q * view->strides[2]
              : nullptr;
}

}  // namespace

void finish_rows(const ForwardCall& call, const FinishedRows& rows, float* scratch) {
  const Problem& problem = call.kernel.problem();
  const TileKernels& kernels = call.kernel.kernels();
  const TensorView& out = call.arguments.out;
  const auto size = static_cast<int64_t>(size_in_bytes(out.dtype));
  std::byte* to = static_cast<std::byte*>(out.data) +
                  (rows.b * out.strides[0] + rows.h * out.strides[1] + rows.q * out.strides[2]) * size;
  float* lse = row_elements(call.arguments.lse, rows);
  float* row_max = row_elements(call.arguments.row_max, rows);
  double logs[kLogRows] = {};
  bool holds_mean = false;  // of all values, in `scratch`: without dropout, it is that of each row without keys
  for (int64_t r = 0; r < rows.count; ++r) {
    if (lse != nullptr && r % kLogRows == 0) {
      kernels.log_sums(rows.states + r, std::min(kLogRows, rows.count - r), logs);
    }
    const RowState& state = rows.states[r];
    const RowFactors factors = row_factors(call, rows.h, state, logs[r % kLogRows]);
    const float* source = rows.accumulated + r * rows.stride;
    float scale = static_cast<float>(factors.scale * call.dropout.factor);
    if (factors.empty || std::isnan(factors.scale)) {
      const bool is_mean = factors.empty && problem.empty_rows == EmptyRows::kUniform;
      if (!is_mean || !holds_mean) {
        special_row(call, rows, rows.q + r, factors, scratch);
      }
      holds_mean = is_mean && !call.dropout.is_active();
      source = scratch;
      scale = 1.0f;
    }
    kernels.store_row(source, problem.value_dim, scale, to + r * out.strides[2] * size, out.dtype, out.strides[3]);
    if (lse != nullptr) {
      lse[r * call.arguments.lse->strides[2]] = static_cast<float>(factors.lse);
    }
    if (row_max != nullptr) {
      row_max[r * call.arguments.row_max->strides[2]] =
          std::isnan(state.sum) ? std::numeric_limits<float>::quiet_NaN() : state.max;
    }
  }
}

void combine_splits(const ForwardCall& call, const Task& task, const float* partials, int64_t task_stride,
                    int64_t splits, const TileLayout& layout, const WorkerMemory& memory) {
  float* sum = reinterpret_cast<float*>(memory.tiles + layout.o);
  float* scratch = reinterpret_cast<float*>(memory.tiles + layout.s);
  for (int64_t r = 0; r < task.rows(); ++r) {
    const float* first = partials + r * partial_stride(layout.o_stride);
    RowState state;
    for (int64_t i = 0; i < splits; ++i) {
      state.max = std::max(state.max, first[i * task_stride]);
    }
    std::fill_n(sum, layout.o_stride, 0.0f);
    const double base = exponent_base(state.max);
    for (int64_t i = 0; i < splits; ++i) {
      const float* part = first + i * task_stride;
      // A part with a maximum of -inf contains only zeros, or NaN, which must not change.
      const bool neutral = part[0] == state.max || part[0] == -std::numeric_limits<float>::infinity();
      const float weight = neutral ? 1.0f : static_cast<float>(std::exp(exponent_base(part[0]) - base));
      state.sum += part[1] * weight;
      state.divisor += part[2] * weight;
      for (int64_t d = 0; d < layout.o_stride; ++d) {
        sum[d] += part[16 + d] * weight;
      }
    }
    finish_rows(call,
                {.b = task.b,
                 .g = task.g,
                 .h = task.h_begin + r / task.q_count,
                 .q = task.q_begin + r % task.q_count,
                 .count = 1,
                 .states = &state,
                 .accumulated = sum,
                 .stride = layout.o_stride},
                scratch);
  }
}

}  // namespace flashlift::cpu
