// Every operation's interval rule, compared with enumeration: no value may lie outside the interval, and for integers
// the interval should be the smallest possible.
#include "score/interval.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "score/scalar.h"
#include "score/verify.h"

namespace flashlift::score {
namespace {

std::vector<Op> all_ops() {
  return {
#define FLASHLIFT_OP(name, ...) Op::k_##name,
#include "flashlift/ops.def"
  };
}

bool is_input(Op op) {
  const TypeRule rule = info(op).rule;
  return rule == TypeRule::kInputF32 || rule == TypeRule::kInputI32 || rule == TypeRule::kConstant ||
         rule == TypeRule::kLoad || rule == TypeRule::kSearch;
}

// Whether an op of one or two operands accepts this operand type. A conversion is tested for each result type.
bool takes(Op op, Type type) {
  if (is_input(op) || op == Op::k_select) {
    return false;
  }
  return result_type(op, std::vector<Type>(info(op).arity, type), Type::kF32).ok();
}

Type result_of(Op op, Type type) { return *result_type(op, std::vector<Type>(info(op).arity, type), Type::kF32); }

int64_t run_integer(Op op, Type result, Type type, int64_t x, int64_t y) {
  const std::array<Scalar<double>, 2> operands = {Scalar<double>{.i = x}, Scalar<double>{.i = y}};
  return apply<double>(op, result, type, {operands.data(), static_cast<size_t>(info(op).arity)}).i;
}

std::string describe(Op op, const Interval& x, const Interval& y) {
  return std::string(info(op).name) + " [" + std::to_string(x.lo) + ", " + std::to_string(x.hi) + "] [" +
         std::to_string(y.lo) + ", " + std::to_string(y.hi) + "]";
}

struct Sharpness {
  int64_t intervals = 0;
  int64_t exact = 0;
};

// All intervals over -8 .. 8 (or 0 .. 1), all values within.
Sharpness enumerate(Op op, Type type) {
  const int lowest = type == Type::kI1 ? 0 : -8;
  const int highest = type == Type::kI1 ? 1 : 8;
  const bool binary = info(op).arity == 2;
  const Type result = result_of(op, type);
  Sharpness sharpness;
  for (int x_lo = lowest; x_lo <= highest; ++x_lo) {
    for (int x_hi = x_lo; x_hi <= highest; ++x_hi) {
      for (int y_lo = lowest; y_lo <= highest; ++y_lo) {
        for (int y_hi = y_lo; y_hi <= highest; ++y_hi) {
          if (!binary && (y_lo != 0 || y_hi != 0)) {
            continue;
          }
          const Interval x = Interval::integer(x_lo, x_hi);
          const Interval y = Interval::integer(y_lo, y_hi);
          const Interval got = apply(op, result, type, x, y, {});
          int64_t least = std::numeric_limits<int64_t>::max();
          int64_t most = std::numeric_limits<int64_t>::min();
          for (int a = x_lo; a <= x_hi; ++a) {
            for (int b = y_lo; b <= y_hi; ++b) {
              const int64_t value = run_integer(op, result, type, a, b);
              least = std::min(least, value);
              most = std::max(most, value);
            }
          }
          EXPECT_LE(got.lo, least) << describe(op, x, y);
          EXPECT_GE(got.hi, most) << describe(op, x, y);
          ++sharpness.intervals;
          sharpness.exact += got.lo == least && got.hi == most ? 1 : 0;
        }
      }
    }
  }
  return sharpness;
}

// The share of intervals that must be exact: all, except for bit operations and for remainders by a range, whose rules
// give only a bound. These are the shares reached today; a change of a rule may only raise them.
double least_share(Op op) {
  switch (op) {
    case Op::k_rem:
    case Op::k_mod:
      return 0.75;
    case Op::k_and:
      return 0.52;
    case Op::k_or:
      return 0.44;
    case Op::k_xor:
      return 0.18;
    case Op::k_ushr:
      return 0.5;
    default:
      return 1;
  }
}

TEST(IntervalRule, IntegerOpsAreSoundAndSharpOnSmallDomains) {
  for (const Op op : all_ops()) {
    for (const Type type : {Type::kI1, Type::kI32, Type::kI64}) {
      if (!takes(op, type) || result_of(op, type) == Type::kF32) {
        continue;
      }
      const Sharpness sharpness = enumerate(op, type);
      const double share = static_cast<double>(sharpness.exact) / static_cast<double>(sharpness.intervals);
      EXPECT_GE(share, type == Type::kI1 ? 1 : least_share(op)) << info(op).name << " on " << to_string(type);
    }
  }
}

TEST(IntervalRule, IntegerOpsAreSoundAtTheEndsOfTheType) {
  for (const Type type : {Type::kI32, Type::kI64}) {
    const Interval all = Interval::everything(type);
    const std::vector<int64_t> values = {all.lo, all.lo + 1, all.lo / 2, -65, -33, -2,         -1,         0,     1,
                                         2,      31,         32,         63,  64,  all.hi / 2, all.hi - 1, all.hi};
    for (const Op op : all_ops()) {
      if (!takes(op, type) || result_of(op, type) == Type::kF32) {
        continue;
      }
      const Type result = result_of(op, type);
      const size_t y_count = info(op).arity == 2 ? values.size() : 1;
      for (size_t xl = 0; xl < values.size(); ++xl) {
        for (size_t xh = xl; xh < values.size(); ++xh) {
          for (size_t yl = 0; yl < y_count; ++yl) {
            for (size_t yh = yl; yh < y_count; ++yh) {
              const Interval x = Interval::integer(values[xl], values[xh]);
              const Interval y = Interval::integer(values[yl], values[yh]);
              const Interval got = apply(op, result, type, x, y, {});
              for (size_t a = xl; a <= xh; ++a) {
                for (size_t b = yl; b <= yh; ++b) {
                  const int64_t value = run_integer(op, result, type, values[a], values[b]);
                  ASSERT_TRUE(got.lo <= value && value <= got.hi)
                      << describe(op, x, y) << " at " << values[a] << ", " << values[b] << " gives " << value;
                }
              }
            }
          }
        }
      }
    }
  }
}

TEST(IntervalRule, ModuloAndDivisionByConstantsAreExactWithinOnePeriod) {
  using Bounds = std::pair<int64_t, int64_t>;
  const auto mod = [](int64_t lo, int64_t hi, int64_t by, Op op = Op::k_mod) {
    const Interval got = apply(op, Type::kI32, Type::kI32, Interval::integer(lo, hi), Interval::integer(by, by), {});
    return std::pair(got.lo, got.hi);
  };
  EXPECT_EQ(mod(130, 250, 128), Bounds(2, 122));
  EXPECT_EQ(mod(100, 250, 128), Bounds(0, 127));
  EXPECT_EQ(mod(-100, -1, 128), Bounds(28, 127));
  EXPECT_EQ(mod(-100, -1, 128, Op::k_rem), Bounds(-100, -1));
  EXPECT_EQ(mod(-130, -127, 128, Op::k_floor_div), Bounds(-2, -1));
  EXPECT_EQ(mod(128, 255, 127, Op::k_and), Bounds(0, 127));
  EXPECT_EQ(mod(130, 140, 127, Op::k_and), Bounds(2, 12));
  EXPECT_EQ(mod(130, 140, -128, Op::k_and), Bounds(128, 128));
}

// ---- f32

const std::vector<float>& interesting_floats() {
  static const std::vector<float> values = [] {
    constexpr float kMax = std::numeric_limits<float>::max();
    std::vector<float> list = {-INFINITY, -kMax,   -3e9f, -1e5f, -88.0f, -2.5f,  -1.0f, -0.3f,
                               -1e-20f,   -1e-40f, -0.0f, 0.0f,  1e-40f, 1e-20f, 0.3f,  1.0f,
                               1.5f,      2.5f,    16.0f, 88.0f, 1e5f,   3e9f,   kMax,  INFINITY};
    return list;
  }();
  return values;
}

template <typename Real>
Scalar<Real> run_real(Op op, Type result, float x, float y) {
  const std::array<Scalar<Real>, 2> operands = {Scalar<Real>{.i = 0, .f = x}, Scalar<Real>{.i = 0, .f = y}};
  return apply<Real>(op, result, Type::kF32, {operands.data(), static_cast<size_t>(info(op).arity)});
}

bool holds(Type type, const Interval& interval, int64_t integer, double real) {
  if (type != Type::kF32) {
    return interval.lo <= integer && integer <= interval.hi;
  }
  return std::isnan(real) ? interval.may_be_nan : interval.real_lo <= real && real <= interval.real_hi;
}

// Both f32 and double precision, at the ends and at random points between them.
TEST(IntervalRule, RealOpsAreSound) {
  std::mt19937 random(1);
  const auto& values = interesting_floats();
  const auto draw = [&](size_t lo, size_t hi) {
    const size_t at = lo + random() % (hi - lo + 1);
    const bool between = at < hi && random() % 2 == 0 && std::isfinite(values[at]) && std::isfinite(values[at + 1]);
    if (!between) {
      return values[at];
    }
    const double share = std::uniform_real_distribution<double>(0, 1)(random);
    return static_cast<float>(values[at] + share * (double{values[at + 1]} - double{values[at]}));
  };
  for (const Op op : all_ops()) {
    if (!takes(op, Type::kF32)) {
      continue;
    }
    std::vector<Type> results = {result_of(op, Type::kF32)};
    const size_t count = values.size();
    const size_t y_count = info(op).arity == 2 ? count : 1;
    const Type result = results[0];
    for (size_t xl = 0; xl < count; ++xl) {
      for (size_t xh = xl; xh < count; ++xh) {
        for (size_t yl = 0; yl < y_count; ++yl) {
          for (size_t yh = yl; yh < y_count; ++yh) {
            const bool nan = random() % 8 == 0;
            const Interval x = Interval::real(values[xl], values[xh], nan);
            const Interval y = Interval::real(values[yl], values[yh]);
            const Interval got = apply(op, result, Type::kF32, x, y, {});
            for (int trial = 0; trial < 4; ++trial) {
              const float a = nan && trial == 0 ? NAN : draw(xl, xh);
              const float b = draw(yl, yh);
              const auto single = run_real<float>(op, result, a, b);
              const auto exact = run_real<double>(op, result, a, b);
              ASSERT_TRUE(holds(result, got, single.i, single.f))
                  << info(op).name << " [" << values[xl] << ", " << values[xh] << "] [" << values[yl] << ", "
                  << values[yh] << "] at " << a << ", " << b << " gives " << single.f << " or " << single.i
                  << " in f32";
              ASSERT_TRUE(holds(result, got, exact.i, exact.f))
                  << info(op).name << " [" << values[xl] << ", " << values[xh] << "] [" << values[yl] << ", "
                  << values[yh] << "] at " << a << ", " << b << " gives " << exact.f << " or " << exact.i << " in f64";
            }
          }
        }
      }
    }
  }
}

TEST(IntervalRule, OnlyNanStaysNan) {
  const Interval one = Interval::real(1, 1);
  for (const Op op : {Op::k_add, Op::k_mul, Op::k_max, Op::k_exp, Op::k_tanh, Op::k_round_bf16}) {
    const Interval got = apply(op, Type::kF32, Type::kF32, Interval::only_nan(), one, {});
    EXPECT_TRUE(got.may_be_nan && !got.has_number()) << info(op).name;
  }
  const Interval less = apply(Op::k_lt, Type::kI1, Type::kF32, Interval::only_nan(), one, {});
  EXPECT_TRUE(less.is_point() && less.lo == 0);
  const Interval differs = apply(Op::k_ne, Type::kI1, Type::kF32, Interval::only_nan(), one, {});
  EXPECT_TRUE(differs.is_point() && differs.lo == 1);
}

TEST(IntervalRule, WholeNumbersStayExactInFloatArithmetic) {
  const Interval x = apply(Op::k_to_f32, Type::kF32, Type::kI32, Interval::integer(0, 4095), {}, {});
  const Interval sum = apply(Op::k_add, Type::kF32, Type::kF32, x, Interval::real(-100, -100), {});
  EXPECT_EQ(sum.real_lo, -100);
  EXPECT_EQ(sum.real_hi, 3995);
}

TEST(IntervalRule, MinusInfinityIsCertainOnlyWhereItIs) {
  const double infinity = std::numeric_limits<double>::infinity();
  const auto add = [](const Interval& x, const Interval& y) {
    return apply(Op::k_add, Type::kF32, Type::kF32, x, y, {});
  };
  const Interval masked = add(Interval::real(-1e30, 1e30), Interval::real(-infinity, -infinity));
  EXPECT_TRUE(masked.real_hi == -infinity && !masked.may_be_nan);
  EXPECT_TRUE(add(Interval::real(-1, infinity), Interval::real(-infinity, -infinity)).may_be_nan);
  const double large = std::numeric_limits<float>::max();  // overflows in f32, not in the oracle's double precision
  const Interval sum = add(Interval::real(-large, -large), Interval::real(-large, -large));
  EXPECT_TRUE(sum.real_lo == -infinity && sum.real_hi == -large);
}

}  // namespace
}  // namespace flashlift::score
