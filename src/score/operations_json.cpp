#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <vector>

#include "score/operation.h"
#include "score/verify.h"

namespace flashlift::score {
namespace {

const char* kind_of(TypeRule rule) {
  switch (rule) {
    case TypeRule::kInputF32:
    case TypeRule::kInputI32:
      return "input";
    case TypeRule::kConstant:
      return "constant";
    case TypeRule::kLoad:
    case TypeRule::kSearch:
      return "read";
    case TypeRule::kNumeric:
      return "arithmetic";
    case TypeRule::kInteger:
      return "integer";
    case TypeRule::kBits:
      return "bits";
    case TypeRule::kFloat:
      return "function";
    case TypeRule::kCompare:
    case TypeRule::kCompareAny:
      return "comparison";
    case TypeRule::kPredicate:
      return "predicate";
    case TypeRule::kSelect:
      return "choice";
    case TypeRule::kConvert:
    case TypeRule::kBitcast:
      return "conversion";
  }
  return "?";
}

constexpr Type kTypes[] = {Type::kI1, Type::kI32, Type::kI64, Type::kF32};

// Every list of operand types that the verifier accepts, each followed by the result's type.
std::vector<std::vector<Type>> accepted_types(Op op) {
  const int arity = info(op).arity;
  std::vector<std::vector<Type>> lists = {{}};
  for (int i = 0; i < arity; ++i) {
    std::vector<std::vector<Type>> longer;
    for (const std::vector<Type>& list : lists) {
      for (const Type type : kTypes) {
        longer.push_back(list);
        longer.back().push_back(type);
      }
    }
    lists = std::move(longer);
  }
  std::vector<std::vector<Type>> accepted;
  for (std::vector<Type>& list : lists) {
    if (const Result<Type> result = result_type(op, list, Type::kF32); result.ok()) {
      list.push_back(*result);
      accepted.push_back(list);
    }
  }
  return accepted;
}

// "T, T -> i1; T: i32, i64, f32". T stands for the types that vary, which are the same ones in all rows of TypeRule.
std::string types_of(Op op) {
  if (op == Op::k_constant) {
    return "-> its own type";
  }
  if (op == Op::k_load) {
    return "T... -> the tensor's; T: i32, i64";
  }
  const std::vector<std::vector<Type>> accepted = accepted_types(op);
  std::vector<const char*> varying;
  std::vector<const char*> operands;
  for (size_t place = 0; place < accepted.front().size(); ++place) {
    const bool varies = accepted.front()[place] != accepted.back()[place];
    operands.push_back(varies ? "T" : to_string(accepted.front()[place]));
    for (size_t i = 0; varies && varying.size() < accepted.size(); ++i) {
      varying.push_back(to_string(accepted[i][place]));
    }
  }
  const char* result = operands.back();
  operands.pop_back();
  return fmt::format("{}{}-> {}{}{}", fmt::join(operands, ", "), operands.empty() ? "" : " ", result,
                     varying.empty() ? "" : "; T: ", fmt::join(varying, ", "));
}

}  // namespace

// The table's texts contain no characters that JSON must escape.
std::string operations_as_json() {
  std::string text = "[";
  for (int i = 0; i < kOpCount; ++i) {
    const auto op = static_cast<Op>(i);
    const Operation& row = operation(op);
    text += fmt::format(
        R"({}{{"name": "{}", "operands": {}, "kind": "{}", "types": "{}", "computes": "{}", "stablehlo": "{}", "aten": "{}"}})",
        i == 0 ? "" : ",\n ", info(op).name, info(op).arity, kind_of(info(op).rule), types_of(op), info(op).doc,
        row.stablehlo, row.aten);
  }
  return text + "]\n";
}

}  // namespace flashlift::score
