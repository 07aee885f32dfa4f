// Transfer functions of integer operations, including bit operations on i1. See interval.h.
#pragma once

#include "score/interval.h"

namespace flashlift::score {

// The values of an operation with operands of this type, i1, i32 or i64. Not for select, nor for operations without
// operands.
Interval integer_operation(Op op, Type type, const Interval& x, const Interval& y);

// eq, ne, lt, le, gt, ge
Interval integer_compare(Op op, const Interval& x, const Interval& y);

}  // namespace flashlift::score
