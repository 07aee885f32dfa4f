// Putting a found attention back into the module as one call.
#pragma once

#include "flashlift/stablehlo.h"
#include "stablehlo/lift/lifted.h"

namespace flashlift::stablehlo {

// Replaces the uses of what `found` computes by a call as docs/custom_call.md describes it; the operations that
// computed it stay, unused where nothing else uses them. As a composite, the call's decomposition is a new private
// function with copies of those operations. Errors: kUnsupported with a reason, and nothing is changed then.
Status rewrite(const LiftedAttention& found, FuseAs as);

}  // namespace flashlift::stablehlo
