#include "tuning/inputs.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "problem/features.h"
#include "problem/verify_tensor.h"
#include "support/error.h"
#include "support/half.h"

namespace flashlift::tuning {
namespace {

// splitmix64, because the distributions of <random> differ between standard libraries.
class Random {
 public:
  Random(uint64_t seed, uint64_t stream) : state_(seed) { state_ = bits() ^ (stream * 0x9e3779b97f4a7c15u); }

  uint64_t bits() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // In (0, 1].
  double uniform() { return static_cast<double>((bits() >> 11) + 1) * 0x1p-53; }
  int64_t below(int64_t bound) { return static_cast<int64_t>(bits() % static_cast<uint64_t>(bound)); }
  float normal() {  // the Box-Muller method
    return static_cast<float>(std::sqrt(-2.0 * std::log(uniform())) * std::cos(2.0 * std::numbers::pi * uniform()));
  }

 private:
  uint64_t state_;
};

void store_float(const TensorView& view, int64_t index, float value) {
  switch (view.dtype) {
    case DType::kF16:
      static_cast<uint16_t*>(view.data)[index] = float_to_f16(value);
      break;
    case DType::kBF16:
      static_cast<uint16_t*>(view.data)[index] = float_to_bf16(value);
      break;
    case DType::kF64:
      static_cast<double*>(view.data)[index] = value;
      break;
    default:
      static_cast<float*>(view.data)[index] = value;
      break;
  }
}

void store_integer(const TensorView& view, int64_t index, int64_t value) {
  switch (size_in_bytes(view.dtype)) {
    case 1:  // an 8-bit type cannot represent long lengths
      static_cast<int8_t*>(view.data)[index] = static_cast<int8_t>(std::min<int64_t>(value, 127));
      break;
    case 2:
      static_cast<int16_t*>(view.data)[index] = static_cast<int16_t>(std::min<int64_t>(value, 32767));
      break;
    case 4:
      static_cast<int32_t*>(view.data)[index] = static_cast<int32_t>(value);
      break;
    default:
      static_cast<int64_t*>(view.data)[index] = value;
      break;
  }
}

void fill(const TensorView& view, const Problem& problem, Random random) {
  const int64_t last = view.rank > 0 ? view.sizes[view.rank - 1] : 1;
  const bool per_position = last > 1 && (last == problem.q_len || last == problem.kv_len);
  for (int64_t i = 0; i < view.element_count(); ++i) {
    if (is_float(view.dtype)) {
      store_float(view, i, random.normal());
    } else if (view.dtype == DType::kBool) {
      static_cast<uint8_t*>(view.data)[i] = random.below(4) != 0 ? 1 : 0;
    } else {
      store_integer(view, i, per_position ? (i % last) * 8 / last : random.below(problem.kv_len + 1));
    }
  }
}

// Fills in every page once, in random order.
void shuffle_pages(const TensorView& table, Random random) {
  auto* pages = static_cast<int32_t*>(table.data);
  for (int64_t i = 0; i < table.element_count(); ++i) {
    const int64_t other = random.below(i + 1);
    pages[i] = pages[other];
    pages[other] = static_cast<int32_t>(i);
  }
}

constexpr int64_t kPackedSequences = 4;

std::vector<int64_t> shape_of(const Capture& capture, const Problem& problem) {
  return problem::capture_shape(capture, problem, std::max(problem.q_len, problem.kv_len), kPackedSequences + 1);
}

// Fills in sequences of equal lengths.
void fill_cumulative(const TensorView& view, int64_t length) {
  for (int64_t i = 0; i < view.element_count(); ++i) {
    store_integer(view, i, length * i / kPackedSequences);
  }
}

// In double, because the product of large sizes may overflow 64 bits.
double bytes_of(DType dtype, const std::vector<int64_t>& shape) {
  double bytes = static_cast<double>(size_in_bytes(dtype));
  for (const int64_t size : shape) {
    bytes *= static_cast<double>(size);
  }
  return bytes;
}

double tensor_bytes(const Problem& p) {
  return bytes_of(p.dtype, {p.batch, p.q_heads, p.q_len, p.head_dim}) +
         bytes_of(p.dtype, {p.batch, p.kv_heads, p.kv_len, p.head_dim + p.value_dim}) +
         bytes_of(p.out_dtype, {p.batch, p.q_heads, p.q_len, p.value_dim}) +
         (p.want_residual ? bytes_of(DType::kI8, {p.batch, p.q_heads, p.q_len, p.value_dim}) : 0) +
         bytes_of(DType::kF32, {p.batch, p.q_heads, p.q_len}) * (1 + (p.want_row_max ? 1 : 0)) +
         bytes_of(DType::kF32, {p.q_heads, p.sinks}) +
         (p.keep_mask ? bytes_of(DType::kBool, {p.batch, p.q_heads, p.q_len, p.kv_len}) : 0) +
         (p.page_size > 0 ? bytes_of(DType::kI32, {p.batch, p.kv_len / p.page_size}) : 0);
}

double capture_bytes(const Problem& p) {
  double bytes = 0;
  for (const Capture& capture : p.captures) {
    bytes += bytes_of(capture.dtype, shape_of(capture, p));
  }
  return bytes;
}

Status check_memory(double bytes) {
  const double memory = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE));
  if (bytes > 0.8 * memory) {
    return invalid_argument(
        "the problem's tensors take {:.1f} GiB, this machine has {:.1f} GiB of memory; give smaller sizes",
        bytes * 0x1p-30, memory * 0x1p-30);
  }
  return {};
}

}  // namespace

TensorView Inputs::allocate(DType dtype, const std::vector<int64_t>& shape) {
  TensorView view = dense_view(nullptr, dtype, shape);
  buffers_.push_back(std::make_unique<std::byte[]>(view.element_count() * size_in_bytes(dtype)));
  view.data = buffers_.back().get();
  return view;
}

void Inputs::add_captures(const Problem& problem, uint64_t seed) {
  uint64_t stream = 0x100;  // so that a tensor's numbers do not depend on the other tensors
  for (const Capture& capture : problem.captures) {
    arguments_.captures.push_back(allocate(capture.dtype, shape_of(capture, problem)));
    const problem::FeatureTensor* of_feature = problem::feature_tensor(capture);
    const problem::Holds holds = of_feature == nullptr ? problem::Holds::kAnything : of_feature->holds;
    if (holds == problem::Holds::kQueryStarts || holds == problem::Holds::kKeyStarts) {
      fill_cumulative(arguments_.captures.back(),
                      holds == problem::Holds::kQueryStarts ? problem.q_len : problem.kv_len);
    } else {
      fill(arguments_.captures.back(), problem, Random(seed, stream));
    }
    ++stream;
  }
}

Result<Inputs> Inputs::draw_captures(const Problem& problem, uint64_t seed) {
  FLASHLIFT_RETURN_IF_ERROR(check_memory(capture_bytes(problem)));
  Inputs inputs;
  inputs.add_captures(problem, seed);
  return inputs;
}

Status Inputs::add_gradients(const Problem& p, uint64_t seed) {
  FLASHLIFT_RETURN_IF_ERROR(verify_backward(p));
  FLASHLIFT_RETURN_IF_ERROR(check_memory(2 * tensor_bytes(p) + 3 * capture_bytes(p)));
  BackwardArguments& backward = backward_.emplace();
  backward.forward = arguments_;
  const auto like = [&](const TensorView& tensor, DType dtype) {
    TensorView gradient = tensor;
    gradient.dtype = dtype;
    gradient.data = allocate(dtype, {tensor.shape().begin(), tensor.shape().end()}).data;
    return gradient;  // a drawn tensor's memory is dense, in any order
  };
  uint64_t stream = 0x200;
  backward.d_out = like(arguments_.out, p.d_out_dtype());
  fill(backward.d_out, p, Random(seed, stream++));
  if (arguments_.lse) {
    backward.d_lse = like(*arguments_.lse, DType::kF32);
    fill(*backward.d_lse, p, Random(seed, stream++));
  }
  backward.d_q = like(arguments_.q, p.dtype);
  backward.d_k = like(arguments_.k, p.dtype);
  backward.d_v = like(arguments_.v, p.dtype);
  for (const TensorView& capture : arguments_.captures) {
    backward.d_captures.push_back(is_float(capture.dtype) ? std::optional(like(capture, DType::kF32)) : std::nullopt);
  }
  if (arguments_.sinks) {
    backward.d_sinks = like(*arguments_.sinks, DType::kF32);
  }
  return {};
}

Result<Inputs> Inputs::draw(const Problem& p, uint64_t seed, Layout layout) {
  FLASHLIFT_RETURN_IF_ERROR(check_memory(tensor_bytes(p) + capture_bytes(p)));
  Inputs inputs;
  const int64_t page_count = p.page_size > 0 ? p.batch * (p.kv_len / p.page_size) : 0;
  const int64_t kv_batch = p.page_size > 0 ? page_count : p.batch;
  const int64_t kv_rows = p.page_size > 0 ? p.page_size : p.kv_len;
  const auto tensor = [&](DType dtype, int64_t batch, int64_t heads, int64_t length, int64_t dim) {
    if (layout == Layout::kBshd) {
      return transposed(inputs.allocate(dtype, {batch, length, heads, dim}), 1, 2);
    }
    return inputs.allocate(dtype, {batch, heads, length, dim});
  };
  AttentionArguments& arguments = inputs.arguments_;
  arguments.q = tensor(p.dtype, p.batch, p.q_heads, p.q_len, p.head_dim);
  arguments.k = tensor(p.dtype, kv_batch, p.kv_heads, kv_rows, p.head_dim);
  arguments.v = tensor(p.dtype, kv_batch, p.kv_heads, kv_rows, p.value_dim);
  arguments.out = tensor(p.out_dtype, p.batch, p.q_heads, p.q_len, p.value_dim);
  uint64_t stream = 0;
  for (const TensorView* view : {&arguments.q, &arguments.k, &arguments.v}) {
    fill(*view, p, Random(seed, stream++));
  }
  inputs.add_captures(p, seed);
  if (p.sinks > 0) {
    arguments.sinks = inputs.allocate(DType::kF32, {p.q_heads, p.sinks});
    fill(*arguments.sinks, p, Random(seed, stream++));
  }
  if (p.want_lse) {
    arguments.lse = inputs.allocate(DType::kF32, {p.batch, p.q_heads, p.q_len});
  }
  if (p.want_residual) {
    arguments.residual = tensor(DType::kI8, p.batch, p.q_heads, p.q_len, p.value_dim);
  }
  if (p.want_row_max) {
    arguments.row_max = inputs.allocate(DType::kF32, {p.batch, p.q_heads, p.q_len});
  }
  if (p.page_size > 0) {
    arguments.page_table = inputs.allocate(DType::kI32, {p.batch, p.kv_len / p.page_size});
    shuffle_pages(*arguments.page_table, Random(seed, stream++));
  }
  if (p.keep_mask) {
    arguments.keep_mask = inputs.allocate(DType::kBool, {p.batch, p.q_heads, p.q_len, p.kv_len});
    fill(*arguments.keep_mask, p, Random(seed, stream++));
  }
  arguments.dropout_seed = seed;
  if (p.dropout_words) {
    arguments.dropout_words = inputs.allocate(DType::kU32, {2});
    auto* const words = static_cast<uint32_t*>(arguments.dropout_words->data);
    words[0] = static_cast<uint32_t>(seed);
    words[1] = static_cast<uint32_t>(seed >> 32);
  }
  return inputs;
}

}  // namespace flashlift::tuning
