#include "stablehlo/algebra/bounds.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "score/scalar.h"

namespace flashlift::stablehlo {
namespace {

using score::Interval;

// With numbers and factors up to these limits, 64-bit arithmetic is far from overflow.
constexpr int64_t kLargest = int64_t{1} << 33;
constexpr int64_t kLargestFactor = int64_t{1} << 20;

bool is_small(int64_t x) { return x >= -kLargest && x <= kLargest; }
bool is_small(const Interval& x) { return is_small(x.lo) && is_small(x.hi); }
bool is_factor(int64_t x) { return x >= -kLargestFactor && x <= kLargestFactor; }

bool is_rounding(const SymArena& arena, SymId id) {
  return arena.is_op(id, Op::k_round_bf16) || arena.is_op(id, Op::k_round_f16);
}

// Returns nothing if the number becomes infinite.
std::optional<float> rounded(Op op, std::optional<float> x) {
  if (!x) {
    return std::nullopt;
  }
  const score::Scalar<float> arg[] = {{.i = 0, .f = *x}};
  const float result = score::apply<float>(op, Type::kF32, Type::kF32, arg).f;
  return std::isfinite(result) ? std::optional(result) : std::nullopt;
}

}  // namespace

const Interval& Bounds::of(SymId id) {
  if (const auto found = known_.find(id); found != known_.end()) {
    return found->second;
  }
  return known_.emplace(id, compute(id)).first->second;
}

Interval Bounds::compute(SymId id) {
  const Sym& sym = arena_[id];
  switch (sym.kind) {
    case SymKind::kConstant:
      return sym.type == Type::kF32 ? Interval::real(arena_.f32_value(id), arena_.f32_value(id))
                                    : Interval::integer(sym.payload, sym.payload);
    case SymKind::kAtom:
      return Interval::integer(0, given_.sizes[static_cast<size_t>(sym.payload)] - 1);
    case SymKind::kScore:
      return Interval::real(-given_.largest_score, given_.largest_score);
    case SymKind::kLoad:
      return given_.leaf(sym.payload).value_or(Interval::everything(sym.type));
    case SymKind::kReduce:
      return Interval::everything(sym.type);
    case SymKind::kOp:
      break;
  }
  if (sym.args.size() == 2) {
    if (const auto decided = compare(sym)) {
      return *decided;
    }
    if (sym.op == Op::k_sub && sym.type == Type::kF32 && sym.args[0] == sym.args[1]) {
      return Interval::real(0, 0, true);
    }
  }
  Interval x[3];
  for (size_t i = 0; i < sym.args.size(); ++i) {
    x[i] = of(sym.args[i]);
  }
  const Interval result = score::apply(sym.op, sym.type, arena_[sym.args.back()].type, x[0], x[1], x[2]);
  if (sym.type == Type::kF32 && std::isnan(result.real_lo + result.real_hi)) {
    return Interval::everything(Type::kF32);
  }
  const bool is_sum = sym.op == Op::k_add || sym.op == Op::k_sub;
  if (is_sum && sym.type != Type::kF32 && !linear(id).terms.contains(id)) {
    return range(linear(id)).value_or(result);
  }
  return result;
}

// Compares integers by the sign of their difference.
std::optional<Interval> Bounds::compare(const Sym& sym) {
  const bool is_comparison = sym.op == Op::k_eq || sym.op == Op::k_ne || sym.op == Op::k_lt || sym.op == Op::k_le ||
                             sym.op == Op::k_gt || sym.op == Op::k_ge;
  const Type type = arena_[sym.args[0]].type;
  if (!is_comparison || type == Type::kF32) {
    return std::nullopt;
  }
  if (type == Type::kI1) {
    const Interval same = Interval::integer(0, 0);
    return sym.args[0] == sym.args[1] ? std::optional(score::apply(sym.op, Type::kI1, Type::kI32, same, same, {}))
                                      : std::nullopt;
  }
  Linear difference = linear(sym.args[0]);
  const Linear& other = linear(sym.args[1]);
  for (const auto& [term, factor] : other.terms) {
    difference.terms[term] -= factor;
  }
  difference.constant -= other.constant;
  const auto within = range(difference);
  return within ? std::optional(score::apply(sym.op, Type::kI1, Type::kI64, *within, Interval::integer(0, 0), {}))
                : std::nullopt;
}

std::optional<Interval> Bounds::range(const Linear& sum) {
  Interval total = Interval::integer(sum.constant, sum.constant);
  for (const auto& [term, factor] : sum.terms) {
    if (factor == 0) {
      continue;
    }
    // The terms are not sums, so that this call does not recurse endlessly.
    const Interval& x = of(term);
    if (!is_small(x) || !is_factor(factor)) {
      return std::nullopt;
    }
    total.lo += factor * (factor > 0 ? x.lo : x.hi);
    total.hi += factor * (factor > 0 ? x.hi : x.lo);
  }
  return total;
}

const Bounds::Linear& Bounds::linear(SymId id) {
  if (const auto found = linear_.find(id); found != linear_.end()) {
    return found->second;
  }
  return linear_.emplace(id, compute_linear(id)).first->second;
}

Bounds::Linear Bounds::compute_linear(SymId id) {
  const Sym& sym = arena_[id];
  Linear itself{.terms = {{id, 1}}, .constant = 0};
  if (arena_.is_constant(id)) {
    return is_small(sym.payload) ? Linear{.terms = {}, .constant = sym.payload} : itself;
  }
  const bool is_sum = arena_.is_op(id, Op::k_add) || arena_.is_op(id, Op::k_sub);
  const bool is_multiple = arena_.is_op(id, Op::k_mul) && arena_.is_constant(sym.args[1]);
  const bool is_negation = arena_.is_op(id, Op::k_neg);
  const bool is_wider = arena_.is_op(id, Op::k_to_i64) && arena_[sym.args[0]].type == Type::kI32;
  if (sym.type == Type::kI1 || !(is_sum || is_multiple || is_negation || is_wider)) {
    return itself;
  }
  Linear result = linear(sym.args[0]);
  if (is_sum) {
    const Linear& other = linear(sym.args[1]);
    const int64_t sign = sym.op == Op::k_add ? 1 : -1;
    for (const auto& [term, factor] : other.terms) {
      result.terms[term] += sign * factor;
    }
    result.constant += sign * other.constant;
  } else if (is_multiple || is_negation) {
    const int64_t by = is_multiple ? arena_[sym.args[1]].payload : -1;
    if (!is_factor(by)) {
      return itself;
    }
    for (auto& [term, factor] : result.terms) {
      factor *= by;
    }
    result.constant *= by;
  }
  // Neither the result nor sums of a few such results may wrap.
  const auto within = range(result);
  const Interval all = Interval::everything(sym.type == Type::kI32 ? Type::kI32 : Type::kI64);
  return within && is_small(*within) && within->lo >= all.lo && within->hi <= all.hi ? result : itself;
}

std::optional<float> Bounds::number(SymId id) {
  const Sym& sym = arena_[id];
  if (arena_.is_constant(id)) {
    return sym.type == Type::kF32 ? std::optional(arena_.f32_value(id)) : std::nullopt;
  }
  if (is_rounding(arena_, id)) {  // monotone
    const Interval& range = of(id);
    return !range.may_be_nan && range.real_lo == range.real_hi && std::isfinite(range.real_lo)
               ? std::optional(static_cast<float>(range.real_lo))
               : rounded(sym.op, number(sym.args[0]));
  }
  const bool adds = arena_.is_op(id, Op::k_add) || arena_.is_op(id, Op::k_sub);
  if (!adds && !arena_.is_op(id, Op::k_min) && !arena_.is_op(id, Op::k_max)) {
    return std::nullopt;
  }
  for (int side = 0; side < (arena_.is_op(id, Op::k_sub) ? 1 : 2); ++side) {
    const auto known = number(sym.args[static_cast<size_t>(side)]);
    const Interval& other = of(sym.args[static_cast<size_t>(1 - side)]);
    if (!known || std::isnan(*known) || other.may_be_nan) {
      continue;
    }
    // Rounding to f32 is monotone: if both ends give the same number, so does everything between them.
    const auto with = [&](double end) -> float {
      const auto x = static_cast<float>(end);
      return arena_.is_op(id, Op::k_add)   ? *known + x
             : arena_.is_op(id, Op::k_sub) ? *known - x
             : arena_.is_op(id, Op::k_min) ? std::fmin(*known, x)
                                           : std::fmax(*known, x);
    };
    const float low = with(other.real_lo);
    const float high = with(other.real_hi);
    if (low == high && std::isfinite(low)) {
      return low;
    }
  }
  return std::nullopt;
}

std::optional<Interval> Bounds::finite(SymId id) {
  if (const auto found = finite_.find(id); found != finite_.end()) {
    return found->second;
  }
  return finite_[id] = compute_finite(id);
}

std::optional<Interval> Bounds::compute_finite(SymId id) {
  if (const Interval& known = of(id);
      !known.may_be_nan && std::isfinite(known.real_lo) && std::isfinite(known.real_hi)) {
    return known;
  }
  if (is_rounding(arena_, id)) {
    const Sym& sym = arena_[id];
    const auto x = finite(sym.args[0]);
    const auto low = x ? rounded(sym.op, static_cast<float>(x->real_lo)) : std::nullopt;
    const auto high = x ? rounded(sym.op, static_cast<float>(x->real_hi)) : std::nullopt;
    return low && high ? std::optional(Interval::real(*low, *high)) : std::nullopt;
  }
  const bool selects = arena_.is_op(id, Op::k_select);
  const bool subtracts = arena_.is_op(id, Op::k_sub);
  if (!selects && !subtracts && !arena_.is_op(id, Op::k_add)) {
    return std::nullopt;
  }
  const std::vector<SymId>& args = arena_[id].args;
  const auto x = finite(args[selects ? 1 : 0]);
  const auto y = finite(args[selects ? 2 : 1]);
  if (!x || !y) {
    return std::nullopt;
  }
  if (selects) {
    return score::hull(Type::kF32, *x, *y);
  }
  const double low = x->real_lo + (subtracts ? -y->real_hi : y->real_lo);
  const double high = x->real_hi + (subtracts ? -y->real_lo : y->real_hi);
  constexpr double kLargestFloat = std::numeric_limits<float>::max();
  constexpr double kInfinite = kLargestFloat + 0x1p103;  // this rounds to infinity, any smaller number to kLargestFloat
  if (!(low > -kInfinite && high < kInfinite)) {
    return std::nullopt;
  }
  return Interval::real(std::max(low, -kLargestFloat), std::min(high, kLargestFloat));
}

}  // namespace flashlift::stablehlo
