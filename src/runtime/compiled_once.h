// Something compiled when it is first asked for: whoever asks meanwhile waits, for this one only.
#pragma once

#include <mutex>
#include <optional>
#include <utility>

#include "flashlift/result.h"
#include "support/fork_guard.h"

namespace flashlift::runtime {

// Safe to use from any thread.
template <typename Kernel>
class CompiledOnce {
 public:
  // The kernel or why there is none, for good: compile() is called until it has once returned. What it gives lives as
  // long as this.
  template <typename Compile>
  Result<const Kernel*> get(const Compile& compile) const {
    const UncutByFork uncut;
    const std::lock_guard lock(mutex_);
    if (!kernel_) {
      FLASHLIFT_RETURN_IF_ERROR(uncut.status());
      kernel_.emplace(compile());
    }
    if (!kernel_->ok()) {
      return kernel_->error();
    }
    return &**kernel_;
  }

 private:
  mutable std::mutex mutex_;
  mutable std::optional<Result<Kernel>> kernel_;
};

}  // namespace flashlift::runtime
