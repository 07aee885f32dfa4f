// The output of an attention of which a module computes a gradient alone.
#pragma once

#include <optional>

#include "stablehlo/rearrange/rearrange.h"

namespace flashlift::stablehlo {

// In front of a product that may be the gradient by queries or keys: the product of the probabilities with the values,
// which nothing reads. The attention is proved with it, and its calls take the place of the gradient's products. It is
// a guess which exponentials are the probabilities' and which product is that of the output's gradient and the values.
std::optional<Rearrangement> add_missing_output(mlir::Operation* product);

}  // namespace flashlift::stablehlo
