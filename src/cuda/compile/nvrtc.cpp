#include "cuda/compile/nvrtc.h"

#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "cuda/compile/nvrtc_files.h"
#include "support/environment.h"
#include "support/error.h"
#include "support/lazy.h"
#include "support/log.h"
#include "support/shared_library.h"

namespace flashlift::cuda {
namespace {

using Program = struct ProgramTag*;

// wgmma with f16 and bf16 operands and setmaxnreg require 12.0; tests run with 13.0.
constexpr int kOldestMajor = 12;

template <typename Function>
bool find(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
  return function != nullptr;
}

// NVRTC opens its builtins by name. The loader finds them only if they are on its path or already loaded.
void load_builtins(const std::filesystem::path& folder) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("libnvrtc-builtins.so")) {
      (void)load_library(entry.path(), RTLD_GLOBAL);
    }
  }
}

}  // namespace

struct Nvrtc::Functions {
  const char* (*error_string)(int);
  int (*version)(int*, int*);
  int (*architecture_count)(int*);
  int (*architectures)(int*);
  int (*create)(Program*, const char*, const char*, int, const char* const*, const char* const*);
  int (*destroy)(Program*);
  int (*compile)(Program, int, const char* const*);
  int (*cubin_size)(Program, size_t*);
  int (*cubin)(Program, char*);
  int (*log_size)(Program, size_t*);
  int (*log)(Program, char*);
};

Result<const Nvrtc*> Nvrtc::get() {
  static constinit Lazy<const Result<const Nvrtc*>> loaded;
  return loaded.get(load);
}

Result<const Nvrtc*> Nvrtc::load() {
  if (const auto path = environment_value(EnvironmentVariable::kNvrtc)) {
    if (!std::filesystem::path(*path).is_absolute()) {
      // With a relative path, any file in the current folder could be loaded.
      return invalid_argument("FLASHLIFT_NVRTC is {}; expected an absolute path", *path);
    }
    return open(std::string(*path));
  }
  std::string tried;
  std::optional<Error> too_old;
  for (const std::filesystem::path& candidate : nvrtc_candidates(nvrtc_places())) {
    Result<const Nvrtc*> nvrtc = open(candidate.string());
    if (nvrtc.ok()) {
      return nvrtc;
    }
    if (nvrtc.error().kind == ErrorKind::kUnsupported && !too_old) {
      too_old = nvrtc.error();
    }
    tried += (tried.empty() ? "" : ", ") + candidate.string();
  }
  if (too_old) {
    return *too_old;
  }
  return not_found(
      "the CUDA backend compiles its kernels with NVRTC, which was not found (tried {}). Install it, as with "
      "`pip install 'flashlift[cuda]'` or `pip install nvidia-cuda-nvrtc`, or set FLASHLIFT_NVRTC to its path",
      tried);
}

Result<const Nvrtc*> Nvrtc::open(const std::string& path) {
  if (path.find('/') != std::string::npos) {
    load_builtins(std::filesystem::path(path).parent_path());
  }
  const Result<void*> loaded = load_library(path, RTLD_LOCAL);
  if (!loaded.ok()) {
    return not_found("NVRTC could not be loaded: {}. Set FLASHLIFT_NVRTC to the path of libnvrtc.so",
                     loaded.error().message);
  }
  void* const library = *loaded;
  auto functions = std::make_unique<Functions>();
  const bool complete = find(library, "nvrtcGetErrorString", functions->error_string) &&
                        find(library, "nvrtcVersion", functions->version) &&
                        find(library, "nvrtcGetNumSupportedArchs", functions->architecture_count) &&
                        find(library, "nvrtcGetSupportedArchs", functions->architectures) &&
                        find(library, "nvrtcCreateProgram", functions->create) &&
                        find(library, "nvrtcDestroyProgram", functions->destroy) &&
                        find(library, "nvrtcCompileProgram", functions->compile) &&
                        find(library, "nvrtcGetCUBINSize", functions->cubin_size) &&
                        find(library, "nvrtcGetCUBIN", functions->cubin) &&
                        find(library, "nvrtcGetProgramLogSize", functions->log_size) &&
                        find(library, "nvrtcGetProgramLog", functions->log);
  int major = 0;
  int minor = 0;
  if (!complete || functions->version(&major, &minor) != 0 || major < kOldestMajor) {
    return unsupported(
        "the CUDA backend needs NVRTC {} or newer, found version {}.{} in {}; install a newer one, or set "
        "FLASHLIFT_NVRTC to its path",
        kOldestMajor, major, minor, path);
  }
  int count = 0;
  std::vector<int> architectures;
  if (functions->architecture_count(&count) == 0 && count > 0) {
    architectures.resize(static_cast<size_t>(count));
    functions->architectures(architectures.data());
  }
  auto* nvrtc = new Nvrtc();  // NOLINT: lives as long as the process, like the library
  Dl_info info = {};
  const bool is_known = dladdr(reinterpret_cast<void*>(functions->version), &info) != 0 && info.dli_fname != nullptr;
  nvrtc->path_ = is_known ? info.dli_fname : path;
  nvrtc->functions_ = functions.release();
  nvrtc->architectures_ = std::move(architectures);
  nvrtc->version_ = fmt::format("{}.{}", major, minor);
  log(LogLevel::kInfo, "NVRTC {} from {}", nvrtc->version_, nvrtc->path_);
  return nvrtc;
}

Result<CompiledKernel> Nvrtc::compile(const KernelSource& source) const {
  std::vector<const char*> names;
  std::vector<const char*> texts;
  for (const auto& [name, text] : source.headers) {
    names.push_back(name.c_str());
    texts.push_back(text.c_str());
  }
  Program program = nullptr;
  const int created = functions_->create(&program, source.text.c_str(), source.name.c_str(),
                                         static_cast<int>(names.size()), texts.data(), names.data());
  if (created != 0) {
    return internal_error("NVRTC refused to create a program: {}", functions_->error_string(created));
  }
  const std::string target =
      fmt::format("--gpu-architecture=sm_{}{}", source.architecture, source.architecture_specific ? "a" : "");
  std::vector<const char*> options = {target.c_str(), "--std=c++17", "-diag-suppress=177", "--ptxas-options=-v"};
  for (const std::string& option : source.options) {
    options.push_back(option.c_str());
  }
  const int compiled = functions_->compile(program, static_cast<int>(options.size()), options.data());
  CompiledKernel kernel;
  size_t size = 0;
  if (functions_->log_size(program, &size) == 0 && size > 1) {
    kernel.log.resize(size);
    functions_->log(program, kernel.log.data());
    kernel.log.resize(kernel.log.find_last_not_of('\0') + 1);  // there may be several zero bytes
  }
  if (compiled == 0 && functions_->cubin_size(program, &size) == 0) {
    kernel.cubin.resize(size);
    functions_->cubin(program, kernel.cubin.data());
  }
  functions_->destroy(&program);
  if (compiled != 0 || kernel.cubin.empty()) {
    return internal_error("NVRTC {} could not compile {} for {}: {}\n{}", version_, source.name, target,
                          functions_->error_string(compiled), kernel.log);
  }
  return kernel;
}

}  // namespace flashlift::cuda
