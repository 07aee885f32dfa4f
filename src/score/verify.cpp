#include "score/verify.h"

#include <algorithm>
#include <unordered_set>

#include "score/lexer.h"
#include "support/counted.h"
#include "support/error.h"
#include "support/printable.h"

namespace flashlift::score {
namespace {

bool is_integer(Type type) { return type == Type::kI32 || type == Type::kI64; }
bool is_numeric(Type type) { return type != Type::kI1; }

std::string join_types(std::span<const Type> types) {
  std::string text;
  for (const Type type : types) {
    text += text.empty() ? "" : ", ";
    text += to_string(type);
  }
  return "(" + text + ")";
}

bool all_same(std::span<const Type> types) {
  return std::all_of(types.begin(), types.end(), [&](Type type) { return type == types.front(); });
}

// The result of to_i1, to_i32 and to_i64; otherwise of to_f32.
Type conversion_target(Op op) {
  return op == Op::k_to_i1 ? Type::kI1 : op == Op::k_to_i32 ? Type::kI32 : op == Op::k_to_i64 ? Type::kI64 : Type::kF32;
}

Status verify_load(const Program& program, ValueId id) {
  const Node& node = program.nodes[id];
  if (node.payload < 0 || node.payload >= static_cast<int64_t>(program.captures.size())) {
    return invalid_argument("node {} loads captured tensor {}, but there are {}", id, node.payload,
                            program.captures.size());
  }
  const Capture& capture = program.captures[node.payload];
  if (capture.shape.size() != node.operands.size()) {
    return invalid_argument("captured tensor `{}` has {}, but node {} reads it with {}", capture.name,
                            counted(capture.shape.size(), "dimension"), id,
                            counted(node.operands.size(), "index", "indices"));
  }
  if (node.op == Op::k_search) {
    const bool integers = !is_float(capture.dtype) && capture.dtype != DType::kBool;
    return integers && capture.shape.size() == 1
               ? Status()
               : invalid_argument("node {} searches `{}`, which is {} of {}; expected integers of one dimension", id,
                                  capture.name, to_string(capture.dtype), counted(capture.shape.size(), "dimension"));
  }
  if (node.type != scalar_type(capture.dtype)) {
    return invalid_argument("node {} loads `{}` ({}) as {}, expected {}", id, capture.name, to_string(capture.dtype),
                            to_string(node.type), to_string(scalar_type(capture.dtype)));
  }
  return {};
}

// Backends would truncate a number that is too large for its type, and the text form cannot express it.
Status verify_constant(const Node& node, ValueId id) {
  const int64_t value = node.payload;
  const bool is_signed = value == static_cast<int32_t>(value);  // an f32's bits may be signed or unsigned
  const bool fits = node.type == Type::kI1    ? value == 0 || value == 1
                    : node.type == Type::kI32 ? is_signed
                    : node.type == Type::kF32 ? is_signed || value == static_cast<uint32_t>(value)
                                              : node.type == Type::kI64;
  return fits ? Status()
              : invalid_argument("node {} is a constant of type {} with payload {}, which does not fit it", id,
                                 to_string(node.type), value);
}

Status verify_node(const Program& program, ValueId id) {
  const Node& node = program.nodes[id];
  if (static_cast<int>(node.op) >= kOpCount) {
    return invalid_argument("node {} has operation {}, but there are only {}", id, static_cast<int>(node.op), kOpCount);
  }
  std::vector<Type> types;
  for (const ValueId operand : node.operands) {
    if (operand >= id) {
      return invalid_argument("node {} ({}) reads node {}, which is not before it", id, info(node.op).name, operand);
    }
    types.push_back(program.nodes[operand].type);
  }
  if (node.op == Op::k_score && program.kind == ProgramKind::kMaskMod) {
    return invalid_argument("a mask_mod cannot read `score`: use a score_mod that returns -inf");
  }
  if (node.op == Op::k_constant) {
    FLASHLIFT_RETURN_IF_ERROR(verify_constant(node, id));
  }
  if (reads_capture(node.op)) {
    FLASHLIFT_RETURN_IF_ERROR(verify_load(program, id));
  }
  FLASHLIFT_ASSIGN_OR_RETURN(const Type type, result_type(node.op, types, node.type));
  if (type != node.type) {
    return invalid_argument("node {} ({}) has type {}, expected {}", id, info(node.op).name, to_string(node.type),
                            to_string(type));
  }
  return {};
}

Status verify_captures(const Program& program) {
  if (program.captures.size() > kMaxCaptures) {
    return invalid_argument("a program reads at most {} captured tensors, this one reads {}", kMaxCaptures,
                            program.captures.size());
  }
  std::unordered_set<std::string_view> names;
  for (const Capture& capture : program.captures) {
    if (!is_name(capture.name)) {
      return invalid_argument(
          "a captured tensor is named `{}`; expected a letter or _, and then letters, digits, _ and .",
          printable_line(capture.name));
    }
    if (!names.insert(capture.name).second) {
      return invalid_argument("two captured tensors are named `{}`", capture.name);
    }
    if (capture.dtype > DType::kF64) {
      return invalid_argument("captured tensor `{}` has dtype {}, which does not exist", capture.name,
                              static_cast<int>(capture.dtype));
    }
    if (capture.shape.size() > static_cast<size_t>(kMaxRank)) {
      return invalid_argument("captured tensor `{}` has {} dimensions, at most {} are supported", capture.name,
                              capture.shape.size(), kMaxRank);
    }
    for (const int64_t size : capture.shape) {
      if (size < or_one(kSameSize) || (size < kSameSize && size > or_one(kBatchSize))) {
        return invalid_argument("captured tensor `{}` has a dimension of size {}", capture.name, size);
      }
    }
  }
  return {};
}

}  // namespace

Result<Type> result_type(Op op, std::span<const Type> operands, Type wanted) {
  const OpInfo& op_info = info(op);
  if (op_info.arity >= 0 && operands.size() != static_cast<size_t>(op_info.arity)) {
    return invalid_argument("`{}` takes {}, got {}", op_info.name, counted(op_info.arity, "operand"), operands.size());
  }
  const auto fail = [&](const char* expected) {
    return invalid_argument("`{}` expects {}, got {}", op_info.name, expected, join_types(operands));
  };
  switch (op_info.rule) {
    case TypeRule::kInputF32:
      return Type::kF32;
    case TypeRule::kInputI32:
      return Type::kI32;
    case TypeRule::kConstant:
      return wanted;
    case TypeRule::kLoad:
      if (!std::all_of(operands.begin(), operands.end(), is_integer)) {
        return fail("i32 or i64 indices");
      }
      return wanted;
    case TypeRule::kSearch:
      return is_integer(operands[0]) ? Result<Type>(Type::kI32) : fail("an i32 or i64");
    case TypeRule::kNumeric:
      if (!all_same(operands) || !is_numeric(operands[0])) {
        return fail("operands of one type, i32, i64 or f32");
      }
      return operands[0];
    case TypeRule::kInteger:
      if (!all_same(operands) || !is_integer(operands[0])) {
        return fail("operands of one type, i32 or i64");
      }
      return operands[0];
    case TypeRule::kBits:
      if (!all_same(operands) || operands[0] == Type::kF32) {
        return fail("operands of one type, i1, i32 or i64");
      }
      return operands[0];
    case TypeRule::kFloat:
      if (!all_same(operands) || operands[0] != Type::kF32) {
        return fail("f32 operands");
      }
      return Type::kF32;
    case TypeRule::kCompare:
      if (!all_same(operands) || !is_numeric(operands[0])) {
        return fail("operands of one type, i32, i64 or f32");
      }
      return Type::kI1;
    case TypeRule::kCompareAny:
      if (!all_same(operands)) {
        return fail("operands of one type");
      }
      return Type::kI1;
    case TypeRule::kPredicate:
      if (operands[0] != Type::kF32) {
        return fail("an f32 operand");
      }
      return Type::kI1;
    case TypeRule::kSelect:
      if (operands[0] != Type::kI1 || operands[1] != operands[2]) {
        return fail("(i1, T, T)");
      }
      return operands[1];
    case TypeRule::kConvert:
      return conversion_target(op);
    case TypeRule::kBitcast:
      if (op == Op::k_bitcast_i32 && operands[0] == Type::kF32) {
        return Type::kI32;
      }
      if (op == Op::k_bitcast_f32 && operands[0] == Type::kI32) {
        return Type::kF32;
      }
      return fail(op == Op::k_bitcast_i32 ? "an f32 operand" : "an i32 operand");
  }
  return internal_error("`{}` has no type rule", op_info.name);
}

Status verify(const Program& program) {
  if (program.nodes.empty() || program.result >= program.nodes.size()) {
    return invalid_argument("a program needs a result; it has {} nodes and names node {}", program.nodes.size(),
                            program.result);
  }
  if (program.nodes.size() > kMaxProgramNodes) {
    return invalid_argument("a program has at most {} nodes, this one has {}", kMaxProgramNodes, program.nodes.size());
  }
  FLASHLIFT_RETURN_IF_ERROR(verify_captures(program));
  for (ValueId id = 0; id < program.nodes.size(); ++id) {
    FLASHLIFT_RETURN_IF_ERROR(verify_node(program, id));
  }
  const Type want = program.kind == ProgramKind::kScoreMod ? Type::kF32 : Type::kI1;
  const Type got = program.nodes[program.result].type;
  if (got != want) {
    return invalid_argument("a {} returns {}, this one returns {}",
                            program.kind == ProgramKind::kScoreMod ? "score_mod" : "mask_mod", to_string(want),
                            to_string(got));
  }
  return {};
}

}  // namespace flashlift::score
