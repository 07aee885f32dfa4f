#include "xla/pjrt/failing_api.h"

#include <algorithm>
#include <array>
#include <memory>

namespace flashlift::pjrt {
namespace {

std::string message_of_all;  // NOLINT: the functions below are given no state

// There is only one error, which nobody frees.
PluginError* the_error() { return reinterpret_cast<PluginError*>(&message_of_all); }

PluginError* fail(void*) { return the_error(); }

PluginError* destroy_error(void*) { return nullptr; }

PluginError* error_message(void* args) {
  auto* get = static_cast<ErrorMessageArgs*>(args);
  get->message = message_of_all.data();
  get->message_size = message_of_all.size();
  return nullptr;
}

PluginError* error_code(void* args) {
  static_cast<ErrorGetCodeArgs*>(args)->code = kFailedPrecondition;
  return nullptr;
}

}  // namespace

const Api* make_failing_api(std::string message) {
  message_of_all = std::move(message);
  constexpr int kMinorVersion = 90;
  constexpr size_t kFunctions = 120;  // fewer than any version has whose clients call a function to read an error
  struct FailingApi {
    size_t struct_size;
    Extension* extensions;
    Version version;
    std::array<Function, kFunctions> functions;
  };
  static constinit FailingApi api = {
      sizeof(FailingApi), nullptr, {sizeof(Version), nullptr, kMajorVersion, kMinorVersion}, {}};
  api.functions.fill(fail);
  api.functions[kErrorDestroy] = destroy_error;
  api.functions[kErrorMessage] = error_message;
  api.functions[kErrorGetCode] = error_code;
  return reinterpret_cast<const Api*>(&api);
}

}  // namespace flashlift::pjrt
