#include <fmt/format.h>

#include <bit>
#include <cmath>

#include "flashlift/program.h"
#include "score/sizes.h"

namespace flashlift {
namespace {

std::string print_float(int64_t payload) {
  const uint32_t bits = static_cast<uint32_t>(payload);
  const float value = std::bit_cast<float>(bits);
  if (std::isnan(value)) {
    return bits == 0x7fc00000u ? "nan" : fmt::format("0x{:08x}:f32", bits);
  }
  if (std::isinf(value)) {
    return value > 0 ? "inf" : "-inf";
  }
  std::string text = fmt::format("{}", value);  // the shortest text that reads as the same float
  if (text.find_first_of(".e") == std::string::npos) {
    text += ".0";
  }
  return text;
}

std::string print_constant(const Node& node) {
  switch (node.type) {
    case Type::kI1:
      return node.payload != 0 ? "true" : "false";
    case Type::kI32:
      return fmt::format("{}", node.payload);
    case Type::kI64:
      return fmt::format("{}:i64", node.payload);
    case Type::kF32:
      return print_float(node.payload);
  }
  return "?";
}

// Inputs and constants have no line of their own: they are written at their uses.
bool is_leaf(Op op) {
  return op == Op::k_constant || info(op).rule == TypeRule::kInputF32 || info(op).rule == TypeRule::kInputI32;
}

std::string print_signature(const Program& program) {
  std::string text = program.kind == ProgramKind::kScoreMod ? "score_mod(" : "mask_mod(";
  const char* separator = "";
  for (const Capture& capture : program.captures) {
    text += fmt::format("{}{}: {}[", separator, capture.name, to_string(capture.dtype));
    const char* comma = "";
    for (const int64_t size : capture.shape) {
      text += comma;
      text += score::size_text(size);
      comma = ",";
    }
    text += "]";
    separator = ", ";
  }
  return text + ") {";
}

// Operations, nodes and captured tensors that do not exist are printed as `?`, since a program that was made by hand is
// printed to find its mistakes.
std::string print_with(const Program& program, const char* before_statement, const char* after_statement,
                       const char* end) {
  std::vector<std::string> names(program.nodes.size(), "?");
  const auto name_of = [&](ValueId id) { return id < names.size() ? names[id] : "?"; };
  std::string text = print_signature(program);
  int next = 0;
  for (ValueId id = 0; id < program.nodes.size(); ++id) {
    const Node& node = program.nodes[id];
    if (static_cast<int>(node.op) >= kOpCount) {
      continue;
    }
    if (is_leaf(node.op)) {
      names[id] = node.op == Op::k_constant ? print_constant(node) : info(node.op).name;
      continue;
    }
    const bool is_load = reads_capture(node.op);
    const auto capture = static_cast<size_t>(node.payload);
    const std::string place =
        is_load ? (capture < program.captures.size() ? program.captures[capture].name : "?") + "[" : "";
    text += fmt::format("{}%{} = {} {}", before_statement, next, info(node.op).name, place);
    const char* separator = "";
    for (const ValueId operand : node.operands) {
      text += separator + name_of(operand);
      separator = ", ";
    }
    names[id] = fmt::format("%{}", next++);
    text += is_load ? "]" : "";
    text += after_statement;
  }
  text += fmt::format("{}return {}{}", before_statement, name_of(program.result), end);
  return text;
}

}  // namespace

std::string print(const Program& program) { return print_with(program, "\n  ", "", "\n}"); }
std::string print_one_line(const Program& program) { return print_with(program, " ", ";", " }"); }

}  // namespace flashlift
