#include "xla/ffi/convert.h"

#include "support/error.h"

namespace flashlift::xla {
namespace {

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

}  // namespace

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
    case ErrorKind::kCancelled:
      code = ffi::ErrorCode::kCancelled;
      break;
  }
  return {code, "flashlift.attention: " + error.message};
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

Result<Buffers> to_buffers(const ffi::RemainingArgs& args, const ffi::RemainingRets& rets) {
  Buffers buffers;
  for (size_t i = 0; i < args.size(); ++i) {
    FLASHLIFT_ASSIGN_OR_RETURN(buffers.operands.emplace_back(), to_buffer(*args.get<ffi::AnyBuffer>(i)));
  }
  for (size_t i = 0; i < rets.size(); ++i) {
    FLASHLIFT_ASSIGN_OR_RETURN(buffers.results.emplace_back(), to_buffer(**rets.get<ffi::AnyBuffer>(i)));
  }
  return buffers;
}

}  // namespace flashlift::xla
