// Transfer functions of the operations over integers; i1 takes part in the bit operations. See interval.h.
#pragma once

#include "score/interval.h"

namespace flashlift::score {

// What an operation gives over operands of this type, i1, i32 or i64. Not for select, nor for what has no operands.
Interval integer_operation(Op op, Type type, const Interval& x, const Interval& y);

// eq, ne, lt, le, gt, ge
Interval integer_compare(Op op, const Interval& x, const Interval& y);

}  // namespace flashlift::score
