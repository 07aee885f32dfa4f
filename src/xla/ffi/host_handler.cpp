// The custom calls' handlers for XLA on the host: the typed FFI on one side, AttentionCall and BackwardCall on the
// other.
//
// The handler reports the API version of the headers it is built with: the state of the instantiate stage is passed in
// structures that grew a field in 0.3, so that an older version number would be a false claim.
#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>

#include "xla/ffi/convert.h"
#include "xla/ffi/pool_executor.h"

namespace flashlift::xla {
namespace {

// What the instantiate stage leaves for the execute stage. XLA owns and deletes it.
template <typename Call>
struct CallState {
  static ffi::TypeId id;
  Call call;
};
template <typename Call>
ffi::TypeId CallState<Call>::id = {};

template <typename Call>
ffi::ErrorOr<std::unique_ptr<CallState<Call>>> instantiate(ffi::Dictionary dictionary) {
  const Result<Attributes> attributes = to_attributes(dictionary);
  if (!attributes) {
    return ffi::Unexpected(to_ffi(attributes.error()));
  }
  Result<Call> call = Call::create(*attributes, {});
  if (!call) {
    return ffi::Unexpected(to_ffi(call.error()));
  }
  return std::make_unique<CallState<Call>>(CallState<Call>{*std::move(call)});
}

template <typename Call>
Status run(const CallState<Call>& state, ffi::ThreadPool& pool, const ffi::RemainingArgs& args,
           const ffi::RemainingRets& rets) {
  FLASHLIFT_ASSIGN_OR_RETURN(const Buffers buffers, to_buffers(args, rets));
  PoolExecutor executor(static_cast<int>(std::max<int64_t>(pool.num_threads(), 1)),
                        [&pool](std::function<void()> task) { pool.Schedule(std::move(task)); });
  return state.call.run(buffers.operands, buffers.results, {.executor = &executor});
}

template <typename Call>
ffi::Error execute(CallState<Call>* state, ffi::ThreadPool pool, ffi::Dictionary, ffi::RemainingArgs args,
                   ffi::RemainingRets rets) {
  const Status status = run(*state, pool, args, rets);
  return status ? ffi::Error::Success() : to_ffi(status.error());
}

// XLA must know the state's type before the handler is registered, and its API is at hand only inside a call: the
// query for the handler's metadata, which registration makes, is the first one. So clients register one name, not two.
template <typename Call>
XLA_FFI_Error* register_state_type(const XLA_FFI_Api* api, const char* name) {
  static std::once_flag once;
  static const XLA_FFI_TypeInfo info = ffi::MakeTypeInfo<CallState<Call>>();
  XLA_FFI_Error* error = nullptr;
  std::call_once(once, [&] { error = ffi::Ffi::RegisterTypeId(api, name, &CallState<Call>::id, &info); });
  return error;
}

template <typename Call>
auto bind_execute() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::State<CallState<Call>>>()
      .template Ctx<ffi::ThreadPool>()
      .Attrs()
      .RemainingArgs()
      .RemainingRets();
}

XLA_FFI_DEFINE_HANDLER(kInstantiate, instantiate<AttentionCall>, ffi::Ffi::BindInstantiate().Attrs());
XLA_FFI_DEFINE_HANDLER(kExecute, execute<AttentionCall>, bind_execute<AttentionCall>());
XLA_FFI_DEFINE_HANDLER(kInstantiateBackward, instantiate<BackwardCall>, ffi::Ffi::BindInstantiate().Attrs());
XLA_FFI_DEFINE_HANDLER(kExecuteBackward, execute<BackwardCall>, bind_execute<BackwardCall>());

}  // namespace
}  // namespace flashlift::xla

#define FLASHLIFT_EXPORT extern "C" __attribute__((visibility("default")))

FLASHLIFT_EXPORT XLA_FFI_Error* flashlift_xla_attention_instantiate(XLA_FFI_CallFrame* frame) {
  using namespace flashlift::xla;
  XLA_FFI_Error* error = register_state_type<AttentionCall>(frame->api, "flashlift.attention");
  return error != nullptr ? error : kInstantiate(frame);
}

FLASHLIFT_EXPORT XLA_FFI_Error* flashlift_xla_attention_execute(XLA_FFI_CallFrame* frame) {
  return flashlift::xla::kExecute(frame);
}

FLASHLIFT_EXPORT XLA_FFI_Error* flashlift_xla_attention_backward_instantiate(XLA_FFI_CallFrame* frame) {
  using namespace flashlift::xla;
  XLA_FFI_Error* error = register_state_type<BackwardCall>(frame->api, "flashlift.attention_backward");
  return error != nullptr ? error : kInstantiateBackward(frame);
}

FLASHLIFT_EXPORT XLA_FFI_Error* flashlift_xla_attention_backward_execute(XLA_FFI_CallFrame* frame) {
  return flashlift::xla::kExecuteBackward(frame);
}
