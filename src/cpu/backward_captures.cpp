#include "cpu/backward_captures.h"

#include <algorithm>
#include <cstring>

#include "problem/elements.h"
#include "support/half.h"

namespace flashlift::cpu {
namespace {

// With more floats, a buffer for each task would cost more than the tasks.
constexpr int64_t kMaxPrivateFloats = int64_t{1} << 20;

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

bool is_key(const Program& program, ValueId id) {
  const Node& node = program.nodes[id];
  const bool converts = node.op == Op::k_to_i32 || node.op == Op::k_to_i64;
  return node.op == Op::k_kv || (converts && is_key(program, node.operands[0]));
}

}  // namespace

CaptureGradients::CaptureGradients(const Problem& problem, const BackwardArguments& arguments, const CallSizes& sizes)
    : problem_(problem), arguments_(arguments) {
  // An empty tensor has one element, which is not used.
  const auto floats = [](const TensorView& gradient) { return std::max<int64_t>(gradient.element_count(), 1); };
  int64_t all = 0;
  for (const std::optional<TensorView>& gradient : arguments.d_captures) {
    all += gradient ? floats(*gradient) : 0;
  }
  if (all == 0) {
    return;
  }
  if (all <= kMaxPrivateFloats) {
    mode_ = Mode::kPrivate;
  } else {
    mode_ = each_element_has_one_key(sizes) ? Mode::kSharedByKeys : Mode::kSerial;
  }
  for (size_t i = 0; i < arguments.d_captures.size(); ++i) {
    if (arguments.d_captures[i] && !is_in_place(i)) {
      offsets_[i] = floats_;
      floats_ += floats(*arguments.d_captures[i]);
    }
  }
}

bool CaptureGradients::is_in_place(size_t capture) const {
  const TensorView& gradient = *arguments_.d_captures[capture];
  if (is_private() || gradient.dtype != DType::kF32 || gradient.element_count() == 0) {
    return false;
  }
  int64_t stride = 1;
  for (int d = gradient.rank - 1; d >= 0; --d) {
    if (gradient.sizes[d] != 1 && gradient.strides[d] != stride) {
      return false;
    }
    stride *= gradient.sizes[d];
  }
  return true;
}

bool CaptureGradients::each_element_has_one_key(const CallSizes& sizes) const {
  if (!problem_.score_mod) {
    return true;
  }
  const Program& program = *problem_.score_mod;
  for (const Node& node : program.nodes) {
    if (node.op != Op::k_load) {
      continue;
    }
    const Capture& capture = program.captures[static_cast<size_t>(node.payload)];
    const auto found = std::find(problem_.captures.begin(), problem_.captures.end(), capture);
    const auto index = static_cast<size_t>(found - problem_.captures.begin());
    if (!arguments_.d_captures[index]) {
      continue;
    }
    bool has_key = false;
    for (size_t d = 0; d < node.operands.size(); ++d) {
      has_key |= is_key(program, node.operands[d]) && arguments_.forward.captures[index].sizes[d] >= sizes.kv_len;
    }
    if (!has_key) {
      return false;
    }
  }
  return true;
}

void CaptureGradients::place(std::byte* memory) {
  if (is_private()) {
    sums_ = reinterpret_cast<double*>(memory);
    std::fill_n(sums_, floats_, 0.0);
  } else {
    shared_ = reinterpret_cast<float*>(memory);
    std::fill_n(shared_, floats_, 0.0f);
    for (size_t i = 0; i < arguments_.d_captures.size(); ++i) {
      if (arguments_.d_captures[i] && is_in_place(i)) {
        const TensorView& gradient = *arguments_.d_captures[i];
        std::fill_n(static_cast<float*>(gradient.data), gradient.element_count(), 0.0f);
      }
    }
  }
}

void CaptureGradients::begin_task(float* own, std::span<CaptureView> views) {
  float* base = is_private() ? own : shared_;
  if (is_private()) {
    std::memset(own, 0, static_cast<size_t>(floats_) * sizeof(float));
  }
  for (size_t i = 0; i < arguments_.d_captures.size(); ++i) {
    if (!arguments_.d_captures[i]) {
      continue;
    }
    const TensorView& gradient = *arguments_.d_captures[i];
    CaptureView& view = views[i];
    view.data = is_in_place(i) ? static_cast<float*>(gradient.data) : base + offsets_[i];
    const bool empty = gradient.element_count() == 0;
    int64_t stride = 1;
    for (int d = gradient.rank - 1; d >= 0; --d) {
      view.sizes[d] = empty ? 1 : gradient.sizes[d];
      view.strides[d] = stride;
      stride *= view.sizes[d];
    }
  }
}

void CaptureGradients::commit(const float* own) {
  for (int64_t i = 0; i < floats_; ++i) {
    sums_[static_cast<size_t>(i)] += own[i];
  }
}

void CaptureGradients::store() const {
  for (size_t i = 0; i < arguments_.d_captures.size(); ++i) {
    if (arguments_.d_captures[i] && !is_in_place(i)) {
      store(i);
    }
  }
}

void CaptureGradients::store(size_t capture) const {
  const TensorView& view = *arguments_.d_captures[capture];
  const int last = view.rank - 1;
  const int64_t inner = last < 0 ? 1 : view.sizes[last];
  const int64_t inner_stride = last < 0 ? 0 : view.strides[last];
  const int64_t rows = inner == 0 ? 0 : view.element_count() / inner;
  TensorView outer = view;
  outer.rank = std::max(last, 0);
  int64_t at = offsets_[capture];
  for (int64_t row = 0; row < rows; ++row) {
    int64_t offset = problem::element_offset(outer, row);
    for (int64_t i = 0; i < inner; ++i, ++at, offset += inner_stride) {
      write(view, offset, is_private() ? sums_[at] : static_cast<double>(shared_[at]));
    }
  }
}

}  // namespace flashlift::cpu
