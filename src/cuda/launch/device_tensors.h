// A call's tensors in GPU memory, for callers with tensors in host memory: the command line and the tests.
#pragma once

#include <optional>
#include <vector>

#include "cuda/launch/driver.h"
#include "flashlift/backward.h"

namespace flashlift::cuda {

// Copies of host tensors with the same strides, freed with the object. The GPU's context is current on the creating
// thread during the object's lifetime.
class DeviceTensors {
 public:
  // Copies every tensor, including outputs, to check that a kernel does not change what it must not write. Errors:
  // those of get_device; kInternal with the driver's reason if memory is short.
  static Result<DeviceTensors> copy_of(const AttentionArguments& host, int ordinal);
  ~DeviceTensors();
  DeviceTensors(DeviceTensors&&) noexcept = default;
  DeviceTensors& operator=(DeviceTensors&&) = delete;

  const AttentionArguments& views() const { return views_; }
  // Waits for the default stream and copies out (and lse and row_max) into the host's tensors.
  Status fetch(const AttentionArguments& host) const;

 private:
  friend class DeviceGradients;
  DeviceTensors(const Driver& driver, CurrentContext context) : driver_(&driver), context_(std::move(context)) {}
  Result<TensorView> upload(const TensorView& view);
  Result<std::optional<TensorView>> upload(const std::optional<TensorView>& view);
  Status download(const TensorView& device, const TensorView& host) const;
  Status download(const std::optional<TensorView>& device, const std::optional<TensorView>& host) const;

  const Driver* driver_;
  CurrentContext context_;
  AttentionArguments views_;
  std::vector<CuPointer> memory_;
};

// The same for a backward call.
class DeviceGradients {
 public:
  static Result<DeviceGradients> copy_of(const BackwardArguments& host, int ordinal);

  // These include the forward call's tensors, which a forward call must fill.
  const BackwardArguments& views() const { return views_; }
  // Waits for the default stream and copies out, lse, row_max and all gradients into the host's tensors.
  Status fetch(const BackwardArguments& host) const;

 private:
  explicit DeviceGradients(DeviceTensors tensors) : tensors_(std::move(tensors)) {}

  DeviceTensors tensors_;
  BackwardArguments views_;
};

// Measures the time of the default stream's work between two points. Needs a current context.
class Timer {
 public:
  static Result<Timer> create();
  ~Timer();
  Timer(Timer&& other) noexcept;
  Timer& operator=(Timer&&) = delete;

  Status start() const;
  // Waits for the work that was launched since start(), and gives its milliseconds.
  Result<double> stop() const;

 private:
  explicit Timer(const Driver& driver) : driver_(driver) {}
  const Driver& driver_;
  CuEvent begin_ = nullptr;
  CuEvent end_ = nullptr;
};

}  // namespace flashlift::cuda
