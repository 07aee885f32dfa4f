// Sets of values that an operation may return for sets of operand values: the transfer functions of interval analysis.
#pragma once

#include <cstdint>
#include <limits>

#include "flashlift/program.h"

namespace flashlift::score {

// All values between two bounds, both included. Integers and i1 (0 or 1) use lo and hi, f32 uses real_lo and real_hi;
// the value's type decides.
struct Interval {
  union {
    int64_t lo = 0;
    double real_lo;
  };
  union {
    int64_t hi = 0;
    double real_hi;
  };
  // f32 only: the value may also be NaN. If real_lo > real_hi, it can only be NaN.
  bool may_be_nan = false;

  static Interval integer(int64_t lo, int64_t hi) { return {{.lo = lo}, {.hi = hi}, false}; }
  static Interval real(double lo, double hi, bool may_be_nan = false) {
    return {{.real_lo = lo}, {.real_hi = hi}, may_be_nan};
  }
  static Interval only_nan() {
    return real(std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(), true);
  }
  // Every value of the type.
  static Interval everything(Type type);

  bool is_point() const { return lo == hi; }  // integers
  bool has_number() const { return real_lo <= real_hi; }
};

// The smallest interval that contains both.
Interval hull(Type type, const Interval& x, const Interval& y);

// Contains every value of `op` for operands from these intervals, all of `operand_type` (select: its last two), under
// every evaluation that backends may choose: f32 rounded after each step, with contracted multiply-adds, subnormals
// kept or flushed, approximate transcendental functions, or the oracle's double precision. Not for inputs, constants
// and loads.
Interval apply(Op op, Type result_type, Type operand_type, const Interval& x, const Interval& y, const Interval& z);

}  // namespace flashlift::score
