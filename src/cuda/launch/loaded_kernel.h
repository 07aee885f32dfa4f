// Machine code that the driver has loaded.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cuda/emit/kernel_source.h"
#include "cuda/launch/driver.h"

namespace flashlift::cuda {

// Returns the machine code of a source, from a cache or compiled. May be called from any thread.
using KernelCompiler = std::function<Result<std::shared_ptr<const std::string>>(const KernelSource&)>;

// Independent of contexts: the driver loads the code into a context when it first runs there.
class LoadedLibrary {
 public:
  static Result<std::shared_ptr<const LoadedLibrary>> compile(const KernelSource& source,
                                                              const KernelCompiler& compile_kernel);
  ~LoadedLibrary();
  LoadedLibrary(const LoadedLibrary&) = delete;
  LoadedLibrary& operator=(const LoadedLibrary&) = delete;

  // The kernel, allowed to use that much dynamic shared memory on the device.
  Result<CuKernel> kernel(const std::string& name, CuDevice device, int64_t shared_bytes) const;

 private:
  LoadedLibrary(const Driver& driver, CuLibrary library) : driver_(driver), library_(library) {}
  const Driver& driver_;
  CuLibrary library_;
};

// The functions of a kernel in each context, which are launched faster than the kernel. Safe to call from any thread.
class ContextFunctions {
 public:
  ContextFunctions(const Driver& driver, CuKernel kernel) : driver_(driver), kernel_(kernel) {}

  // The function of the current context.
  Result<CuFunction> get(const CurrentContext& context);

 private:
  struct Entry {
    uint64_t context;
    CuFunction function;
  };

  const Driver& driver_;
  CuKernel kernel_;
  std::atomic<const Entry*> last_ = nullptr;  // usually the only one
  std::mutex mutex_;
  std::vector<std::unique_ptr<const Entry>> entries_;
};

}  // namespace flashlift::cuda
