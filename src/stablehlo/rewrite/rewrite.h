// Replaces a found attention in the module by a call.
#pragma once

#include "flashlift/stablehlo.h"
#include "stablehlo/lift/lifted.h"

namespace flashlift::stablehlo {

// Replaces the uses of the results of `found` by a call as described in docs/custom_call.md. The operations that
// computed these results remain, and may be unused. For a composite, the call's decomposition is a new private function
// with copies of those operations. Errors: kUnsupported with a reason; then nothing was changed.
Status rewrite(const LiftedAttention& found, FuseAs as);

}  // namespace flashlift::stablehlo
