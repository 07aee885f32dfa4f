#include "tuning/target.h"

#include <chrono>

#include "support/error.h"
#ifdef FLASHLIFT_HAS_CUDA
#include "cuda/launch/device_tensors.h"
#endif

namespace flashlift::tuning {
namespace {

class HostTarget : public Target {
 public:
  explicit HostTarget(const Inputs& inputs) : inputs_(inputs) {}

  Result<double> time(const Attention& attention) override {
    if (inputs_.backward() != nullptr && !has_forward_) {  // a backward call reads the forward call's results
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
  CudaTarget(const AttentionArguments& host, cuda::DeviceTensors tensors, cuda::Timer timer)
      : host_(host), tensors_(std::move(tensors)), timer_(std::move(timer)) {}

  Result<double> time(const Attention& attention) override {
    FLASHLIFT_RETURN_IF_ERROR(timer_.start());
    FLASHLIFT_RETURN_IF_ERROR(attention.run(tensors_.views()));
    return timer_.stop();
  }

  Status fetch() override { return tensors_.fetch(host_); }

 private:
  const AttentionArguments& host_;
  cuda::DeviceTensors tensors_;
  cuda::Timer timer_;
};

class CudaBackwardTarget : public Target {
 public:
  CudaBackwardTarget(const BackwardArguments& host, cuda::DeviceGradients tensors, cuda::Timer timer)
      : host_(host), tensors_(std::move(tensors)), timer_(std::move(timer)) {}

  Result<double> time(const Attention& attention) override {
    if (!has_forward_) {  // a backward call reads the forward call's results
      FLASHLIFT_RETURN_IF_ERROR(attention.run(tensors_.views().forward));
      has_forward_ = true;
    }
    FLASHLIFT_RETURN_IF_ERROR(timer_.start());
    FLASHLIFT_RETURN_IF_ERROR(attention.run_backward(tensors_.views()));
    return timer_.stop();
  }

  Status fetch() override { return tensors_.fetch(host_); }

 private:
  const BackwardArguments& host_;
  cuda::DeviceGradients tensors_;
  cuda::Timer timer_;
  bool has_forward_ = false;
};

Result<std::unique_ptr<Target>> create_on_gpu(int ordinal, const Inputs& inputs) {
  std::unique_ptr<Target> target;
  if (inputs.backward() != nullptr) {
    FLASHLIFT_ASSIGN_OR_RETURN(auto tensors, cuda::DeviceGradients::copy_of(*inputs.backward(), ordinal));
    FLASHLIFT_ASSIGN_OR_RETURN(cuda::Timer timer, cuda::Timer::create());
    target = std::make_unique<CudaBackwardTarget>(*inputs.backward(), std::move(tensors), std::move(timer));
  } else {
    FLASHLIFT_ASSIGN_OR_RETURN(auto tensors, cuda::DeviceTensors::copy_of(inputs.arguments(), ordinal));
    FLASHLIFT_ASSIGN_OR_RETURN(cuda::Timer timer, cuda::Timer::create());
    target = std::make_unique<CudaTarget>(inputs.arguments(), std::move(tensors), std::move(timer));
  }
  return target;
}
#endif

}  // namespace

Result<std::unique_ptr<Target>> Target::create(const CompileOptions& options, const Inputs& inputs) {
  if (options.device == DeviceKind::kCuda) {
#ifdef FLASHLIFT_HAS_CUDA
    return create_on_gpu(options.device_ordinal, inputs);
#else
    return unsupported("this build has no CUDA backend: configure it with FLASHLIFT_CUDA=ON");
#endif
  }
  return std::unique_ptr<Target>(std::make_unique<HostTarget>(inputs));
}

}  // namespace flashlift::tuning
