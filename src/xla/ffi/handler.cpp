// The custom call's handler for XLA on the host: the typed FFI on one side, AttentionCall on the other.
//
// The handler reports the API version of the headers it is built with: the state of the instantiate stage is passed in
// structures that grew a field in 0.3, so that an older version number would be a false claim.
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "support/error.h"
#include "xla/ffi/api/ffi.h"
#include "xla/ffi/call.h"
#include "xla/ffi/pool_executor.h"

namespace flashlift::xla {
namespace {

namespace ffi = ::xla::ffi;

// What the instantiate stage leaves for the execute stage. XLA owns and deletes it.
struct CallState {
  static ffi::TypeId id;
  AttentionCall call;
};
ffi::TypeId CallState::id = {};

ffi::Error to_ffi(const Error& error) {
  ffi::ErrorCode code = ffi::ErrorCode::kInternal;
  switch (error.kind) {
    case ErrorKind::kInvalidArgument:
      code = ffi::ErrorCode::kInvalidArgument;
      break;
    case ErrorKind::kUnsupported:
      code = ffi::ErrorCode::kUnimplemented;
      break;
    case ErrorKind::kNotFound:
      code = ffi::ErrorCode::kNotFound;
      break;
    case ErrorKind::kInternal:
      break;
  }
  return {code, "flashlift.attention: " + error.message};
}

Result<DType> to_dtype(ffi::DataType type) {
  switch (type) {
    case ffi::PRED:
      return DType::kBool;
    case ffi::S8:
      return DType::kI8;
    case ffi::U8:
      return DType::kU8;
    case ffi::S16:
      return DType::kI16;
    case ffi::S32:
      return DType::kI32;
    case ffi::U32:
      return DType::kU32;
    case ffi::S64:
      return DType::kI64;
    case ffi::F16:
      return DType::kF16;
    case ffi::BF16:
      return DType::kBF16;
    case ffi::F32:
      return DType::kF32;
    case ffi::F64:
      return DType::kF64;
    default:
      return invalid_argument(
          "XLA's element type {} is not supported; expected pred, s8, u8, s16, s32, u32, s64, f16, "
          "bf16, f32 or f64",
          static_cast<int>(type));
  }
}

Result<Buffer> to_buffer(const ffi::AnyBuffer& buffer) {
  FLASHLIFT_ASSIGN_OR_RETURN(const DType dtype, to_dtype(buffer.element_type()));
  const auto dims = buffer.dimensions();
  return Buffer{buffer.untyped_data(), dtype, {dims.begin(), dims.size()}};
}

Result<Attributes> to_attributes(const ffi::Dictionary& dictionary) {
  Attributes attributes;
  for (auto it = dictionary.begin(); it != dictionary.end(); ++it) {
    const auto value = dictionary.get<std::string_view>(*it);
    if (value.has_error()) {
      return invalid_argument("attribute {} must be a string: {}", *it, value.error().message());
    }
    attributes.emplace(*it, *value);
  }
  return attributes;
}

ffi::ErrorOr<std::unique_ptr<CallState>> instantiate(ffi::Dictionary dictionary) {
  const Result<Attributes> attributes = to_attributes(dictionary);
  if (!attributes) {
    return ffi::Unexpected(to_ffi(attributes.error()));
  }
  Result<AttentionCall> call = AttentionCall::create(*attributes);
  if (!call) {
    return ffi::Unexpected(to_ffi(call.error()));
  }
  return std::make_unique<CallState>(CallState{*std::move(call)});
}

Status run(const CallState& state, ffi::ThreadPool& pool, const ffi::RemainingArgs& args,
           const ffi::RemainingRets& rets) {
  std::vector<Buffer> operands;
  std::vector<Buffer> results;
  for (size_t i = 0; i < args.size(); ++i) {
    FLASHLIFT_ASSIGN_OR_RETURN(operands.emplace_back(), to_buffer(*args.get<ffi::AnyBuffer>(i)));
  }
  for (size_t i = 0; i < rets.size(); ++i) {
    FLASHLIFT_ASSIGN_OR_RETURN(results.emplace_back(), to_buffer(**rets.get<ffi::AnyBuffer>(i)));
  }
  PoolExecutor executor(static_cast<int>(std::max<int64_t>(pool.num_threads(), 1)),
                        [&pool](std::function<void()> task) { pool.Schedule(std::move(task)); });
  return state.call.run(operands, results, {.executor = &executor});
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
