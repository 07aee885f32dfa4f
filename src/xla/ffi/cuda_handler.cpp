// The custom call's handler for XLA on CUDA.
//
// It may be recorded into a command buffer: executing launches kernels on XLA's stream and nothing else. What it needs
// beside the call's own buffers is memory that stays with the compiled attention (cuda/launch/stream_memory.h).
#include <memory>
#include <mutex>
#include <utility>

#include "xla/ffi/convert.h"

namespace flashlift::xla {
namespace {

// What the instantiate stage leaves for the execute stage. XLA instantiates a program once and may run it on each of
// its GPUs: the first one's kernel is compiled at once, and another one's, which is the same code as a rule, when a
// call first comes from there. XLA owns and deletes it.
class CudaCallState {
 public:
  static ffi::TypeId id;

  static Result<std::unique_ptr<CudaCallState>> create(Attributes attributes) {
    auto state = std::make_unique<CudaCallState>();
    state->attributes_ = std::move(attributes);
    FLASHLIFT_ASSIGN_OR_RETURN(const AttentionCall* first, state->on_device(0));
    static_cast<void>(first);
    return state;
  }

  Result<const AttentionCall*> on_device(int ordinal) {
    const std::lock_guard lock(mutex_);
    const auto found = calls_.find(ordinal);
    if (found != calls_.end()) {
      return &found->second;
    }
    FLASHLIFT_ASSIGN_OR_RETURN(AttentionCall call, AttentionCall::create(attributes_, {.device = DeviceKind::kCuda,
                                                                                       .device_ordinal = ordinal}));
    return &calls_.emplace(ordinal, std::move(call)).first->second;
  }

 private:
  Attributes attributes_;
  std::mutex mutex_;
  std::map<int, AttentionCall> calls_;  // a map: its elements stay where they are
};
ffi::TypeId CudaCallState::id = {};

ffi::ErrorOr<std::unique_ptr<CudaCallState>> instantiate(ffi::Dictionary dictionary) {
  Result<Attributes> attributes = to_attributes(dictionary);
  if (!attributes) {
    return ffi::Unexpected(to_ffi(attributes.error()));
  }
  Result<std::unique_ptr<CudaCallState>> state = CudaCallState::create(*std::move(attributes));
  if (!state) {
    return ffi::Unexpected(to_ffi(state.error()));
  }
  return *std::move(state);
}

Status run(CudaCallState& state, int ordinal, void* stream, const ffi::RemainingArgs& args,
           const ffi::RemainingRets& rets) {
  FLASHLIFT_ASSIGN_OR_RETURN(const Buffers buffers, to_buffers(args, rets));
  FLASHLIFT_ASSIGN_OR_RETURN(const AttentionCall* call, state.on_device(ordinal));
  return call->run(buffers.operands, buffers.results, {.stream = stream});
}

ffi::Error execute(CudaCallState* state, int32_t ordinal, void* stream, ffi::Dictionary, ffi::RemainingArgs args,
                   ffi::RemainingRets rets) {
  const Status status = run(*state, ordinal, stream, args, rets);
  return status ? ffi::Error::Success() : to_ffi(status.error());
}

// As in host_handler.cpp.
XLA_FFI_Error* register_state_type(const XLA_FFI_Api* api) {
  static std::once_flag once;
  static const XLA_FFI_TypeInfo info = ffi::MakeTypeInfo<CudaCallState>();
  XLA_FFI_Error* error = nullptr;
  std::call_once(once,
                 [&] { error = ffi::Ffi::RegisterTypeId(api, "flashlift.attention.cuda", &CudaCallState::id, &info); });
  return error;
}

XLA_FFI_DEFINE_HANDLER(kInstantiate, instantiate, ffi::Ffi::BindInstantiate().Attrs());
XLA_FFI_DEFINE_HANDLER(kExecute, execute,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::State<CudaCallState>>()
                           .Ctx<ffi::DeviceOrdinal>()
                           .Ctx<ffi::PlatformStream<void*>>()
                           .Attrs()
                           .RemainingArgs()
                           .RemainingRets(),
                       {ffi::Traits::kCmdBufferCompatible});

}  // namespace
}  // namespace flashlift::xla

#define FLASHLIFT_EXPORT extern "C" __attribute__((visibility("default")))

FLASHLIFT_EXPORT XLA_FFI_Error* flashlift_xla_attention_cuda_instantiate(XLA_FFI_CallFrame* frame) {
  if (XLA_FFI_Error* error = flashlift::xla::register_state_type(frame->api)) {
    return error;
  }
  return flashlift::xla::kInstantiate(frame);
}

FLASHLIFT_EXPORT XLA_FFI_Error* flashlift_xla_attention_cuda_execute(XLA_FFI_CallFrame* frame) {
  return flashlift::xla::kExecute(frame);
}
