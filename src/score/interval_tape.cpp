#include "score/interval_tape.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "score/interval_integer.h"
#include "score/interval_real.h"
#include "score/operation.h"
#include "support/per_thread.h"

namespace flashlift::score {
namespace {

__extension__ using Wide = __int128;

using Action = IntervalProgram::Action;
using Instruction = IntervalProgram::Instruction;
using Load = IntervalProgram::Load;
using Tape = IntervalProgram::Tape;
using Term = IntervalProgram::Term;

constexpr int kMaxTerms = 8;
// Forms whose values are below this limit can be evaluated, subtracted and compared without overflow.
constexpr Wide kLimit = Wide{1} << 61;

constexpr uint32_t kScore = 4;

// constant + sum of coefficient * slot. Integers and i1 are any such form; an f32 is always a single slot.
struct Form {
  std::array<Term, kMaxTerms> terms{};  // in ascending order of slots
  int count = 0;
  int64_t constant = 0;

  bool is_constant() const { return count == 0; }
  bool is_slot() const { return count == 1 && terms[0].coefficient == 1 && constant == 0; }
  bool operator==(const Form& other) const {
    return count == other.count && constant == other.constant &&
           std::equal(terms.begin(), terms.begin() + count, other.terms.begin(),
                      [](const Term& x, const Term& y) { return x.slot == y.slot && x.coefficient == y.coefficient; });
  }
};

Form constant_form(int64_t value) { return {.terms = {}, .count = 0, .constant = value}; }
Form slot_form(uint32_t slot) { return {.terms = {Term{slot, 1}}, .count = 1, .constant = 0}; }

bool is_integer(Type type) { return type == Type::kI32 || type == Type::kI64; }

// Memory for a compilation besides the tape. Each thread keeps it, so that calls of a compiled attention do not
// allocate.
struct Scratch {
  std::vector<Form> forms;                       // for each live node
  std::vector<std::pair<Form, uint32_t>> slots;  // forms that have a slot
  std::vector<Interval> ranges;                  // for each slot, over the whole domain
  std::vector<bool> depends_on_plane;            // for each slot: on q or kv
  std::vector<bool> live;                        // for nodes, later for slots
  std::vector<uint32_t> renamed;                 // the new slots after dead ones are removed
};

class TapeCompiler {
 public:
  TapeCompiler(const Program& program, std::span<const TensorView> captures, const IntervalProgram::Domain& domain,
               Scratch& scratch, Tape& tape)
      : program_(program),
        captures_(captures),
        domain_(domain),
        forms_(scratch.forms),
        slots_(scratch.slots),
        ranges_(scratch.ranges),
        depends_on_plane_(scratch.depends_on_plane),
        live_(scratch.live),
        renamed_(scratch.renamed),
        tape_(tape) {
    forms_.resize(std::max(forms_.size(), program.nodes.size()));
    slots_.clear();
    ranges_ = {Interval::integer(0, domain.batch - 1), Interval::integer(0, domain.heads - 1),
               Interval::integer(0, domain.q_len - 1), Interval::integer(0, domain.kv_len - 1), domain.score};
    depends_on_plane_ = {false, false, true, true, false};
    tape_.instructions.clear();
    tape_.terms.clear();
    tape_.loads.clear();
    tape_.bounds_used = 0;
  }

  void run() {
    find_live_nodes();
    for (ValueId id = 0; id < program_.nodes.size(); ++id) {
      if (live_[id]) {
        forms_[id] = compile(program_.nodes[id]);
      }
    }
    tape_.result = slot_of(forms_[program_.result]);
    drop_dead();
  }

 private:
  void find_live_nodes() {
    live_.assign(program_.nodes.size(), false);
    live_[program_.result] = true;
    for (ValueId id = program_.result + 1; id-- > 0;) {
      if (live_[id]) {
        for (const ValueId operand : program_.nodes[id].operands) {
          live_[operand] = true;
        }
      }
    }
  }

  const Form& form(const Node& node, int operand) const { return forms_[node.operands[operand]]; }
  Type operand_type(const Node& node) const { return program_.nodes[node.operands.back()].type; }

  // The range of the form over the whole domain; nothing if it is too large for exact arithmetic.
  std::optional<Interval> range(const Form& x) const {
    Wide lo = x.constant;
    Wide hi = x.constant;
    for (int i = 0; i < x.count; ++i) {
      const Interval& slot = ranges_[x.terms[i].slot];
      const Wide at_lo = Wide{x.terms[i].coefficient} * slot.lo;
      const Wide at_hi = Wide{x.terms[i].coefficient} * slot.hi;
      if (at_lo < -kLimit || at_lo > kLimit || at_hi < -kLimit || at_hi > kLimit) {
        return std::nullopt;
      }
      lo += std::min(at_lo, at_hi);
      hi += std::max(at_lo, at_hi);
    }
    if (lo < -kLimit || hi > kLimit) {
      return std::nullopt;
    }
    return Interval::integer(static_cast<int64_t>(lo), static_cast<int64_t>(hi));
  }

  // x * scale_x + y * scale_y
  std::optional<Form> combine(const Form& x, int64_t scale_x, const Form& y, int64_t scale_y) const {
    Form sum;
    const auto scaled = [](int64_t value, int64_t scale) { return Wide{value} * scale; };
    const auto fits = [](Wide value) { return value >= -kLimit && value <= kLimit; };
    const Wide constant = scaled(x.constant, scale_x) + scaled(y.constant, scale_y);
    if (!fits(constant)) {
      return std::nullopt;
    }
    sum.constant = static_cast<int64_t>(constant);
    int i = 0;
    int j = 0;
    while (i < x.count || j < y.count) {
      const bool from_x = j == y.count || (i < x.count && x.terms[i].slot <= y.terms[j].slot);
      const bool from_y = i == x.count || (j < y.count && y.terms[j].slot <= x.terms[i].slot);
      const uint32_t slot = from_x ? x.terms[i].slot : y.terms[j].slot;
      const Wide coefficient = (from_x ? scaled(x.terms[i].coefficient, scale_x) : Wide{0}) +
                               (from_y ? scaled(y.terms[j].coefficient, scale_y) : Wide{0});
      i += from_x ? 1 : 0;
      j += from_y ? 1 : 0;
      if (coefficient == 0) {
        continue;
      }
      if (!fits(coefficient) || sum.count == kMaxTerms) {
        return std::nullopt;
      }
      sum.terms[sum.count++] = {slot, static_cast<int64_t>(coefficient)};
    }
    return range(sum) ? std::optional(sum) : std::nullopt;
  }

  // The form, if its value cannot wrap around.
  std::optional<Form> within(Type type, const std::optional<Form>& x) const {
    if (!x) {
      return std::nullopt;
    }
    const Interval all = Interval::everything(type);
    const auto values = range(*x);
    return values && values->lo >= all.lo && values->hi <= all.hi ? x : std::nullopt;
  }

  // Appends an instruction, unless its value is constant on the domain.
  Form emit(const Instruction& instruction, bool depends_on_plane) {
    const Interval whole = run_instruction(tape_, instruction, ranges_.data());
    if (instruction.type != Type::kF32 && whole.is_point()) {
      return constant_form(whole.lo);
    }
    tape_.instructions.push_back(instruction);
    ranges_.push_back(whole);
    depends_on_plane_.push_back(depends_on_plane);
    return slot_form(static_cast<uint32_t>(ranges_.size() - 1));
  }

  Form emit_constant(Type type, const Interval& value) {
    const Instruction instruction{.action = Action::kConstant, .type = type, .value = value};
    tape_.instructions.push_back(instruction);
    ranges_.push_back(value);
    depends_on_plane_.push_back(false);
    return slot_form(static_cast<uint32_t>(ranges_.size() - 1));
  }

  void append_terms(const Form& x, Instruction& instruction) {
    instruction.first_term = static_cast<uint32_t>(tape_.terms.size());
    instruction.term_count = static_cast<uint32_t>(x.count);
    instruction.constant = x.constant;
    tape_.terms.insert(tape_.terms.end(), x.terms.begin(), x.terms.begin() + x.count);
  }

  bool depends(const Form& x) const {
    return std::any_of(x.terms.begin(), x.terms.begin() + x.count,
                       [&](const Term& term) { return depends_on_plane_[term.slot]; });
  }

  // A slot that holds the form's value.
  uint32_t slot_of(const Form& x) {
    if (x.is_slot()) {
      return x.terms[0].slot;
    }
    for (const auto& [known, slot] : slots_) {
      if (known == x) {
        return slot;
      }
    }
    uint32_t slot = 0;
    if (x.is_constant()) {
      slot = emit_constant(Type::kI64, Interval::integer(x.constant, x.constant)).terms[0].slot;
    } else {
      Instruction instruction{.action = Action::kAffine, .type = Type::kI64};
      append_terms(x, instruction);
      slot = emit(instruction, depends(x)).terms[0].slot;
    }
    if (slots_.size() < kMaxSharedForms) {
      slots_.emplace_back(x, slot);
    }
    return slot;
  }

  Form compile(const Node& node) {
    if (const auto linear = compile_linear(node)) {
      return *linear;
    }
    switch (info(node.op).rule) {
      case TypeRule::kLoad:
        return compile_load(node);
      case TypeRule::kSearch:
        return compile_search(node);
      case TypeRule::kCompare:
      case TypeRule::kCompareAny:
        return compile_compare(node);
      default:
        return compile_apply(node);
    }
  }

  // Operations whose result is a form, without an instruction.
  std::optional<Form> compile_linear(const Node& node) {
    const Type type = node.type;
    const Op op = node.op;
    if (op == Op::k_score) {
      return slot_form(kScore);
    }
    if (is_any(op, {Op::k_b, Op::k_h, Op::k_q, Op::k_kv})) {
      const auto slot = static_cast<uint32_t>(op) - static_cast<uint32_t>(Op::k_b);
      return ranges_[slot].is_point() ? constant_form(ranges_[slot].lo) : slot_form(slot);
    }
    if (is_any(op, {Op::k_q_len, Op::k_kv_len})) {
      return constant_form(op == Op::k_q_len ? domain_.q_len : domain_.kv_len);
    }
    if (op == Op::k_constant) {
      return type == Type::kF32
                 ? emit_constant(type, real_value(std::bit_cast<float>(static_cast<uint32_t>(node.payload))))
                 : constant_form(node.payload);
    }
    if (op == Op::k_select) {
      if (form(node, 0).is_constant()) {
        return form(node, 0).constant != 0 ? form(node, 1) : form(node, 2);
      }
      return form(node, 1) == form(node, 2) ? std::optional(form(node, 1)) : std::nullopt;
    }
    if (is_any(op, {Op::k_and, Op::k_or}) && type == Type::kI1) {
      return connective(node);
    }
    if (is_any(op, {Op::k_to_i1, Op::k_to_i32, Op::k_to_i64}) && operand_type(node) != Type::kF32) {
      return within(type, form(node, 0));
    }
    return is_integer(type) ? compile_linear_integer(node) : std::nullopt;
  }

  std::optional<Form> compile_linear_integer(const Node& node) {
    const Type type = node.type;
    if (is_any(node.op, {Op::k_add, Op::k_sub})) {
      return within(type, combine(form(node, 0), 1, form(node, 1), node.op == Op::k_add ? 1 : -1));
    }
    if (node.op == Op::k_neg) {
      return within(type, combine(form(node, 0), -1, {}, 0));
    }
    if (node.op == Op::k_not) {  // -1 - x
      return within(type, combine(constant_form(-1), 1, form(node, 0), -1));
    }
    if (node.op == Op::k_mul) {
      return product(type, form(node, 0), form(node, 1));
    }
    if (node.op == Op::k_shl) {
      const Form& amount = form(node, 1);
      const bool small = amount.is_constant() && amount.constant >= 0 && amount.constant < 31;
      return small ? product(type, form(node, 0), constant_form(int64_t{1} << amount.constant)) : std::nullopt;
    }
    return is_any(node.op, {Op::k_min, Op::k_max}) ? extremum(node) : std::nullopt;
  }

  std::optional<Form> product(Type type, const Form& x, const Form& y) const {
    if (x.is_constant()) {
      return within(type, combine(y, x.constant, {}, 0));
    }
    return y.is_constant() ? within(type, combine(x, y.constant, {}, 0)) : std::nullopt;
  }

  // The smaller (larger) operand, if it is the same one on the whole domain: the clipping then has no effect.
  std::optional<Form> extremum(const Node& node) const {
    const auto difference = combine(form(node, 0), 1, form(node, 1), -1);
    const auto values = difference ? range(*difference) : std::nullopt;
    if (!values || (values->lo < 0 && values->hi > 0)) {
      return std::nullopt;
    }
    const bool first_is_smaller = values->hi <= 0;
    return form(node, (node.op == Op::k_min) == first_is_smaller ? 0 : 1);
  }

  // If one operand of `and` or `or` is constant, the result is the other operand or that constant.
  std::optional<Form> connective(const Node& node) const {
    for (const int i : {0, 1}) {
      if (const Form& known = form(node, i); known.is_constant()) {
        const bool neutral = (known.constant != 0) == (node.op == Op::k_and);
        return neutral ? form(node, 1 - i) : known;
      }
    }
    return std::nullopt;
  }

  Form compile_compare(const Node& node) {
    if (operand_type(node) != Type::kF32) {
      if (const auto difference = combine(form(node, 0), 1, form(node, 1), -1)) {
        Instruction instruction{.action = Action::kCompareAffine, .op = node.op, .type = Type::kI1};
        append_terms(*difference, instruction);
        return emit(instruction, depends(*difference));
      }
    }
    return compile_apply(node);
  }

  Form compile_apply(const Node& node) {
    Instruction instruction{
        .action = Action::kApply, .op = node.op, .type = node.type, .operand_type = operand_type(node)};
    bool depends_on_plane = false;
    for (size_t i = 0; i < node.operands.size(); ++i) {
      instruction.operands[i] = slot_of(form(node, static_cast<int>(i)));
      depends_on_plane |= depends(form(node, static_cast<int>(i)));
    }
    return emit(instruction, depends_on_plane);
  }

  Form compile_load(const Node& node) {
    if (captures_[node.payload].element_count() == 0) {  // reads as 0
      return node.type == Type::kF32 ? emit_constant(node.type, real_value(0)) : constant_form(0);
    }
    Load load = indexed_part(node);
    const TensorView& tensor = load.tensor;
    int plane_dimensions = 0;
    int dimension = -1;  // the dimension that the plane indexes, otherwise the longest
    for (int i = 0; i < tensor.rank; ++i) {
      if (depends(form(node, i)) && tensor.strides[i] != 0 && tensor.sizes[i] > 1) {
        ++plane_dimensions;
        dimension = i;
      } else if (plane_dimensions == 0 && (dimension < 0 || tensor.sizes[i] > tensor.sizes[dimension])) {
        dimension = i;
      }
    }
    const bool is_small_table = plane_dimensions == 0 && dimension >= 0 && tensor.element_count() <= kMaxTable;
    if (plane_dimensions == 1 || is_small_table) {
      load.bounds = bounds_of(tensor, dimension);
      load.whole = tape_.bounds[load.bounds].whole();
    }
    const Instruction instruction{
        .action = Action::kLoad, .type = node.type, .load = static_cast<uint32_t>(tape_.loads.size())};
    tape_.loads.push_back(load);
    return emit(instruction, plane_dimensions > 0);
  }

  // The part of a captured tensor that the indices reach on the domain. A call may read a few elements of a large
  // buffer, and bounds take time for each element of the view.
  Load indexed_part(const Node& node) {
    Load load{.tensor = captures_[node.payload]};
    load.whole = dtype_range(load.tensor.dtype);
    int64_t offset = 0;
    for (int i = 0; i < load.tensor.rank; ++i) {
      load.indices[i] = slot_of(form(node, i));
      const Interval& index = ranges_[load.indices[i]];
      const int64_t last = load.tensor.sizes[i] - 1;
      const int64_t end = std::clamp<int64_t>(index.hi, 0, last);
      load.first[i] = std::clamp<int64_t>(index.lo, 0, last);
      load.tensor.sizes[i] = end - load.first[i] + 1;
      offset += load.first[i] * load.tensor.strides[i];
    }
    load.tensor.data =
        static_cast<std::byte*>(load.tensor.data) + offset * static_cast<int64_t>(size_in_bytes(load.tensor.dtype));
    return load;
  }

  Form compile_search(const Node& node) {
    Load load{.tensor = captures_[node.payload]};
    load.indices[0] = slot_of(form(node, 0));
    const Instruction instruction{
        .action = Action::kSearch, .type = node.type, .load = static_cast<uint32_t>(tape_.loads.size())};
    tape_.loads.push_back(load);
    return emit(instruction, depends(form(node, 0)));
  }

  int bounds_of(const TensorView& tensor, int dimension) {
    for (size_t i = 0; i < tape_.bounds_used; ++i) {
      if (tape_.bounds[i].is_of(tensor, dimension)) {
        return static_cast<int>(i);
      }
    }
    if (tape_.bounds_used == tape_.bounds.size()) {
      tape_.bounds.emplace_back();
    }
    tape_.bounds[tape_.bounds_used].build(tensor, dimension);
    return static_cast<int>(tape_.bounds_used++);
  }

  // Removes instructions that folding made dead, with their slots, loads and terms. Loads and terms are in the order of
  // their instructions, so that the remaining ones move forward in place.
  void drop_dead() {
    constexpr uint32_t kInputs = IntervalProgram::kInputSlots;
    live_.assign(ranges_.size(), false);
    live_[tape_.result] = true;
    for (size_t i = tape_.instructions.size(); i-- > 0;) {
      if (live_[kInputs + i]) {
        for_each_operand(tape_.instructions[i], [&](uint32_t& slot) { live_[slot] = true; });
      }
    }
    renamed_.assign(ranges_.size(), 0);
    for (uint32_t i = 0; i < kInputs; ++i) {
      renamed_[i] = i;
    }
    uint32_t instructions = 0;
    uint32_t loads = 0;
    uint32_t terms = 0;
    for (size_t i = 0; i < tape_.instructions.size(); ++i) {
      if (!live_[kInputs + i]) {
        continue;
      }
      Instruction instruction = tape_.instructions[i];
      for_each_operand(instruction, [&](uint32_t& slot) { slot = renamed_[slot]; });
      if (instruction.action == Action::kLoad || instruction.action == Action::kSearch) {
        tape_.loads[loads] = tape_.loads[instruction.load];
        instruction.load = loads++;
      }
      const auto first = tape_.terms.begin() + instruction.first_term;
      std::copy(first, first + instruction.term_count, tape_.terms.begin() + terms);
      instruction.first_term = terms;
      terms += instruction.term_count;
      renamed_[kInputs + i] = kInputs + instructions;
      tape_.instructions[instructions++] = instruction;
    }
    tape_.instructions.resize(instructions);
    tape_.loads.resize(loads);
    tape_.terms.resize(terms);
    tape_.result = renamed_[tape_.result];
  }

  template <typename Visit>
  void for_each_operand(Instruction& instruction, Visit visit) {
    if (instruction.action == Action::kApply) {
      for (int i = 0; i < info(instruction.op).arity; ++i) {
        visit(instruction.operands[i]);
      }
    }
    for (uint32_t i = 0; i < instruction.term_count; ++i) {
      visit(tape_.terms[instruction.first_term + i].slot);
    }
    if (instruction.action == Action::kLoad || instruction.action == Action::kSearch) {
      Load& load = tape_.loads[instruction.load];
      for (int i = 0; i < load.tensor.rank; ++i) {
        visit(load.indices[i]);
      }
    }
  }

  // Tensors up to this size that only b and h index are read, to bound their elements over the whole domain.
  static constexpr int64_t kMaxTable = int64_t{1} << 16;
  // Searching more forms would cost more than computing a value twice.
  static constexpr size_t kMaxSharedForms = 64;

  const Program& program_;
  std::span<const TensorView> captures_;
  const IntervalProgram::Domain& domain_;
  std::vector<Form>& forms_;
  std::vector<std::pair<Form, uint32_t>>& slots_;
  std::vector<Interval>& ranges_;
  std::vector<bool>& depends_on_plane_;
  std::vector<bool>& live_;
  std::vector<uint32_t>& renamed_;
  Tape& tape_;
};

}  // namespace

void compile_tape(const Program& program, std::span<const TensorView> captures, const IntervalProgram::Domain& domain,
                  Tape& tape) {
  static constinit thread_local PerThread<Scratch> scratch;
  TapeCompiler(program, captures, domain, scratch.get(), tape).run();
}

}  // namespace flashlift::score
