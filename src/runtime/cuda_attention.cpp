#include "runtime/cuda_attention.h"

#include <mutex>
#include <optional>

#include "cuda/compile/cubin_cache.h"
#include "cuda/launch/forward.h"
#include "runtime/kernel_cache.h"
#include "runtime/simplified.h"
#include "support/error.h"
#include "support/hash.h"
#include "support/log.h"

namespace flashlift::runtime {
namespace {

constexpr size_t kCachedKernels = 256;
constexpr int kHopper = 90;
constexpr int kOldestPortable = 80;

// Machine code by source: problems that differ only in lengths, batch or scale share it.
Result<std::shared_ptr<const std::string>> compile_kernel(const cuda::KernelSource& source) {
  static auto* cache = new KernelCache<std::string>(kCachedKernels);
  return cache->get(hash_hex(source.fingerprint()), [&] { return cuda::cached_cubin(source); });
}

// Why the device cannot run this kind of kernel; empty if it can.
std::string device_reason(const cuda::Device& device, cuda::KernelKind kind) {
  const bool hopper = kind == cuda::KernelKind::kHopper;
  if (hopper ? device.architecture == kHopper : device.architecture >= kOldestPortable) {
    return {};
  }
  return fmt::format("{} has compute capability {}.{}, expected {}", device.name, device.architecture / 10,
                     device.architecture % 10, hopper ? "9.0" : "8.0 or newer");
}

// What the kernels have not learnt yet; empty if nothing is asked of them that they cannot do.
std::string feature_reason(const Problem& problem) {
  if (problem.dropout > 0) {
    return "dropout is not implemented for CUDA yet: run it on the CPU, or leave it out";
  }
  if (problem.want_row_max) {
    return "row_max is not implemented for CUDA yet: run it on the CPU, or ask for lse";
  }
  if (problem.page_size > 0) {
    return "paged keys and values are not implemented for CUDA yet: run it on the CPU, or gather the pages first";
  }
  return {};
}

class CudaAttention : public Attention::Implementation {
 public:
  CudaAttention(const Problem& given, const Problem& compiled, const cuda::Device& device, cuda::Forward forward,
                bool may_fall_back)
      : given_(given),
        compiled_(compiled),
        device_(device),
        forward_(std::move(forward)),
        may_fall_back_(may_fall_back) {}

  const Problem& problem() const override { return given_; }

  Status run(const AttentionArguments& arguments, const RunOptions& options) const override {
    auto* const stream = static_cast<cuda::CuStream>(options.stream);
    Status status = forward_.run(arguments, stream);
    if (status.ok() || status.error().kind != ErrorKind::kUnsupported || !may_fall_back_) {
      return status;
    }
    // Strides are known only now. The portable kernel takes any; it is compiled by the first call that needs it.
    FLASHLIFT_ASSIGN_OR_RETURN(const cuda::Forward* portable, fallback(status.error().message));
    return portable->run(arguments, stream);
  }

  // Scheduler counters and bounds of captured tensors only; they stay with the kernel.
  int64_t workspace_bytes(int /*concurrency*/) const override { return 0; }
  Result<std::string> code() const override { return forward_.code(); }

 private:
  Result<const cuda::Forward*> fallback(const std::string& reason) const {
    const std::lock_guard lock(mutex_);
    if (!fallback_) {
      log(LogLevel::kWarning, "{}: {}; such calls run on {}", name, reason,
          cuda::to_string(cuda::KernelKind::kPortable));
      Result<cuda::Forward> compiled =
          cuda::Forward::compile(compiled_, device_, cuda::KernelKind::kPortable, compile_kernel);
      if (!compiled.ok()) {
        return unsupported("{}: {}; {}: {}", name, reason, cuda::to_string(cuda::KernelKind::kPortable),
                           compiled.error().message);
      }
      fallback_.emplace(*std::move(compiled));
    }
    return &*fallback_;
  }

  Problem given_;
  Problem compiled_;
  cuda::Device device_;
  cuda::Forward forward_;
  bool may_fall_back_;
  mutable std::mutex mutex_;
  mutable std::optional<cuda::Forward> fallback_;
};

}  // namespace

Result<std::shared_ptr<const Attention::Implementation>> compile_cuda(const Problem& problem,
                                                                      const CompileOptions& options) {
  FLASHLIFT_ASSIGN_OR_RETURN(const cuda::Device device, cuda::get_device(options.device_ordinal));
  const Problem compiled = simplified(problem);
  std::vector<Consideration> considerations;
  std::string reasons;
  for (const cuda::KernelKind kind : {cuda::KernelKind::kHopper, cuda::KernelKind::kPortable}) {
    const std::string name = cuda::to_string(kind);
    std::string reason;
    if (!options.implementation.empty() && options.implementation != name) {
      reason = "another implementation was asked for by name";
    } else {
      reason = device_reason(device, kind);
    }
    if (reason.empty()) {
      reason = feature_reason(compiled);
    }
    if (reason.empty()) {
      Result<cuda::Forward> forward = cuda::Forward::compile(compiled, device, kind, compile_kernel);
      if (forward.ok()) {
        considerations.push_back({name, true, cuda::describe(forward->config())});
        log(LogLevel::kInfo, "{}: {}", name, considerations.back().reason);
        // One asked for by name runs or says why not.
        const bool may_fall_back = kind != cuda::KernelKind::kPortable && options.implementation.empty();
        auto implementation =
            std::make_shared<CudaAttention>(problem, compiled, device, *std::move(forward), may_fall_back);
        implementation->name = name;
        implementation->considerations = std::move(considerations);
        return std::shared_ptr<const Attention::Implementation>(std::move(implementation));
      }
      if (forward.error().kind != ErrorKind::kUnsupported) {
        return forward.error();  // a defect or a missing compiler is no reason to run something slower
      }
      reason = forward.error().message;
    }
    log(LogLevel::kDebug, "{} rejected: {}", name, reason);
    reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", name, reason);
    considerations.push_back({name, false, reason});
  }
  return unsupported("no CUDA implementation takes this problem: {}", reasons);
}

}  // namespace flashlift::runtime
