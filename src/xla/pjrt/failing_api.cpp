#include "xla/pjrt/failing_api.h"

#include <algorithm>
#include <array>

namespace flashlift::pjrt {
namespace {

std::string message_of_all;  // NOLINT: the functions below are given no state

// From version 0.112 on, an error begins with a pointer to its own functions. Clients of these versions may call them
// instead of the plugin's.
struct ErrorFunctions {
  size_t struct_size;
  size_t instance_size;
  Extension* extensions;
  void (*destroy)(PluginError* error);
  void (*message)(const PluginError* error, const char** text, size_t* size);
  int32_t (*get_code)(const PluginError* error);
  void (*for_each_payload)(const PluginError* error, void* visit, void* argument);
};
struct FailingError {
  const ErrorFunctions* functions;
};

// There is only one error, which nobody frees.
constexpr ErrorFunctions kErrorFunctions = {
    sizeof(ErrorFunctions),
    sizeof(FailingError),
    nullptr,
    [](PluginError*) {},
    [](const PluginError*, const char** text, size_t* size) {
      *text = message_of_all.data();
      *size = message_of_all.size();
    },
    [](const PluginError*) { return kFailedPrecondition; },
    [](const PluginError*, void*, void*) {},
};
FailingError the_error = {&kErrorFunctions};

PluginError* fail(void*) { return reinterpret_cast<PluginError*>(&the_error); }

PluginError* destroy_error(void*) { return nullptr; }

PluginError* error_message(void* args) {
  auto* get = static_cast<ErrorMessageArgs*>(args);
  kErrorFunctions.message(get->error, &get->message, &get->message_size);
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
