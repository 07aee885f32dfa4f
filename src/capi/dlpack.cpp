#include "capi/dlpack.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

#include "support/error.h"

namespace flashlift::capi {
namespace {

// DLPack has a code for booleans since 0.8; Debian's header is older.
constexpr uint8_t kDLBoolCode = 6;

struct TypeRow {
  uint8_t code;
  uint8_t bits;
  DType dtype;
};

constexpr std::array kTypes = {
    TypeRow{kDLBoolCode, 8, DType::kBool}, TypeRow{kDLInt, 8, DType::kI8},     TypeRow{kDLUInt, 8, DType::kU8},
    TypeRow{kDLInt, 16, DType::kI16},      TypeRow{kDLInt, 32, DType::kI32},   TypeRow{kDLUInt, 32, DType::kU32},
    TypeRow{kDLInt, 64, DType::kI64},      TypeRow{kDLFloat, 16, DType::kF16}, TypeRow{kDLBfloat, 16, DType::kBF16},
    TypeRow{kDLFloat, 32, DType::kF32},    TypeRow{kDLFloat, 64, DType::kF64},
};

std::optional<DType> to_dtype(DLDataType type) {
  const auto* found = std::find_if(kTypes.begin(), kTypes.end(),
                                   [&](const TypeRow& row) { return row.code == type.code && row.bits == type.bits; });
  return found == kTypes.end() || type.lanes != 1 ? std::nullopt : std::optional(found->dtype);
}

}  // namespace

DLDataType to_dlpack(DType dtype) {
  const auto* row = std::find_if(kTypes.begin(), kTypes.end(), [&](const TypeRow& one) { return one.dtype == dtype; });
  return {row->code, row->bits, 1};
}

Result<DeviceKind> to_device_kind(DLDevice device) {
  const int type = static_cast<int>(device.device_type);
  if (type == kDLCUDA) {
    return DeviceKind::kCuda;
  }
  if (type != kDLCPU && type != 0) {  // 0: the structure was only cleared
    return invalid_argument("device type {} is not supported: expected kDLCPU (1) or kDLCUDA (2)", type);
  }
  return DeviceKind::kCpu;
}

Result<TensorView> to_view(const DLTensor* tensor, std::string_view name, DLDevice device) {
  if (tensor == nullptr) {
    return invalid_argument("{} is NULL; expected a tensor", name);
  }
  // JAX numbers CPUs, too, where it has several of them.
  const int id = tensor->device.device_id;
  if (tensor->device.device_type != device.device_type ||
      (device.device_type == kDLCPU ? id < 0 : id != device.device_id)) {
    return invalid_argument("{} lies on DLPack device {}:{}, but the attention was compiled for {}:{}", name,
                            static_cast<int>(tensor->device.device_type), tensor->device.device_id,
                            static_cast<int>(device.device_type), device.device_id);
  }
  const auto dtype = to_dtype(tensor->dtype);
  if (!dtype) {
    return invalid_argument(
        "{} has DLPack element type (code {}, {} bits, {} lanes); expected bool, i8, u8, i16, i32, "
        "u32, i64, f16, bf16, f32 or f64 with 1 lane",
        name, tensor->dtype.code, tensor->dtype.bits, tensor->dtype.lanes);
  }
  if (tensor->ndim < 0 || tensor->ndim > kMaxRank || (tensor->ndim > 0 && tensor->shape == nullptr)) {
    return invalid_argument("{} has {} dimensions{}; expected 0 to {}", name, tensor->ndim,
                            tensor->shape == nullptr ? " and no shape" : "", kMaxRank);
  }
  uintptr_t address = 0;  // a tensor without elements may have NULL with any offset: it stays NULL
  if (tensor->data != nullptr &&
      __builtin_add_overflow(reinterpret_cast<uintptr_t>(tensor->data), tensor->byte_offset, &address)) {
    return invalid_argument("{} has a byte_offset of {}, which no memory behind its data pointer has", name,
                            tensor->byte_offset);
  }
  const std::span<const int64_t> shape(tensor->shape, static_cast<size_t>(tensor->ndim));
  TensorView view = dense_view(reinterpret_cast<void*>(address), *dtype, shape);
  if (tensor->strides != nullptr) {
    std::copy_n(tensor->strides, tensor->ndim, view.strides.begin());
  }
  return view;
}

}  // namespace flashlift::capi
