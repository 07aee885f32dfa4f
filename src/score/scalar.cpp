#include "score/scalar.h"

#include <bit>
#include <cmath>
#include <limits>
#include <numbers>

#include "support/half.h"

namespace flashlift::score {
namespace {

int width(Type type) { return type == Type::kI64 ? 64 : 32; }

int64_t wrap(int64_t value, Type type) {
  switch (type) {
    case Type::kI1:
      return value & 1;
    case Type::kI32:
      return static_cast<int32_t>(static_cast<uint64_t>(value));
    case Type::kI64:
    case Type::kF32:
      return value;
  }
  return value;
}

int64_t lowest(Type type) {
  return type == Type::kI64 ? std::numeric_limits<int64_t>::min() : std::numeric_limits<int32_t>::min();
}

int64_t divide(int64_t x, int64_t y, Type type) {
  if (y == 0) {
    return -1;
  }
  if (y == -1) {
    return x == lowest(type) ? x : -x;
  }
  return x / y;
}

int64_t remainder(int64_t x, int64_t y) {
  if (y == 0) {
    return x;
  }
  return y == -1 ? 0 : x % y;
}

int64_t floor_divide(int64_t x, int64_t y, Type type) {
  const int64_t quotient = divide(x, y, type);
  return y != 0 && remainder(x, y) != 0 && ((x < 0) != (y < 0)) ? quotient - 1 : quotient;
}

int64_t floor_modulo(int64_t x, int64_t y) {
  const int64_t rest = remainder(x, y);
  return y != 0 && rest != 0 && ((rest < 0) != (y < 0)) ? rest + y : rest;
}

bool is_outside(int64_t amount, Type type) { return amount < 0 || amount >= width(type); }

int64_t shift_left(int64_t x, int64_t y, Type type) {
  return is_outside(y, type) ? 0 : static_cast<int64_t>(static_cast<uint64_t>(x) << y);
}

int64_t shift_right(int64_t x, int64_t y, Type type) { return is_outside(y, type) ? (x < 0 ? -1 : 0) : x >> y; }

int64_t shift_right_logical(int64_t x, int64_t y, Type type) {
  const uint64_t bits = type == Type::kI64 ? static_cast<uint64_t>(x) : static_cast<uint32_t>(x);
  return is_outside(y, type) ? 0 : static_cast<int64_t>(bits >> y);
}

template <typename Real>
int64_t to_integer(Real value, Type type) {
  if (std::isnan(value)) {
    return 0;
  }
  if (type == Type::kI32) {
    if (value >= Real(2147483648.0)) {
      return std::numeric_limits<int32_t>::max();
    }
    return value <= Real(-2147483648.0) ? std::numeric_limits<int32_t>::min() : static_cast<int32_t>(value);
  }
  if (value >= Real(9223372036854775808.0)) {
    return std::numeric_limits<int64_t>::max();
  }
  return value <= Real(-9223372036854775808.0) ? std::numeric_limits<int64_t>::min() : static_cast<int64_t>(value);
}

template <typename Real>
Real minimum(Real x, Real y) {
  return std::isnan(x) || std::isnan(y) ? std::numeric_limits<Real>::quiet_NaN() : (y < x ? y : x);
}

template <typename Real>
Real maximum(Real x, Real y) {
  return std::isnan(x) || std::isnan(y) ? std::numeric_limits<Real>::quiet_NaN() : (x < y ? y : x);
}

template <typename Real>
Scalar<Real> real(Real value) {
  return {.i = 0, .f = value};
}

template <typename Real>
Scalar<Real> integer(int64_t value) {
  return {.i = value, .f = 0};
}

template <typename Real>
Real sign(Real x) {
  return x > 0 ? Real(1) : (x < 0 ? Real(-1) : x);
}

// Not 1 / (1 + e^-x), whose e^-x overflows where the result is not 0 yet.
template <typename Real>
Real sigmoid(Real x) {
  const Real e = std::exp(-std::abs(x));
  return (x < 0 ? e : Real(1)) / (Real(1) + e);
}

// The verifier rejects operations on integers whose row says `undefined`. The same holds for f32 below.
int64_t apply_integer(Op op, Type type, int64_t x, int64_t y) {
  constexpr int64_t undefined = 0;
  const uint64_t ux = static_cast<uint64_t>(x);
  const uint64_t uy = static_cast<uint64_t>(y);
  const auto wrapped = [&](uint64_t value) { return wrap(static_cast<int64_t>(value), type); };
  switch (op) {
#define FLASHLIFT_OP(name, arity, rule, real, integer, ...) \
  case Op::k_##name:                                        \
    return integer;
#include "flashlift/ops.def"
  }
  return undefined;
}

template <typename Real>
Real apply_real(Op op, Real x, Real y) {
  constexpr Real undefined = std::numeric_limits<Real>::quiet_NaN();
  switch (op) {
#define FLASHLIFT_OP(name, arity, rule, real, ...) \
  case Op::k_##name:                               \
    return real;
#include "flashlift/ops.def"
  }
  return undefined;
}

template <typename Real>
Scalar<Real> convert(Type target, Type source, Scalar<Real> x) {
  switch (target) {
    case Type::kI1:
      return integer<Real>(source == Type::kF32 ? x.f != 0 : x.i != 0);
    case Type::kI32:
    case Type::kI64:
      return integer<Real>(source == Type::kF32 ? to_integer(x.f, target) : wrap(x.i, target));
    case Type::kF32:
      return real(source == Type::kF32 ? x.f : static_cast<Real>(x.i));
  }
  return x;
}

}  // namespace

double inverse_erf(double x) {
  const double size = std::abs(x);
  if (!(size < 1)) {
    return size == 1 ? std::copysign(std::numeric_limits<double>::infinity(), x)
                     : std::numeric_limits<double>::quiet_NaN();
  }
  // Winitzki's approximation, with an error of 2e-3, followed by Halley's iteration on erfc, in which nothing cancels
  // near 1.
  constexpr double kFit = 0.147;
  const double logarithm = std::log1p(-x * x);
  const double middle = 2 / (std::numbers::pi * kFit) + logarithm / 2;
  double y = std::sqrt(std::sqrt(middle * middle - logarithm / kFit) - middle);
  for (int i = 0; i < 4; ++i) {
    const double slope = 2 * std::numbers::inv_sqrtpi * std::exp(-y * y);
    const double error = (size < 0.5 ? std::erf(y) - size : (1 - size) - std::erfc(y)) / slope;
    y -= error / (1 + y * error);
  }
  return std::copysign(y, x);
}

template <typename Real>
Scalar<Real> apply(Op op, Type result_type, Type operand_type, std::span<const Scalar<Real>> x) {
  const bool is_real = operand_type == Type::kF32;
  const Scalar<Real> second = x.size() > 1 ? x[1] : Scalar<Real>{};
  switch (info(op).rule) {
    case TypeRule::kNumeric:
    case TypeRule::kInteger:
    case TypeRule::kBits:
    case TypeRule::kFloat:
      return is_real ? real(apply_real(op, x[0].f, second.f))
                     : integer<Real>(apply_integer(op, operand_type, x[0].i, second.i));
    case TypeRule::kCompare:
    case TypeRule::kCompareAny:
    case TypeRule::kPredicate:
      return integer<Real>(is_real ? apply_real(op, x[0].f, second.f) != 0
                                   : apply_integer(op, operand_type, x[0].i, second.i) != 0);
    case TypeRule::kSelect:
      return x[0].i != 0 ? x[1] : x[2];
    case TypeRule::kConvert:
      return convert(result_type, operand_type, x[0]);
    case TypeRule::kBitcast:
      return op == Op::k_bitcast_i32 ? integer<Real>(std::bit_cast<int32_t>(static_cast<float>(x[0].f)))
                                     : real(static_cast<Real>(std::bit_cast<float>(static_cast<int32_t>(x[0].i))));
    case TypeRule::kInputF32:
    case TypeRule::kInputI32:
    case TypeRule::kConstant:
    case TypeRule::kLoad:
    case TypeRule::kSearch:
      break;  // these have no operands
  }
  return {};
}

template Scalar<float> apply(Op, Type, Type, std::span<const Scalar<float>>);
template Scalar<double> apply(Op, Type, Type, std::span<const Scalar<double>>);

}  // namespace flashlift::score
