#include "score/scalar.h"

#include <bit>
#include <cmath>
#include <limits>

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

int64_t shift(Op op, int64_t x, int64_t y, Type type) {
  const bool outside = y < 0 || y >= width(type);
  switch (op) {
    case Op::k_shl:
      return outside ? 0 : static_cast<int64_t>(static_cast<uint64_t>(x) << y);
    case Op::k_shr:
      return outside ? (x < 0 ? -1 : 0) : x >> y;
    default: {
      const uint64_t unsigned_x =
          type == Type::kI64 ? static_cast<uint64_t>(x) : static_cast<uint64_t>(static_cast<uint32_t>(x));
      return outside ? 0 : static_cast<int64_t>(unsigned_x >> y);
    }
  }
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

template <typename T>
bool compare(Op op, T x, T y) {
  switch (op) {
    case Op::k_eq:
      return x == y;
    case Op::k_ne:
      return x != y;
    case Op::k_lt:
      return x < y;
    case Op::k_le:
      return x <= y;
    case Op::k_gt:
      return x > y;
    default:
      return x >= y;
  }
}

template <typename Real>
Scalar<Real> apply_integer(Op op, Type type, int64_t x, int64_t y) {
  const uint64_t ux = static_cast<uint64_t>(x);
  const uint64_t uy = static_cast<uint64_t>(y);
  const auto wrapped = [&](uint64_t value) { return integer<Real>(wrap(static_cast<int64_t>(value), type)); };
  switch (op) {
    case Op::k_add:
      return wrapped(ux + uy);
    case Op::k_sub:
      return wrapped(ux - uy);
    case Op::k_mul:
      return wrapped(ux * uy);
    case Op::k_neg:
      return wrapped(0 - ux);
    case Op::k_abs:
      return wrapped(x < 0 ? 0 - ux : ux);
    case Op::k_sign:
      return integer<Real>(x > 0 ? 1 : (x < 0 ? -1 : 0));
    case Op::k_div:
      return integer<Real>(wrap(divide(x, y, type), type));
    case Op::k_floor_div:
      return integer<Real>(wrap(floor_divide(x, y, type), type));
    case Op::k_rem:
      return integer<Real>(remainder(x, y));
    case Op::k_mod:
      return integer<Real>(floor_modulo(x, y));
    case Op::k_min:
      return integer<Real>(x < y ? x : y);
    case Op::k_max:
      return integer<Real>(x < y ? y : x);
    case Op::k_and:
      return integer<Real>(x & y);
    case Op::k_or:
      return integer<Real>(x | y);
    case Op::k_xor:
      return integer<Real>(x ^ y);
    case Op::k_not:
      return integer<Real>(wrap(~x, type));
    default:  // the shifts
      return integer<Real>(wrap(shift(op, x, y, type), type));
  }
}

template <typename Real>
Real apply_real(Op op, Real x, Real y) {
  switch (op) {
    case Op::k_add:
      return x + y;
    case Op::k_sub:
      return x - y;
    case Op::k_mul:
      return x * y;
    case Op::k_div:
      return x / y;
    case Op::k_rem:
      return std::fmod(x, y);
    case Op::k_min:
      return minimum(x, y);
    case Op::k_max:
      return maximum(x, y);
    case Op::k_neg:
      return -x;
    case Op::k_abs:
      return std::abs(x);
    case Op::k_sign:
      return x > 0 ? Real(1) : (x < 0 ? Real(-1) : x);
    case Op::k_floor:
      return std::floor(x);
    case Op::k_ceil:
      return std::ceil(x);
    case Op::k_round_even:
      return std::nearbyint(x);
    case Op::k_pow:
      return std::pow(x, y);
    case Op::k_exp:
      return std::exp(x);
    case Op::k_exp2:
      return std::exp2(x);
    case Op::k_expm1:
      return std::expm1(x);
    case Op::k_log:
      return std::log(x);
    case Op::k_log2:
      return std::log2(x);
    case Op::k_log1p:
      return std::log1p(x);
    case Op::k_sqrt:
      return std::sqrt(x);
    case Op::k_rsqrt:
      return Real(1) / std::sqrt(x);
    case Op::k_tanh:
      return std::tanh(x);
    case Op::k_sigmoid:
      return Real(1) / (Real(1) + std::exp(-x));
    case Op::k_sin:
      return std::sin(x);
    case Op::k_cos:
      return std::cos(x);
    case Op::k_erf:
      return std::erf(x);
    case Op::k_round_bf16:
      return bf16_to_float(float_to_bf16(static_cast<float>(x)));
    default:  // round_f16
      return f16_to_float(float_to_f16(static_cast<float>(x)));
  }
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

template <typename Real>
Scalar<Real> apply(Op op, Type result_type, Type operand_type, std::span<const Scalar<Real>> x) {
  const bool is_real = operand_type == Type::kF32;
  const Scalar<Real> second = x.size() > 1 ? x[1] : Scalar<Real>{};
  switch (info(op).rule) {
    case TypeRule::kNumeric:
    case TypeRule::kInteger:
    case TypeRule::kBits:
    case TypeRule::kFloat:
      return is_real ? real(apply_real(op, x[0].f, second.f)) : apply_integer<Real>(op, operand_type, x[0].i, second.i);
    case TypeRule::kCompare:
    case TypeRule::kCompareAny:
      return integer<Real>(is_real ? compare(op, x[0].f, second.f) : compare(op, x[0].i, second.i));
    case TypeRule::kPredicate:
      return integer<Real>(std::isfinite(x[0].f));
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
      break;  // have no operands to apply to
  }
  return {};
}

template Scalar<float> apply(Op, Type, Type, std::span<const Scalar<float>>);
template Scalar<double> apply(Op, Type, Type, std::span<const Scalar<double>>);

}  // namespace flashlift::score
