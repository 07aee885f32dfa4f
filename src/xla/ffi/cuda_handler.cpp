// The custom calls' handlers for XLA on CUDA.
//
// The forward call may be recorded into a command buffer: executing it launches kernels on XLA's stream and nothing
// else. What it needs beside the call's own buffers is memory that stays with the compiled attention
// (cuda/launch/stream_memory.h). The backward call takes memory in the order of the stream, which graphs within graphs,
// as command buffers are made of, may not.
#include <memory>
#include <mutex>
#include <utility>

#include "xla/ffi/convert.h"
#include "xla/ffi/handlers.h"
#include "xla/ffi/runtime_state.h"

namespace flashlift::xla {
namespace {

// What the instantiate stage leaves for the execute stage. XLA instantiates a program once and may run it on each of
// its GPUs: the first one's kernel is compiled at once, and another one's, which is the same code as a rule, when a
// call first comes from there. XLA owns and deletes it.
template <typename Call>
class CudaCallState {
 public:
  static Result<std::unique_ptr<CudaCallState>> create(Attributes attributes) {
    auto state = std::make_unique<CudaCallState>();
    state->attributes_ = std::move(attributes);
    FLASHLIFT_ASSIGN_OR_RETURN(const Call* first, state->on_device(0));
    static_cast<void>(first);
    return state;
  }

  Result<const Call*> on_device(int ordinal) {
    const std::lock_guard lock(mutex_);
    const auto found = calls_.find(ordinal);
    if (found != calls_.end()) {
      return &found->second;
    }
    FLASHLIFT_ASSIGN_OR_RETURN(Call call,
                               Call::create(attributes_, {.device = DeviceKind::kCuda, .device_ordinal = ordinal}));
    return &calls_.emplace(ordinal, std::move(call)).first->second;
  }

 private:
  Attributes attributes_;
  std::mutex mutex_;
  std::map<int, Call> calls_;  // a map: its elements stay where they are
};

template <typename Call>
NewState<CudaCallState<Call>> instantiate(ffi::Dictionary dictionary) {
  Result<Attributes> attributes = to_attributes(dictionary);
  if (!attributes) {
    return {ffi::Unexpected(to_ffi(attributes.error()))};
  }
  Result<std::unique_ptr<CudaCallState<Call>>> state = CudaCallState<Call>::create(*std::move(attributes));
  if (!state) {
    return {ffi::Unexpected(to_ffi(state.error()))};
  }
  return {*std::move(state)};
}

template <typename Call>
Status run(CudaCallState<Call>& state, int ordinal, void* stream, const ffi::RemainingArgs& args,
           const ffi::RemainingRets& rets) {
  FLASHLIFT_ASSIGN_OR_RETURN(const Buffers buffers, to_buffers(args, rets));
  FLASHLIFT_ASSIGN_OR_RETURN(const Call* call, state.on_device(ordinal));
  return call->run(buffers.operands, buffers.results, {.stream = stream});
}

template <typename Call>
ffi::Error execute(CudaCallState<Call>* state, int32_t ordinal, void* stream, ffi::Dictionary, ffi::RemainingArgs args,
                   ffi::RemainingRets rets) {
  const Status status = run(*state, ordinal, stream, args, rets);
  return status ? ffi::Error::Success() : to_ffi(status.error());
}

template <typename Call>
auto bind_execute() {
  return ffi::Ffi::Bind()
      .Ctx<StateOf<CudaCallState<Call>>>()
      .template Ctx<ffi::DeviceOrdinal>()
      .template Ctx<ffi::PlatformStream<void*>>()
      .Attrs()
      .RemainingArgs()
      .RemainingRets();
}

XLA_FFI_DEFINE_HANDLER(kInstantiate, instantiate<AttentionCall>, ffi::Ffi::BindInstantiate().Attrs());
XLA_FFI_DEFINE_HANDLER(kExecute, execute<AttentionCall>, bind_execute<AttentionCall>(),
                       {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(kInstantiateBackward, instantiate<BackwardCall>, ffi::Ffi::BindInstantiate().Attrs());
XLA_FFI_DEFINE_HANDLER(kExecuteBackward, execute<BackwardCall>, bind_execute<BackwardCall>());

}  // namespace
}  // namespace flashlift::xla

XLA_FFI_Error* flashlift_xla_attention_cuda_instantiate(XLA_FFI_CallFrame* frame) {
  using namespace flashlift::xla;
  return call_instantiate<CudaCallState<AttentionCall>>(frame, "flashlift.attention.cuda", kInstantiate);
}

XLA_FFI_Error* flashlift_xla_attention_cuda_execute(XLA_FFI_CallFrame* frame) {
  return flashlift::xla::call_handler(frame, flashlift::xla::kExecute);
}

XLA_FFI_Error* flashlift_xla_attention_backward_cuda_instantiate(XLA_FFI_CallFrame* frame) {
  using namespace flashlift::xla;
  return call_instantiate<CudaCallState<BackwardCall>>(frame, "flashlift.attention_backward.cuda",
                                                       kInstantiateBackward);
}

XLA_FFI_Error* flashlift_xla_attention_backward_cuda_execute(XLA_FFI_CallFrame* frame) {
  return flashlift::xla::call_handler(frame, flashlift::xla::kExecuteBackward);
}
