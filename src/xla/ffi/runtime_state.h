// What the instantiate stage leaves for the execute stage, in any number of XLA runtimes.
//
// A process may hold several runtimes: jaxlib's own and one in each PJRT plugin. Each numbers the types of states by
// itself, so a state's number is kept for each runtime, that is, for each XLA_FFI_Api. (ffi::State and its kin keep one
// number a type.)
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>

#include "xla/ffi/api/ffi.h"

namespace flashlift::xla {

namespace ffi = ::xla::ffi;

// What an instantiate stage returns.
template <typename T>
struct NewState {
  ffi::ErrorOr<std::unique_ptr<T>> value;
};

// What an execute stage binds, as Ctx<StateOf<T>>, to be given a T*.
template <typename T>
struct StateOf {};

template <typename T>
class StateType {
 public:
  // The runtime must know the type before a handler is registered, and its API is at hand only inside a call: the query
  // for the handler's metadata, which registration makes, is the first one. So clients register one name, not two.
  static XLA_FFI_Error* register_with(const XLA_FFI_Api* api, std::string_view name) {
    static const XLA_FFI_TypeInfo info = ffi::MakeTypeInfo<T>();
    static std::mutex mutex;
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

  // NULL where the runtime does not know the type.
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

  // A list that only grows, by one for each runtime, and is read without a lock. Runtimes live as long as the process.
  static inline std::atomic<Number*> numbers_{nullptr};
};

// Calls a handler, and has its metadata claim the oldest version of the FFI that it needs rather than that of the
// headers: a runtime refuses what is newer than itself. States are what they are since version 0.3.
inline constexpr int kOldestMinorVersion = 3;
static_assert(XLA_FFI_API_MAJOR == 0 && XLA_FFI_API_MINOR >= kOldestMinorVersion,
              "the FFI headers must be of version 0.3 or a later 0.x: those of jaxlib 0.10");

XLA_FFI_Error* call_handler(XLA_FFI_CallFrame* frame, XLA_FFI_Handler* handler);

// The same for an instantiate stage: has the runtime know the type of its state first.
template <typename T>
XLA_FFI_Error* call_instantiate(XLA_FFI_CallFrame* frame, std::string_view name, XLA_FFI_Handler* handler) {
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
      static_cast<void>(state.value->release());  // the runtime's now
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
