// A PJRT plugin that compiles nothing and records its arguments. FAKE_PJRT, a list of words, makes it misbehave.
#include <dlfcn.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#include "xla/ffi/api/c_api.h"
#include "xla/pjrt/c_api.h"

namespace {

using namespace flashlift::pjrt;

bool behaves(const char* word) {
  const char* words = getenv("FAKE_PJRT");
  return words != nullptr && (" " + std::string(words) + " ").find(" " + std::string(word) + " ") != std::string::npos;
}

PluginError* error(const char* message) { return reinterpret_cast<PluginError*>(const_cast<char*>(message)); }

PluginError* error_destroy(void*) { return nullptr; }
PluginError* error_message(void* args) {
  auto* get = static_cast<ErrorMessageArgs*>(args);
  if (behaves("no_text")) {
    get->message_size = 5;
    return nullptr;
  }
  get->message = reinterpret_cast<const char*>(get->error);
  get->message_size = strlen(get->message);
  return nullptr;
}
PluginError* not_there(void*) { return error("the fake has no such function"); }

PluginError* platform_name(void* args) {
  auto* get = static_cast<PlatformArgs*>(args);
  if (behaves("no_name")) {
    get->text = nullptr;
    get->size = 5;
    return nullptr;
  }
  get->text = behaves("tpu") ? "tpu" : "cpu";
  get->size = 3;
  return nullptr;
}
PluginError* platform_version(void* args) {
  auto* get = static_cast<PlatformArgs*>(args);
  if (behaves("no_name")) {
    get->size = 5;
    return nullptr;
  }
  get->text = "fake 1.2, and no zero here";
  get->size = strlen("fake 1.2");
  return nullptr;
}

// Records what it was given. The executable is a new copy of the program, so that a test sees what was compiled.
template <typename Args>
PluginError* compile(void* given) {
  auto* args = static_cast<Args*>(given);
  const std::string code(args->program->code, args->program->code_size);
  if (code.find("\"flashlift.attention\"") != std::string::npos) {
    if (behaves("throws")) {
      throw std::runtime_error("the fake throws");
    }
    if (behaves("refuses_fused")) {
      return error("the fake refuses fused modules");
    }
  }
  if (behaves("refuses_all")) {
    return error("the fake refuses all modules");
  }
  // If the client's structure has a field after the known ones, it must arrive unchanged.
  std::string text = args->program->struct_size > sizeof(Program)
                         ? "behind: " + std::to_string(reinterpret_cast<const int64_t*>(args->program + 1)[0]) + "\n"
                         : "";
  text += args->program->code_size == 0 ? "" : code;
  args->executable = strdup(text.c_str());
  return nullptr;
}

// --- XLA's FFI ---

XLA_FFI_Error* ffi_error_create(XLA_FFI_Error_Create_Args* args) {
  return reinterpret_cast<XLA_FFI_Error*>(strdup(args->message));
}
void ffi_error_message(XLA_FFI_Error_GetMessage_Args* args) { args->message = reinterpret_cast<char*>(args->error); }
void ffi_error_destroy(XLA_FFI_Error_Destroy_Args* args) { free(args->error); }
XLA_FFI_Error* ffi_type_register(XLA_FFI_Type_Register_Args* args) {
  static int64_t next = 100;
  args->type_id->type_id = next++;
  return nullptr;
}

XLA_FFI_Api make_ffi_api() {
  XLA_FFI_Api api = {};
  api.struct_size = sizeof(api);
  api.api_version = {sizeof(XLA_FFI_Api_Version), nullptr, 0, behaves("ffi_0.2") ? 2 : 3};
  api.XLA_FFI_Error_Create = ffi_error_create;
  api.XLA_FFI_Error_GetMessage = ffi_error_message;
  api.XLA_FFI_Error_Destroy = ffi_error_destroy;
  api.XLA_FFI_Type_Register = ffi_type_register;
  return api;
}
XLA_FFI_Api ffi_api = make_ffi_api();

// Requests a handler's metadata, as XLA does with each registered handler.
std::string ask(void* handler) {
  struct {
    XLA_FFI_Metadata metadata = {};
    int64_t guard = 0x5ca1ab1e;
  } room;
  room.metadata.struct_size = XLA_FFI_Metadata_STRUCT_SIZE;
  XLA_FFI_Metadata_Extension extension = {};
  extension.extension_base = {sizeof(extension), XLA_FFI_Extension_Metadata, nullptr};
  extension.metadata = &room.metadata;
  XLA_FFI_CallFrame frame = {};
  frame.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
  frame.extension_start = &extension.extension_base;
  frame.api = &ffi_api;
  if (XLA_FFI_Error* failed = reinterpret_cast<XLA_FFI_Handler*>(handler)(&frame); failed != nullptr) {
    return reinterpret_cast<char*>(failed);
  }
  const XLA_FFI_Api_Version& version = room.metadata.api_version;
  const bool fits = version.major_version == 0 && version.minor_version <= ffi_api.api_version.minor_version;
  return fits && room.guard == 0x5ca1ab1e ? "" : "a handler of another version";
}

XLA_FFI_Error* ffi_handler_register(XLA_FFI_Handler_Register_Args* args) {
  for (XLA_FFI_Handler* stage : {args->bundle.instantiate, args->bundle.execute}) {
    if (const std::string message = ask(reinterpret_cast<void*>(stage)); !message.empty()) {
      return reinterpret_cast<XLA_FFI_Error*>(strdup(message.c_str()));
    }
  }
  if (behaves("prints")) {
    printf("%.*s %.*s\n", static_cast<int>(args->name.len), args->name.ptr, static_cast<int>(args->platform.len),
           args->platform.ptr);
    fflush(stdout);
  }
  return nullptr;
}

PluginError* register_handler(FfiRegisterHandlerArgs* args) {
  if (args->struct_size != kFfiRegisterHandlerArgsSize) {
    return error("FfiRegisterHandlerArgs has another size");
  }
  if (behaves("refuses_handlers")) {
    return error("the fake takes no handlers");
  }
  ffi_api.XLA_FFI_Handler_Register = ffi_handler_register;
  if (!behaves("asks_nothing")) {
    ask(args->handler);
  }
  return nullptr;
}

FfiExtension ffi_extension = {{sizeof(FfiExtension), kFfiExtension, nullptr}, nullptr, nullptr, register_handler};
Extension other_extension = {sizeof(Extension), 77, &ffi_extension.base};
Extension circle = {sizeof(Extension), 78, &circle};

struct Table {
  size_t struct_size;
  Extension* extensions;
  Version version;
  std::array<Function, 160> functions;
};

}  // namespace

extern "C" __attribute__((visibility("default"))) const Table* GetPjrtApi() {
  static Table table = {sizeof(Table), &other_extension, {sizeof(Version), nullptr, 0, 106}, {}};
  table.functions.fill(not_there);
  table.functions[kErrorDestroy] = error_destroy;
  table.functions[kErrorMessage] = error_message;
  table.functions[kClientPlatformName] = table.functions[kTopologyPlatformName] = platform_name;
  table.functions[kClientPlatformVersion] = table.functions[kTopologyPlatformVersion] = platform_version;
  table.functions[kClientCompile] = compile<ClientCompileArgs>;
  table.functions[kCompile] = compile<CompileArgs>;
  if (behaves("null")) {
    return nullptr;
  }
  if (behaves("empty")) {
    table.struct_size = 0;
  }
  if (behaves("garbage")) {
    table.struct_size = ~size_t{0};
  }
  if (behaves("old")) {
    table.version.minor_version = 56;
  }
  if (behaves("major")) {
    table.version.major_version = 1;
  }
  if (behaves("short")) {
    table.struct_size = kFunctionsOffset + 60 * sizeof(Function);
  }
  if (behaves("no_ffi")) {
    table.extensions = nullptr;
  }
  if (behaves("circle")) {
    table.extensions = &circle;
  }
  if (behaves("null_ffi")) {
    ffi_extension.register_handler = nullptr;
  }
  if (behaves("no_names")) {
    table.functions[kClientPlatformName] = table.functions[kTopologyPlatformName] = nullptr;
    table.functions[kClientPlatformVersion] = table.functions[kTopologyPlatformVersion] = nullptr;
  }
  if (behaves("no_errors")) {
    table.functions[kErrorDestroy] = table.functions[kErrorMessage] = nullptr;
  }
  if (behaves("headless")) {
    table.struct_size = kFunctionsOffset;
  }
  if (behaves("throws_at_once")) {
    throw 5;
  }
  if (const char* wrapper = getenv("FAKE_PJRT_ASKS"); wrapper != nullptr) {
    void* library = dlopen(wrapper, RTLD_NOW);
    return reinterpret_cast<const Table* (*)()>(dlsym(library, "GetPjrtApi"))();
  }
  if (behaves("small_ffi")) {
    ffi_extension.base.struct_size = offsetof(FfiExtension, register_handler);
  }
  return &table;
}
