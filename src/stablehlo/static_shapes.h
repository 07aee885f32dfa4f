// Operations whose shapes the types tell.
#pragma once

#include <optional>

#include "mlir/IR/Location.h"
#include "stablehlo/reader/module.h"

namespace flashlift::stablehlo {

// Replaces dynamic_broadcast_in_dim, dynamic_reshape and dynamic_iota by broadcast_in_dim, reshape and iota where the
// types of operand and result are static, and broadcast by broadcast_in_dim. Exporters for several sizes write them,
// and keep them where shapes were refined afterwards.
void use_static_shapes(Module& module);

// Where the first set_dimension_size is that gives a dimension of a static type another size at run time, or may do so.
std::optional<mlir::Location> find_size_at_run_time(Module& module);

}  // namespace flashlift::stablehlo
