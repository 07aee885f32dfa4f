#include "stablehlo/loop.h"

#include <algorithm>
#include <limits>

#include "stablehlo/sharding.h"

namespace flashlift::stablehlo {
namespace {

constexpr size_t kMostIterations = 4096;
constexpr int kDeepest = 64;

using Known = llvm::DenseMap<mlir::Value, std::optional<int64_t>>;

mlir::IntegerType integer(mlir::Value value) {
  const auto tensor = static_tensor(value);
  return tensor && tensor.getNumElements() == 1 ? mlir::dyn_cast<mlir::IntegerType>(tensor.getElementType()) : nullptr;
}

// A result that the type cannot hold would wrap around.
std::optional<int64_t> in_range(int64_t number, mlir::IntegerType type) {
  constexpr unsigned kWidest = 62;  // so that no sum of two numbers overflows
  const unsigned bits = type.getWidth();
  const bool has_sign = bits > 1 && !type.isUnsigned();
  const int64_t end = int64_t{1} << std::min(bits - (has_sign ? 1 : 0), kWidest);
  return number < end && number >= (has_sign ? -end : 0) ? std::optional(number) : std::nullopt;
}

bool holds(CompareDirection direction, int64_t x, int64_t y) {
  switch (direction) {
    case CompareDirection::kEq:
      return x == y;
    case CompareDirection::kNe:
      return x != y;
    case CompareDirection::kGe:
      return x >= y;
    case CompareDirection::kGt:
      return x > y;
    case CompareDirection::kLe:
      return x <= y;
    case CompareDirection::kLt:
      return x < y;
  }
  return false;
}

std::optional<int64_t> product(int64_t x, int64_t y) {
  constexpr int64_t kLargest = std::numeric_limits<int32_t>::max();
  return std::abs(x) <= kLargest && std::abs(y) <= kLargest ? std::optional(x * y) : std::nullopt;
}

std::optional<int64_t> result_of(mlir::Operation* op, const Numbers& of) {
  switch (kind(op)) {
    case OpKind::kAdd:
      return of[0] + of[1];
    case OpKind::kSubtract:
      return of[0] - of[1];
    case OpKind::kMultiply:
      return product(of[0], of[1]);
    case OpKind::kNegate:
      return -of[0];
    case OpKind::kMinimum:
      return std::min(of[0], of[1]);
    case OpKind::kMaximum:
      return std::max(of[0], of[1]);
    case OpKind::kClamp:
      return std::min(std::max(of[0], of[1]), of[2]);
    case OpKind::kSelect:
      return of[0] != 0 ? of[1] : of[2];
    case OpKind::kCompare: {
      const auto comparison = compare(op);
      return comparison ? std::optional<int64_t>(holds(comparison->direction, of[0], of[1])) : std::nullopt;
    }
    case OpKind::kConvert:
    case OpKind::kReshape:
    case OpKind::kBroadcastInDim:
      return of[0];
    default:
      return is_annotation(op) ? std::optional(of[0]) : std::nullopt;
  }
}

std::optional<int64_t> evaluate(mlir::Value value, Known& known, int depth = 0) {
  if (const auto found = known.find(value); found != known.end()) {
    return found->second;
  }
  const mlir::IntegerType type = integer(value);
  mlir::Operation* const op = value.getDefiningOp();
  if (!type || op == nullptr || depth > kDeepest) {
    return std::nullopt;
  }
  std::optional<int64_t> result;
  if (const auto elements = constant(value)) {
    result = element_as_integer(elements, 0);
  } else if (op->getNumResults() == 1 && op->getNumRegions() == 0) {
    Numbers operands;
    for (const mlir::Value operand : op->getOperands()) {
      const auto number = evaluate(operand, known, depth + 1);
      if (!number) {
        break;
      }
      operands.push_back(*number);
    }
    result = operands.size() == op->getNumOperands() && !operands.empty() ? result_of(op, operands) : std::nullopt;
  }
  result = result ? in_range(*result, type) : std::nullopt;
  known[value] = result;
  return result;
}

}  // namespace

bool is_regular(mlir::Operation* loop) {
  if (kind(loop) != OpKind::kWhile || loop->getNumRegions() != 2 || loop->getNumResults() != loop->getNumOperands()) {
    return false;
  }
  for (mlir::Region& region : loop->getRegions()) {
    if (!region.hasOneBlock() || region.front().empty() || kind(&region.front().back()) != OpKind::kReturn ||
        region.getNumArguments() != loop->getNumOperands()) {
      return false;
    }
  }
  return block(loop, 0).back().getNumOperands() == 1 &&
         block(loop, 1).back().getNumOperands() == loop->getNumOperands();
}

std::optional<Loop> Loop::read(mlir::Operation* op) {
  if (op == nullptr || !is_regular(op)) {
    return std::nullopt;
  }
  Loop loop(op);
  return loop.count() ? std::optional(std::move(loop)) : std::nullopt;
}

bool Loop::count() {
  llvm::DenseMap<unsigned, int64_t> state;
  Known none;
  for (unsigned carry = 0; carry < op_->getNumOperands(); ++carry) {
    if (const auto start = evaluate(op_->getOperand(carry), none)) {
      state[carry] = *start;
    }
  }
  // Whether a carried value counts is only known when it is computed. Values that do not are left out from then on: if
  // the condition depends on one, the loop is not read.
  mlir::Block& condition = block(op_, 0);
  for (;; ++iterations_) {
    Known before;
    Known inside;
    for (const auto& [carry, number] : state) {
      before[condition.getArgument(carry)] = inside[argument(carry)] = number;
    }
    const auto goes_on = evaluate(condition.back().getOperand(0), before);
    if (!goes_on || iterations_ > kMostIterations) {
      return false;
    }
    if (*goes_on == 0) {
      return true;
    }
    llvm::DenseMap<unsigned, int64_t> next;
    for (const auto& [carry, number] : state) {
      counters_[carry].push_back(number);
      if (const auto after = evaluate(returned(carry), inside)) {
        next[carry] = *after;
      }
    }
    state = std::move(next);
  }
}

std::optional<Numbers> Loop::numbers(mlir::Value integer) const {
  Numbers all;
  for (size_t i = 0; i < iterations_; ++i) {
    Known known;
    for (const auto& [carry, numbers] : counters_) {
      if (numbers.size() == iterations_) {
        known[argument(carry)] = numbers[i];
      }
    }
    const auto number = evaluate(integer, known);
    if (!number) {
      return std::nullopt;
    }
    all.push_back(*number);
  }
  return all;
}

}  // namespace flashlift::stablehlo
