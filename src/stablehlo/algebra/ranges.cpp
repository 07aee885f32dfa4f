#include "stablehlo/algebra/ranges.h"

#include <algorithm>
#include <cmath>

namespace flashlift::stablehlo {

using score::Interval;

Interval Ranges::of(SymId id) {
  if (const auto found = known_.ranges.find(id); found != known_.ranges.end()) {
    return found->second;
  }
  return known_.ranges.emplace(id, compute(id)).first->second;
}

Interval Ranges::compute(SymId id) {
  const Sym& sym = arena_[id];
  switch (sym.kind) {
    case SymKind::kConstant: {
      if (sym.type != Type::kF32) {
        return Interval::integer(sym.payload, sym.payload);
      }
      const float value = arena_.f32_value(id);
      return std::isnan(value) ? Interval::only_nan() : Interval::real(value, value);
    }
    case SymKind::kAtom:
      return Interval::integer(0, sizes_[static_cast<size_t>(sym.payload)] - 1);
    case SymKind::kLoad:
      return of_leaf_(sym.payload, sym.type);
    case SymKind::kScore:
    case SymKind::kReduce:
      return Interval::everything(sym.type);
    case SymKind::kOp:
      break;
  }
  const auto arg = [&](size_t i) { return i < sym.args.size() ? of(sym.args[i]) : Interval{}; };
  return score::apply(sym.op, sym.type, arena_[sym.args.back()].type, arg(0), arg(1), arg(2));
}

bool Ranges::lies_within(SymId id, int64_t low, int64_t high) {
  const Interval range = of(id);
  return low <= range.lo && range.hi <= high;
}

bool Ranges::is_whole(SymId id, int64_t at_most) {
  const Interval range = of(id);
  const auto limit = static_cast<double>(at_most);
  return !range.may_be_nan && -limit <= range.real_lo && range.real_hi <= limit && gives_whole_numbers(id);
}

// Assumes that the numbers are finite, which the caller proves by their range.
bool Ranges::gives_whole_numbers(SymId id) {
  if (const auto found = known_.whole.find(id); found != known_.whole.end()) {
    return found->second;
  }
  const Sym& sym = arena_[id];
  const auto all = [&](size_t first) {
    return std::all_of(sym.args.begin() + static_cast<std::ptrdiff_t>(first), sym.args.end(),
                       [&](SymId arg) { return gives_whole_numbers(arg); });
  };
  bool whole = false;
  if (sym.kind == SymKind::kConstant) {
    whole = arena_.f32_value(id) == std::trunc(arena_.f32_value(id));
  } else if (sym.kind == SymKind::kOp) {
    switch (sym.op) {
      case Op::k_to_f32:
      case Op::k_floor:
      case Op::k_ceil:
      case Op::k_round_even:
        whole = true;
        break;
      case Op::k_select:
        whole = all(1);
        break;
      case Op::k_add:
      case Op::k_sub:
      case Op::k_mul:
      case Op::k_neg:
      case Op::k_abs:
      case Op::k_sign:
      case Op::k_min:
      case Op::k_max:
      case Op::k_round_bf16:
      case Op::k_round_f16:
        whole = all(0);
        break;
      default:
        break;
    }
  }
  known_.whole.emplace(id, whole);
  return whole;
}

}  // namespace flashlift::stablehlo
