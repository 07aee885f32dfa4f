#include "cuda/launch/backward/tensor_maps.h"

#include "cuda/launch/tensor_map.h"
#include "support/error.h"
#include "support/rounding.h"

namespace flashlift::cuda {

constexpr int kBoxRows = 64;  // of a bulk copy, in all kernels

Result<TensorMap> encode_rows(const BackwardCall& call, const TensorView& rows, int columns) {
  // A tensor without elements is never read, but a descriptor needs some tensor.
  const TensorView& exists = rows.element_count() == 0 ? call.arguments.forward.q : rows;
  return encode_tensor_map(call.driver, exists, kBoxRows, columns);
}

Result<BackwardMaps> encode_maps(const BackwardCall& call, const void* d_out) {
  const AttentionArguments& forward = call.arguments.forward;
  const auto encode = [&](const TensorView& view) { return encode_rows(call, view, kSm90BoxColumns); };
  TensorView converted = call.arguments.d_out;
  if (call.problem.d_out_dtype() != call.problem.dtype) {
    converted.dtype = call.problem.dtype;
    converted.data = const_cast<void*>(d_out);
    converted.strides[3] = 1;
    converted.strides[2] = round_up(converted.sizes[3], 16 / static_cast<int64_t>(size_in_bytes(converted.dtype)));
    converted.strides[1] = converted.strides[2] * converted.sizes[2];
    converted.strides[0] = converted.strides[1] * converted.sizes[1];
  }
  BackwardMaps maps;
  FLASHLIFT_ASSIGN_OR_RETURN(maps.q, encode(forward.q));
  FLASHLIFT_ASSIGN_OR_RETURN(maps.k, encode(forward.k));
  FLASHLIFT_ASSIGN_OR_RETURN(maps.v, encode(forward.v));
  FLASHLIFT_ASSIGN_OR_RETURN(maps.d_out, encode(converted));
  return maps;
}

}  // namespace flashlift::cuda
