// What the plugin loads: the plugin that it wraps, and Flashlift's own libraries, which lie beside it.
#pragma once

#include <string>
#include <string_view>

#include "flashlift/flashlift_stablehlo.h"
#include "flashlift/result.h"
#include "xla/pjrt/c_api.h"

namespace flashlift::pjrt {

struct WrappedPlugin {
  std::string path;
  const Api* api = nullptr;  // not NULL
};

// Finds the plugin to wrap and loads it for good. Errors: none is found; what is found is no PJRT plugin for this
// machine, or one of ours.
Result<WrappedPlugin> load_wrapped_plugin();

// Registers the custom calls' handlers with a plugin. Errors: libflashlift_xla cannot be loaded, or what it says.
Status register_handlers(const Api& api);

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
