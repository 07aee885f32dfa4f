// Registers all handlers with a PJRT plugin through its C interface.
//
// PJRT's registration function takes only a handler's execute stage. XLA's own takes all stages, and its address is in
// the FFI's interface, which each handler that is called receives. Therefore one handler is registered by PJRT's
// function only in order to be called at once for its metadata. In this call it registers the others.
#include <array>
#include <cstddef>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "flashlift/flashlift_xla.h"
#include "support/error.h"
#include "support/lazy.h"
#include "xla/ffi/handlers.h"
#include "xla/ffi/runtime_state.h"
#include "xla/pjrt/c_api.h"

namespace flashlift::xla {
namespace {

struct Bundle {
  std::string_view target;
  std::string_view platform;
  XLA_FFI_Handler* instantiate;
  XLA_FFI_Handler* execute;
};

constexpr std::array kBundles = {
    Bundle{"flashlift.attention", "Host", flashlift_xla_attention_instantiate, flashlift_xla_attention_execute},
    Bundle{"flashlift.attention_backward", "Host", flashlift_xla_attention_backward_instantiate,
           flashlift_xla_attention_backward_execute},
    Bundle{"flashlift.attention", "CUDA", flashlift_xla_attention_cuda_instantiate,
           flashlift_xla_attention_cuda_execute},
    Bundle{"flashlift.attention_backward", "CUDA", flashlift_xla_attention_backward_cuda_instantiate,
           flashlift_xla_attention_backward_cuda_execute},
};

// XLA_FFI_Handler_Register_Args of versions 0.3 and 0.4. From 0.5 on, the headers' structure has one more stage, for
// which older runtimes have no room.
struct HandlerRegisterArgs {
  size_t struct_size;
  void* extensions;
  XLA_FFI_ByteSpan name;
  XLA_FFI_ByteSpan platform;
  XLA_FFI_Handler* instantiate;
  XLA_FFI_Handler* prepare;
  XLA_FFI_Handler* initialize;
  XLA_FFI_Handler* execute;
  XLA_FFI_Handler_Traits traits;
};
constexpr size_t kHandlerRegisterArgsSize = offsetof(HandlerRegisterArgs, traits) + sizeof(XLA_FFI_Handler_Traits);

XLA_FFI_ByteSpan span(std::string_view text) { return {text.data(), text.size()}; }

Status register_bundles(const XLA_FFI_Api* api) {
  for (const Bundle& bundle : kBundles) {
    HandlerRegisterArgs args = {};
    args.struct_size = kHandlerRegisterArgsSize;
    args.name = span(bundle.target);
    args.platform = span(bundle.platform);
    args.instantiate = bundle.instantiate;
    args.execute = bundle.execute;
    if (XLA_FFI_Error* error = api->XLA_FFI_Handler_Register(reinterpret_cast<XLA_FFI_Handler_Register_Args*>(&args));
        error != nullptr) {
      return internal_error("XLA refuses the handler of {} for {}: {}", bundle.target, bundle.platform,
                            take_message(api, error));
    }
  }
  return {};
}

// The result of the registration in progress in this thread.
thread_local Status* bootstrap_status = nullptr;

XLA_FFI_Error* bootstrap(XLA_FFI_CallFrame* frame) {
  const auto* extension = frame->extension_start;
  if (extension == nullptr || extension->type != XLA_FFI_Extension_Metadata) {
    return nullptr;  // a program called it: there is nothing to do
  }
  XLA_FFI_Metadata* metadata = reinterpret_cast<const XLA_FFI_Metadata_Extension*>(extension)->metadata;
  metadata->api_version.major_version = 0;
  metadata->api_version.minor_version = 1;
  metadata->traits = 0;
  if (bootstrap_status != nullptr) {
    *bootstrap_status = register_bundles(frame->api);
  }
  return nullptr;
}

Result<const pjrt::FfiExtension*> find_extension(const pjrt::Api& api) {
  constexpr int kMostExtensions = 1000;  // a cyclic list ends here
  const pjrt::Extension* extension = api.extensions;
  for (int i = 0; extension != nullptr && extension->type != pjrt::kFfiExtension; ++i) {
    extension = i < kMostExtensions ? extension->next : nullptr;
  }
  if (extension == nullptr) {
    return unsupported("the plugin has no PJRT extension for XLA's FFI, through which custom calls are registered");
  }
  if (extension->struct_size < sizeof(pjrt::FfiExtension)) {
    return unsupported("the plugin's PJRT extension for XLA's FFI has {} bytes and takes no handlers; expected {}",
                       extension->struct_size, sizeof(pjrt::FfiExtension));
  }
  const auto* ffi = reinterpret_cast<const pjrt::FfiExtension*>(extension);
  if (ffi->register_handler == nullptr) {
    return unsupported("the plugin's PJRT extension for XLA's FFI has no function that takes handlers");
  }
  return ffi;
}

Status register_with(const pjrt::Api& api) {
  if (api.version.major_version != pjrt::kMajorVersion || api.version.minor_version < pjrt::kOldestMinorVersion) {
    return unsupported("the plugin has version {}.{} of PJRT's C interface; expected {}.{} or a later {}.x",
                       api.version.major_version, api.version.minor_version, pjrt::kMajorVersion,
                       pjrt::kOldestMinorVersion, pjrt::kMajorVersion);
  }
  FLASHLIFT_ASSIGN_OR_RETURN(const pjrt::FfiExtension* extension, find_extension(api));
  static constinit std::mutex mutex;
  // By function, because a wrapped interface is a copy with the same extensions.
  static constinit Lazy<std::set<const void*>> lazy;
  std::set<const void*>& done = lazy.get([] { return std::set<const void*>(); });
  const std::lock_guard lock(mutex);
  const void* const runtime = reinterpret_cast<const void*>(extension->register_handler);
  if (done.contains(runtime)) {
    return {};
  }
  Status status = internal_error("the plugin did not ask for the metadata of a handler, so it got none");
  bootstrap_status = &status;
  constexpr std::string_view kTarget = "flashlift.bootstrap";
  constexpr std::string_view kPlatform = "Host";
  pjrt::FfiRegisterHandlerArgs args = {pjrt::kFfiRegisterHandlerArgsSize,
                                       kTarget.data(),
                                       kTarget.size(),
                                       reinterpret_cast<void*>(bootstrap),
                                       kPlatform.data(),
                                       kPlatform.size(),
                                       0};
  pjrt::PluginError* error = extension->register_handler(&args);
  bootstrap_status = nullptr;
  if (error != nullptr) {
    return internal_error("the plugin refuses handlers: {}", pjrt::take_message(api, error));
  }
  FLASHLIFT_RETURN_IF_ERROR(std::move(status));
  done.insert(runtime);
  return {};
}

}  // namespace
}  // namespace flashlift::xla

extern "C" const char* flashlift_xla_register(const PJRT_Api* api) {
  using namespace flashlift::xla;
  thread_local std::string message;
  try {
    const flashlift::Status status = api == nullptr
                                         ? flashlift::Status(flashlift::invalid_argument(
                                               "flashlift_xla_register: api must not be NULL; give what the "
                                               "plugin's GetPjrtApi() returned"))
                                         : register_with(*reinterpret_cast<const flashlift::pjrt::Api*>(api));
    if (status) {
      return nullptr;
    }
    message = status.error().message;
    return message.c_str();
  } catch (const std::exception& error) {
    return "flashlift_xla_register: out of memory";
  }
}
