#include <fmt/format.h>

#include <string>

#include "score/operation.h"

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

}  // namespace

// The table's texts contain no characters that JSON must escape.
std::string operations_as_json() {
  std::string text = "[";
  for (int i = 0; i < kOpCount; ++i) {
    const auto op = static_cast<Op>(i);
    const Operation& row = operation(op);
    text += fmt::format(
        R"({}{{"name": "{}", "operands": {}, "kind": "{}", "computes": "{}", "stablehlo": "{}", "aten": "{}"}})",
        i == 0 ? "" : ",\n ", info(op).name, info(op).arity, kind_of(info(op).rule), info(op).doc, row.stablehlo,
        row.aten);
  }
  return text + "]\n";
}

}  // namespace flashlift::score
