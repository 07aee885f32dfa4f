#include "xla/ffi/runtime_state.h"

#include <gtest/gtest.h>

#include <string>

namespace flashlift::xla {
namespace {

struct State {};

std::string message;
int calls = 0;

XLA_FFI_Error* keep_message(XLA_FFI_Error_Create_Args* args) {
  static int error = 0;
  message = args->message;
  return reinterpret_cast<XLA_FFI_Error*>(&error);
}

XLA_FFI_Error* handler(XLA_FFI_CallFrame*) {
  ++calls;
  return nullptr;
}

// A runtime of this version of the FFI asks for an instantiate stage's metadata.
XLA_FFI_Error* ask(XLA_FFI_Api& api, int minor_version) {
  api.struct_size = XLA_FFI_Api_STRUCT_SIZE;
  api.api_version = {XLA_FFI_Api_Version_STRUCT_SIZE, nullptr, XLA_FFI_API_MAJOR, minor_version};
  api.XLA_FFI_Error_Create = keep_message;
  XLA_FFI_Metadata metadata = {};
  XLA_FFI_Metadata_Extension extension = {};
  extension.extension_base.type = XLA_FFI_Extension_Metadata;
  extension.metadata = &metadata;
  XLA_FFI_CallFrame frame = {};
  frame.api = &api;
  frame.extension_start = &extension.extension_base;
  return call_instantiate<State>(&frame, "test.state", handler);
}

TEST(RuntimeState, NothingIsRegisteredWithAnOldRuntime) {
  for (int minor_version = 0; minor_version < kOldestMinorVersion; ++minor_version) {
    XLA_FFI_Api api = {};  // without a function that registers types
    EXPECT_NE(ask(api, minor_version), nullptr);
    EXPECT_EQ(message, "flashlift's handlers need XLA FFI 0.3 or a later 0.x, and this runtime has 0." +
                           std::to_string(minor_version));
  }
  EXPECT_EQ(calls, 0);
}

TEST(RuntimeState, TheTypeIsRegisteredOnce) {
  static int registered = 0;
  static XLA_FFI_Api api = {};  // known by its address from now on
  api.XLA_FFI_Type_Register = [](XLA_FFI_Type_Register_Args*) -> XLA_FFI_Error* {
    ++registered;
    return nullptr;
  };
  calls = 0;
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(ask(api, kOldestMinorVersion), nullptr);
  }
  EXPECT_EQ(registered, 1);
  EXPECT_EQ(calls, 2);
}

}  // namespace
}  // namespace flashlift::xla
