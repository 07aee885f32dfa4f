#include "cuda/launch/loaded_kernel.h"

namespace flashlift::cuda {

Result<std::shared_ptr<const LoadedLibrary>> LoadedLibrary::load(const Driver& driver, const std::string& cubin) {
  CuLibrary library = nullptr;
  FLASHLIFT_RETURN_IF_ERROR(driver.check(
      driver.cuLibraryLoadData(&library, cubin.data(), nullptr, nullptr, 0, nullptr, nullptr, 0), "cuLibraryLoadData"));
  return std::shared_ptr<const LoadedLibrary>(new LoadedLibrary(driver, library));
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

}  // namespace flashlift::cuda
