#include "xla/pjrt/libraries.h"

#include <dlfcn.h>

#include <filesystem>
#include <span>
#include <vector>

#include "support/environment.h"
#include "support/error.h"
#include "support/lazy.h"
#include "support/shared_library.h"

// Marks a library as this wrapper, whatever its file name is.
extern "C" __attribute__((visibility("default"))) const char flashlift_pjrt_is_a_wrapper = 1;

namespace flashlift::pjrt {
namespace {

namespace fs = std::filesystem;

fs::path find_own_path() {
  Dl_info info = {};
  const bool is_known = dladdr(&flashlift_pjrt_is_a_wrapper, &info) != 0 && info.dli_fname != nullptr;
  std::error_code error;
  return is_known ? fs::absolute(info.dli_fname, error) : fs::path();
}

// The name by which the client loaded this library. The client chose its folder, and the platform that is part of the
// name. It is resolved at load time, since it may be relative to a folder that the client leaves later.
const fs::path& own_path() {
  static constinit Lazy<const fs::path> path;
  return path.get(find_own_path);
}
__attribute__((constructor)) void find_on_load() { own_path(); }

// The folder of the file behind that name, which also contains Flashlift's other libraries.
fs::path own_folder() {
  std::error_code error;
  return fs::canonical(own_path(), error).parent_path();
}

constexpr const char* kHandlers = "libflashlift_xla.so";
constexpr const char* kFuser = "libflashlift_stablehlo.so";

Result<void*> load(const fs::path& path) { return load_library(path, RTLD_LOCAL); }

template <typename Function>
Status look_up(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr ? Status() : internal_error("{} is missing", name);
}

// --- the wrapped plugin ---

constexpr const char* kCpuNames[] = {"pjrt_c_api_cpu_plugin.so", "libpjrt_cpu.so", "libpjrt_c_api_cpu_plugin.so"};
constexpr const char* kCudaNames[] = {"xla_cuda_plugin.so", "pjrt_c_api_cuda_plugin.so", "pjrt_c_api_gpu_plugin.so",
                                      "libpjrt_cuda.so"};
// Files of PyPI's packages, relative to a folder of Python packages.
constexpr const char* kCpuPackages[] = {"fastatomstruct_xla_cpu/libpjrt_cpu.so",
                                        "lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so"};
constexpr const char* kCudaPackages[] = {"jax_plugins/xla_cuda13/xla_cuda_plugin.so",
                                         "jax_plugins/xla_cuda12/xla_cuda_plugin.so"};

std::vector<fs::path> candidates() {
  const bool is_cuda = own_path().filename().string().find("cuda") != std::string::npos;
  std::vector<fs::path> paths;
  for (const fs::path& folder : {own_path().parent_path(), own_folder()}) {
    for (const char* name : is_cuda ? std::span<const char* const>(kCudaNames) : kCpuNames) {
      paths.push_back(folder / name);
    }
  }
  for (fs::path folder = own_folder(); folder.has_relative_path(); folder = folder.parent_path()) {
    if (folder.filename() == "site-packages" || folder.filename() == "dist-packages") {
      for (const char* name : is_cuda ? std::span<const char* const>(kCudaPackages) : kCpuPackages) {
        paths.push_back(folder / name);
      }
    }
  }
  return paths;
}

Result<fs::path> find_plugin() {
  if (const auto named = environment_value(EnvironmentVariable::kPjrtPlugin)) {
    if (!named->starts_with('/')) {
      return invalid_argument("FLASHLIFT_PJRT_PLUGIN is '{}', expected the absolute path of a PJRT plugin", *named);
    }
    return fs::path(*named);
  }
  for (const fs::path& path : candidates()) {
    std::error_code error;
    if (fs::is_regular_file(path, error)) {
      return path;
    }
  }
  return not_found(
      "no PJRT plugin to wrap was found beside {} or in its Python environment; set FLASHLIFT_PJRT_PLUGIN to the "
      "absolute path of one",
      own_path().string());
}

Status check(const Api* api) {
  if (api == nullptr) {
    return invalid_argument("its GetPjrtApi() returned NULL");
  }
  constexpr size_t kMostBytes = size_t{1} << 20;
  if (api->struct_size < kFunctionsOffset || api->struct_size > kMostBytes) {
    return invalid_argument("its PJRT_Api has a struct_size of {} bytes: it is not a PJRT plugin", api->struct_size);
  }
  return {};
}

Result<const Api*> load_api(const fs::path& path) {
  std::error_code error;
  if (fs::equivalent(path, own_path(), error)) {
    return invalid_argument("it is this library itself");
  }
  if (!fs::is_regular_file(path, error)) {
    return invalid_argument("{}", fs::exists(path, error) ? "it is not a file" : "there is no such file");
  }
  FLASHLIFT_ASSIGN_OR_RETURN(void* library, load(path));  // never unloaded: it keeps the handlers and runs threads
  if (dlsym(library, "flashlift_pjrt_is_a_wrapper") != nullptr) {
    return invalid_argument("it is this library under another name");
  }
  const Api* (*get_api)() = nullptr;
  FLASHLIFT_RETURN_IF_ERROR(look_up(library, "GetPjrtApi", get_api));
  const Api* api = get_api();
  FLASHLIFT_RETURN_IF_ERROR(check(api));
  return api;
}

}  // namespace

Result<WrappedPlugin> load_wrapped_plugin() {
  FLASHLIFT_ASSIGN_OR_RETURN(const fs::path path, find_plugin());
  const Result<const Api*> api = load_api(path);
  if (!api) {
    return invalid_argument("{} cannot be wrapped: {}; set FLASHLIFT_PJRT_PLUGIN to the absolute path of a PJRT plugin",
                            path.string(), api.error().message);
  }
  return WrappedPlugin{path, *api};
}

Result<Handlers> load_handlers() {
  constexpr const char* kRemedy =
      "keep Flashlift's libraries in the folder of the plugin's file, and link to this file";
  std::error_code error;
  for (const char* name : {kHandlers, kFuser}) {
    if (const fs::path path = own_folder() / name; !fs::is_regular_file(path, error)) {
      return not_found("{}: there is no such file; {}", path.string(), kRemedy);
    }
  }
  Handlers handlers;
  const Result<void*> library = load(own_folder() / kHandlers);
  if (!library) {
    return not_found("{}; {}", library.error().message, kRemedy);
  }
  FLASHLIFT_RETURN_IF_ERROR(look_up(*library, "flashlift_xla_register", handlers.register_all));
  return handlers;
}

Result<const Fuser*> load_fuser() {
  static constinit Lazy<const Result<Fuser>> loaded;
  const auto load_all = []() -> Result<Fuser> {
    Fuser fuser;
    FLASHLIFT_ASSIGN_OR_RETURN(void* library, load(own_folder() / kFuser));
    FLASHLIFT_RETURN_IF_ERROR(look_up(library, "flashlift_stablehlo_fuse", fuser.fuse));
    FLASHLIFT_RETURN_IF_ERROR(look_up(library, "flashlift_fused_destroy", fuser.destroy));
    FLASHLIFT_RETURN_IF_ERROR(look_up(library, "flashlift_fused_module", fuser.module));
    FLASHLIFT_RETURN_IF_ERROR(look_up(library, "flashlift_fused_count", fuser.count));
    FLASHLIFT_RETURN_IF_ERROR(look_up(library, "flashlift_fused_report", fuser.report));
    FLASHLIFT_RETURN_IF_ERROR(look_up(library, "flashlift_error_message", fuser.error_message));
    FLASHLIFT_RETURN_IF_ERROR(look_up(library, "flashlift_error_destroy", fuser.error_destroy));
    return fuser;
  };
  const Result<Fuser>& fuser = loaded.get(load_all);
  if (!fuser.ok()) {
    return fuser.error();
  }
  return &*fuser;
}

}  // namespace flashlift::pjrt
