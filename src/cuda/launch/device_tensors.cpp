#include "cuda/launch/device_tensors.h"

#include <algorithm>
#include <utility>

#include "support/error.h"

namespace flashlift::cuda {
namespace {

// The elements between the lowest and the highest address of a view, relative to its data pointer.
struct Span {
  int64_t first = 0;
  int64_t count = 1;
};

Span span_of(const TensorView& view) {
  Span span;
  int64_t last = 0;
  for (int d = 0; d < view.rank; ++d) {
    const int64_t reach = view.strides[d] * (view.sizes[d] - 1);
    (reach < 0 ? span.first : last) += reach;
  }
  span.count = view.element_count() == 0 ? 0 : last - span.first + 1;
  return span;
}

constexpr int64_t kLeastAllocation = 16;  // for a tensor without elements: the driver refuses 0 bytes

}  // namespace

Result<DeviceTensors> DeviceTensors::copy_of(const AttentionArguments& host, int ordinal) {
  FLASHLIFT_ASSIGN_OR_RETURN(const Device device, get_device(ordinal));
  FLASHLIFT_ASSIGN_OR_RETURN(const Driver* driver, Driver::get());
  FLASHLIFT_ASSIGN_OR_RETURN(CurrentContext context, CurrentContext::of(*driver, nullptr, device.handle));
  DeviceTensors tensors(*driver, std::move(context));
  FLASHLIFT_ASSIGN_OR_RETURN(tensors.views_.q, tensors.upload(host.q));
  FLASHLIFT_ASSIGN_OR_RETURN(tensors.views_.k, tensors.upload(host.k));
  FLASHLIFT_ASSIGN_OR_RETURN(tensors.views_.v, tensors.upload(host.v));
  FLASHLIFT_ASSIGN_OR_RETURN(tensors.views_.out, tensors.upload(host.out));
  for (const TensorView& capture : host.captures) {
    FLASHLIFT_ASSIGN_OR_RETURN(const TensorView copy, tensors.upload(capture));
    tensors.views_.captures.push_back(copy);
  }
  if (host.sinks) {
    FLASHLIFT_ASSIGN_OR_RETURN(tensors.views_.sinks, tensors.upload(*host.sinks));
  }
  if (host.lse) {
    FLASHLIFT_ASSIGN_OR_RETURN(tensors.views_.lse, tensors.upload(*host.lse));
  }
  if (host.residual) {
    FLASHLIFT_ASSIGN_OR_RETURN(tensors.views_.residual, tensors.upload(*host.residual));
  }
  if (host.row_max) {
    FLASHLIFT_ASSIGN_OR_RETURN(tensors.views_.row_max, tensors.upload(*host.row_max));
  }
  if (host.page_table) {
    FLASHLIFT_ASSIGN_OR_RETURN(tensors.views_.page_table, tensors.upload(*host.page_table));
  }
  FLASHLIFT_ASSIGN_OR_RETURN(tensors.views_.keep_mask, tensors.upload(host.keep_mask));
  FLASHLIFT_ASSIGN_OR_RETURN(tensors.views_.dropout_words, tensors.upload(host.dropout_words));
  tensors.views_.dropout_seed = host.dropout_seed;
  tensors.views_.dropout_origin = host.dropout_origin;
  return tensors;
}

DeviceTensors::~DeviceTensors() {
  for (const CuPointer pointer : memory_) {
    driver_->cuMemFree(pointer);
  }
}

Result<TensorView> DeviceTensors::upload(const TensorView& view) {
  const Span span = span_of(view);
  const auto element = static_cast<int64_t>(size_in_bytes(view.dtype));
  const int64_t bytes = span.count * element;
  CuPointer pointer = 0;
  FLASHLIFT_RETURN_IF_ERROR(driver_->check(
      driver_->cuMemAlloc(&pointer, static_cast<size_t>(std::max(bytes, kLeastAllocation))), "cuMemAlloc"));
  memory_.push_back(pointer);
  if (bytes > 0) {
    FLASHLIFT_RETURN_IF_ERROR(
        driver_->check(driver_->cuMemcpyHtoD(pointer, static_cast<std::byte*>(view.data) + span.first * element,
                                             static_cast<size_t>(bytes)),
                       "cuMemcpyHtoD"));
  }
  TensorView result = view;
  result.data = reinterpret_cast<std::byte*>(pointer) - span.first * element;
  return result;
}

Result<std::optional<TensorView>> DeviceTensors::upload(const std::optional<TensorView>& view) {
  if (!view) {
    return std::optional<TensorView>();
  }
  FLASHLIFT_ASSIGN_OR_RETURN(const TensorView copy, upload(*view));
  return std::optional(copy);
}

Status DeviceTensors::download(const std::optional<TensorView>& device, const std::optional<TensorView>& host) const {
  return device && host ? download(*device, *host) : Status();
}

Status DeviceTensors::download(const TensorView& device, const TensorView& host) const {
  const Span span = span_of(host);
  const auto element = static_cast<int64_t>(size_in_bytes(host.dtype));
  if (span.count == 0) {
    return {};
  }
  return driver_->check(
      driver_->cuMemcpyDtoH(static_cast<std::byte*>(host.data) + span.first * element,
                            reinterpret_cast<CuPointer>(device.data) + static_cast<CuPointer>(span.first * element),
                            static_cast<size_t>(span.count * element)),
      "cuMemcpyDtoH");
}

Status DeviceTensors::fetch(const AttentionArguments& host) const {
  FLASHLIFT_RETURN_IF_ERROR(driver_->check(driver_->cuStreamSynchronize(nullptr), "cuStreamSynchronize"));
  FLASHLIFT_RETURN_IF_ERROR(download(views_.out, host.out));
  if (host.lse) {
    FLASHLIFT_RETURN_IF_ERROR(download(*views_.lse, *host.lse));
  }
  if (host.residual) {
    FLASHLIFT_RETURN_IF_ERROR(download(*views_.residual, *host.residual));
  }
  return host.row_max ? download(*views_.row_max, *host.row_max) : Status();
}

Result<DeviceGradients> DeviceGradients::copy_of(const BackwardArguments& host, int ordinal) {
  FLASHLIFT_ASSIGN_OR_RETURN(DeviceTensors tensors, DeviceTensors::copy_of(host.forward, ordinal));
  DeviceGradients gradients(std::move(tensors));
  BackwardArguments& views = gradients.views_;
  DeviceTensors& copies = gradients.tensors_;
  views.forward = copies.views();
  FLASHLIFT_ASSIGN_OR_RETURN(views.d_out, copies.upload(host.d_out));
  FLASHLIFT_ASSIGN_OR_RETURN(views.d_lse, copies.upload(host.d_lse));
  FLASHLIFT_ASSIGN_OR_RETURN(views.d_q, copies.upload(host.d_q));
  FLASHLIFT_ASSIGN_OR_RETURN(views.d_k, copies.upload(host.d_k));
  FLASHLIFT_ASSIGN_OR_RETURN(views.d_v, copies.upload(host.d_v));
  for (const std::optional<TensorView>& gradient : host.d_captures) {
    FLASHLIFT_ASSIGN_OR_RETURN(const std::optional<TensorView> copy, copies.upload(gradient));
    views.d_captures.push_back(copy);
  }
  FLASHLIFT_ASSIGN_OR_RETURN(views.d_sinks, copies.upload(host.d_sinks));
  return gradients;
}

Status DeviceGradients::fetch(const BackwardArguments& host) const {
  FLASHLIFT_RETURN_IF_ERROR(tensors_.fetch(host.forward));
  FLASHLIFT_RETURN_IF_ERROR(tensors_.download(views_.d_q, host.d_q));
  FLASHLIFT_RETURN_IF_ERROR(tensors_.download(views_.d_k, host.d_k));
  FLASHLIFT_RETURN_IF_ERROR(tensors_.download(views_.d_v, host.d_v));
  for (size_t i = 0; i < host.d_captures.size(); ++i) {
    FLASHLIFT_RETURN_IF_ERROR(tensors_.download(views_.d_captures[i], host.d_captures[i]));
  }
  return tensors_.download(views_.d_sinks, host.d_sinks);
}

Result<Timer> Timer::create() {
  FLASHLIFT_ASSIGN_OR_RETURN(const Driver* driver, Driver::get());
  Timer timer(*driver);
  for (CuEvent* event : {&timer.begin_, &timer.end_}) {
    FLASHLIFT_RETURN_IF_ERROR(driver->check(driver->cuEventCreate(event, 0), "cuEventCreate"));
  }
  return timer;
}

Timer::~Timer() {
  for (const CuEvent event : {begin_, end_}) {
    if (event != nullptr) {
      driver_.cuEventDestroy(event);
    }
  }
}

Timer::Timer(Timer&& other) noexcept
    : driver_(other.driver_), begin_(std::exchange(other.begin_, nullptr)), end_(std::exchange(other.end_, nullptr)) {}

Status Timer::start() const { return driver_.check(driver_.cuEventRecord(begin_, nullptr), "cuEventRecord"); }

Result<double> Timer::stop() const {
  FLASHLIFT_RETURN_IF_ERROR(driver_.check(driver_.cuEventRecord(end_, nullptr), "cuEventRecord"));
  FLASHLIFT_RETURN_IF_ERROR(driver_.check(driver_.cuEventSynchronize(end_), "cuEventSynchronize"));
  float milliseconds = 0;
  FLASHLIFT_RETURN_IF_ERROR(
      driver_.check(driver_.cuEventElapsedTime(&milliseconds, begin_, end_), "cuEventElapsedTime"));
  return static_cast<double>(milliseconds);
}

}  // namespace flashlift::cuda
