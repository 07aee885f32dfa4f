#include "score/interval_integer.h"

#include <algorithm>
#include <bit>
#include <initializer_list>

#include "score/interval_real.h"

namespace flashlift::score {
namespace {

// Holds sums, products and shifts of i64 exactly.
__extension__ using Wide = __int128;

struct WideInterval {
  Wide lo;
  Wide hi;
};

int width(Type type) { return type == Type::kI64 ? 64 : 32; }

// A value outside of the type wraps around, so that the result may be any value.
Interval fit(Type type, const WideInterval& x) {
  const Interval all = Interval::everything(type);
  return x.lo < all.lo || x.hi > all.hi ? all
                                        : Interval::integer(static_cast<int64_t>(x.lo), static_cast<int64_t>(x.hi));
}

WideInterval join(const WideInterval& x, const WideInterval& y) { return {std::min(x.lo, y.lo), std::max(x.hi, y.hi)}; }

// The hull of f over the corners. Valid if f is monotone in each operand while the other is constant.
template <typename F>
WideInterval corners(const Interval& x, const Interval& y, F f) {
  const auto [lo, hi] = std::minmax({f(x.lo, y.lo), f(x.lo, y.hi), f(x.hi, y.lo), f(x.hi, y.hi)});
  return {lo, hi};
}

Wide floor_quotient(Wide x, Wide y) {
  const Wide quotient = x / y;
  return x % y != 0 && (x < 0) != (y < 0) ? quotient - 1 : quotient;
}

// Division by a range is monotone on each side of zero. x / 0 is -1.
template <typename F>
Interval divide(Type type, const Interval& x, const Interval& y, F quotient) {
  const auto over = [&](int64_t lo, int64_t hi) { return corners(x, Interval::integer(lo, hi), quotient); };
  const bool zero = y.lo <= 0 && y.hi >= 0;
  WideInterval result{-1, -1};
  bool empty = !zero;
  const auto add = [&](const WideInterval& part) {
    result = empty ? part : join(result, part);
    empty = false;
  };
  if (y.lo < 0) {
    add(over(y.lo, std::min<int64_t>(y.hi, -1)));
  }
  if (y.hi > 0) {
    add(over(std::max<int64_t>(y.lo, 1), y.hi));
  }
  return fit(type, result);
}

Interval narrow(Wide lo, Wide hi) { return Interval::integer(static_cast<int64_t>(lo), static_cast<int64_t>(hi)); }

// The largest and smallest |y|, without zero.
struct Magnitudes {
  Wide smallest;
  Wide largest;
};
Magnitudes magnitudes(const Interval& y) {
  const Wide lo = y.lo < 0 ? -Wide{y.lo} : Wide{y.lo};
  const Wide hi = y.hi < 0 ? -Wide{y.hi} : Wide{y.hi};
  const bool around_zero = y.lo <= 0 && y.hi >= 0;
  return {around_zero ? Wide{1} : std::min(lo, hi), std::max(lo, hi)};
}

// x % y for y != 0, with the sign of x.
Interval nonzero_rem(const Interval& x, const Interval& y) {
  if (y.is_point()) {
    const Wide quotient = Wide{x.lo} / y.lo;
    if (quotient == Wide{x.hi} / y.lo) {  // within one period
      return narrow(x.lo - quotient * y.lo, x.hi - quotient * y.lo);
    }
  }
  const auto [smallest, largest] = magnitudes(y);
  if (x.lo > -smallest && x.hi < smallest) {
    return x;
  }
  return narrow(x.lo < 0 ? std::max<Wide>(x.lo, 1 - largest) : Wide{0},
                x.hi > 0 ? std::min<Wide>(x.hi, largest - 1) : Wide{0});
}

// x mod y for y of one sign, with the sign of y.
Interval signed_mod(const Interval& x, const Interval& y) {
  if (y.is_point()) {
    const Wide quotient = floor_quotient(x.lo, y.lo);
    if (quotient == floor_quotient(x.hi, y.lo)) {  // within one period
      return narrow(x.lo - quotient * y.lo, x.hi - quotient * y.lo);
    }
  }
  if (y.lo > 0) {
    if (x.lo >= 0) {
      return x.hi < y.lo ? x : narrow(0, std::min<Wide>(x.hi, Wide{y.hi} - 1));
    }
    return narrow(0, Wide{y.hi} - 1);
  }
  if (x.hi <= 0) {
    return x.lo > y.hi ? x : narrow(std::max<Wide>(x.lo, Wide{y.lo} + 1), 0);
  }
  return narrow(Wide{y.lo} + 1, 0);
}

// The bits that all values between the bounds share: those above the highest bit in which the bounds differ.
struct KnownBits {
  uint64_t known;  // a mask of the bits
  uint64_t value;  // their values
};
KnownBits known_bits(const Interval& x) {
  const uint64_t difference = static_cast<uint64_t>(x.lo) ^ static_cast<uint64_t>(x.hi);
  const int unknown_bits = 64 - std::countl_zero(difference);
  const uint64_t known = unknown_bits == 64 ? 0 : ~uint64_t{0} << unknown_bits;
  return {known, static_cast<uint64_t>(x.lo) & known};
}

// Values are sign-extended, so that bit 63 is the sign for i32, too.
Interval from_known_bits(uint64_t known_zero, uint64_t known_one) {
  const uint64_t sign = uint64_t{1} << 63;
  const uint64_t unknown = ~(known_zero | known_one);
  const uint64_t lo = known_one | (unknown & sign);
  const uint64_t hi = known_one | (unknown & ~sign);
  return Interval::integer(static_cast<int64_t>(lo), static_cast<int64_t>(hi));
}

bool is_low_mask(int64_t value) { return value >= 0 && std::has_single_bit(static_cast<uint64_t>(value) + 1); }

Interval intersect(const Interval& x, const Interval& y) {
  return Interval::integer(std::max(x.lo, y.lo), std::min(x.hi, y.hi));
}

// Improves the bounds of x & y: a non-negative operand bounds the result, and x & (2^n - 1) is x mod 2^n.
Interval sharpen_and(Interval result, const Interval& x, const Interval& y) {
  for (const auto& [mask, other] : {std::pair(&x, &y), std::pair(&y, &x)}) {
    if (mask->lo >= 0) {
      result = intersect(result, Interval::integer(0, mask->hi));
    }
    if (mask->is_point() && is_low_mask(mask->lo) && mask->lo < (int64_t{1} << 62)) {
      result = intersect(result, signed_mod(*other, Interval::integer(mask->lo + 1, mask->lo + 1)));
    }
    if (mask->is_point() && is_low_mask(~mask->lo)) {  // clears the low bits, which rounds down monotonically
      result = intersect(result, Interval::integer(other->lo & mask->lo, other->hi & mask->lo));
    }
  }
  return result;
}

Interval integer_add(Type type, const Interval& x, const Interval& y) {
  return fit(type, {Wide{x.lo} + y.lo, Wide{x.hi} + y.hi});
}

Interval integer_sub(Type type, const Interval& x, const Interval& y) {
  return fit(type, {Wide{x.lo} - y.hi, Wide{x.hi} - y.lo});
}

Interval integer_mul(Type type, const Interval& x, const Interval& y) {
  return fit(type, corners(x, y, [](Wide a, Wide b) { return a * b; }));
}

Interval integer_div(Type type, const Interval& x, const Interval& y) {
  return divide(type, x, y, [](Wide a, Wide b) { return a / b; });
}

Interval integer_floor_div(Type type, const Interval& x, const Interval& y) {
  return divide(type, x, y, floor_quotient);
}

Interval integer_rem(const Interval& x, const Interval& y) {
  if (y.lo == 0 && y.hi == 0) {
    return x;
  }
  const Interval result = nonzero_rem(x, y);
  return y.lo <= 0 && y.hi >= 0 ? hull(Type::kI64, result, x) : result;
}

Interval integer_mod(const Interval& x, const Interval& y) {
  if (y.lo > 0 || y.hi < 0) {
    return signed_mod(x, y);
  }
  Interval result = x;  // x mod 0
  if (y.lo < 0) {
    result = hull(Type::kI64, result, signed_mod(x, Interval::integer(y.lo, -1)));
  }
  if (y.hi > 0) {
    result = hull(Type::kI64, result, signed_mod(x, Interval::integer(1, y.hi)));
  }
  return result;
}

Interval integer_min(const Interval& x, const Interval& y) {
  return Interval::integer(std::min(x.lo, y.lo), std::min(x.hi, y.hi));
}

Interval integer_max(const Interval& x, const Interval& y) {
  return Interval::integer(std::max(x.lo, y.lo), std::max(x.hi, y.hi));
}

Interval integer_neg(Type type, const Interval& x) { return fit(type, {-Wide{x.hi}, -Wide{x.lo}}); }

Interval integer_abs(Type type, const Interval& x) {
  const Wide lo = x.lo < 0 ? -Wide{x.lo} : Wide{x.lo};
  const Wide hi = x.hi < 0 ? -Wide{x.hi} : Wide{x.hi};
  return fit(type, {x.lo <= 0 && x.hi >= 0 ? Wide{0} : std::min(lo, hi), std::max(lo, hi)});
}

Interval integer_sign(const Interval& x) { return Interval::integer((x.lo > 0) - (x.lo < 0), (x.hi > 0) - (x.hi < 0)); }

Interval integer_not(Type type, const Interval& x) {
  return type == Type::kI1 ? Interval::integer(1 - x.hi, 1 - x.lo) : Interval::integer(~x.hi, ~x.lo);
}

Interval integer_bits(Op op, Type type, const Interval& x, const Interval& y) {
  if (type == Type::kI1 && op != Op::k_xor) {
    return op == Op::k_and ? integer_min(x, y) : integer_max(x, y);
  }
  if (op == Op::k_or) {  // ~(~x & ~y), on values read as i64 whatever their type
    const Interval both = integer_bits(Op::k_and, Type::kI64, integer_not(Type::kI64, x), integer_not(Type::kI64, y));
    return integer_not(Type::kI64, both);
  }
  const KnownBits a = known_bits(x);
  const KnownBits b = known_bits(y);
  const uint64_t a_zero = a.known & ~a.value;
  const uint64_t b_zero = b.known & ~b.value;
  if (op == Op::k_and) {
    return sharpen_and(from_known_bits(a_zero | b_zero, a.value & b.value), x, y);
  }
  const uint64_t known = a.known & b.known;
  const uint64_t value = (a.value ^ b.value) & known;
  return from_known_bits(known & ~value, value);
}

Interval integer_shl(Type type, const Interval& x, const Interval& y) {
  const int64_t lo = std::max<int64_t>(y.lo, 0);
  const int64_t hi = std::min<int64_t>(y.hi, width(type) - 1);
  if (lo > hi) {
    return Interval::integer(0, 0);
  }
  const WideInterval shifted =
      corners(x, Interval::integer(lo, hi), [](Wide a, Wide b) { return a * (Wide{1} << static_cast<int>(b)); });
  const bool outside = y.lo < 0 || y.hi >= width(type);
  return fit(type, outside ? join(shifted, {0, 0}) : shifted);
}

Interval integer_shr(Type type, const Interval& x, const Interval& y) {
  const int64_t last = width(type) - 1;  // leaves only the sign, like any larger amount
  const bool outside = y.lo < 0 || y.hi > last;
  int64_t lo = std::clamp<int64_t>(y.lo, 0, last);
  int64_t hi = outside ? last : y.hi;
  if (y.hi < 0 || y.lo > last) {
    lo = hi = last;
  }
  return fit(type, corners(x, Interval::integer(lo, hi), [](Wide a, Wide b) { return a >> static_cast<int>(b); }));
}

Interval integer_ushr(Type type, const Interval& x, const Interval& y) {
  const int64_t lo = std::max<int64_t>(y.lo, 0);
  const int64_t hi = std::min<int64_t>(y.hi, width(type) - 1);
  if (lo > hi) {
    return Interval::integer(0, 0);
  }
  const Wide modulus = Wide{1} << width(type);
  const auto shifted = [&](Wide x_lo, Wide x_hi) {  // for non-negative values
    return WideInterval{x_lo >> static_cast<int>(hi), x_hi >> static_cast<int>(lo)};
  };
  WideInterval result = x.lo >= 0  ? shifted(x.lo, x.hi)
                        : x.hi < 0 ? shifted(x.lo + modulus, x.hi + modulus)
                                   : shifted(0, modulus - 1);
  const bool outside = y.lo < 0 || y.hi >= width(type);
  if (outside) {
    result = join(result, {0, 0});
  }
  // A shift by 0 keeps the sign, although the value as unsigned is outside of the type.
  if (lo == 0 && hi == 0) {
    return outside ? hull(type, x, Interval::integer(0, 0)) : x;
  }
  return fit(type, result);
}

// Conversions from any integer type to i32 or i64.
Interval integer_to_integer(Type type, const Interval& x) { return fit(type, {x.lo, x.hi}); }

}  // namespace

Interval integer_compare(Op op, const Interval& x, const Interval& y) {
  const auto decided = [](bool surely, bool possibly) { return Interval::integer(surely, possibly); };
  const bool same_point = x.is_point() && y.is_point() && x.lo == y.lo;
  const bool overlap = x.lo <= y.hi && y.lo <= x.hi;
  if (op == Op::k_eq) {
    return decided(same_point, overlap);
  }
  if (op == Op::k_ne) {
    return decided(!overlap, !same_point);
  }
  if (op == Op::k_lt) {
    return decided(x.hi < y.lo, x.lo < y.hi);
  }
  if (op == Op::k_le) {
    return decided(x.hi <= y.lo, x.lo <= y.hi);
  }
  return op == Op::k_gt ? integer_compare(Op::k_lt, y, x) : integer_compare(Op::k_le, y, x);
}

Interval integer_operation(Op op, Type type, const Interval& x, const Interval& y) {
  const Interval undefined = Interval::everything(type);
  switch (op) {
#define FLASHLIFT_OP(name, arity, rule, real, integer, to_x, to_y, real_interval, integer_interval, ...) \
  case Op::k_##name:                                                                                     \
    return integer_interval;
#include "flashlift/ops.def"
  }
  return undefined;
}

}  // namespace flashlift::score
