#include "score/interval_real.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "score/scalar.h"
#include "support/half.h"

namespace flashlift::score {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kMaxFloat = std::numeric_limits<float>::max();
constexpr double kMinNormal = std::numeric_limits<float>::min();

// Bounds are computed in double and then rounded outward to f32. A bound that already is an f32 value is exact:
// rounding is monotone, so that f32 steps, a contracted multiply-add or double precision cannot exceed it. Any other
// bound moves outward by two steps. Subnormals may be flushed to zero. A value too large for f32 overflows in f32, but
// not in the oracle's double precision, so that it need not be infinite.
double round_down(double value) {
  if (std::isinf(value)) {
    return value;
  }
  if (std::abs(value) > kMaxFloat) {
    return value < 0 ? -kInfinity : kMaxFloat;
  }
  float bound = static_cast<float>(value);
  if (static_cast<double>(bound) != value) {
    bound = std::nextafter(std::nextafter(bound, -HUGE_VALF), -HUGE_VALF);
  }
  if (std::abs(bound) < kMinNormal && bound != 0) {
    return bound > 0 ? 0 : -kMinNormal;
  }
  return bound;
}

double round_up(double value) { return -round_down(-value); }

Interval outward(double lo, double hi, bool may_be_nan) {
  return Interval::real(round_down(lo), round_up(hi), may_be_nan);
}

// Backends approximate these functions. The least accurate one is a GPU's tanh, with a relative error of 2^-11.
constexpr double kRelativeError = 0x1p-10;
constexpr double kAbsoluteError = 0x1p-20;

double loosen_down(double value) {
  return std::isinf(value) ? value : value - std::abs(value) * kRelativeError - kAbsoluteError;
}

Interval loose(double lo, double hi, bool may_be_nan) {
  return outward(loosen_down(lo), -loosen_down(-hi), may_be_nan);
}

Interval clamped(const Interval& x, double lo, double hi) {
  return Interval::real(std::max(x.real_lo, lo), std::min(x.real_hi, hi), x.may_be_nan);
}

bool contains(const Interval& x, double value) { return x.real_lo <= value && value <= x.real_hi; }
bool may_be_infinite(const Interval& x) { return x.real_lo == -kInfinity || x.real_hi == kInfinity; }

// The minimum and maximum of f over the corners, ignoring NaN.
template <typename F>
Interval corners(const Interval& x, const Interval& y, bool may_be_nan, F f) {
  double lo = kInfinity;
  double hi = -kInfinity;
  for (const double a : {x.real_lo, x.real_hi}) {
    for (const double b : {y.real_lo, y.real_hi}) {
      const double value = f(a, b);
      if (!std::isnan(value)) {
        lo = std::min(lo, value);
        hi = std::max(hi, value);
      }
    }
  }
  return lo <= hi ? outward(lo, hi, may_be_nan) : Interval::real(-kInfinity, kInfinity, true);
}

Interval monotone(const Interval& x, double (*f)(double)) { return loose(f(x.real_lo), f(x.real_hi), x.may_be_nan); }

// For conversions that are exact functions of the value, so that bounds are not widened.
Interval exact(const Interval& x, double (*f)(double)) {
  return Interval::real(f(x.real_lo), f(x.real_hi), x.may_be_nan);
}

// e^x and 2^x overflow in f32 for a finite x for which double precision is still finite.
Interval exponential(const Interval& x, double (*f)(double), double least) {
  Interval result = clamped(monotone(x, f), least, kInfinity);
  if (x.real_lo < kInfinity) {
    result.real_lo = std::min(result.real_lo, kMaxFloat);
  }
  return result;
}

// A logarithm has a pole and is undefined below it.
Interval logarithm(const Interval& x, double (*f)(double), double pole) {
  if (x.real_hi < pole) {
    return Interval::only_nan();
  }
  // A subnormal may be flushed to zero: then a value just above the pole is at the pole.
  const double lo = x.real_lo <= pole + kMinNormal ? -kInfinity : f(x.real_lo);
  return loose(lo, f(x.real_hi), x.may_be_nan || x.real_lo < pole);
}

Interval square_root(const Interval& x) {
  if (x.real_hi < 0) {
    return Interval::only_nan();
  }
  const double lo = std::sqrt(std::max(x.real_lo, 0.0));
  const double hi = std::sqrt(x.real_hi);
  // Approximations in use have an error of at most 2^-22.
  return outward(lo * (1 - 0x1p-20), hi * (1 + 0x1p-20), x.may_be_nan || x.real_lo < 0);
}

Interval reciprocal_root(const Interval& x) {
  if (x.real_hi < 0) {
    return Interval::only_nan();
  }
  if (x.real_lo <= 0) {  // 1 / sqrt(-0) is -inf
    return Interval::real(-kInfinity, kInfinity, x.may_be_nan || x.real_lo < 0);
  }
  return outward(1 / std::sqrt(x.real_hi) * (1 - 0x1p-20), 1 / std::sqrt(x.real_lo) * (1 + 0x1p-20), x.may_be_nan);
}

Interval wave(const Interval& x) { return Interval::real(-1.01, 1.01, x.may_be_nan || may_be_infinite(x)); }

Interval inverse_error(const Interval& x) {
  if (x.real_hi < -1 || x.real_lo > 1) {
    return Interval::only_nan();
  }
  const bool beyond = x.real_lo < -1 || x.real_hi > 1;
  return loose(inverse_erf(std::max(x.real_lo, -1.0)), inverse_erf(std::min(x.real_hi, 1.0)), x.may_be_nan || beyond);
}

Interval angle(const Interval& x, const Interval& y) {
  return x.has_number() && y.has_number() ? Interval::real(-3.15, 3.15, x.may_be_nan || y.may_be_nan)
                                          : Interval::only_nan();
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double sign(double x) { return x > 0 ? 1.0 : (x < 0 ? -1.0 : 0.0); }
double to_bf16(double x) { return bf16_to_float(float_to_bf16(static_cast<float>(x))); }
double to_f16(double x) { return f16_to_float(float_to_f16(static_cast<float>(x))); }

bool is_power_of_two(double x) {
  int exponent = 0;
  return std::abs(std::frexp(x, &exponent)) == 0.5;
}

Interval decided(bool surely, bool possibly) { return Interval::integer(surely, possibly); }

int64_t saturated(double value, Type type) {
  const Interval all = Interval::everything(type);
  if (value <= static_cast<double>(all.lo)) {
    return all.lo;
  }
  return value >= static_cast<double>(all.hi) ? all.hi : static_cast<int64_t>(value);
}

Interval real_neg(const Interval& x) { return Interval::real(-x.real_hi, -x.real_lo, x.may_be_nan); }

Interval real_abs(const Interval& x) {
  const double lo = contains(x, 0) ? 0 : std::min(std::abs(x.real_lo), std::abs(x.real_hi));
  return Interval::real(lo, std::max(std::abs(x.real_lo), std::abs(x.real_hi)), x.may_be_nan);
}

Interval real_add(const Interval& x, const Interval& y) {
  if (!x.has_number() || !y.has_number()) {
    return Interval::only_nan();
  }
  const bool opposite =
      (x.real_lo == -kInfinity && y.real_hi == kInfinity) || (x.real_hi == kInfinity && y.real_lo == -kInfinity);
  const double lo = x.real_lo + y.real_lo;
  const double hi = x.real_hi + y.real_hi;
  return outward(std::isnan(lo) ? -kInfinity : lo, std::isnan(hi) ? kInfinity : hi,
                 x.may_be_nan || y.may_be_nan || opposite);
}

Interval real_sub(const Interval& x, const Interval& y) { return real_add(x, y.has_number() ? real_neg(y) : y); }

Interval real_mul(const Interval& x, const Interval& y) {
  if (!x.has_number() || !y.has_number()) {
    return Interval::only_nan();
  }
  const bool undefined = (contains(x, 0) && may_be_infinite(y)) || (contains(y, 0) && may_be_infinite(x));
  return corners(x, y, x.may_be_nan || y.may_be_nan || undefined, [](double a, double b) {
    const double product = a * b;
    return std::isnan(product) ? 0 : product;  // 0 * inf: for the finite values beside it, the product is 0
  });
}

Interval real_div(const Interval& x, const Interval& y) {
  if (!x.has_number() || !y.has_number()) {
    return Interval::only_nan();
  }
  const bool may_be_nan = x.may_be_nan || y.may_be_nan || (may_be_infinite(x) && may_be_infinite(y));
  if (contains(y, 0)) {
    return Interval::real(-kInfinity, kInfinity, may_be_nan || contains(x, 0));
  }
  const Interval result = corners(x, y, may_be_nan, [](double a, double b) {
    const double quotient = a / b;
    return std::isnan(quotient) ? 0 : quotient;  // inf / inf
  });
  if (y.real_lo == y.real_hi && is_power_of_two(y.real_lo)) {
    return result;
  }
  // A backend may multiply by the reciprocal, with an error of a few units in the last place.
  const auto widen = [](double value, double direction) {
    return std::isinf(value) ? value : value + direction * (std::abs(value) * 0x1p-20 + kMinNormal);
  };
  return outward(widen(result.real_lo, -1), widen(result.real_hi, 1), may_be_nan);
}

Interval real_rem(const Interval& x, const Interval& y) {
  if (!x.has_number() || !y.has_number()) {
    return Interval::only_nan();
  }
  const bool may_be_nan = x.may_be_nan || y.may_be_nan || contains(y, 0) || may_be_infinite(x);
  const double largest = std::max(std::abs(y.real_lo), std::abs(y.real_hi));
  // A backend may compute x - trunc(x / y) * y. If the quotient is rounded to the next integer, the result has the
  // other sign.
  const double slack = largest * 0x1p-10;
  const double lo = x.real_lo < 0 ? std::max(x.real_lo, -largest) : 0;
  const double hi = x.real_hi > 0 ? std::min(x.real_hi, largest) : 0;
  return outward(std::isfinite(slack) ? lo - slack : lo, std::isfinite(slack) ? hi + slack : hi, may_be_nan);
}

Interval real_min(const Interval& x, const Interval& y) {
  if (!x.has_number() || !y.has_number()) {
    return Interval::only_nan();
  }
  return Interval::real(std::min(x.real_lo, y.real_lo), std::min(x.real_hi, y.real_hi), x.may_be_nan || y.may_be_nan);
}

Interval real_max(const Interval& x, const Interval& y) {
  if (!x.has_number() || !y.has_number()) {
    return Interval::only_nan();
  }
  return Interval::real(std::max(x.real_lo, y.real_lo), std::max(x.real_hi, y.real_hi), x.may_be_nan || y.may_be_nan);
}

// Only for a positive base, for which pow is monotone in each operand. NaN^0 and 1^NaN are 1.
Interval real_pow(const Interval& x, const Interval& y) {
  if (x.may_be_nan || y.may_be_nan || x.real_lo <= 0 || may_be_infinite(x) || may_be_infinite(y)) {
    return Interval::everything(Type::kF32);
  }
  const Interval result = corners(x, y, false, [](double a, double b) { return std::pow(a, b); });
  // Backends compute 2^(y log2 x), whose error grows with the exponent. Beyond this range the result may be any
  // non-negative number.
  if (result.real_hi >= 0x1p30 || result.real_lo <= 0x1p-30) {
    return Interval::real(0, kInfinity);
  }
  return clamped(loose(result.real_lo, result.real_hi, false), 0, kInfinity);
}

Interval real_compare(Op op, const Interval& x, const Interval& y) {
  const bool may_be_nan = x.may_be_nan || y.may_be_nan;
  const bool numbers = x.has_number() && y.has_number();
  const bool ordered = numbers && !may_be_nan;  // comparisons with NaN are false, except ne
  const bool same_point = numbers && x.real_lo == x.real_hi && y.real_lo == y.real_hi && x.real_lo == y.real_lo;
  const bool overlap = numbers && x.real_lo <= y.real_hi && y.real_lo <= x.real_hi;
  if (op == Op::k_eq) {
    return decided(same_point && !may_be_nan, overlap);
  }
  if (op == Op::k_ne) {
    return decided(!overlap, !same_point || may_be_nan);
  }
  if (op == Op::k_lt) {
    return decided(ordered && x.real_hi < y.real_lo, numbers && x.real_lo < y.real_hi);
  }
  if (op == Op::k_le) {
    return decided(ordered && x.real_hi <= y.real_lo, numbers && x.real_lo <= y.real_hi);
  }
  return op == Op::k_gt ? real_compare(Op::k_lt, y, x) : real_compare(Op::k_le, y, x);
}

Interval real_is_finite(const Interval& x) {
  const bool possibly = x.has_number() && x.real_lo < kInfinity && x.real_hi > -kInfinity;
  const bool surely = x.has_number() && !x.may_be_nan && x.real_lo >= -kMaxFloat && x.real_hi <= kMaxFloat;
  return decided(surely, possibly);
}

Interval real_to_integer(Type type, const Interval& x) {
  if (!x.has_number()) {
    return Interval::integer(0, 0);
  }
  const Interval result = Interval::integer(saturated(x.real_lo, type), saturated(x.real_hi, type));
  return x.may_be_nan ? hull(type, result, Interval::integer(0, 0)) : result;
}

// The bits of positive floats have the order of the floats. The sign of a zero is unknown.
Interval real_to_bits(const Interval& x) {
  if (x.may_be_nan || !x.has_number() || x.real_lo <= 0) {
    return Interval::everything(Type::kI32);
  }
  return Interval::integer(std::bit_cast<int32_t>(static_cast<float>(x.real_lo)),
                           std::bit_cast<int32_t>(static_cast<float>(x.real_hi)));
}

}  // namespace

Interval real_value(double value) {
  if (std::isnan(value)) {
    return Interval::only_nan();
  }
  const bool subnormal = std::abs(value) < kMinNormal && value != 0;
  return subnormal ? Interval::real(std::min(value, 0.0), std::max(value, 0.0)) : Interval::real(value, value);
}

Interval integer_to_real(const Interval& x) {
  return outward(static_cast<double>(x.lo), static_cast<double>(x.hi), false);
}

Interval bits_to_real(const Interval& x) {
  constexpr int64_t kInfinityBits = 0x7f800000;
  if (x.lo < 0 || x.hi > kInfinityBits) {
    return Interval::everything(Type::kF32);
  }
  const double lo = std::bit_cast<float>(static_cast<int32_t>(x.lo));
  const double hi = std::bit_cast<float>(static_cast<int32_t>(x.hi));
  return outward(lo, hi, false);
}

Interval real_operation(Op op, const Interval& x, const Interval& y) {
  const Interval undefined = Interval::everything(Type::kF32);
  const TypeRule type_rule = info(op).rule;
  const bool is_function = type_rule == TypeRule::kFloat || type_rule == TypeRule::kNumeric;
  if (is_function && info(op).arity == 1 && !x.has_number()) {
    return Interval::only_nan();
  }
  switch (op) {
#define FLASHLIFT_OP(name, arity, rule, real, integer, to_x, to_y, real_interval, ...) \
  case Op::k_##name:                                                                   \
    return real_interval;
#include "flashlift/ops.def"
  }
  return undefined;
}

}  // namespace flashlift::score
