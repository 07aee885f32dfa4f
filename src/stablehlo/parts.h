// Parts of concatenated tensors.
#pragma once

#include "stablehlo/reader/module.h"

namespace flashlift::stablehlo {

// Reads a slice of a concatenation from the operand that holds it, and leaves out operations whose result is a value
// that exists already: slices and concatenations of a whole tensor, and reshapes back. An unrolled jax.lax.scan
// concatenates what its iterations store for the backward pass, and slices it again.
void read_parts_from_operands(Module& module);

}  // namespace flashlift::stablehlo
