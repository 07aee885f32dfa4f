// Transfer functions of the f32 operations. See interval.h.
#pragma once

#include "score/interval.h"

namespace flashlift::score {

// One value; a subnormal may be flushed to zero.
Interval real_value(double value);

Interval real_add(const Interval& x, const Interval& y);
Interval real_sub(const Interval& x, const Interval& y);
Interval real_mul(const Interval& x, const Interval& y);
Interval real_div(const Interval& x, const Interval& y);
Interval real_rem(const Interval& x, const Interval& y);
Interval real_min(const Interval& x, const Interval& y);
Interval real_max(const Interval& x, const Interval& y);
Interval real_pow(const Interval& x, const Interval& y);
// One operand: neg to round_f16, and the transcendental functions.
Interval real_unary(Op op, const Interval& x);
// eq, ne, lt, le, gt, ge
Interval real_compare(Op op, const Interval& x, const Interval& y);
Interval real_is_finite(const Interval& x);
Interval real_to_integer(Type type, const Interval& x);
Interval integer_to_real(const Interval& x);
Interval real_to_bits(const Interval& x);
Interval bits_to_real(const Interval& x);

}  // namespace flashlift::score
