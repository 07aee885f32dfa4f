// Where a problem is run: its tensors in the memory of the chosen device, and how a call is timed there.
#pragma once

#include <memory>

#include "flashlift/attention.h"
#include "tuning/inputs.h"

namespace flashlift::tuning {

class Target {
 public:
  // For backward calls if the inputs have gradients. They must outlive the target. Errors: no such device, or not
  // enough memory there.
  static Result<std::unique_ptr<Target>> create(const CompileOptions& options, const Inputs& inputs);
  virtual ~Target() = default;

  // Runs once and gives its milliseconds: on a GPU those of the GPU, without the launch.
  virtual Result<double> time(const Attention& attention) = 0;
  // Brings the results into the host's tensors.
  virtual Status fetch() = 0;
};

}  // namespace flashlift::tuning
