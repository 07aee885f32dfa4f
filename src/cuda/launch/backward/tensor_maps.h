// Descriptors of the tensors that Hopper's backward kernels copy in bulk.
#pragma once

#include "cuda/launch/backward/main.h"

namespace flashlift::cuda {

struct BackwardMaps {
  TensorMap q, k, v, d_out;
};

// In boxes of 64 columns. d_out: its address in the inputs' type. If converted, it is dense except for the ends of
// rows. Errors: kUnsupported if a tensor's layout does not suit bulk copies.
Result<BackwardMaps> encode_maps(const BackwardCall& call, const void* d_out);

// K or V in boxes of so many columns, for a kernel whose own rows they are. Errors: likewise.
Result<TensorMap> encode_rows(const BackwardCall& call, const TensorView& rows, int columns);

}  // namespace flashlift::cuda
