// The device on which a problem runs: holds its tensors in the device's memory, and times calls.
#pragma once

#include <memory>

#include "flashlift/attention.h"
#include "tuning/inputs.h"

namespace flashlift::tuning {

class Target {
 public:
  // For backward calls, if the inputs have gradients. The inputs must outlive the target. Fails if there is no such
  // device, or it has too little memory.
  static Result<std::unique_ptr<Target>> create(const CompileOptions& options, const Inputs& inputs);
  virtual ~Target() = default;

  // Runs once and returns the milliseconds. On a GPU, these are the GPU's, without the launch.
  virtual Result<double> time(const Attention& attention) = 0;
  // Copies the results to the host's tensors.
  virtual Status fetch() = 0;
};

}  // namespace flashlift::tuning
