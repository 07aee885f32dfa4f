// Forward passes that the manual computations, the loops and the choices of their gradients repeat.
//
// The gradient of JAX's shard_map is two manual computations: the forward pass, and the backward pass, which reads the
// probabilities and the row statistics of the first one. A manual computation only has values of its own, so that no
// attention could be fused with its gradient. The backward pass therefore computes these values again, from values that
// are not near a softmax. It then holds the attention with its gradient, and the forward pass holds the attention
// alone. Loops and choices are the same; loop_residuals.h and branch_residuals.h describe them.
#pragma once

#include <cstdint>
#include <optional>
#include <set>

#include "stablehlo/reader/module.h"

namespace flashlift::stablehlo {

// Numbers of manual computations, of the products that loops repeat, and of branches, in the order of the module.
using ComputationNumbers = std::set<int64_t>;

// A copy of the module in which they do so, except those with the given numbers; nothing if there are no others.
std::optional<Module> with_forward_passes(const Module& module, const ComputationNumbers& except);

// Those of which repeated products of scores are left. Their attention was not fused with its gradient, so that it was
// of no use to repeat it.
ComputationNumbers repeated_in_vain(const Module& module);

}  // namespace flashlift::stablehlo
