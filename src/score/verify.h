// The definition of a well-formed score program. Runs after every transformation in debug builds.
#pragma once

#include <span>

#include "flashlift/program.h"

namespace flashlift::score {

Status verify(const Program& program);

// The type a node of this op has over operands of these types, or why there is none. `wanted` is the type of a
// constant or a load; elsewhere it is ignored.
Result<Type> result_type(Op op, std::span<const Type> operands, Type wanted);

}  // namespace flashlift::score
