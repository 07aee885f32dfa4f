#include "runtime/cuda_attention.h"

#include <algorithm>
#include <array>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "cuda/compile/cubin_cache.h"
#include "cuda/emit/program_emitter.h"
#include "cuda/emit/tile_classes.h"
#include "cuda/launch/backward.h"
#include "cuda/launch/forward.h"
#include "plan/cuda_lists.h"
#include "plan/implementation.h"
#include "runtime/compiled_once.h"
#include "runtime/kernel_cache.h"
#include "runtime/simplified.h"
#include "support/beside.h"
#include "support/error.h"
#include "support/hash.h"
#include "support/lazy.h"
#include "support/log.h"

namespace flashlift::runtime {
namespace {

constexpr size_t kCachedKernels = 256;

// Machine code by source: problems that differ only in lengths, batch or scale share it.
Result<std::shared_ptr<const std::string>> compile_kernel(const cuda::KernelSource& source) {
  static constinit Lazy<KernelCache<std::string>> lazy;
  auto& cache = lazy.get([] { return KernelCache<std::string>(kCachedKernels); });
  return cache.get(hash_hex(source.fingerprint()), [&] { return cuda::cached_cubin(source); });
}

using Forwards = plan::Answers<plan::CudaForward>;
using Backwards = plan::Answers<plan::CudaBackward>;
using cuda::LengthClass;

// The kernels of a problem. The first call that needs one compiles it.
class Kernels {
 public:
  Kernels(Problem problem, const cuda::Device& device) : problem_(std::move(problem)), device_(device) {}

  // The kernel with a class's tiles.
  Result<const cuda::Forward*> forward(const plan::CudaForward& row, LengthClass length) const {
    const LengthClass suits = row.compiled_for(length);
    return forwards_[static_cast<size_t>(row.kind)][static_cast<size_t>(suits)].get([&] {
      Result<cuda::Forward> kernel = cuda::Forward::compile(problem_, device_, row.kind, suits, compile_kernel);
      log(LogLevel::kInfo, "{}: {}", row.name(),
          kernel.ok() ? cuda::describe(kernel->config()) : kernel.error().message);
      return kernel;
    });
  }

  // The backward kernels for the set of captured tensors whose gradients a call requests.
  Result<const cuda::Backward*> backward(cuda::BackwardKind kind, const std::vector<bool>& wants_gradient) const {
    return backwards_for(wants_gradient)[static_cast<size_t>(kind)].get([&] {
      Result<cuda::Backward> kernel = cuda::Backward::compile(problem_, device_, kind, wants_gradient, compile_kernel);
      log(LogLevel::kInfo, "backward {}: {}", to_string(kind),
          kernel.ok() ? cuda::describe(kernel->config()) : kernel.error().message);
      return kernel;
    });
  }

 private:
  using BackwardKernels = std::array<CompiledOnce<cuda::Backward>, cuda::kBackwardKinds>;

  const BackwardKernels& backwards_for(const std::vector<bool>& wants_gradient) const {
    const std::lock_guard lock(mutex_);
    return backwards_[wants_gradient];
  }

  Problem problem_;
  cuda::Device device_;
  std::array<std::array<CompiledOnce<cuda::Forward>, cuda::kLengthClasses>, cuda::kKernelKinds> forwards_;
  mutable std::mutex mutex_;  // protects the map, not its kernels, which never move
  mutable std::map<std::vector<bool>, BackwardKernels> backwards_;
};

// Kernels of the implementations in the lists. The choice depends on a call's lengths and strides.
class CudaAttention : public Attention::Implementation {
 public:
  static Result<std::shared_ptr<CudaAttention>> create(const Problem& problem, const CompileOptions& options) {
    FLASHLIFT_ASSIGN_OR_RETURN(const cuda::Device device, cuda::get_device(options.device_ordinal));
    auto attention = std::make_shared<CudaAttention>(problem, simplified_and_ordered(problem), device);
    if (std::optional<Problem> own = simplified_for_own_keys(problem); own && options.lengths_known) {
      attention->own_kernels_.emplace(*std::move(own), device);
    }
    FLASHLIFT_RETURN_IF_ERROR(attention->evaluate_lists(options));
    FLASHLIFT_RETURN_IF_ERROR(attention->choose(options.lengths_known, options.forward_at_once));
    return attention;
  }

  CudaAttention(const Problem& given, const Problem& compiled, const cuda::Device& device)
      : given_(given), compiled_(compiled), device_(device), tiles_(compiled), kernels_(compiled, device) {}

  const Problem& problem() const override { return given_; }

  Status run(const AttentionArguments& arguments, const RunOptions& options) const override {
    auto* const stream = static_cast<cuda::CuStream>(options.stream);
    const cuda::CallSizes sizes = {
        .batch = arguments.q.sizes[0], .q_len = arguments.q.sizes[2], .kv_len = kv_length(given_, arguments)};
    const LengthClass length = cuda::length_class(compiled_, sizes, device_.multiprocessors);
    const LengthClass tiles = tiles_.of(arguments.q.sizes[0], arguments.q.sizes[2], device_.multiprocessors);
    const Forwards& answers = forwards_[static_cast<size_t>(length)];
    std::string reasons;
    for (const auto& [row, refusal] : answers) {
      if (refusal) {
        continue;
      }
      const Result<const cuda::Forward*> kernel = kernels_of(arguments).forward(*row, tiles);
      Status status = kernel.ok() ? (*kernel)->run(arguments, stream) : Status(kernel.error());
      if (status.ok() || status.error().kind != ErrorKind::kUnsupported) {
        return status;
      }
      plan::add_reason(reasons, row->name(), status.error().message);
    }
    return unsupported("no CUDA implementation takes this call: {}; {}", plan::reasons_of(answers), reasons);
  }

  Status prepare_backward(const std::vector<bool>& capture_gradients) const override {
    FLASHLIFT_RETURN_IF_ERROR(backwards_status_);
    std::string reasons;
    for (const auto& [row, refusal] : backwards_) {
      if (refusal) {
        continue;
      }
      const Result<const cuda::Backward*> kernel = own_kernels().backward(row->kind, capture_gradients);
      if (kernel.ok() || kernel.error().kind != ErrorKind::kUnsupported) {
        return kernel.ok() ? Status() : Status(kernel.error());
      }
      plan::add_reason(reasons, row->name(), kernel.error().message);
    }
    return no_backward(reasons);
  }

  bool reads_residual() const override {
    const plan::CudaBackward* const row = plan::first_of(backwards_);
    return row != nullptr && plan::reads_residual(*row, compiled_, device_);
  }

  Status run_backward(const BackwardArguments& arguments, const RunOptions& options) const override {
    FLASHLIFT_RETURN_IF_ERROR(backwards_status_);
    auto* const stream = static_cast<cuda::CuStream>(options.stream);
    std::vector<bool> wants_gradient(compiled_.captures.size());
    for (size_t i = 0; i < arguments.d_captures.size(); ++i) {
      wants_gradient[i] = arguments.d_captures[i].has_value();
    }
    std::string reasons;
    for (const auto& [row, refusal] : backwards_) {
      if (refusal) {
        continue;
      }
      const Result<const cuda::Backward*> kernel = kernels_of(arguments.forward).backward(row->kind, wants_gradient);
      Status status = kernel.ok() ? (*kernel)->run(arguments, stream, options.allocator) : Status(kernel.error());
      if (status.ok() || status.error().kind != ErrorKind::kUnsupported) {
        return status;
      }
      plan::add_reason(reasons, row->name(), status.error().message);
    }
    return no_backward(reasons);
  }

  // The workspace of the kernel that calls of the problem's own lengths use.
  int64_t workspace_bytes(int /*concurrency*/) const override {
    const plan::CudaForward* const row = plan::first_of(forwards_[static_cast<size_t>(own_length())]);
    const Result<const cuda::Forward*> kernel = own_kernels().forward(*row, own_tiles());
    return kernel.ok() ? (*kernel)->workspace_bytes() : 0;
  }

  int64_t backward_workspace_bytes(int /*concurrency*/) const override {
    int64_t most = 0;  // the first one that accepts a call depends on the gradients that it requests
    for (const auto& [row, refusal] : backwards_) {
      if (!refusal) {
        const Result<int64_t> bytes = cuda::Backward::workspace_bytes(compiled_, device_, row->kind);
        most = std::max(most, bytes.ok() ? *bytes : 0);
      }
    }
    return most;
  }

  Result<std::string> code() const override { return cuda::emit_programs(compiled_); }

 private:
  // Of calls of the problem's own lengths.
  LengthClass own_length() const {
    return cuda::length_class(compiled_, cuda::sizes_of(compiled_), device_.multiprocessors);
  }
  LengthClass own_tiles() const { return tiles_.of(compiled_.batch, compiled_.q_len, device_.multiprocessors); }
  // Those of calls of the problem's own number of keys.
  const Kernels& own_kernels() const { return own_kernels_ ? *own_kernels_ : kernels_; }
  const Kernels& kernels_of(const AttentionArguments& call) const {
    return own_kernels_ && kv_length(given_, call) == given_.kv_len ? *own_kernels_ : kernels_;
  }

  // A tuning result applies to calls of the problem's own lengths only.
  Status evaluate_lists(const CompileOptions& options) {
    const auto requested_for = [&](const Tuning& tuning) {
      return tuning.implementation.empty() ? options.implementation : tuning.implementation;
    };
    const auto own = static_cast<size_t>(own_length());
    for (size_t i = 0; i < cuda::kLengthClasses; ++i) {
      const auto refusal = [&](const plan::CudaForward& row, bool by_name) {
        return plan::refusal(row, compiled_, static_cast<LengthClass>(i), device_, by_name);
      };
      FLASHLIFT_ASSIGN_OR_RETURN(
          forwards_[i],
          plan::evaluate(plan::cuda_forward_list(),
                         options.lengths_known && i == own ? requested_for(options.forward) : options.implementation,
                         "CUDA's forward pass", refusal));
    }
    const std::string requested = requested_for(options.backward);
    const auto refusal = [&](const plan::CudaBackward& row, bool /*by_name*/) {
      return plan::refusal(row, compiled_, device_);
    };
    Result<Backwards> backwards =
        plan::evaluate(plan::cuda_backward_list(), requested, "CUDA's backward pass", refusal);
    if (backwards.ok()) {
      backwards_ = *std::move(backwards);
    } else {
      backwards_status_ = backwards.error();  // callers of the forward pass alone need no backward kernels
      backward_considerations.push_back({requested, false, backwards.error().message});
    }
    return {};
  }

  // Chooses the implementation for calls of the problem's lengths and compiles it. If the problem has no lengths,
  // chooses the one for long calls.
  Status choose(bool lengths_known, bool at_once) {
    const LengthClass length = lengths_known ? own_length() : LengthClass::kLonger;
    const LengthClass tiles = lengths_known ? own_tiles() : length;
    const Forwards& answers = forwards_[static_cast<size_t>(length)];
    considerations = plan::considerations(answers, [&](const plan::CudaForward& row) {
      return cuda::describe(*cuda::choose_forward_config(compiled_, row.kind, tiles, device_.architecture));
    });
    if (!backwards_.empty()) {
      backward_considerations = plan::considerations(backwards_, [&](const plan::CudaBackward& row) {
        return cuda::describe(*cuda::choose_backward_config(compiled_, row.kind, device_.architecture));
      });
    }
    const plan::CudaForward* const row = plan::first_of(answers);
    if (row == nullptr) {
      return unsupported("no CUDA implementation takes this problem: {}", plan::reasons_of(answers));
    }
    name = row->name();
    if (!lengths_known || !at_once) {
      return {};
    }
    // Only a backward pass reads the residual, and its kernels take longer to compile. It reports its own errors, when
    // it is run.
    std::future<void> backward;
    if (compiled_.want_residual && verify_backward(given_).ok()) {
      backward =
          begin_beside([&] { static_cast<void>(prepare_backward(std::vector<bool>(compiled_.captures.size()))); });
    }
    // A defect or a missing compiler must not silently select a slower kernel.
    const Result<const cuda::Forward*> kernel = own_kernels().forward(*row, tiles);
    if (backward.valid()) {
      backward.wait();
    }
    return kernel.ok() ? Status() : Status(kernel.error());
  }

  Error no_backward(const std::string& reasons) const {
    return unsupported("no CUDA implementation gives the gradients of this call: {}; {}", plan::reasons_of(backwards_),
                       reasons);
  }

  Problem given_;
  Problem compiled_;
  cuda::Device device_;
  cuda::TileClasses tiles_;
  std::array<Forwards, cuda::kLengthClasses> forwards_;  // the list's answers for each class
  Backwards backwards_;                                  // empty if the list has none of the requested name
  Status backwards_status_;
  Kernels kernels_;
  std::optional<Kernels> own_kernels_;  // for calls of the problem's own number of keys, where these are cheaper
};

}  // namespace

Result<std::shared_ptr<const Attention::Implementation>> compile_cuda(const Problem& problem,
                                                                      const CompileOptions& options) {
  FLASHLIFT_ASSIGN_OR_RETURN(std::shared_ptr<const Attention::Implementation> attention,
                             CudaAttention::create(problem, options));
  return attention;
}

}  // namespace flashlift::runtime
