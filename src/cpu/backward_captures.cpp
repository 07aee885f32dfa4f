#include "cpu/backward_captures.h"

#include <algorithm>
#include <cstring>

#include "support/half.h"

namespace flashlift::cpu {
namespace {

// Beyond so many floats a buffer for each task would cost more than the tasks.
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
  for (size_t i = 0; i < arguments.d_captures.size(); ++i) {
    if (arguments.d_captures[i]) {
      offsets_[i] = floats_;
      // An empty tensor has one element that nobody reads.
      floats_ += std::max<int64_t>(arguments.d_captures[i]->element_count(), 1);
    }
  }
  if (floats_ == 0) {
    return;
  }
  if (floats_ <= kMaxPrivateFloats) {
    mode_ = Mode::kPrivate;
  } else {
    mode_ = each_element_has_one_key(sizes) ? Mode::kSharedByKeys : Mode::kSerial;
  }
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
    view.data = base + offsets_[i];
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
  for (size_t c = 0; c < arguments_.d_captures.size(); ++c) {
    if (!arguments_.d_captures[c]) {
      continue;
    }
    const TensorView& view = *arguments_.d_captures[c];
    const int64_t count = view.element_count();
    for (int64_t i = 0; i < count; ++i) {
      int64_t rest = i;
      int64_t offset = 0;
      for (int d = view.rank - 1; d >= 0; --d) {
        offset += rest % view.sizes[d] * view.strides[d];
        rest /= view.sizes[d];
      }
      const auto at = static_cast<size_t>(offsets_[c] + i);
      write(view, offset, is_private() ? sums_[at] : static_cast<double>(shared_[at]));
    }
  }
}

}  // namespace flashlift::cpu
