#include "cuda/emit/statements.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "cuda/emit/conditions.h"
#include "cuda/emit/program_emitter.h"
#include "score/operation.h"
#include "support/error.h"

namespace flashlift::cuda {
namespace {

const char* everything(Type type) {
  switch (type) {
    case Type::kI1:
      return "everything_b()";
    case Type::kI32:
      return "everything_i<i32>()";
    case Type::kI64:
      return "everything_i<i64>()";
    case Type::kF32:
      return "everything_f()";
  }
  return "?";
}

std::string constant_text(const Node& node) {
  switch (node.type) {
    case Type::kI1:
      return node.payload != 0 ? "true" : "false";
    case Type::kI32:  // as unsigned, since the lowest value has no literal
      return fmt::format("static_cast<i32>({}u)", static_cast<uint32_t>(node.payload));
    case Type::kI64:
      return fmt::format("static_cast<i64>({}ull)", static_cast<uint64_t>(node.payload));
    case Type::kF32:  // as bits, since NaN and infinity have no literals
      return fmt::format("__int_as_float(0x{:08x}) /* {} */", static_cast<uint32_t>(node.payload),
                         std::bit_cast<float>(static_cast<uint32_t>(node.payload)));
  }
  return "?";
}

// Whether the device can evaluate the operation on intervals.
bool has_interval_form(const Program& program, const Node& node) {
  const Type operand = node.operands.empty() ? node.type : program.nodes[node.operands.back()].type;
  switch (score::operation(node.op).cuda_interval) {
    case score::IntervalForm::kNone:
      return false;
    case score::IntervalForm::kBooleans:
      return operand == Type::kI1;
    case score::IntervalForm::kIntegers:
      return operand != Type::kF32;
    case score::IntervalForm::kAllTypes:
      return true;
  }
  return false;
}

std::optional<float> constant_f32(const Program& program, ValueId id) {
  const Node& node = program.nodes[id];
  if (node.op != Op::k_constant || node.type != Type::kF32) {
    return std::nullopt;
  }
  return std::bit_cast<float>(static_cast<uint32_t>(node.payload));
}

}  // namespace

const char* type_name(Type type) {
  switch (type) {
    case Type::kI1:
      return "bool";
    case Type::kI32:
      return "i32";
    case Type::kI64:
      return "i64";
    case Type::kF32:
      return "float";
  }
  return "?";
}

const char* element_name(DType dtype) {
  switch (dtype) {
    case DType::kBool:
      return "ElementBool";
    case DType::kI8:
      return "ElementI8";
    case DType::kU8:
      return "ElementU8";
    case DType::kI16:
      return "ElementI16";
    case DType::kI32:
      return "ElementI32";
    case DType::kU32:
      return "ElementU32";
    case DType::kI64:
      return "ElementI64";
    case DType::kF16:
      return "ElementF16";
    case DType::kBF16:
      return "ElementBF16";
    case DType::kF32:
      return "ElementF32";
    case DType::kF64:
      return "ElementF64";
  }
  return "?";
}

std::string float_text(float value) {
  return fmt::format("__int_as_float(0x{:08x}) /* {} */", std::bit_cast<uint32_t>(value), value);
}

LastFactor last_factor(const Problem& problem, const Program& program) {
  const Node& node = program.nodes[program.result];
  if (problem.dtype != DType::kF32 && node.op == Op::k_mul && node.type == Type::kF32) {
    for (const int side : {0, 1}) {
      const std::optional<float> factor = constant_f32(program, node.operands[side]);
      if (factor && std::isnormal(*factor) && *factor > 0.0f) {
        return {node.operands[1 - side], *factor};
      }
    }
  }
  return {program.result, 1.0f};
}

Emitter::Emitter(const Problem& problem, const Program& program, Part part)
    : problem_(problem),
      program_(program),
      motion_(program),
      linear_(linear_values(program)),
      part_(part),
      interval_(part == Part::kInterval) {
  find_steps();
}

bool Emitter::is_row_search(size_t i) const {
  return program_.nodes[i].op == Op::k_search && !motion_.kv[i] && !motion_.score[i];
}

bool Emitter::is_column_search(size_t i) const {
  const Node& node = program_.nodes[i];
  return node.op == Op::k_search && motion_.kv_step[node.operands[0]].value_or(0) != 0 && !motion_.q[i] &&
         !motion_.h[i] && !motion_.score[i];
}

bool Emitter::is_of_query(size_t i) const {
  return reads_capture(program_.nodes[i].op) && !motion_.kv[i] && !motion_.score[i];
}

bool Emitter::is_of_key(size_t i) const {
  return reads_capture(program_.nodes[i].op) && motion_.kv[i] && !motion_.q[i] && !motion_.h[i] && !motion_.score[i];
}

bool Emitter::is_straight_load(size_t i) const {
  const Node& node = program_.nodes[i];
  if (node.op != Op::k_load || node.operands.empty()) {
    return false;
  }
  const ValueId last = node.operands.back();
  const bool others = std::any_of(node.operands.begin(), node.operands.end() - 1,
                                  [&](ValueId id) { return motion_.kv[id] || motion_.score[id]; });
  return !others && !motion_.score[last] && program_.nodes[last].type == Type::kI32 &&
         motion_.kv_step[last].value_or(0) != 0;
}

std::string Emitter::body() {
  statements();
  const bool score_mod = program_.kind == ProgramKind::kScoreMod;
  if (interval_) {
    text_ += score_mod ? fmt::format("  return {{surely_masked(v{}), {}}};\n", program_.result, zeros_condition())
                       : fmt::format("  return v{}.possible{};\n", program_.result, holding_loads());
  } else {
    text_ += fmt::format("  return v{};\n", score_mod ? last_factor(problem_, program_).inner : program_.result);
  }
  return std::move(text_);
}

std::string Emitter::derivative_body(ValueId d_score) {
  statements();
  return std::move(text_) + fmt::format("  derivative = v{};\n  return v{};\n", d_score, program_.result);
}

std::string Emitter::weighted(const score::LoadDerivative& load) const {
  const Node& weight = program_.nodes[load.weight];
  if (weight.op == Op::k_constant && std::bit_cast<float>(static_cast<uint32_t>(weight.payload)) == 1.0f) {
    return "ds";
  }
  // A masked element's weight may be infinite. What a select leaves out gets no gradient, even if ds is NaN.
  return load.selects ? fmt::format("ds != 0.0f && v{0} != 0.0f ? ds * v{0} : 0.0f", load.weight)
                      : fmt::format("ds != 0.0f ? ds * v{} : 0.0f", load.weight);
}

std::string Emitter::gradient_place(const Node& load) const {
  return fmt::format("gradients[{}]{}{}", capture_index(load), load.operands.empty() ? "" : ", ", operands(load));
}

std::string element_sums(const CaptureLoad& load) {
  return load.table >= 0 ? fmt::format("tables.table{}", load.table) : "tables.none";
}

std::string Emitter::captured_body(const score::Derivative& derivative, const std::vector<CaptureLoad>& loads) {
  statements();
  std::string diagonal = "0.0f";
  for (size_t i = 0; i < loads.size(); ++i) {
    const std::string value = weighted(derivative.loads[i]);
    const std::string place = gradient_place(program_.nodes[derivative.loads[i].load]);
    switch (loads[i].sum) {
      case CaptureSum::kRow:
        text_ += fmt::format("  sums.load{}[r] += {};\n", i, value);
        break;
      case CaptureSum::kDiagonal:
        diagonal = value;
        break;
      case CaptureSum::kElement:
        text_ += fmt::format("  add_to_element<{}>(sums.element{}[r], {}, {}, {});\n", loads[i].moves, i, value,
                             element_sums(loads[i]), place);
        break;
      case CaptureSum::kKey:
      case CaptureSum::kPlane:
        break;
    }
  }
  return std::move(text_) + fmt::format("  return {};\n", diagonal);
}

std::string Emitter::captured_sums_body(const score::Derivative& derivative, const std::vector<CaptureLoad>& loads,
                                        CaptureSum sum) {
  statements();
  for (size_t i = 0; i < loads.size(); ++i) {
    if (loads[i].sum == sum) {
      text_ += fmt::format("  add_row_to_gradient(sums.load{}[r], inside, {});\n", i,
                           gradient_place(program_.nodes[derivative.loads[i].load]));
    }
  }
  return std::move(text_);
}

std::string Emitter::captured_key_body(const score::Derivative& derivative, const std::vector<CaptureLoad>& loads) {
  statements();
  for (size_t i = 0; i < loads.size(); ++i) {
    if (loads[i].sum == CaptureSum::kKey) {
      text_ += fmt::format("  sums.load{}[r] += {};\n", i, weighted(derivative.loads[i]));
    }
  }
  return std::move(text_);
}

std::string Emitter::flush_body(const score::Derivative& derivative, const std::vector<CaptureLoad>& loads,
                                CaptureSum sum) {
  statements();
  for (size_t i = 0; i < loads.size(); ++i) {
    if (loads[i].sum != sum) {
      continue;
    }
    const std::string place = gradient_place(program_.nodes[derivative.loads[i].load]);
    if (sum == CaptureSum::kDiagonal) {
      text_ += fmt::format("  GlobalSums sums;\n  flush_warp<{}>(element, sums, {});\n", loads[i].moves, place);
    }
    for (int r = 0; r < 2 && sum == CaptureSum::kElement; ++r) {
      text_ += fmt::format("  flush_warp<{}>(sums.element{}[{}], {}, {});\n", loads[i].moves, i, r,
                           element_sums(loads[i]), place);
    }
  }
  return std::move(text_);
}

std::string Emitter::tables_body(const score::Derivative& derivative, const std::vector<CaptureLoad>& loads) {
  statements();
  for (size_t i = 0; i < loads.size(); ++i) {
    if (loads[i].table >= 0) {
      text_ += fmt::format("  {}.add_to_gradient<{}>(thread, threads, {});\n", element_sums(loads[i]), loads[i].moves,
                           gradient_place(program_.nodes[derivative.loads[i].load]));
    }
  }
  return std::move(text_);
}

std::string Emitter::diagonal_body(const score::Derivative& derivative, const std::vector<CaptureLoad>& loads) {
  statements();
  text_ += "  GlobalSums sums;\n";
  for (size_t i = 0; i < loads.size(); ++i) {
    if (loads[i].sum == CaptureSum::kDiagonal) {
      text_ += fmt::format("  add_to_element<{}>(element, sum, sums, {});\n", loads[i].moves,
                           gradient_place(program_.nodes[derivative.loads[i].load]));
    }
  }
  return std::move(text_);
}

std::string Emitter::plane_body(const score::Derivative& derivative, const std::vector<CaptureLoad>& loads) {
  statements();
  for (size_t i = 0; i < loads.size(); ++i) {
    if (loads[i].sum == CaptureSum::kPlane) {
      text_ += fmt::format("  if (load == {}) {{\n    return {};\n  }}\n", i, weighted(derivative.loads[i]));
    }
  }
  return std::move(text_) + "  return 0.0f;\n";
}

std::string Emitter::store_plane_body(const score::Derivative& derivative, const std::vector<CaptureLoad>& loads) {
  statements();
  for (size_t i = 0; i < loads.size(); ++i) {
    if (loads[i].sum == CaptureSum::kPlane) {
      text_ += fmt::format("  if (load == {}) {{\n    store_gradient(value, {});\n  }}\n", i,
                           gradient_place(program_.nodes[derivative.loads[i].load]));
    }
  }
  return std::move(text_);
}

std::vector<size_t> Emitter::given() const {
  switch (part_) {
    case Part::kRow:
      return nodes_that(&Emitter::is_row_search);
    case Part::kColumn:
      return nodes_that(&Emitter::is_column_search);
    case Part::kOfQuery:
      return nodes_that(&Emitter::is_of_query);
    case Part::kOfKey:
      return nodes_that(&Emitter::is_of_key);
    default:
      return {};
  }
}

std::string Emitter::given_body() {
  const std::vector<size_t> nodes = given();
  if (nodes.empty()) {
    return "  return {};\n";
  }
  statements();
  std::string list;
  for (const size_t i : nodes) {
    list += fmt::format("{}v{}", list.empty() ? "" : ", ", i);
  }
  return std::move(text_) + fmt::format("  return {{{}}};\n", list);
}

std::string Emitter::bounds_check() {
  statements();
  std::string condition;
  for (const size_t i : nodes_that(&Emitter::is_straight_load)) {
    const Node& node = program_.nodes[i];
    condition += fmt::format("{}op_inside(params.captures[{}], {}, {}, {} * last_key)", condition.empty() ? "" : " && ",
                             capture_index(node), node.operands.size() - 1, origin(node.operands.back(), false),
                             *motion_.kv_step[node.operands.back()]);
  }
  return std::move(text_) + fmt::format("  return {};\n", condition);
}

std::string Emitter::holding_loads() const {
  std::string condition;
  for (const ValueId id : loading_conditions(program_)) {
    condition += fmt::format("{}v{}.possible == kMayBeTrue", condition.empty() ? "" : " && ", id);
  }
  return condition.empty() ? "" : fmt::format(" | ({} ? kLoadsHold : 0)", condition);
}

std::string Emitter::zeros_condition() const {
  std::string condition;
  for (const size_t i : nodes_that(&Emitter::is_mask)) {
    condition += fmt::format("{}surely_zero(v{})", condition.empty() ? "" : " && ", i);
  }
  return adds_masks_only(program_) ? condition : "false";
}

void Emitter::statements() {
  for (size_t i = 0; i < program_.nodes.size(); ++i) {
    const bool of_query = part_ == Part::kRow || part_ == Part::kOfQuery;
    const bool of_key = part_ == Part::kColumn || part_ == Part::kOfKey;
    if ((of_query && (motion_.score[i] || motion_.kv[i])) ||
        (of_key && (motion_.score[i] || motion_.q[i] || motion_.h[i]))) {
      continue;
    }
    text_ += fmt::format("  const {} v{} = {};\n", interval_ ? "auto" : type_name(program_.nodes[i].type), i, value(i));
    if (steps_[i] != 0) {
      text_ += fmt::format("  const i32 first{} = {};\n", i, value_at_first_key(program_.nodes[i]));
    }
  }
}

void Emitter::find_steps() {
  steps_.assign(program_.nodes.size(), 0);
  if (!is_whole() || problem_.dtype == DType::kF32 || program_.kind != ProgramKind::kScoreMod) {
    return;
  }
  const auto plain = [&](ValueId id) {  // q, or a small constant: the sum cannot wrap around
    const Node& other = program_.nodes[id];
    return other.op == Op::k_q || (other.op == Op::k_constant && std::abs(other.payload) < kSmallOffset);
  };
  const auto is_kv = [&](ValueId id) { return program_.nodes[id].op == Op::k_kv; };
  for (size_t i = 0; i < program_.nodes.size(); ++i) {
    const Node& node = program_.nodes[i];
    if (node.op == Op::k_kv) {
      steps_[i] = 1;
    } else if ((node.op == Op::k_add || node.op == Op::k_sub) && node.type == Type::kI32) {
      if (is_kv(node.operands[0]) && plain(node.operands[1])) {
        steps_[i] = 1;
      } else if (is_kv(node.operands[1]) && plain(node.operands[0])) {
        steps_[i] = node.op == Op::k_sub ? -1 : 1;
      }
    }
  }
}

std::string Emitter::value_at_first_key(const Node& node) const {
  if (node.op == Op::k_kv) {
    return "kv_first";
  }
  const auto operand = [&](ValueId id) { return fmt::format("{}{}", steps_[id] != 0 ? "first" : "v", id); };
  return fmt::format("op_{}({}, {})", info(node.op).name, operand(node.operands[0]), operand(node.operands[1]));
}

std::string Emitter::origin(ValueId id, bool first_row) const {
  const Node& node = program_.nodes[id];
  if (node.op == Op::k_kv) {
    return "kv_first";
  }
  if (node.op == Op::k_q && first_row) {
    return "q_first";
  }
  if (!motion_.kv[id] && !(first_row && motion_.q[id])) {
    return fmt::format("v{}", id);
  }
  return fmt::format("op_{}({}, {})", info(node.op).name, origin(node.operands[0], first_row),
                     origin(node.operands[1], first_row));
}

std::string Emitter::value(size_t i) const {
  const Node& node = program_.nodes[i];
  if (interval_ && !has_interval_form(program_, node)) {
    return everything(node.type);
  }
  if (part_ == Part::kOfValues && (is_of_query(i) || is_of_key(i))) {
    return fmt::format("{}.v{}", is_of_query(i) ? "of_query" : "of_key", i);
  }
  switch (info(node.op).rule) {
    case TypeRule::kInputF32:
      return interval_ ? "anything_finite()" : "score";
    case TypeRule::kInputI32:
      return input(node.op);
    case TypeRule::kConstant:
      return interval_ ? fmt::format("point({})", constant_text(node)) : constant_text(node);
    case TypeRule::kSearch:
      if (is_whole()) {
        if (is_row_search(i)) {
          return fmt::format("row.v{}", i);
        }
        if (is_column_search(i)) {
          return fmt::format("column.v{}", i);
        }
      }
      return load(node);
    case TypeRule::kLoad:
      if (part_ == Part::kZeros && is_mask_load(program_, motion_, node)) {
        return "0.0f";
      }
      return part_ == Part::kInside && is_straight_load(i) ? straight_load(node) : load(node);
    case TypeRule::kNumeric:
    case TypeRule::kInteger:
    case TypeRule::kBits:
    case TypeRule::kFloat:
    case TypeRule::kCompare:
    case TypeRule::kCompareAny:
    case TypeRule::kPredicate:
    case TypeRule::kSelect:
    case TypeRule::kConvert:
    case TypeRule::kBitcast:
      return call(node);
  }
  return "?";
}

std::string Emitter::input(Op op) const {
  const bool length = op == Op::k_q_len || op == Op::k_kv_len;
  std::string name = (length ? "params." : "") + std::string(info(op).name);
  if (!interval_) {
    return name;
  }
  const bool ranged = op == Op::k_h || op == Op::k_q || op == Op::k_kv;
  return ranged ? fmt::format("range({0}_first, {0}_last)", name) : fmt::format("point({})", name);
}

std::string Emitter::operands(const Node& node) const {
  std::string list;
  for (const ValueId operand : node.operands) {
    list += fmt::format("{}v{}", list.empty() ? "" : ", ", operand);
  }
  return list;
}

std::string Emitter::call(const Node& node) const {
  if (!interval_ && problem_.dtype != DType::kF32) {
    if (node.op == Op::k_to_f32 && steps_[node.operands[0]] != 0) {
      return fmt::format("op_to_f32(first{}) + static_cast<float>({} * key)", node.operands[0],
                         steps_[node.operands[0]]);
    }
    for (const auto& product : {product_with_constant(node), product_with_distance(node)}) {
      if (product) {
        return *product;
      }
    }
  }
  if (const auto comparison = comparison_with_key(node)) {
    return *comparison;
  }
  return interval_ ? fmt::format("iv_{}({})", info(node.op).name, operands(node))
                   : fmt::format("{}({})", score::operation(node.op).cuda, operands(node));
}

std::optional<std::string> Emitter::comparison_with_key(const Node& node) const {
  const TypeRule rule = info(node.op).rule;
  if (!is_whole() || (rule != TypeRule::kCompare && rule != TypeRule::kCompareAny)) {
    return std::nullopt;
  }
  const char* name = info(node.op).name;
  const std::optional<Linear>& x = linear_[node.operands[0]];
  const std::optional<Linear>& y = linear_[node.operands[1]];
  const std::optional<Linear> difference = x && y ? x->plus(*y, -1) : std::nullopt;
  if (difference && difference->kv != 0) {
    const std::string rest =
        fmt::format("{}{} - kv_first", difference->q == 0 ? "" : "q + ", -difference->kv * difference->constant);
    return difference->kv > 0 ? fmt::format("op_{}(key, {})", name, rest) : fmt::format("op_{}({}, key)", name, rest);
  }
  for (const int side : {0, 1}) {
    const ValueId other = node.operands[1 - side];
    if (program_.nodes[node.operands[side]].op == Op::k_kv && !motion_.kv[other] && !motion_.score[other]) {
      const std::string rest = fmt::format("max(v{}, -1) - kv_first", other);  // positions are not negative
      return side == 0 ? fmt::format("op_{}(key, {})", name, rest) : fmt::format("op_{}({}, key)", name, rest);
    }
  }
  return std::nullopt;
}

std::optional<std::string> Emitter::product_with_constant(const Node& node) const {
  if ((node.op != Op::k_mul && node.op != Op::k_div) || node.type != Type::kF32) {
    return std::nullopt;
  }
  for (const int side : {1, 0}) {
    std::optional<float> factor = constant_f32(program_, node.operands[side]);
    if (!factor || (side == 0 && node.op == Op::k_div)) {
      continue;
    }
    const ValueId other = node.operands[1 - side];
    factor = node.op == Op::k_div ? 1.0f / *factor : *factor;
    if (!std::isnormal(*factor)) {
      return std::nullopt;
    }
    return program_.nodes[other].op == Op::k_score ? fmt::format("raw * (params.scale * {})", float_text(*factor))
                                                   : fmt::format("v{} * {}", other, float_text(*factor));
  }
  return std::nullopt;
}

std::optional<std::string> Emitter::product_with_distance(const Node& node) const {
  if (node.op != Op::k_mul || node.type != Type::kF32) {
    return std::nullopt;
  }
  for (const int side : {0, 1}) {
    const Node& distance = program_.nodes[node.operands[side]];
    const ValueId slope = node.operands[1 - side];
    if (distance.op == Op::k_to_f32 && steps_[distance.operands[0]] != 0 && !motion_.kv[slope] &&
        !motion_.score[slope]) {
      return fmt::format("fmaf(v{0}, static_cast<float>({1} * key), v{0} * op_to_f32(first{2}))", slope,
                         steps_[distance.operands[0]], distance.operands[0]);
    }
  }
  return std::nullopt;
}

std::ptrdiff_t Emitter::capture_index(const Node& node) const {
  const Capture& capture = program_.captures[static_cast<size_t>(node.payload)];
  return std::find(problem_.captures.begin(), problem_.captures.end(), capture) - problem_.captures.begin();
}

const char* Emitter::element_of(const Node& node) const {
  return element_name(program_.captures[static_cast<size_t>(node.payload)].dtype);
}

std::string Emitter::load(const Node& node) const {
  const std::string indices = operands(node);
  const std::string block = interval_ && node.op == Op::k_load ? fmt::format(", {}", block_rows(node)) : "";
  return fmt::format("{}_{}<{}{}>(params.captures[{}]{}{})", interval_ ? "iv" : "op", info(node.op).name,
                     element_of(node), block, capture_index(node), indices.empty() ? "" : ", ", indices);
}

int Emitter::block_rows(const Node& node) const {
  const auto index = static_cast<size_t>(capture_index(node));
  for (const BoundedCapture& bounded : bounded_captures(problem_)) {
    if (bounded.index == index) {
      return bounded.rows;
    }
  }
  return 1;
}

std::string Emitter::straight_load(const Node& node) const {
  const ValueId last = node.operands.back();
  const bool shares = motion_.q_step[last] && std::none_of(node.operands.begin(), node.operands.end() - 1,
                                                           [&](ValueId id) { return motion_.q[id]; });
  std::string indices;
  for (size_t d = 0; d + 1 < node.operands.size(); ++d) {
    indices += fmt::format(", v{}", node.operands[d]);
  }
  return fmt::format("op_load_inside<{}>(params.captures[{}], {} * key + {} * row_offset{}, {})", element_of(node),
                     capture_index(node), *motion_.kv_step[last], shares ? *motion_.q_step[last] : 0, indices,
                     origin(last, shares));
}

}  // namespace flashlift::cuda
