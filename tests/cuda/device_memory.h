// A call's tensors in a GPU's memory, for tests.
#pragma once

#include <vector>

#include "cuda/launch/driver.h"
#include "flashlift/problem.h"

namespace flashlift::testing {

// Copies of host tensors with the same strides; freed with the object. Failures are GoogleTest's.
class DeviceArguments {
 public:
  // Copies every tensor, outputs too: what a kernel must not write is then seen to be unchanged.
  DeviceArguments(const cuda::Driver& driver, const AttentionArguments& host);
  ~DeviceArguments();
  DeviceArguments(const DeviceArguments&) = delete;
  DeviceArguments& operator=(const DeviceArguments&) = delete;

  AttentionArguments views;
  // Waits for the device and copies out (and lse) into the host's tensors.
  void fetch(const AttentionArguments& host);

 private:
  TensorView upload(const TensorView& view);
  void download(const TensorView& device, const TensorView& host);

  const cuda::Driver& driver_;
  std::vector<cuda::CuPointer> memory_;
};

}  // namespace flashlift::testing
