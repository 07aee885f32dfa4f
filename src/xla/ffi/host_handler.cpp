// The custom calls' handlers for XLA on CPUs: connects the typed FFI with AttentionCall and BackwardCall.
#include <algorithm>
#include <memory>
#include <utility>

#include "xla/ffi/convert.h"
#include "xla/ffi/handlers.h"
#include "xla/ffi/pool_executor.h"
#include "xla/ffi/runtime_state.h"

namespace flashlift::xla {
namespace {

// The instantiate stage creates the call for the execute stage. XLA owns and deletes it.
template <typename Call>
NewState<Call> instantiate(ffi::Dictionary dictionary) {
  const Result<Attributes> attributes = to_attributes(dictionary);
  if (!attributes) {
    return {ffi::Unexpected(to_ffi(attributes.error()))};
  }
  Result<Call> call = Call::create(*attributes, {});
  if (!call) {
    return {ffi::Unexpected(to_ffi(call.error()))};
  }
  return {std::make_unique<Call>(*std::move(call))};
}

template <typename Call>
Status run(const Call& call, ffi::ThreadPool& pool, const ffi::RemainingArgs& args, const ffi::RemainingRets& rets) {
  FLASHLIFT_ASSIGN_OR_RETURN(const Buffers buffers, to_buffers(args, rets));
  PoolExecutor executor(static_cast<int>(std::max<int64_t>(pool.num_threads(), 1)),
                        [&pool](std::function<void()> task) { pool.Schedule(std::move(task)); });
  return call.run(buffers.operands, buffers.results, {.executor = &executor});
}

template <typename Call>
ffi::Error execute(const Call* call, ffi::ThreadPool pool, ffi::Dictionary, ffi::RemainingArgs args,
                   ffi::RemainingRets rets) {
  const Status status = run(*call, pool, args, rets);
  return status ? ffi::Error::Success() : to_ffi(status.error());
}

template <typename Call>
auto bind_execute() {
  return ffi::Ffi::Bind().Ctx<StateOf<Call>>().template Ctx<ffi::ThreadPool>().Attrs().RemainingArgs().RemainingRets();
}

XLA_FFI_DEFINE_HANDLER(kInstantiate, instantiate<AttentionCall>, ffi::Ffi::BindInstantiate().Attrs());
XLA_FFI_DEFINE_HANDLER(kExecute, execute<AttentionCall>, bind_execute<AttentionCall>());
XLA_FFI_DEFINE_HANDLER(kInstantiateBackward, instantiate<BackwardCall>, ffi::Ffi::BindInstantiate().Attrs());
XLA_FFI_DEFINE_HANDLER(kExecuteBackward, execute<BackwardCall>, bind_execute<BackwardCall>());

}  // namespace
}  // namespace flashlift::xla

XLA_FFI_Error* flashlift_xla_attention_instantiate(XLA_FFI_CallFrame* frame) {
  using namespace flashlift::xla;
  return call_instantiate<AttentionCall>(frame, "flashlift.attention", kInstantiate);
}

XLA_FFI_Error* flashlift_xla_attention_execute(XLA_FFI_CallFrame* frame) {
  return flashlift::xla::call_handler(frame, flashlift::xla::kExecute);
}

XLA_FFI_Error* flashlift_xla_attention_backward_instantiate(XLA_FFI_CallFrame* frame) {
  using namespace flashlift::xla;
  return call_instantiate<BackwardCall>(frame, "flashlift.attention_backward", kInstantiateBackward);
}

XLA_FFI_Error* flashlift_xla_attention_backward_execute(XLA_FFI_CallFrame* frame) {
  return flashlift::xla::call_handler(frame, flashlift::xla::kExecuteBackward);
}
