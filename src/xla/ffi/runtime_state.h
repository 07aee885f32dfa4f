// The state that the instantiate stage creates for the execute stage, for any number of XLA runtimes.
//
// A process may contain several runtimes: jaxlib's own and one in each PJRT plugin. Each numbers the types of states
// independently. The number of a state's type is therefore stored for each runtime, that is, for each XLA_FFI_Api.
// (ffi::State and similar classes store one number for each type.)
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string_view>

#include "xla/ffi/api/ffi.h"

namespace flashlift::xla {

namespace ffi = ::xla::ffi;

// The return type of an instantiate stage.
template <typename T>
struct NewState {
  ffi::ErrorOr<std::unique_ptr<T>> value;
};

// An execute stage binds Ctx<StateOf<T>> to receive a T*.
template <typename T>
struct StateOf {};

template <typename T>
class StateType {
 public:
  // The type must be registered with the runtime before a handler, and the runtime's API is available only inside a
  // call. The first call is the query for the handler's metadata during registration, which therefore registers the
  // type. Clients need to register only one name, not two.
  static XLA_FFI_Error* register_with(const XLA_FFI_Api* api, std::string_view name) {
    static constinit const XLA_FFI_TypeInfo info = ffi::MakeTypeInfo<T>();
    static constinit std::mutex mutex;
    const std::lock_guard lock(mutex);
    if (find(api) != nullptr) {
      return nullptr;
    }
    auto number = std::make_unique<Number>(Number{api, {}, numbers_.load()});
    if (XLA_FFI_Error* error = ffi::Ffi::RegisterTypeId(api, name, &number->id, &info); error != nullptr) {
      return error;
    }
    numbers_.store(number.release());
    return nullptr;
  }

  // NULL if the type is not registered with the runtime.
  static XLA_FFI_TypeId* id(const XLA_FFI_Api* api) {
    Number* number = find(api);
    return number == nullptr ? nullptr : &number->id;
  }

 private:
  struct Number {
    const XLA_FFI_Api* api;
    XLA_FFI_TypeId id;
    Number* next;
  };

  static Number* find(const XLA_FFI_Api* api) {
    Number* number = numbers_.load();
    while (number != nullptr && number->api != api) {
      number = number->next;
    }
    return number;
  }

  // A list to which each runtime adds one element, and which is read without a lock. Runtimes live as long as the
  // process.
  static inline std::atomic<Number*> numbers_{nullptr};
};

// Calls a handler. Its metadata claims the oldest version of the FFI that it needs instead of the headers' version,
// because a runtime refuses newer versions than its own. States have not changed since version 0.3.
inline constexpr int kOldestMinorVersion = 3;
static_assert(XLA_FFI_API_MAJOR == 0 && XLA_FFI_API_MINOR >= kOldestMinorVersion,
              "the FFI headers must be of version 0.3 or a later 0.x: those of jaxlib 0.10");

XLA_FFI_Error* call_handler(XLA_FFI_CallFrame* frame, XLA_FFI_Handler* handler);

// NULL, or an error if the runtime's FFI is older than that.
XLA_FFI_Error* refuse_old_runtime(const XLA_FFI_Api* api);

// The same for an instantiate stage: registers the type of its state with the runtime first. An old runtime is refused
// before that, because it takes other arguments there: that of JAX 0.7 crashed.
template <typename T>
XLA_FFI_Error* call_instantiate(XLA_FFI_CallFrame* frame, std::string_view name, XLA_FFI_Handler* handler) {
  if (XLA_FFI_Error* error = refuse_old_runtime(frame->api); error != nullptr) {
    return error;
  }
  if (XLA_FFI_Error* error = StateType<T>::register_with(frame->api, name); error != nullptr) {
    return error;
  }
  return call_handler(frame, handler);
}

// An error of the runtime as text; destroys it.
std::string take_message(const XLA_FFI_Api* api, XLA_FFI_Error* error);

}  // namespace flashlift::xla

template <typename T>
struct xla::ffi::ResultEncoding<xla::ffi::ExecutionStage::kInstantiate, flashlift::xla::NewState<T>> {
  static XLA_FFI_TypeId state_type_id(const XLA_FFI_Api* api) {
    const XLA_FFI_TypeId* id = flashlift::xla::StateType<T>::id(api);
    return id == nullptr ? XLA_FFI_UNKNOWN_TYPE_ID : *id;
  }

  static XLA_FFI_Error* Encode(const XLA_FFI_Api* api, XLA_FFI_ExecutionContext* ctx,
                               flashlift::xla::NewState<T> state) {
    using EncodeError = ResultEncoding<ExecutionStage::kInstantiate, Error>;
    if (!state.value.has_value()) {
      return EncodeError::Encode(api, ctx, state.value.error());
    }
    XLA_FFI_State_Set_Args args = {};
    args.struct_size = XLA_FFI_State_Set_Args_STRUCT_SIZE;
    args.ctx = ctx;
    args.stage = XLA_FFI_ExecutionStage_INSTANTIATE;
    args.type_id = flashlift::xla::StateType<T>::id(api);
    if (args.type_id == nullptr) {
      return EncodeError::Encode(api, ctx, Error(ErrorCode::kInternal, "flashlift: this runtime knows no such state"));
    }
    args.state = state.value->get();
    XLA_FFI_Error* error = api->XLA_FFI_State_Set(&args);
    if (error == nullptr) {
      static_cast<void>(state.value->release());  // the runtime now owns it
    }
    return error;
  }
};

template <typename T>
struct xla::ffi::CtxDecoding<flashlift::xla::StateOf<T>> {
  using Type = T*;

  static std::optional<Type> Decode(const XLA_FFI_Api* api, XLA_FFI_ExecutionContext* ctx,
                                    DiagnosticEngine& diagnostic) {
    XLA_FFI_State_Get_Args args = {};
    args.struct_size = XLA_FFI_State_Get_Args_STRUCT_SIZE;
    args.ctx = ctx;
    args.stage = XLA_FFI_ExecutionStage_INSTANTIATE;
    args.type_id = flashlift::xla::StateType<T>::id(api);
    if (args.type_id == nullptr) {
      diagnostic.Emit("flashlift: this runtime knows no such state: was only the execute stage registered?");
      return std::nullopt;
    }
    if (XLA_FFI_Error* error = api->XLA_FFI_State_Get(&args); error != nullptr) {
      diagnostic.Emit("flashlift: the state of the instantiate stage: ") << flashlift::xla::take_message(api, error);
      return std::nullopt;
    }
    return static_cast<Type>(args.state);
  }
};
