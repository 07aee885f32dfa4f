// Calls of cuDNN's fused attention, as XLA's GPU backend knows them and JAX writes them: custom_call
// @__cudnn$fmha... with a JSON text as backend_config.
#pragma once

#include <string>

#include "flashlift/problem.h"
#include "flashlift/result.h"
#include "mlir/IR/Operation.h"

namespace flashlift::stablehlo {

bool is_cudnn_attention(mlir::Operation* op);

// Replaces one by Flashlift's call of the same meaning; gives its problem. With `gradients` false, a call whose
// gradient stands in the module stays, as that does. Errors: kUnsupported with a reason, and nothing is changed then.
Result<Problem> replace_cudnn_attention(mlir::Operation* op, bool gradients);

}  // namespace flashlift::stablehlo
