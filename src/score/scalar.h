// The scalar operations, in f32 (constant folding) or f64 (the oracle's interpreter).
#pragma once

#include <span>

#include "flashlift/program.h"

namespace flashlift::score {

// A value of any type: integers and i1 in `i` (i32 sign-extended), f32 in `f`.
template <typename Real>
struct Scalar {
  int64_t i = 0;
  Real f = 0;
};

// The y with erf(y) = x: infinite at -1 and 1, NaN beyond. The standard library has none.
double inverse_erf(double x);

// The result of `op` for these operands, which are all of type `operand_type` (select: its last two). Not for inputs,
// constants and loads.
template <typename Real>
Scalar<Real> apply(Op op, Type result_type, Type operand_type, std::span<const Scalar<Real>> x);

extern template Scalar<float> apply(Op, Type, Type, std::span<const Scalar<float>>);
extern template Scalar<double> apply(Op, Type, Type, std::span<const Scalar<double>>);

}  // namespace flashlift::score
