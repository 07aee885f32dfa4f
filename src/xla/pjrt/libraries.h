// Loads the wrapped plugin, and Flashlift's own libraries from the folder of this one.
#pragma once

#include <string>

#include "flashlift/flashlift_stablehlo.h"
#include "flashlift/result.h"
#include "xla/pjrt/c_api.h"

namespace flashlift::pjrt {

struct WrappedPlugin {
  std::string path;
  const Api* api = nullptr;  // not NULL
};

// Finds the plugin to wrap and loads it permanently. Fails if there is none, if the file is not a PJRT plugin for this
// machine, or if it is one of Flashlift's own.
Result<WrappedPlugin> load_wrapped_plugin();

// libflashlift_xla. Fails if it cannot be loaded, or if libflashlift_stablehlo is not beside it, which is loaded later.
struct Handlers {
  const char* (*register_all)(const Api*) = nullptr;  // returns an error's message, or NULL
};
Result<Handlers> load_handlers();

// libflashlift_stablehlo, loaded by the first call.
struct Fuser {
  decltype(&flashlift_stablehlo_fuse) fuse = nullptr;
  decltype(&flashlift_fused_destroy) destroy = nullptr;
  decltype(&flashlift_fused_module) module = nullptr;
  decltype(&flashlift_fused_count) count = nullptr;
  decltype(&flashlift_fused_report) report = nullptr;
  decltype(&flashlift_error_message) error_message = nullptr;
  decltype(&flashlift_error_destroy) error_destroy = nullptr;
};
Result<const Fuser*> load_fuser();

}  // namespace flashlift::pjrt
