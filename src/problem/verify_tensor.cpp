#include "problem/verify_tensor.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>
#include <string>

#include "score/sizes.h"
#include "support/error.h"

namespace flashlift::problem {
namespace {

std::string title(const WantedTensor& wanted) {
  return wanted.role.empty() ? std::string(wanted.name) : fmt::format("{} `{}`", wanted.role, wanted.name);
}

std::string sizes_text(std::span<const int64_t> shape) {
  std::string text;
  for (const int64_t size : shape) {
    text += (text.empty() ? "" : ",") + score::size_text(size);
  }
  return "[" + text + "]";
}

// Refuses a view that no memory can hold: the offsets of elements are computed in 64 bits.
Status verify_view(const WantedTensor& wanted) {
  const TensorView& view = wanted.view;
  if (view.rank < 0 || view.rank > kMaxRank) {
    return invalid_argument("{} has {} dimensions; expected 0 to {}", title(wanted), view.rank, kMaxRank);
  }
  const auto dims = static_cast<size_t>(view.rank);
  const auto item = static_cast<int64_t>(size_in_bytes(view.dtype));
  int64_t count = item;
  int64_t reach = item;
  bool fits = true;
  for (size_t i = 0; i < dims; ++i) {
    const int64_t size = view.sizes[i];
    if (size < 0) {
      return invalid_argument("{} has size {} in dimension {}; sizes are 0 or more", title(wanted), size, i);
    }
    if (size <= 1) {
      continue;  // its stride is not used
    }
    int64_t step = 0;
    fits = fits && view.strides[i] != std::numeric_limits<int64_t>::min() &&
           !__builtin_mul_overflow(count, size, &count) &&
           !__builtin_mul_overflow(std::abs(view.strides[i]), item, &step) &&
           !__builtin_mul_overflow(size - 1, step, &step) && !__builtin_add_overflow(reach, step, &reach);
  }
  if (!fits) {
    return invalid_argument("{}: sizes [{}] and strides [{}] reach beyond what 64 bits address", title(wanted),
                            fmt::join(view.shape(), ","),
                            fmt::join(view.strides.begin(), view.strides.begin() + dims, ","));
  }
  if (reinterpret_cast<uintptr_t>(view.data) % static_cast<uintptr_t>(item) != 0) {
    return invalid_argument(
        "{}: the data pointer is not a multiple of the {} bytes of an element; copy the tensor first", title(wanted),
        item);
  }
  return {};
}

}  // namespace

Status verify_tensor(const WantedTensor& wanted) {
  FLASHLIFT_RETURN_IF_ERROR(verify_view(wanted));
  const TensorView& view = wanted.view;
  const bool shape_fits = view.rank == static_cast<int>(wanted.shape.size()) &&
                          std::equal(wanted.shape.begin(), wanted.shape.end(), view.sizes.begin(),
                                     [](int64_t want, int64_t got) { return want < 0 || want == got; });
  if (view.dtype != wanted.dtype || !shape_fits) {
    const bool has_names =
        std::any_of(wanted.declared.begin(), wanted.declared.end(), [](int64_t size) { return size < kAnySize; });
    const std::string being = has_names     ? sizes_text(wanted.declared)
                              : !shape_fits ? std::string(wanted.dimensions)
                                            : std::string();
    return invalid_argument("{}: expected {}{}{}, got {}", title(wanted), to_string(wanted.dtype),
                            sizes_text(wanted.shape), being.empty() ? "" : ", being " + being, describe(view));
  }
  if (view.data == nullptr && view.element_count() > 0) {
    return invalid_argument("{}: the data pointer of a {} tensor is null", title(wanted), describe(view));
  }
  return {};
}

Status verify_output(const WantedTensor& wanted) {
  FLASHLIFT_RETURN_IF_ERROR(verify_tensor(wanted));
  const TensorView& view = wanted.view;
  if (view.element_count() == 0) {
    return {};
  }
  // From the innermost dimension outwards, each dimension must step over all those inside it.
  std::array<int, kMaxRank> dims{};
  int count = 0;
  for (int dim = 0; dim < view.rank; ++dim) {
    if (view.sizes[dim] > 1) {
      int at = count++;
      for (; at > 0 && std::abs(view.strides[dims[at - 1]]) > std::abs(view.strides[dim]); --at) {
        dims[at] = dims[at - 1];
      }
      dims[at] = dim;
    }
  }
  int64_t inside = 1;
  for (int i = 0; i < count; ++i) {
    const int dim = dims[i];
    const int64_t step = std::abs(view.strides[dim]);
    if (step < inside) {
      return invalid_argument(
          "{}: dimension {} of an output has stride {}; expected at least {}, or elements may overlap: give a dense "
          "tensor",
          title(wanted), dim, view.strides[dim], inside);
    }
    inside += step * (view.sizes[dim] - 1);
  }
  return {};
}

void add_inputs(const AttentionArguments& arguments, const Problem& problem, CallTensors& tensors) {
  tensors.add_input("q", arguments.q);
  tensors.add_input("k", arguments.k);
  tensors.add_input("v", arguments.v);
  for (size_t i = 0; i < problem.captures.size(); ++i) {
    tensors.add_input(problem.captures[i].name, arguments.captures[i], "captured tensor");
  }
  if (arguments.sinks) {
    tensors.add_input("sinks", *arguments.sinks);
  }
  if (arguments.page_table) {
    tensors.add_input("page_table", *arguments.page_table);
  }
  if (arguments.keep_mask) {
    tensors.add_input("keep_mask", *arguments.keep_mask);
  }
  if (arguments.dropout_words) {
    tensors.add_input("dropout_words", *arguments.dropout_words);
  }
}

std::vector<int64_t> capture_shape(const Capture& capture, const Problem& problem, int64_t any, int64_t same) {
  std::vector<int64_t> shape = capture.shape;
  for (int64_t& size : shape) {
    size = size < kSameSize ? size - or_one(0) : size;
    size = size == kAnySize     ? any
           : size == kBatchSize ? problem.batch
           : size == kHeadsSize ? problem.q_heads
           : size == kQLenSize  ? problem.q_len
           : size == kKvLenSize ? problem.kv_len
           : size == kSameSize  ? same
                                : size;
  }
  return shape;
}

}  // namespace flashlift::problem
