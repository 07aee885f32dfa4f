// Calls of cuDNN's fused attention in the form of XLA's GPU backend, which JAX writes: custom_call @__cudnn$fmha...
// with JSON text as backend_config.
#pragma once

#include "flashlift/problem.h"
#include "flashlift/result.h"
#include "mlir/IR/Operation.h"

namespace flashlift::stablehlo {

bool is_cudnn_attention(mlir::Operation* op);

// Replaces such a call by Flashlift's equivalent call, and returns its problem. If `gradients` is false and the module
// contains the call's gradient, both calls stay. Errors: kUnsupported with a reason; then nothing was changed.
Result<Problem> replace_cudnn_attention(mlir::Operation* op, bool gradients);

}  // namespace flashlift::stablehlo
