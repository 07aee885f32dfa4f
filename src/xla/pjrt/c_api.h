// The part of PJRT's C interface that is used here, because no package of the build contains its header. The positions
// of functions have not changed since version 0.57; tests/python/test_pjrt.py compares all of them with another
// project's table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace flashlift::pjrt {

struct PluginError;  // defined by each plugin

struct Extension {
  size_t struct_size;
  int32_t type;
  Extension* next;
};

struct Version {
  size_t struct_size;
  Extension* extensions;
  int32_t major_version;
  int32_t minor_version;
};

inline constexpr int kMajorVersion = 0;
inline constexpr int kOldestMinorVersion = 57;

using Function = PluginError* (*)(void* args);  // type of all functions except the first two, which return nothing

enum Slot : size_t {
  kErrorDestroy = 0,
  kErrorMessage = 1,
  kErrorGetCode = 2,
  kPluginInitialize = 3,
  kClientPlatformName = 12,
  kClientPlatformVersion = 14,
  kClientCompile = 20,
  kTopologyPlatformName = 84,
  kTopologyPlatformVersion = 85,
  kCompile = 89,
};

struct Api {
  size_t struct_size;
  Extension* extensions;
  Version version;
  Function functions[1];  // struct_size determines their number
};
inline constexpr size_t kFunctionsOffset = 40;
static_assert(offsetof(Api, functions) == kFunctionsOffset);

// Every structure of arguments starts with these two fields.
struct Args {
  size_t struct_size;
  Extension* extensions;
};

struct ErrorDestroyArgs : Args {
  PluginError* error;
};

struct ErrorMessageArgs : Args {
  const PluginError* error;
  const char* message;  // out, without a terminating zero
  size_t message_size;  // out
};

struct ErrorGetCodeArgs : Args {
  const PluginError* error;
  int32_t code;  // out
};
inline constexpr int32_t kFailedPrecondition = 9;

// The name and version of a client or a topology.
struct PlatformArgs : Args {
  void* object;
  const char* text;  // out, without a terminating zero; lives as long as the object
  size_t size;       // out
};

struct Program : Args {
  const char* code;
  size_t code_size;
  const char* format;
  size_t format_size;
};

struct ClientCompileArgs : Args {
  void* client;
  const Program* program;
  const char* options;  // a CompileOptionsProto
  size_t options_size;
  void* executable;  // out
};

struct CompileArgs : Args {
  const void* topology;
  const Program* program;
  const char* options;
  size_t options_size;
  void* client;
  void* executable;  // out
};

// The extension with which handlers of XLA's FFI are registered. Older versions lack the last field.
inline constexpr int32_t kFfiExtension = 5;

struct FfiRegisterHandlerArgs {
  size_t struct_size;  // without the padding after the last field
  const char* target;
  size_t target_size;
  void* handler;
  const char* platform;
  size_t platform_size;
  uint32_t traits;
};
inline constexpr size_t kFfiRegisterHandlerArgsSize = offsetof(FfiRegisterHandlerArgs, traits) + sizeof(uint32_t);

struct FfiExtension {
  Extension base;
  void* type_register;
  void* user_data_add;
  PluginError* (*register_handler)(FfiRegisterHandlerArgs* args);
};

static_assert(sizeof(Args) == 16 && sizeof(Program) == 48);
static_assert(sizeof(ErrorDestroyArgs) == 24 && sizeof(ErrorMessageArgs) == 40 && sizeof(ErrorGetCodeArgs) == 32);
static_assert(sizeof(PlatformArgs) == 40 && sizeof(ClientCompileArgs) == 56 && sizeof(CompileArgs) == 64);
static_assert(sizeof(FfiExtension) == 48 && kFfiRegisterHandlerArgsSize == 52);

// nullptr if the plugin's structure does not contain this function.
inline Function function_of(const Api& api, Slot slot) {
  return api.struct_size >= kFunctionsOffset + (slot + 1) * sizeof(Function) ? api.functions[slot] : nullptr;
}

inline std::string text_of(const char* text, size_t size) {
  return text == nullptr ? std::string() : std::string(text, size);
}

// Destroys the error.
inline std::string take_message(const Api& api, PluginError* error) {
  std::string message = "an error without a message";
  if (const Function get_message = function_of(api, kErrorMessage)) {
    ErrorMessageArgs get = {{sizeof(ErrorMessageArgs), nullptr}, error, nullptr, 0};
    get_message(&get);
    message = get.message == nullptr ? message : text_of(get.message, get.message_size);
  }
  if (const Function destroy_error = function_of(api, kErrorDestroy)) {
    ErrorDestroyArgs destroy = {{sizeof(ErrorDestroyArgs), nullptr}, error};
    destroy_error(&destroy);
  }
  return message;
}

}  // namespace flashlift::pjrt
