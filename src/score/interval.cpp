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
  switch (info(op).rule) {
    case TypeRule::kInputF32:
    case TypeRule::kInputI32:
    case TypeRule::kConstant:
    case TypeRule::kLoad:
    case TypeRule::kSearch:
      return Interval::everything(result_type);
    case TypeRule::kSelect:
      return x.is_point() ? (x.lo != 0 ? y : z) : hull(result_type, y, z);
    case TypeRule::kNumeric:
    case TypeRule::kInteger:
    case TypeRule::kBits:
    case TypeRule::kFloat:
    case TypeRule::kCompare:
    case TypeRule::kCompareAny:
    case TypeRule::kPredicate:
    case TypeRule::kConvert:
    case TypeRule::kBitcast:
      return operand_type == Type::kF32 ? real_operation(op, x, y) : integer_operation(op, operand_type, x, y);
  }
  return Interval::everything(result_type);
}

}  // namespace flashlift::score
