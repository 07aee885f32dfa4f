// flashlift.h: compiling kernels before they are needed.
#include "flashlift/precompile.h"

#include <memory>
#include <string>
#include <vector>

#include "capi/error.h"
#include "support/counted.h"

struct FlashliftPrecompiled {
  std::string json;
};

namespace flashlift::capi {
namespace {

// The caller's array as a vector, which is empty if there is none.
template <typename T, typename Given>
Result<std::vector<T>> read_list(const char* name, const Given* items, size_t count) {
  if (items == nullptr && count > 0) {
    return invalid_argument("FlashliftPrecompileOptions::{} is NULL; expected an array of {}", name,
                            counted(count, "element"));
  }
  return std::vector<T>(items, items + count);
}

Result<std::vector<std::string>> read_names(const char* const* names, size_t count) {
  FLASHLIFT_ASSIGN_OR_RETURN(const auto pointers, read_list<const char*>("gradients", names, count));
  std::vector<std::string> result;
  for (const char* name : pointers) {
    if (name == nullptr) {
      return invalid_argument(
          "FlashliftPrecompileOptions::gradients contains NULL; expected names of captured tensors");
    }
    result.emplace_back(name);
  }
  return result;
}

Result<PrecompileOptions> read_options(const FlashliftPrecompileOptions* given) {
  FlashliftPrecompileOptions options;
  FLASHLIFT_RETURN_IF_ERROR(read_struct(given, "FlashliftPrecompileOptions", options));
  PrecompileOptions result;
  FLASHLIFT_ASSIGN_OR_RETURN(result.architectures,
                             read_list<int>("architectures", options.architectures, options.architecture_count));
  FLASHLIFT_ASSIGN_OR_RETURN(result.q_lens, read_list<int64_t>("q_lens", options.q_lens, options.q_len_count));
  FLASHLIFT_ASSIGN_OR_RETURN(result.gradients, read_names(options.gradients, options.gradient_count));
  result.implementation = options.implementation == nullptr ? "" : options.implementation;
  result.backward = options.backward != 0;
  return result;
}

// The names contain no characters that JSON must escape.
std::string as_json(const std::vector<PrecompiledKernel>& kernels) {
  std::string list;
  for (const PrecompiledKernel& kernel : kernels) {
    list +=
        fmt::format(R"({}{{"architecture": {}, "implementation": "{}", "kernel": "{}", "cached": {}, "seconds": {}}})",
                    list.empty() ? "" : ", ", kernel.architecture, kernel.implementation, kernel.kernel,
                    kernel.was_cached, kernel.seconds);
  }
  return "[" + list + "]";
}

Status run(const char* problem, const FlashliftPrecompileOptions* given, FlashliftPrecompiled** result) {
  if (result != nullptr) {
    *result = nullptr;
  }
  if (problem == nullptr || given == nullptr) {
    return invalid_argument("flashlift_precompile: problem and options must not be NULL");
  }
  FLASHLIFT_ASSIGN_OR_RETURN(const PrecompileOptions options, read_options(given));
  FLASHLIFT_ASSIGN_OR_RETURN(const Problem parsed, parse_problem(problem));
  FLASHLIFT_ASSIGN_OR_RETURN(const std::vector<PrecompiledKernel> kernels, precompile({parsed}, options));
  if (result != nullptr) {
    *result = std::make_unique<FlashliftPrecompiled>(FlashliftPrecompiled{as_json(kernels)}).release();
  }
  return {};
}

}  // namespace
}  // namespace flashlift::capi

extern "C" {

FlashliftError* flashlift_precompile(const char* problem, const FlashliftPrecompileOptions* options,
                                     FlashliftPrecompiled** result) {
  return flashlift::capi::guarded([&] { return flashlift::capi::run(problem, options, result); });
}

void flashlift_precompiled_destroy(FlashliftPrecompiled* precompiled) { delete precompiled; }

const char* flashlift_precompiled_json(const FlashliftPrecompiled* precompiled) {
  return precompiled == nullptr ? "" : precompiled->json.c_str();
}

}  // extern "C"
