#include "score/compose.h"

#include <algorithm>

#include "score/verify.h"
#include "support/error.h"

namespace flashlift::score {
namespace {

constexpr ValueId kNoScore = ~ValueId{0};

// Appends a program's nodes to `target`, with `score` in place of the `score` input. Returns the id of its result.
Result<ValueId> append(Program& target, const Program& program, ValueId score) {
  std::vector<int64_t> capture_index;
  for (const Capture& capture : program.captures) {
    const auto found = std::find_if(target.captures.begin(), target.captures.end(),
                                    [&](const Capture& other) { return other.name == capture.name; });
    capture_index.push_back(found - target.captures.begin());
    if (found == target.captures.end()) {
      target.captures.push_back(capture);
    } else if (!(*found == capture)) {
      return invalid_argument("two programs declare the captured tensor `{}` differently; rename one", capture.name);
    }
  }
  std::vector<ValueId> renamed;
  for (Node node : program.nodes) {
    if (node.op == Op::k_score && score != kNoScore) {
      renamed.push_back(score);
      continue;
    }
    for (ValueId& operand : node.operands) {
      operand = renamed[operand];
    }
    if (reads_capture(node.op)) {
      node.payload = capture_index[node.payload];
    }
    renamed.push_back(static_cast<ValueId>(target.nodes.size()));
    target.nodes.push_back(std::move(node));
  }
  return renamed[program.result];
}

}  // namespace

Result<Program> compose(const Program& outer, const Program& inner) {
  Program result{.kind = ProgramKind::kScoreMod, .captures = {}, .nodes = {}, .result = 0};
  FLASHLIFT_ASSIGN_OR_RETURN(const ValueId score, append(result, inner, kNoScore));
  FLASHLIFT_ASSIGN_OR_RETURN(result.result, append(result, outer, score));
  FLASHLIFT_RETURN_IF_ERROR(verify(result));
  return result;
}

namespace {

Result<Program> combine(Op op, const Program& left, const Program& right) {
  Program result{.kind = ProgramKind::kMaskMod, .captures = {}, .nodes = {}, .result = 0};
  FLASHLIFT_ASSIGN_OR_RETURN(const ValueId x, append(result, left, kNoScore));
  FLASHLIFT_ASSIGN_OR_RETURN(const ValueId y, append(result, right, kNoScore));
  result.nodes.push_back({.op = op, .type = Type::kI1, .operands = {x, y}});
  result.result = static_cast<ValueId>(result.nodes.size() - 1);
  FLASHLIFT_RETURN_IF_ERROR(verify(result));
  return result;
}

}  // namespace

Result<Program> conjunction(const Program& left, const Program& right) { return combine(Op::k_and, left, right); }
Result<Program> disjunction(const Program& left, const Program& right) { return combine(Op::k_or, left, right); }

}  // namespace flashlift::score
