#include "cuda/launch/loaded_kernel.h"

#include <algorithm>

namespace flashlift::cuda {

Result<std::shared_ptr<const LoadedLibrary>> LoadedLibrary::compile(const KernelSource& source,
                                                                    const KernelCompiler& compile_kernel) {
  FLASHLIFT_ASSIGN_OR_RETURN(const Driver* driver, Driver::get());
  FLASHLIFT_ASSIGN_OR_RETURN(const auto cubin, compile_kernel(source));
  CuLibrary library = nullptr;
  FLASHLIFT_RETURN_IF_ERROR(
      driver->check(driver->cuLibraryLoadData(&library, cubin->data(), nullptr, nullptr, 0, nullptr, nullptr, 0),
                    "cuLibraryLoadData"));
  return std::shared_ptr<const LoadedLibrary>(new LoadedLibrary(*driver, library));
}

LoadedLibrary::~LoadedLibrary() { driver_.cuLibraryUnload(library_); }

Result<CuKernel> LoadedLibrary::kernel(const std::string& name, CuDevice device, int64_t shared_bytes) const {
  CuKernel kernel = nullptr;
  FLASHLIFT_RETURN_IF_ERROR(
      driver_.check(driver_.cuLibraryGetKernel(&kernel, library_, name.c_str()), "cuLibraryGetKernel"));
  if (shared_bytes > 0) {
    FLASHLIFT_RETURN_IF_ERROR(driver_.check(
        driver_.cuKernelSetAttribute(kMaxDynamicSharedBytes, static_cast<int>(shared_bytes), kernel, device),
        "cuKernelSetAttribute"));
  }
  return kernel;
}

Result<CuFunction> ContextFunctions::get(const CurrentContext& context) {
  if (const Entry* last = last_.load(std::memory_order_acquire); last != nullptr && last->context == context.id()) {
    return last->function;
  }
  const std::lock_guard lock(mutex_);
  auto found = std::ranges::find(entries_, context.id(), [](const auto& entry) { return entry->context; });
  if (found == entries_.end()) {
    CuFunction function = nullptr;
    // This call may load the code into the context. The driver would refuse that while some stream is capturing.
    int mode = kCaptureRelaxed;
    driver_.cuThreadExchangeStreamCaptureMode(&mode);
    const CuResult result = driver_.cuKernelGetFunction(&function, kernel_);
    driver_.cuThreadExchangeStreamCaptureMode(&mode);
    FLASHLIFT_RETURN_IF_ERROR(driver_.check(result, "cuKernelGetFunction"));
    found = entries_.insert(found, std::make_unique<const Entry>(context.id(), function));
  }
  last_.store(found->get(), std::memory_order_release);
  return (*found)->function;
}

}  // namespace flashlift::cuda
