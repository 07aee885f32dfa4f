// The custom calls' handlers for XLA on CUDA.
//
// XLA may record the forward call into a command buffer, because it only launches kernels on XLA's stream. Besides the
// call's buffers it uses memory that belongs to the compiled attention (cuda/launch/stream_memory.h). XLA may not
// record the backward call: it needs as much memory as d_q in f32, and each recording would keep its own. Outside of
// command buffers, that memory comes from XLA.
#include <memory>
#include <mutex>
#include <utility>

#include "xla/ffi/convert.h"
#include "xla/ffi/handlers.h"
#include "xla/ffi/runtime_state.h"

namespace flashlift::xla {
namespace {

// The state that the instantiate stage creates for the execute stage. XLA instantiates a program once and may run it on
// each of its GPUs. The kernel for the first GPU is compiled at once. That for another GPU, which usually has the same
// code, is compiled in the first call from there. XLA owns and deletes the state.
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
  std::map<int, Call> calls_;  // a map, because its elements do not move
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
ffi::Error run(CudaCallState<Call>& state, int ordinal, const RunOptions& options, const ffi::RemainingArgs& args,
               const ffi::RemainingRets& rets) {
  const auto run = [&]() -> Status {
    FLASHLIFT_ASSIGN_OR_RETURN(const Buffers buffers, to_buffers(args, rets));
    FLASHLIFT_ASSIGN_OR_RETURN(const Call* call, state.on_device(ordinal));
    return call->run(buffers.operands, buffers.results, options);
  };
  const Status status = run();
  return status ? ffi::Error::Success() : to_ffi(status.error());
}

ffi::Error execute(CudaCallState<AttentionCall>* state, int32_t ordinal, void* stream, ffi::Dictionary,
                   ffi::RemainingArgs args, ffi::RemainingRets rets) {
  return run(*state, ordinal, {.stream = stream}, args, rets);
}

// XLA reuses the scratch memory, in the stream's order, after the handler has returned. It is aligned to 256 bytes, but
// XLA guarantees only 16.
void* allocate(void* scratch, size_t bytes) {
  return static_cast<ffi::ScratchAllocator*>(scratch)->Allocate(bytes).value_or(nullptr);
}

ffi::Error execute_backward(CudaCallState<BackwardCall>* state, int32_t ordinal, void* stream,
                            ffi::ScratchAllocator scratch, ffi::Dictionary, ffi::RemainingArgs args,
                            ffi::RemainingRets rets) {
  return run(*state, ordinal, {.stream = stream, .allocator = {.allocate = allocate, .context = &scratch}}, args, rets);
}

template <typename Call>
auto bind_call() {
  return ffi::Ffi::Bind()
      .Ctx<StateOf<CudaCallState<Call>>>()
      .template Ctx<ffi::DeviceOrdinal>()
      .template Ctx<ffi::PlatformStream<void*>>();
}

XLA_FFI_DEFINE_HANDLER(kInstantiate, instantiate<AttentionCall>, ffi::Ffi::BindInstantiate().Attrs());
XLA_FFI_DEFINE_HANDLER(kExecute, execute, bind_call<AttentionCall>().Attrs().RemainingArgs().RemainingRets(),
                       {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(kInstantiateBackward, instantiate<BackwardCall>, ffi::Ffi::BindInstantiate().Attrs());
XLA_FFI_DEFINE_HANDLER(
    kExecuteBackward, execute_backward,
    bind_call<BackwardCall>().template Ctx<ffi::ScratchAllocator>().Attrs().RemainingArgs().RemainingRets());

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
