#include "cuda/launch/params.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "problem/dropout.h"
#include "problem/sinks.h"
#include "problem/verify_tensor.h"
#include "support/error.h"

namespace flashlift::cuda {
namespace {

Status fill_captures(const std::vector<TensorView>& views, ForwardParams& params) {
  const int least = params.q_len > 0 && params.kv_len > 0 ? 1 : 0;  // without scores, no program runs
  for (size_t i = 0; i < views.size(); ++i) {
    CaptureArgument& capture = params.captures[i];
    capture.data = views[i].data;
    capture.bounds = nullptr;
    for (int d = 0; d < views[i].rank; ++d) {
      if (views[i].sizes[d] > INT32_MAX || views[i].sizes[d] < least) {
        return unsupported("captured tensor {} has dimension {} of size {}, expected {} to {}", i, d, views[i].sizes[d],
                           least, INT32_MAX);
      }
      if (d + 1 == views[i].rank && (views[i].strides[d] > INT32_MAX || views[i].strides[d] < INT32_MIN)) {
        return unsupported("the last dimension of captured tensor {} has a stride of {} elements, expected 32 bits", i,
                           views[i].strides[d]);
      }
      // A search counts all elements, even if they are one element in memory.
      const bool shared = views[i].rank > 1 && views[i].strides[d] == 0;
      capture.sizes[d] = static_cast<int>(shared ? std::min<int64_t>(views[i].sizes[d], 1) : views[i].sizes[d]);
      capture.strides[d] = views[i].strides[d];
    }
  }
  return {};
}

}  // namespace

Strides strides_of(const TensorView& view) {
  return {view.strides[0], view.strides[1], view.strides[2], view.strides[3]};
}

bool has_vector_rows(const TensorView& view) {
  const auto chunk = static_cast<int64_t>(16 / size_in_bytes(view.dtype));
  bool fits = reinterpret_cast<uintptr_t>(view.data) % 16 == 0 && view.sizes[3] % chunk == 0 && view.strides[3] == 1;
  for (int d = 0; d < 3; ++d) {
    fits = fits && (view.sizes[d] <= 1 || view.strides[d] % chunk == 0);
  }
  return fits && std::in_range<int>(view.strides[2]);  // kernels multiply it in 32 bits
}

bool has_vector_rows(const TensorView& out, const std::optional<TensorView>& residual) {
  constexpr uintptr_t kPiece = 8;  // bytes of the residual beside 16 of the output
  return has_vector_rows(out) && (!residual || reinterpret_cast<uintptr_t>(residual->data) % kPiece == 0);
}

Status fill_params(const Problem& problem, const AttentionArguments& arguments, ForwardParams& params) {
  params.q = arguments.q.data;
  params.k = arguments.k.data;
  params.v = arguments.v.data;
  params.out = arguments.out.data;
  params.residual = arguments.residual ? arguments.residual->data : nullptr;
  params.lse = arguments.lse ? static_cast<float*>(arguments.lse->data) : nullptr;
  params.row_max = arguments.row_max ? static_cast<float*>(arguments.row_max->data) : nullptr;
  params.page_table = arguments.page_table ? static_cast<const int*>(arguments.page_table->data) : nullptr;
  params.sinks = arguments.sinks ? static_cast<const float*>(arguments.sinks->data) : nullptr;
  params.q_strides = strides_of(arguments.q);
  params.k_strides = strides_of(arguments.k);
  params.v_strides = strides_of(arguments.v);
  params.out_strides = strides_of(arguments.out);
  for (int d = 0; d < 3; ++d) {
    params.lse_strides[d] = arguments.lse ? arguments.lse->strides[d] : 0;
    params.row_max_strides[d] = arguments.row_max ? arguments.row_max->strides[d] : 0;
  }
  if (arguments.sinks) {
    params.sink_strides[0] = problem::sink_offset(*arguments.sinks, 1, 0);
    params.sink_strides[1] = problem::sink_offset(*arguments.sinks, 0, 1);
  }
  for (int d = 0; d < 2; ++d) {
    params.page_table_strides[d] = arguments.page_table ? arguments.page_table->strides[d] : 0;
  }
  params.zero = 0;
  params.pages = static_cast<int>(arguments.k.sizes[0]);
  const double rate = problem.dropout;
  const auto& [origin_b, origin_h] = arguments.dropout_origin;
  params.dropout_words[0] = static_cast<uint32_t>(arguments.dropout_seed);
  params.dropout_words[1] = static_cast<uint32_t>(arguments.dropout_seed >> 32);
  params.dropout_words[2] = static_cast<uint32_t>(origin_b);
  params.dropout_words[3] = static_cast<uint32_t>(origin_h);
  params.device_dropout_words = nullptr;
  params.device_dropout_count = 0;
  if (arguments.dropout_words) {
    params.device_dropout_words = static_cast<const unsigned*>(arguments.dropout_words->data);
    params.device_dropout_count = static_cast<int>(arguments.dropout_words->sizes[0]);
  }
  params.dropout_threshold = static_cast<uint32_t>(std::llround(std::ldexp(rate, 32)));
  params.dropout_factor = static_cast<float>(1.0 / (1.0 - rate));
  params.keep = nullptr;
  if (arguments.keep_mask) {
    params.keep = static_cast<const unsigned char*>(arguments.keep_mask->data);
    std::ranges::copy(problem::keep_mask_strides(*arguments.keep_mask), params.keep_strides);
  }
  params.scale = problem.scale;
  params.batch = static_cast<int>(arguments.q.sizes[0]);
  params.q_heads = static_cast<int>(problem.q_heads);
  params.kv_heads = static_cast<int>(problem.kv_heads);
  params.group = params.q_heads / params.kv_heads;
  params.q_len = static_cast<int>(arguments.q.sizes[2]);
  params.kv_len = static_cast<int>(kv_length(problem, arguments));
  params.sinks_per_head = static_cast<int>(problem.sinks);
  params.vector_q = has_vector_rows(arguments.q);
  params.vector_k = has_vector_rows(arguments.k);
  params.vector_v = has_vector_rows(arguments.v);
  params.vector_out = has_vector_rows(arguments.out, arguments.residual);
  return fill_captures(arguments.captures, params);
}

void fill_lengths(const Problem& problem, ForwardParams& params) {
  params.batch = static_cast<int>(problem.batch);
  params.q_heads = static_cast<int>(problem.q_heads);
  params.kv_heads = static_cast<int>(problem.kv_heads);
  params.group = params.q_heads / params.kv_heads;
  params.q_len = static_cast<int>(problem.q_len);
  params.kv_len = static_cast<int>(problem.kv_len);
  const int64_t longest = std::max(problem.q_len, problem.kv_len);
  for (size_t i = 0; i < problem.captures.size(); ++i) {
    const std::vector<int64_t> shape = problem::capture_shape(problem.captures[i], problem, longest, longest);
    std::ranges::transform(shape, params.captures[i].sizes, [](int64_t size) { return static_cast<int>(size); });
  }
}

}  // namespace flashlift::cuda
