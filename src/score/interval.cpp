#include "score/interval.h"

#include <algorithm>

#include "score/interval_integer.h"
#include "score/interval_real.h"

namespace flashlift::score {

Interval Interval::everything(Type type) {
  switch (type) {
    case Type::kI1:
      return integer(0, 1);
    case Type::kI32:
      return integer(std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max());
    case Type::kI64:
      return integer(std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max());
    case Type::kF32:
      break;
  }
  const double infinity = std::numeric_limits<double>::infinity();
  return real(-infinity, infinity, true);
}

Interval hull(Type type, const Interval& x, const Interval& y) {
  if (type != Type::kF32) {
    return Interval::integer(std::min(x.lo, y.lo), std::max(x.hi, y.hi));
  }
  return Interval::real(std::min(x.real_lo, y.real_lo), std::max(x.real_hi, y.real_hi), x.may_be_nan || y.may_be_nan);
}

Interval apply(Op op, Type result_type, Type operand_type, const Interval& x, const Interval& y, const Interval& z) {
  const Type type = operand_type;
  const bool is_real = operand_type == Type::kF32;
  switch (op) {
    case Op::k_score:
    case Op::k_b:
    case Op::k_h:
    case Op::k_q:
    case Op::k_kv:
    case Op::k_q_len:
    case Op::k_kv_len:
    case Op::k_constant:
    case Op::k_load:
    case Op::k_search:
      break;
    case Op::k_add:
      return is_real ? real_add(x, y) : integer_add(type, x, y);
    case Op::k_sub:
      return is_real ? real_sub(x, y) : integer_sub(type, x, y);
    case Op::k_mul:
      return is_real ? real_mul(x, y) : integer_mul(type, x, y);
    case Op::k_div:
      return is_real ? real_div(x, y) : integer_div(type, x, y);
    case Op::k_rem:
      return is_real ? real_rem(x, y) : integer_rem(x, y);
    case Op::k_min:
      return is_real ? real_min(x, y) : integer_min(x, y);
    case Op::k_max:
      return is_real ? real_max(x, y) : integer_max(x, y);
    case Op::k_floor_div:
      return integer_floor_div(type, x, y);
    case Op::k_mod:
      return integer_mod(x, y);
    case Op::k_neg:
      return is_real ? real_unary(op, x) : integer_neg(type, x);
    case Op::k_abs:
      return is_real ? real_unary(op, x) : integer_abs(type, x);
    case Op::k_sign:
      return is_real ? real_unary(op, x) : integer_sign(x);
    case Op::k_pow:
      return real_pow(x, y);
    case Op::k_floor:
    case Op::k_ceil:
    case Op::k_round_even:
    case Op::k_exp:
    case Op::k_exp2:
    case Op::k_expm1:
    case Op::k_log:
    case Op::k_log2:
    case Op::k_log1p:
    case Op::k_sqrt:
    case Op::k_rsqrt:
    case Op::k_tanh:
    case Op::k_sigmoid:
    case Op::k_sin:
    case Op::k_cos:
    case Op::k_erf:
    case Op::k_round_bf16:
    case Op::k_round_f16:
      return real_unary(op, x);
    case Op::k_eq:
    case Op::k_ne:
    case Op::k_lt:
    case Op::k_le:
    case Op::k_gt:
    case Op::k_ge:
      return is_real ? real_compare(op, x, y) : integer_compare(op, x, y);
    case Op::k_is_finite:
      return real_is_finite(x);
    case Op::k_select:
      return x.is_point() ? (x.lo != 0 ? y : z) : hull(result_type, y, z);
    case Op::k_and:
    case Op::k_or:
    case Op::k_xor:
      return integer_bits(op, type, x, y);
    case Op::k_not:
      return integer_not(type, x);
    case Op::k_shl:
      return integer_shl(type, x, y);
    case Op::k_shr:
      return integer_shr(type, x, y);
    case Op::k_ushr:
      return integer_ushr(type, x, y);
    case Op::k_to_i1:
      return is_real ? real_compare(Op::k_ne, x, Interval::real(0, 0))
                     : integer_compare(Op::k_ne, x, Interval::integer(0, 0));
    case Op::k_to_i32:
    case Op::k_to_i64:
      return is_real ? real_to_integer(result_type, x) : integer_to_integer(result_type, x);
    case Op::k_to_f32:
      return is_real ? x : integer_to_real(x);
    case Op::k_bitcast_i32:
      return real_to_bits(x);
    case Op::k_bitcast_f32:
      return bits_to_real(x);
  }
  return Interval::everything(result_type);
}

}  // namespace flashlift::score
