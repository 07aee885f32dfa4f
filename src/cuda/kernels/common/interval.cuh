// Score-program operations on intervals: bounds of the results over a tile of coordinates. There is iv_<name> for each
// line of flashlift/ops.def with useful bounds; the emitter uses the whole range for the others
// (emit/statements.cpp).
//
// They are sound, not exact: a result contains every value of the operation for operands from the operands' intervals.
#pragma once

#include "cuda/kernels/common/captures.cuh"

namespace flashlift::cuda {

constexpr int kMayBeFalse = 1;
constexpr int kMayBeTrue = 2;
// For a mask_mod: all conditions that read captured tensors hold in the whole tile.
constexpr int kLoadsHold = 4;

// Queries that see a key. (Lengths are below 2^30, and so are a mask_mod's constants.)
struct QueryRange {
  int first;
  int last;
};
constexpr int kLastQuery = (1 << 30) - 1;

struct IntervalB {
  int possible;  // kMayBeFalse | kMayBeTrue
};
template <typename T>
struct IntervalI {
  i64 lo;
  i64 hi;
};
struct IntervalF {
  float lo;
  float hi;
  bool nan;  // may be NaN besides
};

FL_OP IntervalB everything_b() { return {kMayBeFalse | kMayBeTrue}; }
template <typename T>
FL_OP IntervalI<T> everything_i() {
  return {kLowest<T>, ~kLowest<T>};
}
FL_OP IntervalF everything_f() { return {-FL_INFINITY, FL_INFINITY, true}; }
// The bounds of a score before its score_mod: it counts as finite, so that adding -inf masks it.
FL_OP IntervalF anything_finite() { return {-3.4028235e38f, 3.4028235e38f, false}; }
// The bounds of a score_mod in a tile.
struct ScoreTile {
  bool masks;  // it gives -inf for all scores
  bool zeros;  // all masks that it adds are 0
};
FL_OP bool surely_zero(const IntervalF& x) { return x.lo == 0.0f && x.hi == 0.0f && !x.nan; }
FL_OP bool surely_masked(const IntervalF& x) { return x.hi == -FL_INFINITY && x.lo == -FL_INFINITY && !x.nan; }

FL_OP IntervalB point(bool x) { return {x ? kMayBeTrue : kMayBeFalse}; }
FL_OP IntervalI<i32> point(i32 x) { return {x, x}; }
FL_OP IntervalI<i64> point(i64 x) { return {x, x}; }
FL_OP IntervalF point(float x) { return x != x ? IntervalF{FL_INFINITY, -FL_INFINITY, true} : IntervalF{x, x, false}; }
FL_OP IntervalI<i32> range(i32 lo, i32 hi) { return {lo, hi}; }

// A result outside its type's range has wrapped around. Bounds of i64 are kept small enough that sums and differences
// of them cannot overflow.
template <typename T>
FL_OP IntervalI<T> within(i64 lo, i64 hi);
template <>
FL_OP IntervalI<i32> within<i32>(i64 lo, i64 hi) {
  return lo < kLowest<i32> || hi > ~kLowest<i32> ? everything_i<i32>() : IntervalI<i32>{lo, hi};
}
template <>
FL_OP IntervalI<i64> within<i64>(i64 lo, i64 hi) {
  return IntervalI<i64>{lo, hi};
}
template <typename T>
FL_OP bool small(const IntervalI<T>& x) {
  constexpr i64 kLimit = sizeof(T) == 4 ? 1ll << 31 : 1ll << 30;  // products of two are exact in 64 bits
  return x.lo >= -kLimit && x.hi <= kLimit;
}

// Integers.
template <typename T>
FL_OP IntervalI<T> iv_add(IntervalI<T> x, IntervalI<T> y) {
  return small(x) && small(y) ? within<T>(x.lo + y.lo, x.hi + y.hi) : everything_i<T>();
}
template <typename T>
FL_OP IntervalI<T> iv_sub(IntervalI<T> x, IntervalI<T> y) {
  return small(x) && small(y) ? within<T>(x.lo - y.hi, x.hi - y.lo) : everything_i<T>();
}
template <typename T>
FL_OP IntervalI<T> iv_mul(IntervalI<T> x, IntervalI<T> y) {
  if (!small(x) || !small(y)) {
    return everything_i<T>();
  }
  const i64 a = x.lo * y.lo, b = x.lo * y.hi, c = x.hi * y.lo, d = x.hi * y.hi;
  return within<T>(min(min(a, b), min(c, d)), max(max(a, b), max(c, d)));
}
template <typename T>
FL_OP IntervalI<T> iv_neg(IntervalI<T> x) {
  return small(x) ? within<T>(-x.hi, -x.lo) : everything_i<T>();
}
template <typename T>
FL_OP IntervalI<T> iv_abs(IntervalI<T> x) {
  if (!small(x)) {
    return everything_i<T>();
  }
  return x.lo >= 0 ? x : (x.hi <= 0 ? within<T>(-x.hi, -x.lo) : within<T>(0, max(-x.lo, x.hi)));
}
template <typename T>
FL_OP IntervalI<T> iv_sign(IntervalI<T> x) {
  return {x.lo > 0 ? 1 : (x.lo < 0 ? -1 : 0), x.hi > 0 ? 1 : (x.hi < 0 ? -1 : 0)};
}
template <typename T>
FL_OP IntervalI<T> iv_min(IntervalI<T> x, IntervalI<T> y) {
  return {min(x.lo, y.lo), min(x.hi, y.hi)};
}
template <typename T>
FL_OP IntervalI<T> iv_max(IntervalI<T> x, IntervalI<T> y) {
  return {max(x.lo, y.lo), max(x.hi, y.hi)};
}
// Divisions are monotone in x for a positive divisor; other divisors are rare, and give no bounds.
template <typename T>
FL_OP IntervalI<T> iv_div(IntervalI<T> x, IntervalI<T> y) {
  return y.lo == y.hi && y.lo > 0 ? IntervalI<T>{x.lo / y.lo, x.hi / y.lo} : everything_i<T>();
}
template <typename T>
FL_OP IntervalI<T> iv_floor_div(IntervalI<T> x, IntervalI<T> y) {
  return y.lo == y.hi && y.lo > 0 ? IntervalI<T>{op_floor_div(x.lo, y.lo), op_floor_div(x.hi, y.lo)}
                                  : everything_i<T>();
}
template <typename T>
FL_OP IntervalI<T> iv_mod(IntervalI<T> x, IntervalI<T> y) {
  if (y.lo != y.hi || y.lo <= 0) {
    return everything_i<T>();
  }
  return op_floor_div(x.lo, y.lo) == op_floor_div(x.hi, y.lo)
             ? IntervalI<T>{op_mod(x.lo, y.lo), op_mod(x.hi, y.lo)}
             : IntervalI<T>{0, y.lo - 1};
}
template <typename T>
FL_OP IntervalI<T> iv_rem(IntervalI<T> x, IntervalI<T> y) {
  return x.lo >= 0 ? iv_mod(x, y) : everything_i<T>();
}
template <typename T>
FL_OP IntervalI<T> iv_and(IntervalI<T> x, IntervalI<T> y) {
  return x.lo >= 0 && y.lo >= 0 ? IntervalI<T>{0, min(x.hi, y.hi)} : everything_i<T>();
}
template <typename T>
FL_OP IntervalI<T> iv_shl(IntervalI<T> x, IntervalI<T> y) {
  return y.lo == y.hi && y.lo >= 0 && y.lo < 31 ? iv_mul(x, IntervalI<T>{1ll << y.lo, 1ll << y.lo})
                                                : everything_i<T>();
}
template <typename T>
FL_OP IntervalI<T> iv_shr(IntervalI<T> x, IntervalI<T> y) {
  return y.lo == y.hi && y.lo >= 0 && y.lo < kBits<T> ? IntervalI<T>{x.lo >> y.lo, x.hi >> y.lo} : everything_i<T>();
}
template <typename T>
FL_OP IntervalI<T> iv_ushr(IntervalI<T> x, IntervalI<T> y) {
  return x.lo >= 0 ? iv_shr(x, y) : everything_i<T>();
}

// f32 bounds are rounded outwards: any order of evaluation, contracted or not, stays inside. Infinite bounds in a
// product could give 0 * inf; they give no bounds.
FL_OP bool finite(const IntervalF& x) { return op_is_finite(x.lo) && op_is_finite(x.hi); }
FL_OP IntervalF iv_add(IntervalF x, IntervalF y) {
  const bool opposite = (x.lo == -FL_INFINITY && y.hi == FL_INFINITY) || (x.hi == FL_INFINITY && y.lo == -FL_INFINITY);
  return opposite ? everything_f() : IntervalF{__fadd_rd(x.lo, y.lo), __fadd_ru(x.hi, y.hi), x.nan || y.nan};
}
FL_OP IntervalF iv_neg(IntervalF x) { return {-x.hi, -x.lo, x.nan}; }
FL_OP IntervalF iv_sub(IntervalF x, IntervalF y) { return iv_add(x, iv_neg(y)); }
FL_OP IntervalF iv_mul(IntervalF x, IntervalF y) {
  if (!finite(x) || !finite(y)) {
    return everything_f();
  }
  const float lo = fminf(fminf(__fmul_rd(x.lo, y.lo), __fmul_rd(x.lo, y.hi)),
                         fminf(__fmul_rd(x.hi, y.lo), __fmul_rd(x.hi, y.hi)));
  const float hi = fmaxf(fmaxf(__fmul_ru(x.lo, y.lo), __fmul_ru(x.lo, y.hi)),
                         fmaxf(__fmul_ru(x.hi, y.lo), __fmul_ru(x.hi, y.hi)));
  return {lo, hi, x.nan || y.nan};
}
FL_OP IntervalF iv_min(IntervalF x, IntervalF y) { return {fminf(x.lo, y.lo), fminf(x.hi, y.hi), x.nan || y.nan}; }
FL_OP IntervalF iv_max(IntervalF x, IntervalF y) { return {fmaxf(x.lo, y.lo), fmaxf(x.hi, y.hi), x.nan || y.nan}; }
FL_OP IntervalF iv_abs(IntervalF x) {
  return x.lo >= 0 ? x : (x.hi <= 0 ? iv_neg(x) : IntervalF{0.0f, fmaxf(-x.lo, x.hi), x.nan});
}
// These bounds are enough to find masks that are added to a soft cap.
FL_OP IntervalF iv_tanh(IntervalF x) { return {-1.0f, 1.0f, x.nan}; }
FL_OP IntervalF iv_floor(IntervalF x) { return {floorf(x.lo), floorf(x.hi), x.nan}; }
FL_OP IntervalF iv_ceil(IntervalF x) { return {ceilf(x.lo), ceilf(x.hi), x.nan}; }

// Comparisons. With NaN all but ne are false.
FL_OP IntervalB compared(bool may_be_true, bool may_be_false) {
  return {(may_be_true ? kMayBeTrue : 0) | (may_be_false ? kMayBeFalse : 0)};
}
template <typename T>
FL_OP bool maybe_nan(const IntervalI<T>&) {
  return false;
}
FL_OP bool maybe_nan(const IntervalF& x) { return x.nan; }
template <typename I>
FL_OP IntervalB iv_lt(I x, I y) {
  return compared(x.lo < y.hi, x.hi >= y.lo || maybe_nan(x) || maybe_nan(y));
}
template <typename I>
FL_OP IntervalB iv_le(I x, I y) {
  return compared(x.lo <= y.hi, x.hi > y.lo || maybe_nan(x) || maybe_nan(y));
}
template <typename I>
FL_OP IntervalB iv_gt(I x, I y) {
  return iv_lt(y, x);
}
template <typename I>
FL_OP IntervalB iv_ge(I x, I y) {
  return iv_le(y, x);
}
template <typename I>
FL_OP IntervalB iv_eq(I x, I y) {
  const bool same_point = x.lo == x.hi && y.lo == y.hi && x.lo == y.lo;
  return compared(x.lo <= y.hi && y.lo <= x.hi, !same_point || maybe_nan(x) || maybe_nan(y));
}
FL_OP IntervalB iv_not(IntervalB x) {
  return compared(x.possible & kMayBeFalse, x.possible & kMayBeTrue);
}
FL_OP IntervalB iv_xor(IntervalB x, IntervalB y) {
  const bool x0 = x.possible & kMayBeFalse, x1 = x.possible & kMayBeTrue;
  const bool y0 = y.possible & kMayBeFalse, y1 = y.possible & kMayBeTrue;
  return compared((x0 && y1) || (x1 && y0), (x0 && y0) || (x1 && y1));
}
FL_OP IntervalB iv_eq(IntervalB x, IntervalB y) { return iv_not(iv_xor(x, y)); }
template <typename I>
FL_OP IntervalB iv_ne(I x, I y) {
  return iv_not(iv_eq(x, y));
}
FL_OP IntervalB iv_and(IntervalB x, IntervalB y) {
  return compared(x.possible & y.possible & kMayBeTrue, (x.possible | y.possible) & kMayBeFalse);
}
FL_OP IntervalB iv_or(IntervalB x, IntervalB y) { return iv_not(iv_and(iv_not(x), iv_not(y))); }
FL_OP IntervalB iv_is_finite(IntervalF x) {
  return compared(x.lo < FL_INFINITY && x.hi > -FL_INFINITY, x.nan || x.lo == -FL_INFINITY || x.hi == FL_INFINITY);
}

FL_OP IntervalB hull(IntervalB x, IntervalB y) { return {x.possible | y.possible}; }
template <typename T>
FL_OP IntervalI<T> hull(IntervalI<T> x, IntervalI<T> y) {
  return {min(x.lo, y.lo), max(x.hi, y.hi)};
}
FL_OP IntervalF hull(IntervalF x, IntervalF y) { return {fminf(x.lo, y.lo), fmaxf(x.hi, y.hi), x.nan || y.nan}; }
template <typename I>
FL_OP I iv_select(IntervalB condition, I x, I y) {
  return condition.possible == kMayBeTrue ? x : (condition.possible == kMayBeFalse ? y : hull(x, y));
}

// Conversions.
template <typename T>
FL_OP IntervalB iv_to_i1(IntervalI<T> x) {
  return compared(x.lo != 0 || x.hi != 0, x.lo <= 0 && x.hi >= 0);
}
FL_OP IntervalB iv_to_i1(IntervalB x) { return x; }
FL_OP IntervalB iv_to_i1(IntervalF x) { return compared(x.nan || x.lo != 0 || x.hi != 0, x.lo <= 0 && x.hi >= 0); }
template <typename T>
FL_OP IntervalI<i32> iv_to_i32(IntervalI<T> x) {
  return within<i32>(x.lo, x.hi);
}
template <typename T>
FL_OP IntervalI<T> from_bool(IntervalB x) {
  return {x.possible & kMayBeFalse ? 0 : 1, x.possible & kMayBeTrue ? 1 : 0};
}
FL_OP IntervalI<i32> iv_to_i32(IntervalB x) { return from_bool<i32>(x); }
FL_OP IntervalI<i64> iv_to_i64(IntervalB x) { return from_bool<i64>(x); }
template <typename T>
FL_OP IntervalI<i64> iv_to_i64(IntervalI<T> x) {
  return {x.lo, x.hi};
}
FL_OP IntervalI<i32> iv_to_i32(IntervalF x) {
  const i32 lo = op_to_i32(x.lo), hi = op_to_i32(x.hi);
  return {x.nan ? min(lo, 0) : lo, x.nan ? max(hi, 0) : hi};
}
FL_OP IntervalI<i64> iv_to_i64(IntervalF x) {
  const i64 lo = op_to_i64(x.lo), hi = op_to_i64(x.hi);
  return {x.nan ? min(lo, 0ll) : lo, x.nan ? max(hi, 0ll) : hi};
}
template <typename T>
FL_OP IntervalF iv_to_f32(IntervalI<T> x) {
  return {__ll2float_rd(x.lo), __ll2float_ru(x.hi), false};
}
FL_OP IntervalF iv_to_f32(IntervalB x) { return iv_to_f32(from_bool<i32>(x)); }
FL_OP IntervalF iv_to_f32(IntervalF x) { return x; }

// Loads: every value of the element type is possible, unless all elements in reach are the same, or their blocks'
// bounds are known.
template <typename Scalar>
struct ScalarInterval;
template <>
struct ScalarInterval<bool> {
  using type = IntervalB;
  static FL_OP IntervalB everything() { return everything_b(); }
  static FL_OP IntervalB stored(i64 lo, i64 hi) { return compared(hi != 0, lo == 0); }
};
template <>
struct ScalarInterval<i32> {
  using type = IntervalI<i32>;
  static FL_OP IntervalI<i32> everything() { return everything_i<i32>(); }
  static FL_OP IntervalI<i32> stored(i64 lo, i64 hi) { return {lo, hi}; }
};
template <>
struct ScalarInterval<i64> {
  using type = IntervalI<i64>;
  static FL_OP IntervalI<i64> everything() { return everything_i<i64>(); }
  static FL_OP IntervalI<i64> stored(i64 lo, i64 hi) { return {lo, hi}; }
};
template <>
struct ScalarInterval<float> {
  using type = IntervalF;
  static FL_OP IntervalF everything() { return everything_f(); }
  static FL_OP IntervalF stored(i32 lo, i32 hi) {
    const bool nan = hi == kOrderedNan;
    return {from_ordered(lo), nan ? FL_INFINITY : from_ordered(hi), nan};
  }
};

// Indices in one dimension, clamped to it.
struct IndexRange {
  int lo;
  int hi;
};

// From the bounds of blocks (capture_bounds.cuh). `outer` counts the rows of blocks in dense order.
constexpr int kMaxRangeBlocks = 64;

template <typename Scalar, int kRows>
FL_OP typename ScalarInterval<Scalar>::type stored_range(const CaptureArgument& capture, i64 outer, IndexRange rows,
                                                         IndexRange columns, int row_count, int column_count) {
  using Result = ScalarInterval<Scalar>;
  const int first = columns.lo / kCaptureBlock;
  const int last = columns.hi / kCaptureBlock;
  const int first_row = rows.lo / kRows;
  const int last_row = rows.hi / kRows;
  if (capture.bounds == nullptr || static_cast<i64>(last - first + 1) * (last_row - first_row + 1) > kMaxRangeBlocks) {
    return Result::everything();
  }
  const int column_blocks = (column_count + kCaptureBlock - 1) / kCaptureBlock;
  const int row_blocks = (row_count + kRows - 1) / kRows;
  using Pair = typename BlockBounds<Scalar>::Pair;
  using Value = typename BlockBounds<Scalar>::Value;
  Value smallest = ~kLowest<Value>;
  Value largest = kLowest<Value>;
#pragma unroll 1
  for (int row = first_row; row <= last_row; ++row) {
    const Pair* bounds = static_cast<const Pair*>(capture.bounds) + (outer * row_blocks + row) * column_blocks;
    // Loads both ends at once: a tile seldom has more blocks.
    const Pair begin = __ldg(bounds + first);
    const Pair end = __ldg(bounds + last);
    smallest = min(smallest, min(begin.x, end.x));
    largest = max(largest, max(begin.y, end.y));
#pragma unroll 1
    for (int block = first + 1; block < last; ++block) {
      const Pair between = __ldg(bounds + block);
      smallest = min(smallest, between.x);
      largest = max(largest, between.y);
    }
  }
  return Result::stored(smallest, largest);
}

// Up to this many elements are read one by one: for tensors with one element for each of many queries or keys.
constexpr int kFewElements = 8;

// kRows: the number of rows of the second last dimension that share bounds; 1: each row has its own.
template <typename Element, int kRows, typename... Index>
FL_OP typename ScalarInterval<typename Element::Scalar>::type iv_load(const CaptureArgument& capture, Index... index) {
  using Result = ScalarInterval<typename Element::Scalar>;
  constexpr int kRank = sizeof...(index);
  constexpr int kOuter = kRank - (kRows > 1 ? 2 : 1);  // dimensions in which only one index may occur
  IndexRange at[kRank + 1];
  int d = 0;
  ((at[d] = {clamp_index(capture, d, index.lo), clamp_index(capture, d, index.hi)}, ++d), ...);
  bool moves = false;
  bool outer_moves = false;
  i64 outer = 0;
#pragma unroll
  for (d = 0; d < kRank; ++d) {
    moves |= at[d].lo != at[d].hi;
    if (d < kOuter) {
      outer_moves |= at[d].lo != at[d].hi;
      outer = outer * capture.sizes[d] + at[d].lo;
    }
  }
  const auto element = [&] {
    i64 offset = 0;
#pragma unroll
    for (int e = 0; e < kRank; ++e) {
      offset += at[e].lo * capture.strides[e];
    }
    return point(Element::scalar(__ldg(static_cast<const typename Element::Bits*>(capture.data) + offset)));
  };
  if (!moves) {
    return element();
  }
  if (outer_moves) {
    return Result::everything();
  }
  if constexpr (kRows > 1) {
    const IndexRange rows = at[kRank - 2];
    const IndexRange columns = at[kRank - 1];
    if (static_cast<i64>(rows.hi - rows.lo + 1) * (columns.hi - columns.lo + 1) <= kFewElements) {
      auto result = element();
#pragma unroll 1
      for (at[kRank - 2].lo = rows.lo; at[kRank - 2].lo <= rows.hi; ++at[kRank - 2].lo) {
#pragma unroll 1
        for (at[kRank - 1].lo = columns.lo; at[kRank - 1].lo <= columns.hi; ++at[kRank - 1].lo) {
          result = hull(result, element());
        }
      }
      return result;
    }
    return stored_range<typename Element::Scalar, kRows>(capture, outer, rows, columns, capture.sizes[kRank - 2],
                                                         capture.sizes[kRank - 1]);
  } else if constexpr (kRank > 0) {
    return stored_range<typename Element::Scalar, 1>(capture, outer, {0, 0}, at[kRank - 1], 1, capture.sizes[kRank - 1]);
  }
  return Result::everything();
}

// The result never falls as x grows.
template <typename Element, typename Interval>
FL_OP IntervalI<i32> iv_search(const CaptureArgument& capture, const Interval& x) {
  return {op_search<Element>(capture, x.lo), op_search<Element>(capture, x.hi)};
}

}  // namespace flashlift::cuda
