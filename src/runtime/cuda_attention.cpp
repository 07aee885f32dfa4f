#include "runtime/cuda_attention.h"

#include <array>
#include <map>
#include <mutex>
#include <optional>
#include <span>

#include "cuda/compile/cubin_cache.h"
#include "cuda/emit/program_emitter.h"
#include "cuda/launch/backward.h"
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

// Why the device cannot run this kind of kernel; empty if it can.
std::string device_reason(const cuda::Device& device, cuda::KernelKind kind) {
  constexpr int kPortable = 80;
  constexpr int kHopper = 90;
  const bool hopper = kind == cuda::KernelKind::kHopper;  // no newer one has its instructions
  const int oldest = hopper || kind == cuda::KernelKind::kBulkDecode ? kHopper : kPortable;
  if (hopper ? device.architecture == kHopper : device.architecture >= oldest) {
    return {};
  }
  return fmt::format("{} has compute capability {}.{}, expected {}.{}{}", device.name, device.architecture / 10,
                     device.architecture % 10, oldest / 10, oldest % 10, hopper ? "" : " or newer");
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
    std::vector<bool> wants_gradient(compiled_.captures.size());
    for (size_t i = 0; i < arguments.d_captures.size(); ++i) {
      wants_gradient[i] = arguments.d_captures[i].has_value();
    }
    FLASHLIFT_ASSIGN_OR_RETURN(const cuda::Backward* backward, get_backward(wants_gradient));
    return backward->run(arguments, static_cast<cuda::CuStream>(options.stream));
  }

  // Counters, bounds of captured tensors and what parts of a row give only; they stay with the kernel.
  int64_t workspace_bytes(int /*concurrency*/) const override { return 0; }
  Result<std::string> code() const override { return cuda::emit_programs(compiled_); }

  // Those to try for calls with so many queries.
  std::span<const cuda::KernelKind> kinds(int64_t q_len) const {
    return kinds_for(only_.empty() ? has_few_rows(compiled_, q_len) : only_.ends_with("decode"));
  }

  // The kernel of a kind; compiled if it has not been. Errors: kUnsupported with the reason why it takes no call.
  Result<const cuda::Forward*> get(cuda::KernelKind kind) const {
    const std::lock_guard lock(mutex_);
    std::optional<Result<cuda::Forward>>& kernel = kernels_[static_cast<size_t>(kind)];
    if (!kernel) {
      const std::string reason = refusal(kind);
      kernel.emplace(reason.empty() ? cuda::Forward::compile(compiled_, device_, kind, compile_kernel)
                                    : unsupported("{}", reason));
      log(LogLevel::kInfo, "{}: {}", to_string(kind),
          kernel->ok() ? cuda::describe((*kernel)->config()) : kernel->error().message);
    }
    if (!kernel->ok()) {
      return kernel->error();
    }
    return &**kernel;
  }

 private:
  // The backward kernels for a set of captured tensors whose gradients are wanted; compiled by the first call.
  Result<const cuda::Backward*> get_backward(const std::vector<bool>& wants_gradient) const {
    const std::lock_guard lock(mutex_);
    auto [found, is_new] = backwards_.try_emplace(wants_gradient);
    std::optional<Result<cuda::Backward>>& backward = found->second;
    if (is_new) {
      const std::string reason = device_reason(device_, cuda::KernelKind::kPortable);
      backward.emplace(reason.empty() ? cuda::Backward::compile(compiled_, device_, wants_gradient, compile_kernel)
                                      : unsupported("{}", reason));
      log(LogLevel::kInfo, "{}", backward->ok() ? cuda::describe((*backward)->config()) : backward->error().message);
    }
    if (!backward->ok()) {
      return backward->error();
    }
    return &**backward;
  }

  std::string refusal(cuda::KernelKind kind) const {
    return only_.empty() || only_ == to_string(kind) ? device_reason(device_, kind)
                                                     : "another implementation was asked for by name";
  }

  Problem given_;
  Problem compiled_;
  cuda::Device device_;
  std::string only_;  // the implementation that was asked for by name, or nothing
  mutable std::mutex mutex_;
  mutable std::array<std::optional<Result<cuda::Forward>>, cuda::kKernelKinds> kernels_;
  mutable std::map<std::vector<bool>, std::optional<Result<cuda::Backward>>> backwards_;
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
