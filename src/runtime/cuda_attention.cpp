#include "runtime/cuda_attention.h"

#include <array>
#include <map>
#include <mutex>
#include <span>

#include "cuda/compile/cubin_cache.h"
#include "cuda/emit/program_emitter.h"
#include "cuda/launch/backward.h"
#include "cuda/launch/forward.h"
#include "runtime/compiled_once.h"
#include "runtime/kernel_cache.h"
#include "runtime/simplified.h"
#include "support/error.h"
#include "support/hash.h"
#include "support/log.h"

namespace flashlift::runtime {
namespace {

constexpr size_t kCachedKernels = 256;

// Machine code by source: problems that differ only in lengths, batch or scale share it.
Result<std::shared_ptr<const std::string>> compile_kernel(const cuda::KernelSource& source) {
  static auto* cache = new KernelCache<std::string>(kCachedKernels);
  return cache->get(hash_hex(source.fingerprint()), [&] { return cuda::cached_cubin(source); });
}

constexpr int kPortable = 80;
constexpr int kHopper = 90;

// Why the device, which is not `architecture` (or newer), cannot run a kernel.
std::string wrong_device(const cuda::Device& device, int architecture, bool or_newer) {
  return fmt::format("{} has compute capability {}.{}, expected {}.{}{}", device.name, device.architecture / 10,
                     device.architecture % 10, architecture / 10, architecture % 10, or_newer ? " or newer" : "");
}

// Why the device cannot run this kind of kernel; empty if it can.
std::string device_reason(const cuda::Device& device, cuda::KernelKind kind) {
  const bool hopper = kind == cuda::KernelKind::kHopper;  // no newer one has its instructions
  const int oldest = hopper || kind == cuda::KernelKind::kBulkDecode ? kHopper : kPortable;
  const bool fits = hopper ? device.architecture == kHopper : device.architecture >= oldest;
  return fits ? std::string() : wrong_device(device, oldest, !hopper);
}

std::string device_reason(const cuda::Device& device, cuda::BackwardKind kind) {
  switch (kind) {
    case cuda::BackwardKind::kPortable:
      break;
  }
  return device.architecture >= kPortable ? std::string() : wrong_device(device, kPortable, true);
}

// Rows that share keys and values, up to which reading these is what a call costs.
constexpr int64_t kFewRows = 64;

bool has_few_rows(const Problem& problem, int64_t q_len) {
  return q_len * (problem.q_heads / problem.kv_heads) <= kFewRows;
}

// Kinds in the order of preference.
std::span<const cuda::KernelKind> kinds_for(bool few_rows) {
  using enum cuda::KernelKind;
  static constexpr std::array kAll{kBulkDecode, kDecode, kHopper, kPortable};
  return std::span(kAll).subspan(few_rows ? 0 : 2);
}

// The backward pass's kinds in the order of preference.
constexpr std::array kBackwardKinds{cuda::BackwardKind::kPortable};
static_assert(kBackwardKinds.size() == cuda::kBackwardKinds);

// One kernel of each kind that was asked for. Which one suits, and which one can read the strides, is known when a call
// comes: the one for the problem's own lengths is compiled at once, others by the first call that needs them.
class CudaAttention : public Attention::Implementation {
 public:
  CudaAttention(const Problem& given, const Problem& compiled, const cuda::Device& device, std::string only)
      : given_(given), compiled_(compiled), device_(device), only_(std::move(only)) {}

  const Problem& problem() const override { return given_; }

  Status run(const AttentionArguments& arguments, const RunOptions& options) const override {
    auto* const stream = static_cast<cuda::CuStream>(options.stream);
    std::string reasons;
    for (const cuda::KernelKind kind : kinds(arguments.q.sizes[2])) {
      const Result<const cuda::Forward*> kernel = get(kind);
      Status status = kernel.ok() ? (*kernel)->run(arguments, stream) : Status(kernel.error());
      if (status.ok() || status.error().kind != ErrorKind::kUnsupported) {
        return status;
      }
      reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", to_string(kind), status.error().message);
    }
    return unsupported("no CUDA implementation takes this call: {}", reasons);
  }

  Status run_backward(const BackwardArguments& arguments, const RunOptions& options) const override {
    auto* const stream = static_cast<cuda::CuStream>(options.stream);
    std::vector<bool> wants_gradient(compiled_.captures.size());
    for (size_t i = 0; i < arguments.d_captures.size(); ++i) {
      wants_gradient[i] = arguments.d_captures[i].has_value();
    }
    std::string reasons;
    for (const cuda::BackwardKind kind : kBackwardKinds) {
      const Result<const cuda::Backward*> kernel = get_backward(kind, wants_gradient);
      Status status = kernel.ok() ? (*kernel)->run(arguments, stream) : Status(kernel.error());
      if (status.ok() || status.error().kind != ErrorKind::kUnsupported) {
        return status;
      }
      reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", to_string(kind), status.error().message);
    }
    return unsupported("no CUDA implementation gives the gradients of this call: {}", reasons);
  }

  // Of the kernel that calls of the problem's own lengths take.
  int64_t workspace_bytes(int /*concurrency*/) const override { return chosen->workspace_bytes(); }

  int64_t backward_workspace_bytes(int /*concurrency*/) const override {
    for (const cuda::BackwardKind kind : kBackwardKinds) {
      if (refusal(kind).empty()) {
        if (const Result<int64_t> bytes = cuda::Backward::workspace_bytes(compiled_, device_, kind); bytes.ok()) {
          return *bytes;
        }
      }
    }
    return 0;
  }

  Result<std::string> code() const override { return cuda::emit_programs(compiled_); }

  // Those to try for calls with so many queries.
  std::span<const cuda::KernelKind> kinds(int64_t q_len) const {
    return kinds_for(only_.empty() ? has_few_rows(compiled_, q_len) : only_.ends_with("decode"));
  }

  // The kernel of a kind; compiled if it has not been. Errors: kUnsupported with the reason why it takes no call.
  Result<const cuda::Forward*> get(cuda::KernelKind kind) const {
    return kernels_[static_cast<size_t>(kind)].get([&] {
      const std::string reason = refusal(kind);
      Result<cuda::Forward> kernel = reason.empty() ? cuda::Forward::compile(compiled_, device_, kind, compile_kernel)
                                                    : unsupported("{}", reason);
      log(LogLevel::kInfo, "{}: {}", to_string(kind),
          kernel.ok() ? cuda::describe(kernel->config()) : kernel.error().message);
      return kernel;
    });
  }

  const cuda::Forward* chosen = nullptr;  // for the problem's own lengths

 private:
  using Backwards = std::array<CompiledOnce<cuda::Backward>, cuda::kBackwardKinds>;

  // The backward kernels for a set of captured tensors whose gradients are wanted; compiled by the first call.
  Result<const cuda::Backward*> get_backward(cuda::BackwardKind kind, const std::vector<bool>& wants_gradient) const {
    return backwards(wants_gradient)[static_cast<size_t>(kind)].get([&] {
      const std::string reason = refusal(kind);
      Result<cuda::Backward> kernel =
          reason.empty() ? cuda::Backward::compile(compiled_, device_, kind, wants_gradient, compile_kernel)
                         : unsupported("{}", reason);
      log(LogLevel::kInfo, "backward {}: {}", to_string(kind),
          kernel.ok() ? cuda::describe(kernel->config()) : kernel.error().message);
      return kernel;
    });
  }

  const Backwards& backwards(const std::vector<bool>& wants_gradient) const {
    const std::lock_guard lock(mutex_);
    return backwards_[wants_gradient];
  }

  template <typename Kind>
  std::string refusal(Kind kind) const {
    return only_.empty() || only_ == to_string(kind)
               ? device_reason(device_, kind)
               : fmt::format("another implementation, {}, was asked for by name", only_);
  }

  Problem given_;
  Problem compiled_;
  cuda::Device device_;
  std::string only_;  // the implementation that was asked for by name, or nothing
  std::array<CompiledOnce<cuda::Forward>, cuda::kKernelKinds> kernels_;
  mutable std::mutex mutex_;  // of the map, not of its kernels: they stay where they are
  mutable std::map<std::vector<bool>, Backwards> backwards_;
};

}  // namespace

Result<std::shared_ptr<const Attention::Implementation>> compile_cuda(const Problem& problem,
                                                                      const CompileOptions& options) {
  FLASHLIFT_ASSIGN_OR_RETURN(const cuda::Device device, cuda::get_device(options.device_ordinal));
  auto attention = std::make_shared<CudaAttention>(problem, simplified(problem), device, options.implementation);
  std::string reasons;
  for (const cuda::KernelKind kind : attention->kinds(problem.q_len)) {
    const std::string name = to_string(kind);
    const Result<const cuda::Forward*> kernel = attention->get(kind);
    if (kernel.ok()) {
      attention->considerations.push_back({name, true, cuda::describe((*kernel)->config())});
      attention->name = name;
      attention->chosen = *kernel;
      return std::shared_ptr<const Attention::Implementation>(std::move(attention));
    }
    if (kernel.error().kind != ErrorKind::kUnsupported) {
      return kernel.error();  // a defect or a missing compiler is no reason to run something slower
    }
    reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", name, kernel.error().message);
    attention->considerations.push_back({name, false, kernel.error().message});
  }
  return unsupported("no CUDA implementation takes this problem: {}", reasons);
}

}  // namespace flashlift::runtime
