// Parameters that all kernels share.
#pragma once

#include <optional>

#include "cuda/kernels/common/forward_params.h"
#include "flashlift/problem.h"

namespace flashlift::cuda {

Strides strides_of(const TensorView& view);  // of a tensor of rank 4

// Whether 16-byte copies can read the tensor's rows, which are fewer than 2^31 elements apart.
bool has_vector_rows(const TensorView& view);
// The same of an output, and whether 8-byte copies can access the rows of its residual, which has the same strides.
bool has_vector_rows(const TensorView& out, const std::optional<TensorView>& residual);

// Fills in all parameters that do not depend on a kernel's tiles and memory. `arguments` are verified. Errors:
// kUnsupported for captured tensors that need more than 32-bit indices.
Status fill_params(const Problem& problem, const AttentionArguments& arguments, ForwardParams& params);

// Fills in only the lengths, with those of the problem itself. For a captured tensor's dimension that the problem
// leaves open, it assumes the larger one of q_len and kv_len.
void fill_lengths(const Problem& problem, ForwardParams& params);

}  // namespace flashlift::cuda
