#include "cli/target.h"

#include <chrono>

#include "support/error.h"
#ifdef FLASHLIFT_HAS_CUDA
#include "cuda/launch/device_tensors.h"
#endif

namespace flashlift::cli {
namespace {

class HostTarget : public Target {
 public:
  explicit HostTarget(const Inputs& inputs) : inputs_(inputs) {}

  Result<double> time(const Attention& attention) override {
    if (inputs_.backward() != nullptr && !has_forward_) {  // whose results a backward call reads
      FLASHLIFT_RETURN_IF_ERROR(attention.run(inputs_.arguments()));
      has_forward_ = true;
    }
    const auto start = std::chrono::steady_clock::now();
    FLASHLIFT_RETURN_IF_ERROR(inputs_.backward() != nullptr ? attention.run_backward(*inputs_.backward())
                                                            : attention.run(inputs_.arguments()));
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  }

  Status fetch() override { return {}; }

 private:
  const Inputs& inputs_;
  bool has_forward_ = false;
};

#ifdef FLASHLIFT_HAS_CUDA
class CudaTarget : public Target {
 public:
  static Result<std::unique_ptr<Target>> create(int ordinal, const AttentionArguments& host) {
    FLASHLIFT_ASSIGN_OR_RETURN(cuda::DeviceTensors tensors, cuda::DeviceTensors::copy_of(host, ordinal));
    FLASHLIFT_ASSIGN_OR_RETURN(cuda::Timer timer, cuda::Timer::create());
    return std::unique_ptr<Target>(new CudaTarget(host, std::move(tensors), std::move(timer)));
  }

  Result<double> time(const Attention& attention) override {
    FLASHLIFT_RETURN_IF_ERROR(timer_.start());
    FLASHLIFT_RETURN_IF_ERROR(attention.run(tensors_.views()));
    return timer_.stop();
  }

  Status fetch() override { return tensors_.fetch(host_); }

 private:
  CudaTarget(const AttentionArguments& host, cuda::DeviceTensors tensors, cuda::Timer timer)
      : host_(host), tensors_(std::move(tensors)), timer_(std::move(timer)) {}

  const AttentionArguments& host_;
  cuda::DeviceTensors tensors_;
  cuda::Timer timer_;
};
#endif

}  // namespace

Result<std::unique_ptr<Target>> Target::create(const CompileOptions& options, const Inputs& inputs) {
  if (options.device == DeviceKind::kCuda) {
    if (inputs.backward() != nullptr) {
      return unsupported("there is no backward pass on CUDA devices yet: leave out --backward or --device");
    }
#ifdef FLASHLIFT_HAS_CUDA
    return CudaTarget::create(options.device_ordinal, inputs.arguments());
#else
    return unsupported("this build has no CUDA backend: configure it with FLASHLIFT_CUDA=ON");
#endif
  }
  return std::unique_ptr<Target>(std::make_unique<HostTarget>(inputs));
}

}  // namespace flashlift::cli
