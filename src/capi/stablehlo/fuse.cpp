// flashlift_stablehlo.h. It has a folder of its own, because it is part of the library that contains MLIR.
#include <memory>
#include <string_view>

#include "capi/error.h"
#include "flashlift/flashlift_stablehlo.h"
#include "flashlift/stablehlo.h"
#include "support/error.h"

struct FlashliftFused {
  flashlift::stablehlo::FuseResult result;
  std::string report;
};

namespace flashlift::capi {
namespace {

Status fuse(const char* module, size_t size, const FlashliftFuseOptions* given, FlashliftFused** result) {
  if (module == nullptr || result == nullptr) {
    return invalid_argument("flashlift_stablehlo_fuse: module and fused must not be NULL");
  }
  *result = nullptr;
  FlashliftFuseOptions read;
  FLASHLIFT_RETURN_IF_ERROR(read_struct(given, "FlashliftFuseOptions", read));
  stablehlo::FuseOptions options;
  if (read.name != nullptr) {
    options.name = read.name;
  }
  options.gradients = read.gradients != 0;
  options.skip_unchanged = read.skip_unchanged != 0;
  if (read.partitions < 0) {
    return invalid_argument("FlashliftFuseOptions::partitions is {}: expected 0 or more", read.partitions);
  }
  options.partitions = read.partitions;
  if (read.emit != nullptr) {
    options.emit = read.emit;
  }
  switch (read.as) {
    case FLASHLIFT_CUSTOM_CALL:
      options.as = stablehlo::FuseAs::kCustomCall;
      break;
    case FLASHLIFT_COMPOSITE:
      options.as = stablehlo::FuseAs::kComposite;
      break;
    default:
      return invalid_argument(
          "FlashliftFuseOptions::as is {}: expected FLASHLIFT_CUSTOM_CALL (0) or "
          "FLASHLIFT_COMPOSITE (1)",
          read.as);
  }
  FLASHLIFT_ASSIGN_OR_RETURN(stablehlo::FuseResult fused, stablehlo::fuse({module, size}, options));
  std::string report = stablehlo::report_json(fused);
  auto object = std::make_unique<FlashliftFused>(FlashliftFused{std::move(fused), std::move(report)});
  *result = object.release();
  return {};
}

}  // namespace
}  // namespace flashlift::capi

extern "C" {

FlashliftError* flashlift_stablehlo_fuse(const char* module, size_t size, const FlashliftFuseOptions* options,
                                         FlashliftFused** fused) {
  return flashlift::capi::guarded([&] { return flashlift::capi::fuse(module, size, options, fused); });
}

void flashlift_fused_destroy(FlashliftFused* fused) { delete fused; }

const char* flashlift_fused_module(const FlashliftFused* fused, size_t* size) {
  const std::string_view module = fused == nullptr ? std::string_view("") : fused->result.module;
  if (size != nullptr) {
    *size = module.size();
  }
  return module.data();
}

size_t flashlift_fused_count(const FlashliftFused* fused) { return fused == nullptr ? 0 : fused->result.fused_count(); }

const char* flashlift_fused_report(const FlashliftFused* fused) {
  return fused == nullptr ? "[]" : fused->report.c_str();
}

}  // extern "C"
