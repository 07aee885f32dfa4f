// NVIDIA's run-time compiler, loaded at first use: Flashlift can be built and loaded without it.
#pragma once

#include <string>
#include <vector>

#include "cuda/emit/kernel_source.h"

namespace flashlift::cuda {

struct CompiledKernel {
  std::string cubin;
  std::string log;  // warnings and ptxas' report
};

class Nvrtc {
 public:
  // This process's NVRTC: the file in FLASHLIFT_NVRTC, or the first of nvrtc_candidates() that is new enough. Errors:
  // kNotFound with the list of tried files, kUnsupported if all are too old.
  static Result<const Nvrtc*> get();

  // For example "13.0".
  const std::string& version() const { return version_; }
  // The architectures that it supports: compute capabilities times ten, ascending.
  const std::vector<int>& architectures() const { return architectures_; }
  // The file that it was loaded from.
  const std::string& path() const { return path_; }
  // Safe to call from any thread. Errors: kInternal with the compiler's log.
  Result<CompiledKernel> compile(const KernelSource& source) const;

 private:
  struct Functions;
  static Result<const Nvrtc*> load();
  static Result<const Nvrtc*> open(const std::string& path);

  const Functions* functions_ = nullptr;
  std::string version_;
  std::vector<int> architectures_;
  std::string path_;
};

}  // namespace flashlift::cuda
