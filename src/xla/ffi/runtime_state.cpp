#include "xla/ffi/runtime_state.h"

#include <fmt/format.h>

#include <string>

namespace flashlift::xla {
namespace {

XLA_FFI_Error* failed_precondition(const XLA_FFI_Api* api, const std::string& message) {
  XLA_FFI_Error_Create_Args args = {};
  args.struct_size = XLA_FFI_Error_Create_Args_STRUCT_SIZE;
  args.message = message.c_str();
  args.errc = XLA_FFI_Error_Code_FAILED_PRECONDITION;
  return api->XLA_FFI_Error_Create(&args);
}

XLA_FFI_Metadata_Extension* metadata_of(XLA_FFI_CallFrame* frame) {
  auto* extension = frame->extension_start;
  const bool is_metadata = extension != nullptr && extension->type == XLA_FFI_Extension_Metadata;
  return is_metadata ? reinterpret_cast<XLA_FFI_Metadata_Extension*>(extension) : nullptr;
}

}  // namespace

XLA_FFI_Error* refuse_old_runtime(const XLA_FFI_Api* api) {
  const XLA_FFI_Api_Version& version = api->api_version;
  return version.major_version == XLA_FFI_API_MAJOR && version.minor_version >= kOldestMinorVersion
             ? nullptr
             : failed_precondition(
                   api,
                   fmt::format("flashlift's handlers need XLA FFI {}.{} or a later {}.x, and this runtime has {}.{}",
                               XLA_FFI_API_MAJOR, kOldestMinorVersion, XLA_FFI_API_MAJOR, version.major_version,
                               version.minor_version));
}

XLA_FFI_Error* call_handler(XLA_FFI_CallFrame* frame, XLA_FFI_Handler* handler) {
  XLA_FFI_Metadata_Extension* metadata = metadata_of(frame);
  if (metadata == nullptr) {
    return handler(frame);
  }
  // Checked before the handler writes its metadata: an older runtime's structure has no room for the state's type.
  if (XLA_FFI_Error* error = refuse_old_runtime(frame->api); error != nullptr) {
    return error;
  }
  XLA_FFI_Error* error = handler(frame);
  metadata->metadata->api_version.minor_version = kOldestMinorVersion;
  return error;
}

std::string take_message(const XLA_FFI_Api* api, XLA_FFI_Error* error) {
  std::string message = ffi::internal::GetErrorMessage(api, error);
  ffi::internal::DestroyError(api, error);
  return message;
}

}  // namespace flashlift::xla
