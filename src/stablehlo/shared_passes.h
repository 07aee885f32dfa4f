// Forward passes that manual computations of gradients share with those of the forward pass.
//
// with_forward_passes() lets the backward pass of a shard_map repeat the forward pass, so that its attention is found
// with its gradient. Once it is fused, the backward pass needs only the output and the log-sum-exp. The forward pass's
// own call gives these, and the repeated call is removed.
#pragma once

#include "stablehlo/reader/module.h"

namespace flashlift::stablehlo {

// In a module that with_forward_passes() made, after its attention has been fused.
void share_forward_passes(Module& module);

}  // namespace flashlift::stablehlo
