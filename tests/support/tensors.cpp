#include "support/tensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <numeric>

#include "problem/elements.h"
#include "problem/features.h"
#include "problem/verify_tensor.h"
#include "support/half.h"

namespace flashlift::testing {
namespace {

int64_t draw(Random& random, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random);
}

void write_element(DType dtype, std::byte* at, Random& random) {
  const auto put = [&](auto value) { std::memcpy(at, &value, sizeof(value)); };
  // The sum of four uniform numbers: close to normal, from one draw (std::normal_distribution took a fifth of the
  // tests' time).
  const auto normal = [](Random& source) {
    const uint64_t bits = source();
    float sum = 0;
    for (int i = 0; i < 4; ++i) {
      sum += static_cast<float>((bits >> (16 * i)) & 0xffff) * (1.0f / 65536.0f) - 0.5f;
    }
    return sum * 1.7320508f;
  };
  switch (dtype) {
    case DType::kBool:
      return put(static_cast<uint8_t>(draw(random, 0, 1)));
    case DType::kI8:
      return put(static_cast<int8_t>(draw(random, -8, 7)));
    case DType::kU8:
      return put(static_cast<uint8_t>(draw(random, 0, 15)));
    case DType::kI16:
      return put(static_cast<int16_t>(draw(random, -8, 7)));
    case DType::kI32:
      return put(static_cast<int32_t>(draw(random, -8, 7)));
    case DType::kU32:
      return put(static_cast<uint32_t>(draw(random, 0, 15)));
    case DType::kI64:
      return put(draw(random, -8, 7));
    case DType::kF16:
      return put(float_to_f16(normal(random)));
    case DType::kBF16:
      return put(float_to_bf16(normal(random)));
    case DType::kF32:
      return put(normal(random));
    case DType::kF64:
      return put(static_cast<double>(normal(random)));
  }
}

// In the order of the indices. Each index moves on from the one before: problem::element_offset() of every element,
// with its divisions, took longer than what is done with the element.
template <typename Visit>
void for_each_element(const TensorView& view, const Visit& visit) {
  const auto size = static_cast<int64_t>(size_in_bytes(view.dtype));
  std::array<int64_t, kMaxRank> index{};
  int64_t offset = 0;
  for (int64_t left = view.element_count(); left > 0; --left) {
    visit(static_cast<std::byte*>(view.data) + offset * size);
    for (int d = view.rank - 1; d >= 0; --d) {
      offset += view.strides[d];
      if (++index[static_cast<size_t>(d)] < view.sizes[d]) {
        break;
      }
      offset -= view.sizes[d] * view.strides[d];
      index[static_cast<size_t>(d)] = 0;
    }
  }
}

// Integers from low to high, both included.
template <typename T>
void draw_integers(const TensorView& view, int64_t low, int64_t high, Random& random) {
  for (int64_t i = 0; i < view.element_count(); ++i) {
    static_cast<T*>(view.data)[problem::element_offset(view, i)] = static_cast<T>(draw(random, low, high));
  }
}

constexpr int64_t kAnySizeDrawn = 7;
constexpr int64_t kPackedSequences = 4;

// Sequences of any length, including empty ones, and sometimes positions at the end that belong to no sequence.
void draw_cumulative(const TensorView& view, int64_t length, Random& random) {
  std::array<int64_t, kPackedSequences + 1> ends{};
  for (int64_t& end : ends) {
    end = draw(random, 0, length);
  }
  std::sort(ends.begin(), ends.end());
  ends.front() = 0;
  ends.back() = draw(random, 0, 3) == 0 ? ends.back() : length;
  for (size_t i = 0; i < ends.size(); ++i) {
    static_cast<int32_t*>(view.data)[static_cast<int64_t>(i) * view.strides[0]] = static_cast<int32_t>(ends[i]);
  }
}

void draw_contents(const TensorView& view, problem::Holds holds, const Problem& p, Random& random) {
  switch (holds) {
    case problem::Holds::kAnything:
      return;  // stays as make() left it
    case problem::Holds::kQueryStarts:
      return draw_cumulative(view, p.q_len, random);
    case problem::Holds::kKeyStarts:
      return draw_cumulative(view, p.kv_len, random);
    case problem::Holds::kKeyCounts:
      return draw_integers<int32_t>(view, 0, p.kv_len, random);
    case problem::Holds::kIds:
      return draw_integers<int32_t>(view, 0, 2, random);
  }
}

using MakeTensor = std::function<TensorView(DType, const std::vector<int64_t>&, bool)>;

constexpr int64_t kPages = 7;

// Some pages are shared, others are in no table.
void make_pages(const Problem& p, AttentionArguments& views, Random& random, const MakeTensor& make) {
  const int64_t width = (p.kv_len + p.page_size - 1) / p.page_size;
  views.page_table = make(DType::kI32, {p.batch, width}, true);
  draw_integers<int32_t>(*views.page_table, 0, kPages - 1, random);
  views.k = make(p.dtype, {kPages, p.kv_heads, p.page_size, p.head_dim}, true);
  views.v = make(p.dtype, {kPages, p.kv_heads, p.page_size, p.value_dim}, true);
}

// A tensor of the shape and the strides of another, in memory of its own.
TensorView with_strides_of(const TensorView& other, DType dtype, const MakeTensor& make) {
  int64_t lowest = 0;
  int64_t highest = 0;
  for (int d = 0; d < other.rank; ++d) {
    const int64_t reach = other.strides[d] * std::max<int64_t>(other.sizes[d] - 1, 0);
    (reach < 0 ? lowest : highest) += reach;
  }
  const int64_t count = highest - lowest + 1;
  const TensorView memory = make(dtype, {count}, false);
  const int64_t first = memory.strides[0] < 0 ? memory.strides[0] * (count - 1) : 0;
  TensorView view = other;
  view.dtype = dtype;
  view.data = static_cast<std::byte*>(memory.data) + (first - lowest) * static_cast<int64_t>(size_in_bytes(dtype));
  return view;
}

void make_all(const Problem& p, AttentionArguments& views, Random& random, const MakeTensor& make) {
  views.q = make(p.dtype, {p.batch, p.q_heads, p.q_len, p.head_dim}, true);
  if (p.page_size > 0) {
    make_pages(p, views, random, make);
  } else {
    views.k = make(p.dtype, {p.batch, p.kv_heads, p.kv_len, p.head_dim}, true);
    views.v = make(p.dtype, {p.batch, p.kv_heads, p.kv_len, p.value_dim}, true);
  }
  views.out = make(p.out_dtype, {p.batch, p.q_heads, p.q_len, p.value_dim}, false);
  for (const Capture& capture : p.captures) {
    const problem::FeatureTensor* of_feature = problem::feature_tensor(capture);
    const problem::Holds holds = of_feature == nullptr ? problem::Holds::kAnything : of_feature->holds;
    const bool may_overlap = holds != problem::Holds::kQueryStarts && holds != problem::Holds::kKeyStarts;
    views.captures.push_back(
        make(capture.dtype, problem::capture_shape(capture, p, kAnySizeDrawn, kPackedSequences + 1), may_overlap));
    draw_contents(views.captures.back(), holds, p, random);
    if (capture.name == "block_kinds") {
      draw_integers<uint8_t>(views.captures.back(), 0, 2, random);
    }
  }
  if (p.sinks > 0) {
    const std::vector<int64_t> of_each_head = {p.q_heads, p.sinks};
    const bool shared = draw(random, 0, 3) == 0;
    views.sinks = make(DType::kF32, shared ? std::vector<int64_t>{p.sinks} : of_each_head, true);
  }
  if (p.want_lse) {
    views.lse = make(DType::kF32, {p.batch, p.q_heads, p.q_len}, false);
  }
  if (p.want_residual) {
    views.residual = with_strides_of(views.out, DType::kI8, make);
  }
  if (p.want_row_max) {
    views.row_max = make(DType::kF32, {p.batch, p.q_heads, p.q_len}, false);
  }
  if (p.keep_mask) {
    std::vector<int64_t> shape = {p.batch, p.q_heads, p.q_len, p.kv_len};
    for (int64_t& size : shape) {
      size = draw(random, 0, 3) == 0 ? 1 : size;
    }
    views.keep_mask = make(DType::kBool, shape, true);
  }
  views.dropout_seed = 0x0123456789abcdef;
  views.dropout_origin = {draw(random, 0, 1) * 3, draw(random, 0, 1) * 70000};
  if (p.dropout_words) {
    // Dense, starting at the lowest address of memory that may be strided.
    TensorView words = make(DType::kU32, {random() % 2 == 0 ? 2 : 4}, false);
    const int64_t lowest = std::min<int64_t>(words.strides[0], 0) * (words.sizes[0] - 1);
    words.data = static_cast<uint32_t*>(words.data) + lowest;
    words.strides[0] = 1;
    views.dropout_words = words;
  }
}

}  // namespace

void fill(const TensorView& view, Random& random) {
  for_each_element(view, [&](std::byte* element) { write_element(view.dtype, element, random); });
}

std::vector<std::byte> bits_of(const TensorView& view) {
  const size_t size = size_in_bytes(view.dtype);
  std::vector<std::byte> bits(static_cast<size_t>(view.element_count()) * size);
  std::byte* to = bits.data();
  for_each_element(view, [&](const std::byte* element) {
    std::memcpy(to, element, size);
    to += size;
  });
  return bits;
}

// Exactly as large as the tensor, so that AddressSanitizer reports the first byte read past it.
std::byte* OwnedArguments::allocate(size_t bytes) {
  memory_.push_back(std::make_unique<std::byte[]>(std::max<size_t>(bytes, 1)));
  return memory_.back().get();
}

TensorView OwnedArguments::dense(DType dtype, std::vector<int64_t> shape, Random& random) {
  const int64_t count = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  TensorView view = dense_view(allocate(static_cast<size_t>(count) * size_in_bytes(dtype)), dtype, shape);
  fill(view, random);
  return view;
}

TensorView OwnedArguments::strided(DType dtype, const std::vector<int64_t>& shape, Random& random, bool may_overlap) {
  TensorView view;
  view.dtype = dtype;
  view.rank = static_cast<int>(shape.size());
  std::vector<int> order(shape.size());
  std::iota(order.begin(), order.end(), 0);
  if (draw(random, 0, 2) == 0) {
    std::shuffle(order.begin(), order.end(), random);
  } else if (shape.size() == 4 && draw(random, 0, 1) == 0) {
    std::swap(order[1], order[2]);  // BSHD
  }
  int64_t extent = 1;
  int64_t lowest = 0;
  int64_t highest = 0;
  for (auto dimension = order.rbegin(); dimension != order.rend(); ++dimension) {
    const int64_t size = shape[static_cast<size_t>(*dimension)];
    view.sizes[*dimension] = size;
    int64_t stride = extent;
    if (may_overlap && draw(random, 0, 15) == 0) {
      stride = 0;
    } else {
      extent = extent * std::max<int64_t>(size, 1) + (draw(random, 0, 3) == 0 ? draw(random, 1, 3) : 0);
      stride = draw(random, 0, 7) == 0 ? -stride : stride;
    }
    view.strides[*dimension] = stride;
    (stride < 0 ? lowest : highest) += stride * (std::max<int64_t>(size, 1) - 1);
  }
  const int64_t element = static_cast<int64_t>(size_in_bytes(dtype));
  view.data = allocate(static_cast<size_t>((highest - lowest + 1) * element)) - lowest * element;
  fill(view, random);
  return view;
}

OwnedArguments dense_arguments(const Problem& problem, Random& random) {
  OwnedArguments arguments;
  make_all(problem, arguments.views, random,
           [&](DType dtype, const std::vector<int64_t>& shape, bool) { return arguments.dense(dtype, shape, random); });
  return arguments;
}

OwnedArguments strided_arguments(const Problem& problem, Random& random) {
  OwnedArguments arguments;
  make_all(problem, arguments.views, random, [&](DType dtype, const std::vector<int64_t>& shape, bool input) {
    return arguments.strided(dtype, shape, random, input);
  });
  return arguments;
}

}  // namespace flashlift::testing
