// One attempt to read a pair of products as attention.
#pragma once

#include "stablehlo/algebra/reason.h"
#include "stablehlo/lift/lifted.h"
#include "stablehlo/lift/plane.h"

namespace flashlift::stablehlo {

// Runs the stages (stages.h), with the given digits for the dimensions of the probabilities. After a failure,
// `plane.wanted_split` may hold a split of a digit with which to try again.
Outcome<LiftedAttention> lift_plane(Plane& plane, const DigitSizes& digits);

}  // namespace flashlift::stablehlo
