// Defines well-formed score programs. Debug builds verify a program after every transformation.
#pragma once

#include <span>

#include "flashlift/program.h"

namespace flashlift::score {

Status verify(const Program& program);

// The type of a node with this op and operands of these types, or the reason why there is none. `wanted` is the type of
// a constant or a load, and is ignored for other nodes.
Result<Type> result_type(Op op, std::span<const Type> operands, Type wanted);

}  // namespace flashlift::score
