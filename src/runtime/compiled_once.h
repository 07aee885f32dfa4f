// An object that is compiled at its first use. Threads that need it in the meantime wait for this object only.
#pragma once

#include <mutex>
#include <optional>

#include "flashlift/result.h"
#include "support/fork_guard.h"

namespace flashlift::runtime {

// Safe to use from any thread.
template <typename Kernel>
class CompiledOnce {
 public:
  // The kernel, or the error of its compilation, which is kept. compile() is called again only if it throws. The result
  // lives as long as this object.
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
