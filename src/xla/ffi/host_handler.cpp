// The custom call's handler for XLA on the host: the typed FFI on one side, AttentionCall on the other.
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
struct CallState {
  static ffi::TypeId id;
  AttentionCall call;
};
ffi::TypeId CallState::id = {};

ffi::ErrorOr<std::unique_ptr<CallState>> instantiate(ffi::Dictionary dictionary) {
  const Result<Attributes> attributes = to_attributes(dictionary);
  if (!attributes) {
    return ffi::Unexpected(to_ffi(attributes.error()));
  }
  Result<AttentionCall> call = AttentionCall::create(*attributes, {});
  if (!call) {
    return ffi::Unexpected(to_ffi(call.error()));
  }
  return std::make_unique<CallState>(CallState{*std::move(call)});
}

Status run(const CallState& state, ffi::ThreadPool& pool, const ffi::RemainingArgs& args,
           const ffi::RemainingRets& rets) {
  FLASHLIFT_ASSIGN_OR_RETURN(const Buffers buffers, to_buffers(args, rets));
  PoolExecutor executor(static_cast<int>(std::max<int64_t>(pool.num_threads(), 1)),
                        [&pool](std::function<void()> task) { pool.Schedule(std::move(task)); });
  return state.call.run(buffers.operands, buffers.results, {.executor = &executor});
}

ffi::Error execute(CallState* state, ffi::ThreadPool pool, ffi::Dictionary, ffi::RemainingArgs args,
                   ffi::RemainingRets rets) {
  const Status status = run(*state, pool, args, rets);
  return status ? ffi::Error::Success() : to_ffi(status.error());
}

// XLA must know the state's type before the handler is registered, and its API is at hand only inside a call: the
// query for the handler's metadata, which registration makes, is the first one. So clients register one name, not two.
XLA_FFI_Error* register_state_type(const XLA_FFI_Api* api) {
  static std::once_flag once;
  static const XLA_FFI_TypeInfo info = ffi::MakeTypeInfo<CallState>();
  XLA_FFI_Error* error = nullptr;
  std::call_once(once, [&] { error = ffi::Ffi::RegisterTypeId(api, "flashlift.attention", &CallState::id, &info); });
  return error;
}

XLA_FFI_DEFINE_HANDLER(kInstantiate, instantiate, ffi::Ffi::BindInstantiate().Attrs());
XLA_FFI_DEFINE_HANDLER(
    kExecute, execute,
    ffi::Ffi::Bind().Ctx<ffi::State<CallState>>().Ctx<ffi::ThreadPool>().Attrs().RemainingArgs().RemainingRets());

}  // namespace
}  // namespace flashlift::xla

#define FLASHLIFT_EXPORT extern "C" __attribute__((visibility("default")))

FLASHLIFT_EXPORT XLA_FFI_Error* flashlift_xla_attention_instantiate(XLA_FFI_CallFrame* frame) {
  if (XLA_FFI_Error* error = flashlift::xla::register_state_type(frame->api)) {
    return error;
  }
  return flashlift::xla::kInstantiate(frame);
}

FLASHLIFT_EXPORT XLA_FFI_Error* flashlift_xla_attention_execute(XLA_FFI_CallFrame* frame) {
  return flashlift::xla::kExecute(frame);
}
