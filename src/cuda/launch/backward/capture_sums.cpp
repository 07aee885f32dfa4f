#include "cuda/launch/backward/capture_sums.h"

#include "cuda/kernels/common/exact_sum.h"
#include "cuda/launch/backward/launch.h"

namespace flashlift::cuda {
namespace {

constexpr auto kFloatBytes = static_cast<int64_t>(sizeof(float));

bool is_dense_f32(const TensorView& view) {
  int64_t stride = 1;
  for (int d = view.rank - 1; d >= 0; --d) {
    if (view.sizes[d] > 1 && view.strides[d] != stride) {
      return false;
    }
    stride *= view.sizes[d];
  }
  return view.dtype == DType::kF32;
}

// The numbers of element types in flashlift_store_capture.
int element_type(DType dtype) { return dtype == DType::kF32 ? 0 : dtype == DType::kBF16 ? 1 : 2; }

}  // namespace

CaptureSums::CaptureSums(const BackwardCall& call, const CaptureGradients* gradients, Layout& layout)
    : sums_(call.arguments.forward.captures.size()) {
  constexpr auto kExactBytes = static_cast<int64_t>(kExactWords * sizeof(unsigned long long));
  for (size_t i = 0; i < call.arguments.d_captures.size(); ++i) {
    if (const std::optional<TensorView>& gradient = call.arguments.d_captures[i]; gradient) {
      Sums& sums = sums_[i];
      sums.gradient = &*gradient;
      sums.exact = !gradients->stores(i, call);
      sums.beside = sums.exact || !is_dense_f32(*gradient);
      sums.bytes = gradient->element_count() * (sums.exact ? kExactBytes : kFloatBytes);
      sums.offset = sums.beside ? layout.take(sums.bytes) : 0;
    }
  }
}

void CaptureSums::place(BackwardCall& call, CuPointer memory) {
  for (size_t i = 0; i < sums_.size(); ++i) {
    Sums& sums = sums_[i];
    if (sums.gradient != nullptr) {
      sums.pointer =
          sums.beside ? memory + static_cast<CuPointer>(sums.offset) : reinterpret_cast<CuPointer>(sums.gradient->data);
    }
    CaptureGradient& argument = call.backward.gradients[i];
    argument.sums = reinterpret_cast<void*>(sums.pointer);
    argument.exact = static_cast<int>(sums.exact);
    const TensorView& view = call.arguments.forward.captures[i];
    long long stride = 1;
    for (int d = view.rank - 1; d >= 0; --d) {
      argument.sizes[d] = static_cast<int>(view.sizes[d]);
      argument.strides[d] = stride;
      stride *= view.sizes[d];
    }
  }
}

Status CaptureSums::clear(const BackwardCall& call) const {
  for (const Sums& sums : sums_) {
    if (sums.gradient != nullptr) {
      FLASHLIFT_RETURN_IF_ERROR(cuda::clear(call.driver, sums.pointer, sums.bytes, call.stream));
    }
  }
  return {};
}

Status CaptureSums::store(const BackwardCall& call, CuKernel kernel) const {
  for (const Sums& sums : sums_) {
    if (!sums.beside || sums.gradient->element_count() == 0) {
      continue;
    }
    const TensorView& gradient = *sums.gradient;
    CaptureArgument to{.data = gradient.data, .bounds = nullptr, .sizes = {}, .strides = {}};
    for (int d = 0; d < gradient.rank; ++d) {
      to.sizes[d] = static_cast<int>(gradient.sizes[d]);
      to.strides[d] = gradient.strides[d];
    }
    CuPointer from = sums.pointer;
    int rank = gradient.rank;
    int type = element_type(gradient.dtype);
    long long count = gradient.element_count();
    int exact = static_cast<int>(sums.exact);
    void* parameters[] = {&from, &exact, &to, &rank, &type, &count};
    FLASHLIFT_RETURN_IF_ERROR(
        launch(call, kernel, {.x = element_blocks(count), .threads = kElementThreads}, parameters));
  }
  return {};
}

}  // namespace flashlift::cuda
