#include "flashlift/attention.h"

#include <new>

#include "database/tuning_database.h"
#include "runtime/implementation.h"
#include "runtime/tuning_device.h"
#include "runtime/verify_options.h"
#include "support/counted.h"
#include "support/default_floats.h"
#include "support/environment.h"
#include "support/error.h"
#include "support/fork_guard.h"
#include "support/log.h"
#ifdef FLASHLIFT_HAS_CPU
#include "runtime/cpu_attention.h"
#endif
#ifdef FLASHLIFT_HAS_CUDA
#include "runtime/cuda_attention.h"
#endif

namespace flashlift {
namespace {

Result<std::shared_ptr<const Attention::Implementation>> compile_for_device(const Problem& problem,
                                                                            const CompileOptions& options) {
  for (const Tuning* pass : {&options.forward, &options.backward}) {
    if (!options.implementation.empty() && !pass->implementation.empty() &&
        pass->implementation != options.implementation) {
      return invalid_argument("implementation is {}, and {} for one pass; name one of them", options.implementation,
                              pass->implementation);
    }
  }
  if (options.device == DeviceKind::kCuda) {
#ifdef FLASHLIFT_HAS_CUDA
    return runtime::compile_cuda(problem, options);
#else
    return unsupported("this build has no CUDA backend: configure it with FLASHLIFT_CUDA=ON");
#endif
  }
#ifdef FLASHLIFT_HAS_CPU
  return runtime::compile_cpu(problem, options);
#else
  return unsupported("this build has no CPU backend: configure it with FLASHLIFT_CPU=ON");
#endif
}

// Adds the database's tuning for passes for which the caller chose nothing. True if there is any.
bool take_tuned(const Problem& problem, CompileOptions& options) {
  if (!options.implementation.empty() || database::effective(options.tuning) == TuningPolicy::kOff ||
      !database::anything_tuned()) {
    return false;
  }
  const Result<std::string> device = runtime::tuning_device(options.device, options.device_ordinal);
  const auto take = [&](bool backward, Tuning& tuning) {
    if (!device.ok() || tuning != Tuning{}) {
      return false;
    }
    const auto found = database::find_tuned(*device, backward, problem, options.lengths_known);
    tuning = found ? found->tuning : Tuning{};
    return tuning != Tuning{};
  };
  const bool forward = take(false, options.forward);
  return take(true, options.backward) || forward;
}

// If memory runs out, this error is returned. Its message is so short that it needs no allocation.
Error out_of_memory() { return {ErrorKind::kInternal, "out of memory"}; }

Status check_fork() {
  return was_cut_by_fork() ? internal_error(
                                 "this process was forked while another thread compiled, so that it cannot compute; "
                                 "fork before the first call, or between calls")
                           : Status();
}

Result<std::vector<bool>> for_each_capture(const Problem& problem, const std::vector<bool>& capture_gradients) {
  const size_t captures = problem.captures.size();
  if (!capture_gradients.empty() && capture_gradients.size() != captures) {
    return invalid_argument("capture_gradients has {}; expected none, or one for each of {}",
                            counted(capture_gradients.size(), "entry", "entries"),
                            counted(captures, "captured tensor"));
  }
  return capture_gradients.empty() ? std::vector<bool>(captures) : capture_gradients;
}

// Runs the body of a function that compiles or computes.
template <typename Body>
auto guarded(const Body& body) -> decltype(body()) {
  const DefaultFloats floats;
  try {
    FLASHLIFT_RETURN_IF_ERROR(check_fork());
    return body();
  } catch (const std::bad_alloc&) {
    return out_of_memory();
  }
}

Status check_options(const RunOptions& options) {
  if (options.executor != nullptr && options.executor->concurrency() < 1) {
    return invalid_argument("the executor's concurrency is {}, expected at least 1", options.executor->concurrency());
  }
  if (options.cancelled != nullptr && options.cancelled->load(std::memory_order_relaxed) != 0) {
    return cancelled();
  }
  return {};
}

}  // namespace

const char* to_string(DeviceKind device) {
  switch (device) {
    case DeviceKind::kCpu:
      return "cpu";
    case DeviceKind::kCuda:
      return "cuda";
  }
  return "?";
}

Attention::Attention(std::shared_ptr<const Implementation> implementation)
    : implementation_(std::move(implementation)) {}

Result<Attention> Attention::compile(const Problem& problem, const CompileOptions& options) {
  return guarded([&]() -> Result<Attention> {
    FLASHLIFT_RETURN_IF_ERROR(check_environment());
    FLASHLIFT_RETURN_IF_ERROR(runtime::verify_options(options.device, options.device_ordinal, options.tuning));
    FLASHLIFT_RETURN_IF_ERROR(verify(problem));
    CompileOptions tuned = options;
    if (take_tuned(problem, tuned)) {
      if (auto implementation = compile_for_device(problem, tuned); implementation.ok()) {
        return Attention(*std::move(implementation));
      } else {
        log(LogLevel::kWarning, "not as tuned: {}", implementation.error().message);
      }
    }
    FLASHLIFT_ASSIGN_OR_RETURN(auto implementation, compile_for_device(problem, options));
    return Attention(std::move(implementation));
  });
}

Status Attention::run(const AttentionArguments& arguments, const RunOptions& options) const {
  return guarded([&]() -> Status {
    FLASHLIFT_RETURN_IF_ERROR(verify(problem(), arguments));
    FLASHLIFT_RETURN_IF_ERROR(check_options(options));
    return implementation_->run(arguments, options);
  });
}

Status Attention::prepare_backward(const std::vector<bool>& capture_gradients) const {
  return guarded([&]() -> Status {
    FLASHLIFT_ASSIGN_OR_RETURN(const std::vector<bool> wanted, for_each_capture(problem(), capture_gradients));
    FLASHLIFT_RETURN_IF_ERROR(verify_backward(problem()));
    return implementation_->prepare_backward(wanted);
  });
}

Result<bool> Attention::reads_residual(const std::vector<bool>& capture_gradients) const {
  return guarded([&]() -> Result<bool> {
    FLASHLIFT_ASSIGN_OR_RETURN([[maybe_unused]] const std::vector<bool> wanted,
                               for_each_capture(problem(), capture_gradients));
    return verify_backward(problem()).ok() && implementation_->reads_residual();
  });
}

Status Attention::run_backward(const BackwardArguments& arguments, const RunOptions& options) const {
  return guarded([&]() -> Status {
    FLASHLIFT_RETURN_IF_ERROR(verify(problem(), arguments));
    FLASHLIFT_RETURN_IF_ERROR(check_options(options));
    return implementation_->run_backward(arguments, options);
  });
}

const Problem& Attention::problem() const { return implementation_->problem(); }
const std::string& Attention::implementation() const { return implementation_->name; }
const std::vector<Consideration>& Attention::considerations() const { return implementation_->considerations; }
const std::vector<Consideration>& Attention::backward_considerations() const {
  return implementation_->backward_considerations;
}
int64_t Attention::workspace_bytes(int concurrency) const {
  return concurrency < 1 ? -1 : implementation_->workspace_bytes(concurrency);
}
int64_t Attention::backward_workspace_bytes(int concurrency) const {
  return concurrency < 1 ? -1 : implementation_->backward_workspace_bytes(concurrency);
}
Result<std::string> Attention::code() const {
  return guarded([&] { return implementation_->code(); });
}

}  // namespace flashlift
