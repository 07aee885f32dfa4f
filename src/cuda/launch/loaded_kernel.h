// A cubin in the driver's hands.
#pragma once

#include <memory>
#include <string>

#include "cuda/launch/driver.h"

namespace flashlift::cuda {

// Independent of contexts: the driver puts the code into a context when it first runs there.
class LoadedLibrary {
 public:
  static Result<std::shared_ptr<const LoadedLibrary>> load(const Driver& driver, const std::string& cubin);
  ~LoadedLibrary();
  LoadedLibrary(const LoadedLibrary&) = delete;
  LoadedLibrary& operator=(const LoadedLibrary&) = delete;

  // With leave to use so much dynamic shared memory on the device.
  Result<CuKernel> kernel(const std::string& name, CuDevice device, int64_t shared_bytes) const;

 private:
  LoadedLibrary(const Driver& driver, CuLibrary library) : driver_(driver), library_(library) {}
  const Driver& driver_;
  CuLibrary library_;
};

}  // namespace flashlift::cuda
