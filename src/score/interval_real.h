// Transfer functions of the operations over f32. See interval.h.
#pragma once

#include "score/interval.h"

namespace flashlift::score {

// One value; a subnormal may be flushed to zero.
Interval real_value(double value);

// The values of an operation with f32 operands. Not for select, nor for operations without operands.
Interval real_operation(Op op, const Interval& x, const Interval& y);

Interval integer_to_real(const Interval& x);
Interval bits_to_real(const Interval& x);

}  // namespace flashlift::score
