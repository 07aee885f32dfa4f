// Transfer functions of the integer operations; i1 takes part in the bit operations. See interval.h.
#pragma once

#include "score/interval.h"

namespace flashlift::score {

Interval integer_add(Type type, const Interval& x, const Interval& y);
Interval integer_sub(Type type, const Interval& x, const Interval& y);
Interval integer_mul(Type type, const Interval& x, const Interval& y);
Interval integer_div(Type type, const Interval& x, const Interval& y);
Interval integer_rem(const Interval& x, const Interval& y);
Interval integer_floor_div(Type type, const Interval& x, const Interval& y);
Interval integer_mod(const Interval& x, const Interval& y);
Interval integer_min(const Interval& x, const Interval& y);
Interval integer_max(const Interval& x, const Interval& y);
Interval integer_neg(Type type, const Interval& x);
Interval integer_abs(Type type, const Interval& x);
Interval integer_sign(const Interval& x);
Interval integer_not(Type type, const Interval& x);
// and, or, xor
Interval integer_bits(Op op, Type type, const Interval& x, const Interval& y);
Interval integer_shl(Type type, const Interval& x, const Interval& y);
Interval integer_shr(Type type, const Interval& x, const Interval& y);
Interval integer_ushr(Type type, const Interval& x, const Interval& y);
// eq, ne, lt, le, gt, ge
Interval integer_compare(Op op, const Interval& x, const Interval& y);
// From any integer type to i32 or i64.
Interval integer_to_integer(Type type, const Interval& x);

}  // namespace flashlift::score
