#include "score/intervals.h"

#include <algorithm>

#include "score/interpret.h"
#include "score/interval_integer.h"
#include "score/interval_tape.h"
#include "support/per_thread.h"

namespace flashlift::score {
namespace {

// The search for a uniform box reads at most this many elements, about the size of a tile.
constexpr int64_t kScanLimit = int64_t{1} << 15;
// With at most this many elements or lines, the hull is computed from each of them.
constexpr int64_t kHullLimit = 64;

Interval affine_range(const IntervalProgram::Tape& tape, const IntervalProgram::Instruction& instruction,
                      const Interval* slots) {
  int64_t lo = instruction.constant;
  int64_t hi = instruction.constant;
  const auto* term = tape.terms.data() + instruction.first_term;
  for (uint32_t i = 0; i < instruction.term_count; ++i, ++term) {
    const Interval& x = slots[term->slot];
    const int64_t at_lo = term->coefficient * x.lo;
    const int64_t at_hi = term->coefficient * x.hi;
    lo += term->coefficient > 0 ? at_lo : at_hi;
    hi += term->coefficient > 0 ? at_hi : at_lo;
  }
  return Interval::integer(lo, hi);
}

struct ElementBox {
  std::array<int64_t, kMaxRank> lo{};
  std::array<int64_t, kMaxRank> hi{};
};

// The hull over all index tuples of the box, except for dimension `skipped`, over which `line` computes the hull.
template <typename Line>
Interval hull_of_lines(const TensorView& tensor, const ElementBox& box, int skipped, Line line) {
  const Type type = scalar_type(tensor.dtype);
  std::array<int64_t, kMaxRank> at = box.lo;
  Interval result = line(at);
  while (true) {
    int i = tensor.rank - 1;
    for (; i >= 0; --i) {
      if (i == skipped) {
        continue;
      }
      if (++at[i] <= box.hi[i]) {
        break;
      }
      at[i] = box.lo[i];
    }
    if (i < 0) {
      return result;
    }
    result = hull(type, result, line(at));
  }
}

Interval load_range(const IntervalProgram::Tape& tape, const IntervalProgram::Load& load, const Interval* slots) {
  const TensorView& tensor = load.tensor;
  const auto rank = static_cast<size_t>(tensor.rank);
  const LineBounds* bounds = load.bounds >= 0 ? &tape.bounds[load.bounds] : nullptr;
  ElementBox box;
  int64_t elements = 1;
  int64_t lines = 1;  // not counting the dimension that has bounds
  for (size_t i = 0; i < rank; ++i) {
    const int64_t last = tensor.sizes[i] - 1;
    const Interval& index = slots[load.indices[i]];
    if (tensor.strides[i] != 0) {
      box.lo[i] = std::clamp(index.lo, load.first[i], load.first[i] + last) - load.first[i];
      box.hi[i] = std::clamp(index.hi, load.first[i], load.first[i] + last) - load.first[i];
    }
    const int64_t extent = box.hi[i] - box.lo[i] + 1;
    elements = std::min(elements * extent, kScanLimit + 1);
    lines = bounds != nullptr && bounds->dimension() == static_cast<int>(i) ? lines
                                                                            : std::min(lines * extent, kScanLimit + 1);
  }
  const auto offset_of = [&](const std::array<int64_t, kMaxRank>& at) {
    int64_t offset = 0;
    for (size_t i = 0; i < rank; ++i) {
      offset += at[i] * tensor.strides[i];
    }
    return offset;
  };
  if (bounds != nullptr && lines <= kHullLimit) {
    const int dimension = bounds->dimension();
    return hull_of_lines(tensor, box, dimension, [&](const std::array<int64_t, kMaxRank>& at) {
      return bounds->range({at.data(), rank}, box.lo[dimension], box.hi[dimension]);
    });
  }
  if (elements <= kHullLimit) {
    return hull_of_lines(tensor, box, -1, [&](const std::array<int64_t, kMaxRank>& at) {
      return hull_of_elements(tensor, offset_of(at), 1, 1);
    });
  }
  if (elements <= kScanLimit && is_uniform(tensor, {box.lo.data(), rank}, {box.hi.data(), rank})) {
    return hull_of_elements(tensor, offset_of(box.lo), 1, 1);
  }
  return load.whole;
}

}  // namespace

Truth truth(const Interval& x) { return !x.is_point() ? Truth::kUnknown : (x.lo != 0 ? Truth::kTrue : Truth::kFalse); }

Interval run_instruction(const IntervalProgram::Tape& tape, const IntervalProgram::Instruction& instruction,
                         const Interval* slots) {
  switch (instruction.action) {
    case IntervalProgram::Action::kConstant:
      return instruction.value;
    case IntervalProgram::Action::kAffine:
      return affine_range(tape, instruction, slots);
    case IntervalProgram::Action::kCompareAffine:
      return integer_compare(instruction.op, affine_range(tape, instruction, slots), Interval::integer(0, 0));
    case IntervalProgram::Action::kLoad:
      return load_range(tape, tape.loads[instruction.load], slots);
    case IntervalProgram::Action::kSearch: {
      // The search is monotone: a larger value takes each step that a smaller one takes, or an earlier step.
      const IntervalProgram::Load& load = tape.loads[instruction.load];
      const Interval& x = slots[load.indices[0]];
      return Interval::integer(search_element(load.tensor, x.lo), search_element(load.tensor, x.hi));
    }
    case IntervalProgram::Action::kApply:
      return apply(instruction.op, instruction.type, instruction.operand_type, slots[instruction.operands[0]],
                   slots[instruction.operands[1]], slots[instruction.operands[2]]);
  }
  return Interval::everything(instruction.type);
}

void IntervalProgram::bind(const Program& program, std::span<const TensorView> captures, const Domain& domain) {
  compile_tape(program, captures, domain, tape_);
  score_ = domain.score;
  inputs_used_ = 0;
  const auto use = [&](uint32_t slot) { inputs_used_ |= slot < kInputSlots ? 1u << slot : 0u; };
  use(tape_.result);
  for (const Instruction& instruction : tape_.instructions) {
    if (instruction.action == Action::kApply) {
      for (int i = 0; i < info(instruction.op).arity; ++i) {
        use(instruction.operands[i]);
      }
    }
  }
  for (const Term& term : tape_.terms) {
    use(term.slot);
  }
  for (const Load& load : tape_.loads) {
    for (int i = 0; i < load.tensor.rank; ++i) {
      use(load.indices[i]);
    }
  }
  static constinit thread_local PerThread<std::vector<Interval>> scratch;
  whole_ = evaluate({{0, domain.batch - 1}, {0, domain.heads - 1}, {0, domain.q_len - 1}, {0, domain.kv_len - 1}},
                    scratch.get());
}

Interval IntervalProgram::evaluate(const Box& box, std::vector<Interval>& scratch) const {
  if (scratch.size() < scratch_size()) {
    scratch.resize(scratch_size());
  }
  Interval* slots = scratch.data();
  slots[0] = Interval::integer(box.b.lo, box.b.hi);
  slots[1] = Interval::integer(box.h.lo, box.h.hi);
  slots[2] = Interval::integer(box.q.lo, box.q.hi);
  slots[3] = Interval::integer(box.kv.lo, box.kv.hi);
  slots[4] = score_;
  Interval* next = slots + kInputSlots;
  for (const Instruction& instruction : tape_.instructions) {
    *next++ = run_instruction(tape_, instruction, slots);
  }
  return slots[tape_.result];
}

bool IntervalProgram::searches() const {
  return std::any_of(tape_.instructions.begin(), tape_.instructions.end(),
                     [](const Instruction& instruction) { return instruction.action == Action::kSearch; });
}

bool IntervalProgram::depends_on(Op input) const {
  const uint32_t slot = static_cast<uint32_t>(input) - static_cast<uint32_t>(Op::k_b);
  return ((inputs_used_ >> slot) & 1u) != 0;
}

}  // namespace flashlift::score
