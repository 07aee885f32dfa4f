// The functions with which the rows of flashlift/ops.def define derivatives once, both for programs (derivative.cpp)
// and for numbers (here).
//
// A rule gives the gradient of an operand from the operands x and y, the result f and its gradient g. It is written
// with C++'s operators and the functions of namespace rules. derivative.cpp has all functions of the table. Here, a
// function that no rule has used before needs a line.
#pragma once

#include <cmath>
#include <limits>
#include <numbers>

#include "flashlift/program.h"

namespace flashlift::score {

// The result does not depend on the operand continuously, so that its derivative is 0 wherever it exists.
struct Flat {};
inline constexpr Flat flat;
// Like flat for gradients, but the derivative proves nothing about the function, for example because the operation
// reads bits.
struct Opaque {};
inline constexpr Opaque opaque;

inline constexpr double kLn2 = std::numbers::ln2;
inline constexpr double kTwoOverRootPi = 2 * std::numbers::inv_sqrtpi;
inline constexpr double kHalfRootPi = 0.5 / std::numbers::inv_sqrtpi;

// Gradients as numbers.
struct NumberGradients {
  double to_x;
  double to_y;
};

namespace rules {

using std::atan2;
using std::cbrt;
using std::cos;
using std::erf;
using std::exp;
using std::exp2;
using std::expm1;
using std::log;
using std::log1p;
using std::log2;
using std::pow;
using std::sin;
using std::sqrt;
using std::tanh;
inline double sign(double x) { return x > 0 ? 1.0 : (x < 0 ? -1.0 : x); }
inline double truncated(double x) { return std::trunc(x); }
inline double where(bool condition, double x, double y) { return condition ? x : y; }

inline double number(double gradient) { return gradient; }
inline double number(Flat) { return 0; }
inline double number(Opaque) { return std::numeric_limits<double>::quiet_NaN(); }

}  // namespace rules

// The gradients of x and y from the gradient g of f = op(x, y). NaN for opaque ones. Not for select.
inline NumberGradients number_gradients(Op op, double x, double y, double f, double g) {
  using namespace rules;  // NOLINT(google-build-using-namespace): the table's expressions name its functions
  switch (op) {
#define FLASHLIFT_OP(name, arity, rule, real, integer, to_x, to_y, ...) \
  case Op::k_##name:                                                    \
    return {number(to_x), number(to_y)};
#include "flashlift/ops.def"
  }
  return {};
}

}  // namespace flashlift::score
